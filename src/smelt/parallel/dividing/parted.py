"""A program as one rank of a mesh runs it: partitioned along each axis in turn, gradients written, compiled.

whole program ── partition along "tp" ──▶ part ── along "dp" ──▶ part of a part ──▶ forward and backward, natively
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.autodiff import Joint, state_as_inputs
from smelt.codegen.lower.result import Layouts
from smelt.compiler.training.trainable import Native, Trainable
from smelt.compiler.unit import machine_code
from smelt.diag import Options, SmeltError
from smelt.ir import STATE_OPS, Graph, TensorType, Value, is_under, values_in
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import OWN_NOISE, Communicator, communicating, part_of, shard_of
from smelt.ops.ranks.placements import Placement, Shard, evenly
from smelt.parallel.dividing.marks import Batch, Divide, Fork, Mark, Pipeline, Stored
from smelt.parallel.dividing.partition import partition
from smelt.parallel.dividing.syncs import check_syncs, syncs_of
from smelt.parallel.mesh import Mesh
from smelt.parallel.native import native_of
from smelt.passes.ranks.local import localize
from smelt.passes.ranks.overlap import overlap


@dataclass(slots=True)
class Parted:
    """One rank's part of a program.

    inputs, state: by name or path, how each lies along each axis; only divided ones. outputs: the same, by number.
    placements: of values, by name and axis, where they were made. names_now: how the whole graph's are called in this.
    names: of parameters with several names, the one that the program uses.
    """

    graph: Graph
    mesh: Mesh
    rank: int
    inputs: dict[str, dict[str, Shard]]
    state: dict[str, dict[str, Shard]]
    outputs: list[dict[str, Shard]]

    names: dict[str, str] = field(default_factory=dict)
    placements: dict[str, dict[str, Placement]] = field(default_factory=dict)
    names_now: dict[str, str] = field(default_factory=dict)

    def state_of(self, path: str) -> dict[str, Shard]:
        """How a parameter or buffer lies, by any of its names."""
        return self.state.get(self.names.get(path, path), {})

    @property
    def is_even(self) -> bool:
        """Whether all ranks have as much of everything."""
        # What is stored divided, and used whole, is whole as a value.
        given = (at for lies in (*self.state.values(), *self.inputs.values()) for at in lies.values())
        made = (at for lies in self.placements.values() for at in lies.values())
        return all(not isinstance(at, Shard) or at.is_even for at in (*given, *made))

    def of_output(self, number: int, whole: torch.Tensor) -> torch.Tensor:
        """What the rank has of an output."""
        return self._part(self.outputs[number], whole)

    def local(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """What the rank has of a whole input, parameter or buffer; a view where it can be one."""
        return self._part(self.inputs.get(name) or self.state_of(name), whole)

    def _part(self, lies: Mapping[str, Shard], whole: torch.Tensor) -> torch.Tensor:
        here = self.mesh.coordinates(self.rank)
        for axis, shard in lies.items():
            whole = part_of(whole, shard, here[axis])
        return whole


def parted(graph: Graph, mesh: Mesh, rank: int, marks: Sequence[Mark], ties: Mapping[str, str]) -> Parted:
    """A functional graph as a rank computes it. ties: the first name of each parameter that has several.

    Raises: SmeltError (S0641, S0642) where the marks do not fit the graph or the mesh.
    """
    here = mesh.coordinates(rank)
    found = Parted(graph, mesh, rank, {}, {}, [{} for _ in graph.outputs])
    found.names_now = {value.name: value.name for value in graph.values()}
    by_first = {ties.get(path, path): path for n in graph.walk() if n.op in STATE_OPS for path in (str(n.args[0]),)}
    found.names = {other: by_first[first] for other, first in ties.items() if first in by_first}
    for axis in _in_order(mesh, marks):
        ranks = mesh.extent(axis)
        own = [mark for mark in marks if getattr(mark, "axis", "") == axis]
        given, gathered = _given(found.graph, axis, ranks, own, ties, _uneven(found))
        batch = any(isinstance(mark, Batch) for mark in own)
        wanted = syncs_of(found.graph, own, ranks)
        outputs: list[Placement | None] | None = [None] * len(graph.outputs) if batch else None
        made = partition(
            found.graph, axis, ranks, here[axis], given, outputs=outputs, syncs=wanted.placements, gathered=gathered,
            is_batch=batch, forks=[mark.path for mark in own if isinstance(mark, Fork)],
        )  # fmt: skip
        _check_forks(made.graph, own)
        check_syncs(wanted, made)
        found.graph = made.graph
        known = set(found.names_now.values())
        for name, at in made.placements.items():
            if name not in known:
                found.placements.setdefault(name, {})[axis] = at
        for name, now in found.names_now.items():
            if now in made.placements:
                found.placements.setdefault(name, {})[axis] = made.placements[now]
            found.names_now[name] = made.names.get(now, now)
        for name, at in made.inputs.items():
            if isinstance(at, Shard):
                where = found.inputs if name in {v.name for v in graph.inputs} else found.state
                where.setdefault(name, {})[axis] = at
        for number, at in enumerate(made.outputs):
            if isinstance(at, Shard):
                found.outputs[number][axis] = at
    for name, now in found.names_now.items():
        if now != name and name in found.placements:
            found.placements.setdefault(now, {}).update(found.placements[name])
    _complete(found)
    return found


def _complete(part: Parted) -> None:
    """Say how values lie that were put in: along a collective's axis as it tells, along others as its operand."""
    for node in part.graph.walk():
        source = node.args[0] if node.op.startswith("dist.") else None
        if not isinstance(source, Value):
            continue
        known, axis = part.placements.setdefault(node.result.name, {}), node.args[-1]
        had = part.placements.get(source.name, {})
        if axis not in known and node.op in (dist.SHARD, dist.REDUCE_SCATTER):
            known[str(axis)] = shard_of(node.args)
        for other, at in had.items():
            if other != axis or node.op == dist.ENTER:
                known.setdefault(other, at)


def _check_forks(graph: Graph, marks: Sequence[Mark]) -> None:
    """Raises: SmeltError (S0641) where no rank of an axis draws numbers of its own for a module."""
    drawn = [node for node in graph.walk() if node.op == OWN_NOISE]
    for mark in marks:
        if isinstance(mark, Fork) and not any(
            is_under(node.scope, mark.path) and node.args[-1] == mark.axis for node in drawn
        ):
            raise SmeltError(
                f"ranks draw no numbers of their own in {mark.path or 'the model'} along {mark.axis!r}", mark.where,
                why="no dropout there is of a tensor that is divided: what is whole is the same on all ranks",
                fix="divide what it drops of, or leave the step out", code="S0641",
            )  # fmt: skip


def _in_order(mesh: Mesh, marks: Sequence[Mark]) -> list[str]:
    """The axes to divide along: those of weights first, since what is stored divided is divided once more."""
    space = [mark for mark in marks if not isinstance(mark, Pipeline)]
    used = {axis: min(_rank_of(m) for m in space if getattr(m, "axis", "") == axis) for axis in _used(mesh, space)}
    return sorted(used, key=lambda axis: (used[axis], mesh.names.index(axis)))


def _used(mesh: Mesh, marks: Sequence[Mark]) -> list[str]:
    named = {axis for mark in marks if (axis := getattr(mark, "axis", ""))}
    for axis in sorted(named):
        mesh.extent(axis)
    return [axis for axis in mesh.names if axis in named]


def _rank_of(mark: Mark) -> int:
    return 1 if isinstance(mark, Batch | Stored | Fork) else 0


def _uneven(part: Parted) -> dict[tuple[str, int], str]:
    """The dimensions, by input or path, of which ranks have unequal shares along an axis: that axis."""
    places = (*part.inputs.items(), *part.state.items())
    return {
        (name, shard.dim): axis for name, lies in places for axis, shard in lies.items() if not shard.is_even
    }  # fmt: skip


def _check_again(name: str, at: Shard, mark: Mark, uneven: Mapping[tuple[str, int], str]) -> None:
    """Raises: SmeltError (S0641) where a dimension is divided once more of which ranks have unequal shares."""
    other = uneven.get((name, at.dim))
    if other is not None:
        raise SmeltError(
            f"dimension {at.dim} of {name} cannot be divided along {getattr(mark, 'axis', '')!r}, too",
            getattr(mark, "where", None), why=f"its shares along {other!r} are not equal", code="S0641",
            fix="use sizes that the ranks divide evenly, or another dimension",
        )  # fmt: skip


def _given(
    graph: Graph, axis: str, ranks: int, marks: Sequence[Mark], ties: Mapping[str, str],
    uneven: Mapping[tuple[str, int], str],
) -> tuple[dict[str, Placement], frozenset[str]]:  # fmt: skip
    """How inputs and state lie along an axis, and what of it is used whole. uneven: as of `_uneven`."""
    types = {v.name: v.type for v in graph.inputs}
    nodes = [n for n in graph.walk() if n.op in STATE_OPS]
    state = {str(n.args[0]): n.result.type for n in nodes}
    parameters = {str(n.args[0]) for n in nodes if n.op == "param"}
    first = {ties.get(name, name): name for name in state}
    given: dict[str, Placement] = {}
    said: dict[str, Divide] = {}
    for mark in marks:
        if isinstance(mark, Divide):
            path = first.get(ties.get(mark.name, mark.name))
            if path is None:
                continue  # the program does not use it
            _check_twice(said, path, mark)
            given[path] = at = _shard(mark, state[path], ranks)
            _check_again(path, at, mark, uneven)
            said[path] = mark
    gathered: set[str] = set()
    for mark in marks:
        if isinstance(mark, Stored):
            for path, type_ in state.items():
                if path in given or path not in parameters or not is_under(path, mark.path) or (path, 0) in uneven:
                    continue
                if isinstance(type_, TensorType) and type_.sizes and type_.sizes[0] >= ranks:
                    given[path] = Shard(0, evenly(type_.sizes[0], ranks))
                    gathered.add(path)
        elif isinstance(mark, Batch):
            shares = batches(mark, types, ranks)
            for name, share in shares.items():
                assert isinstance(share, Shard)
                _check_again(name, share, mark, uneven)
            given |= shares
    return given, frozenset(gathered)


def _check_twice(said: Mapping[str, Divide], path: str, mark: Divide) -> None:
    other = said.get(path)
    if other is not None and (other.dim, other.blocks, other.unit) != (mark.dim, mark.blocks, mark.unit):
        raise SmeltError(
            f"{mark.name} is divided twice along {mark.axis!r}", mark.where, code="S0641",
            why=f"it is {other.name}, which is divided along dimension {other.dim} at {other.where}",
            fix="leave one of the steps out",
        )  # fmt: skip


def _shard(mark: Divide, type_: object, ranks: int) -> Shard:
    assert isinstance(type_, TensorType)
    if not -len(type_.sizes) <= mark.dim < len(type_.sizes):
        raise SmeltError(
            f"{mark.name} has no dimension {mark.dim}", mark.where, why=f"its sizes are {list(type_.sizes)}",
            code="S0641",
        )  # fmt: skip
    dim = mark.dim % len(type_.sizes)
    size, block = type_.sizes[dim], mark.blocks * mark.unit
    if size % block:
        raise SmeltError(
            f"{mark.name} cannot be divided along dimension {dim}", mark.where, code="S0641",
            why=f"its {size} elements are not {mark.blocks} blocks of units of {mark.unit}",
            fix="correct blocks or unit",
        )  # fmt: skip
    if size // block < ranks:
        raise SmeltError(
            f"{mark.name} cannot be divided along dimension {dim} among {ranks} ranks", mark.where, code="S0641",
            why=f"it has {size // block} unit{'s' * (size // block != 1)} of {mark.unit} element"
            f"{'s' * (mark.unit != 1)} there" + (f" in each of {mark.blocks} blocks" if mark.blocks > 1 else ""),
            fix=f"build with a mesh that has at most {size // block} ranks along {mark.axis!r}",
        )  # fmt: skip
    return Shard(dim, tuple(n * mark.unit for n in evenly(size // block, ranks)), mark.blocks)


def batches(mark: Batch, types: Mapping[str, object], ranks: int) -> dict[str, Placement]:
    """How the inputs of a batch fall to the ranks of an axis. Raises: SmeltError (S0641)."""
    tensors = {n: t for n, t in types.items() if isinstance(t, TensorType) and t.sizes}
    missing = [name for name in mark.inputs if name not in tensors]
    if missing:
        raise SmeltError(
            f"the program has no tensor input {missing[0]!r}", mark.where, why=f"it has {', '.join(tensors) or 'none'}",
            code="S0641",
        )  # fmt: skip
    names = mark.inputs or tuple(tensors)
    if not names:
        raise SmeltError("there is no input to divide", mark.where, why="no input is a tensor", code="S0641")
    count = tensors[names[0]].sizes[0]
    chosen = [name for name in names if tensors[name].sizes[0] == count]
    if count < ranks:
        raise SmeltError(
            f"a batch of {count} cannot be divided among {ranks} ranks", mark.where, code="S0641",
            why=f"the first dimension of {chosen[0]} has {count} element{'s' * (count != 1)}",
            fix="give example inputs with a larger batch: that of all ranks together",
        )  # fmt: skip
    return {name: Shard(0, evenly(count, ranks)) for name in chosen}


# --- as code


def _finish(joint: Joint) -> None:
    """What sends nothing is ordinary code; sums of backward are sent while it goes on."""
    localize(joint.graph)
    overlap(joint.graph, joint.graph.inputs[joint.given :])


class PartedProgram(Trainable):
    """A part as one node of autograd, whose collectives go over a communicator (None: over the thread's)."""

    def __init__(
        self, graph: Graph, requires: Sequence[bool], options: Options, with_: Communicator | None,
        unseen: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.with_ = with_
        super().__init__(graph, requires, options, machine_code(options), unseen=unseen, finish=type(self).finish)

    finish = staticmethod(_finish)

    def _made(self, graph: Graph, layouts: Layouts) -> Native:
        return native_of(graph, self.options, layouts)

    def _talking(self) -> AbstractContextManager[None]:
        return nullcontext() if self.with_ is None else communicating(self.with_)

    def run_forward(
        self, inputs: Sequence[Any], outputs: list[Any], given: Sequence[Any]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """As of `Trainable`."""
        with self._talking():
            return super().run_forward(inputs, outputs, given)

    def run_backward(self, saved: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """As of `Trainable`."""
        with self._talking():
            return super().run_backward(saved, grads)


class PartedInference:
    """A part without gradients."""

    def __init__(self, graph: Graph, options: Options, with_: Communicator | None) -> None:
        self.with_ = with_
        graph = graph.clone()
        localize(graph)
        self.native = native_of(graph, options)

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """The graph's outputs."""
        with nullcontext() if self.with_ is None else communicating(self.with_):
            return self.native(inputs)


def flat(graph: Graph) -> tuple[Graph, tuple[tuple[str, str], ...], tuple[str, ...]]:
    """A graph with its state as inputs, where that is, and which of them it writes to without autograd's knowledge."""
    made, places = state_as_inputs(graph)
    written = {v.name for node in made.body if node.op == "write" for v in values_in(node.args[0])}
    return made, places, tuple(sorted(written))
