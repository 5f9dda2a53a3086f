"""Where a schedule names a collective: which values that is about, and whether it is one there.

A collective that is named is checked: an all-reduce needs a sum, an all-gather a division. Those that nobody names
follow from placements all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.diag import SmeltError, Span
from smelt.ir import STATE_OPS, Graph, Node, Region, TensorType, Value, is_under
from smelt.ops.ranks.placements import WHOLE, Partial, Placement, Replicate, Shard, evenly
from smelt.parallel.dividing.marks import Mark, Sync
from smelt.parallel.dividing.partition import Partition

_NEEDS: Mapping[str, type[Placement]] = {
    "all_reduce": Partial, "reduce_scatter": Partial, "all_gather": Shard, "all_to_all": Shard, "shard": Replicate,
}  # fmt: skip
SYNCS = tuple(_NEEDS)
_WORDS: Mapping[type[Placement], str] = {
    Partial: "a sum over the ranks", Shard: "divided among the ranks", Replicate: "whole on every rank",
}  # fmt: skip


@dataclass(slots=True)
class Syncs:
    """placements: wanted of values, by name. said: by which step."""

    placements: dict[str, Placement] = field(default_factory=dict)
    said: dict[str, Sync] = field(default_factory=dict)


def syncs_of(graph: Graph, marks: Sequence[Mark], ranks: int) -> Syncs:
    """The values that steps bring into placements. Raises: SmeltError (S0641) where there is none."""
    found = Syncs()
    for mark in marks:
        if not isinstance(mark, Sync):
            continue
        values = values_of(graph, mark.path, mark.which)
        if not values:
            raise SmeltError(
                f"{mark.path or 'the whole'} has no {mark.which} to be brought together", mark.where, code="S0641",
                why="no tensor of the program comes from it" if mark.which == "output" else "it receives no tensor",
                fix="select a module that the program calls",
            )  # fmt: skip
        for value in values:
            found.placements[value.name] = _target(mark, value, ranks)
            found.said[value.name] = mark
    return found


def _target(mark: Sync, value: Value, ranks: int) -> Placement:
    if mark.op in ("all_reduce", "all_gather"):
        return WHOLE
    type_ = value.type
    assert isinstance(type_, TensorType)
    dim = mark.dim if mark.dim is not None else 0
    if not -len(type_.sizes) <= dim < len(type_.sizes) or type_.sizes[dim] < ranks:
        raise SmeltError(
            f"%{value.name} cannot be divided along dimension {dim} among {ranks} ranks", mark.where,
            why=f"its sizes are {list(type_.sizes)}", code="S0641",
        )  # fmt: skip
    dim %= len(type_.sizes)
    return Shard(dim, evenly(type_.sizes[dim], ranks))


def values_of(graph: Graph, path: str, which: str) -> list[Value]:
    """The tensors that a module gives to others, or is given by them."""
    inside = dict.fromkeys(node for node in graph.walk() if is_under(node.scope, path) and not node.regions)
    found: dict[Value, None] = {}
    for node in inside:
        if which == "input":
            for value in node.operands():
                maker = value.node
                if isinstance(value.type, TensorType) and maker not in inside and not _is_state(maker):
                    found[value] = None
        else:
            for value in node.results:
                outside = any(isinstance(user, Region) or user not in inside for user in value.users)
                if isinstance(value.type, TensorType) and outside and not _is_state(node):
                    found[value] = None
    return list(found)


def _is_state(node: Node | None) -> bool:
    return node is not None and node.op in STATE_OPS


def check_syncs(wanted: Syncs, made: Partition) -> None:
    """Raises: SmeltError (S0641) where a named collective is none there, with both lines."""
    for name, mark in wanted.said.items():
        had = made.before.get(name)
        if had is None:
            raise SmeltError(
                f"{mark.op} behind {mark.path or 'the whole'} is about no value that ranks have", mark.where,
                why=f"%{name} is part of a larger value", fix="select another module", code="S0641",
            )  # fmt: skip
        if isinstance(had, _NEEDS[mark.op]):
            continue
        where = made.where.get(name)
        raise SmeltError(
            f"there is nothing to {mark.op} behind {mark.path or 'the whole'} along {mark.axis!r}", mark.where,
            why=f"%{name}{_at(where)} is {_WORDS[type(had)]}, and {mark.op} is for what is {_WORDS[_NEEDS[mark.op]]}",
            fix="leave the step out, or divide the weights in front of it", code="S0641",
        )  # fmt: skip


def _at(where: Span | None) -> str:
    return f" at {where}" if where is not None else ""
