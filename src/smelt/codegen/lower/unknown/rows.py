"""Operators that work over some dimensions, of which some counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown.selecting import Tensor, counts_of, masked, sizes_of, tensor_of, whole_of
from smelt.codegen.lower.unknown.values import Count, Held, Refused, padded_or_value, type_of
from smelt.ir import Arg, Node, Value, map_values
from smelt.ops.sets import NEUTRAL

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]
Rule: TypeAlias = "Callable[[Rewriting, Node, Call], Sequence[Held]]"


def _dims(r: Rewriting, call: Call, rank: int) -> list[int]:
    """The dimensions that an operator works along."""
    given = call.get("dim")
    if given is None or given == ():
        return list(range(rank))
    dims = given if isinstance(given, tuple) else (given,)
    if any(type(d) is not int or not -rank <= d < rank for d in dims):
        raise Refused("a dimension that is not there")
    return sorted({d % rank for d in dims if isinstance(d, int)})


def _again(r: Rewriting, node: Node, first: Arg, replaced: Value) -> tuple[Value, ...]:
    """The node on another tensor in the place of its first operand."""

    def swap(value: Value) -> Arg:
        return replaced if value is first else r.whole(value)

    args = [map_values(arg, swap) for arg in node.args]
    return r.emit.many(node.op, *args, **{name: map_values(arg, swap) for name, arg in node.kwargs.items()})


def _only(r: Rewriting, node: Node) -> Tensor:
    """The first operand. Raises: Refused where another one is padded, too."""
    for value in list(node.operands())[1:]:
        r.plain(value)
    return tensor_of(r, node.args[0])


def reduced(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """One number for each row; where a row is counted, what does not count must not change it."""
    tensor = _only(r, node)
    counts = counts_of(tensor)
    dims = _dims(r, call, len(counts))
    over = [counts[d] for d in dims if counts[d] is not None]
    keeps = call.get("keepdim", False) is True
    left = [None if d in dims else c for d, c in enumerate(counts) if keeps or d not in dims]
    whole = whole_of(tensor)
    if over:
        whole = _neutral(r, node, tensor)
    made = _again(r, node, node.args[0], whole)
    return [padded_or_value(one, left) for one in made]


NEUTRAL_OF: dict[str, float | bool] = {
    **{op: number for op, number in NEUTRAL.items() if isfinite(number)},
    "aten.prod.dim_int": 1, "aten.any.dims": False, "aten.all.dims": True,
    **dict.fromkeys(("aten.count_nonzero.default", "aten.count_nonzero.dim_IntList"), 0),
}  # fmt: skip
EXTREMES = {op: number for op, number in NEUTRAL.items() if not isfinite(number)}


def _neutral(r: Rewriting, node: Node, tensor: Tensor) -> Value:
    """The operand with what changes no result in the places that do not count."""
    kind = type_of(whole_of(tensor)).dtype
    if node.op in NEUTRAL_OF:
        neutral = NEUTRAL_OF[node.op]
        if kind.kind == "bool":
            neutral = bool(neutral)
        return masked(r, tensor, neutral)
    least = EXTREMES.get(node.op)
    counted = [c for c in counts_of(tensor) if c is not None]
    if least is None or kind.kind != "float" or any(r.facts.at_least(c) < 1 for c in counted):
        raise Refused("rows of unknown length")
    if node.op.endswith(".dim"):
        # Where all that counts is infinite, the place of what does not count must not win.
        raise Refused("elements in rows of unknown length")
    return masked(r, tensor, least)


def mean(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """The sum, divided by how many there are."""
    tensor = _only(r, node)
    counts = counts_of(tensor)
    dims = _dims(r, call, len(counts))
    if all(counts[d] is None for d in dims):
        return reduced(r, node, call)
    if call.get("dtype") is not None or type_of(whole_of(tensor)).dtype.kind != "float":
        raise Refused("a mean of another type")
    keeps = call.get("keepdim", False) is True
    number: Count = 1
    for d in dims:
        count = counts[d]
        number = r.emit.number("mul", sizes_of(tensor)[d] if count is None else count, number)
    total = r.emit("aten.sum.dim_IntList", masked(r, tensor, 0), tuple(dims), keeps)
    left = [None if d in dims else c for d, c in enumerate(counts) if keeps or d not in dims]
    return [padded_or_value(r.emit("aten.div.Scalar", total, number), left)]
