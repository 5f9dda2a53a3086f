"""Small things that rules are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.ir import Arg, Device, MemoryFormat, Node, TensorType, TupleType, Value
from smelt.ops.ranks.placements import Dim, Dims, LocalArguments
from smelt.ops.record import Emitter
from smelt.ops.shapes.pointwise import is_dense, pointwise_strides
from smelt.ops.shapes.views import Layout


def tensors(node: Node) -> list[TensorType]:
    """The types of the tensors that a node takes, in order, repeats included. Raises: TypeError without sizes."""
    return [v.type for v in node.operands() if isinstance(v.type, TensorType)]


def results(node: Node) -> list[TensorType]:
    """Those of its results, elements of a tuple one by one."""
    found: list[TensorType] = []
    for result in node.results:
        types = result.type.elements if isinstance(result.type, TupleType) else (result.type,)
        found += [t for t in types if isinstance(t, TensorType)]
    return found


def is_known(node: Node) -> bool:
    """Whether all sizes are numbers, and all results tensors."""
    count = sum(len(r.type.elements) if isinstance(r.type, TupleType) else 1 for r in node.results)
    return len(results(node)) == count and all(t.is_static for t in (*tensors(node), *results(node)))


def rank_of(arg: Arg) -> int:
    """The number of dimensions of a tensor argument."""
    assert isinstance(arg, Value) and isinstance(arg.type, TensorType)
    return len(arg.type.sizes)


def sizes_of(arg: Arg) -> tuple[int, ...]:
    """Its sizes."""
    assert isinstance(arg, Value) and isinstance(arg.type, TensorType)
    return arg.type.sizes


def numbered(count: int, but: Sequence[int] = ()) -> Dims:
    """One label a dimension; None for those in `but`."""
    return tuple(None if i in but else Dim(f"d{i}") for i in range(count))


def dims_arg(arg: Arg, rank: int) -> tuple[int, ...] | None:
    """A dimension, or a list of them, counted from the front; all for None or none. None where it is no number."""
    if arg is None:
        return tuple(range(rank))
    given = arg if isinstance(arg, tuple) else (arg,)
    if not all(type(d) is int for d in given):
        return None
    found = tuple(d % rank if rank else 0 for d in given if isinstance(d, int))
    return found or tuple(range(rank))


def aligned(
    node: Node, call: Mapping[str, Arg], other: str
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] | None:
    """Sizes of `self` and of another operand of as many dimensions, and the dimensions that `dim` names; None where
    they are not known, or not as many.
    """
    if not is_known(node):
        return None
    had, beside = sizes_of(call["self"]), sizes_of(call[other])
    at = dims_arg(call["dim"], len(had))
    return None if at is None or len(had) != len(beside) else (had, beside, at)


def said(name: str) -> LocalArguments:
    """A rule for an argument that names the first result's sizes."""

    def local(operands: Sequence[tuple[int, ...]], made: Sequence[tuple[int, ...]]) -> Mapping[str, Arg]:
        return {name: made[0]}

    return local


def laid_out(b: Emitter, value: Value, type_: TensorType) -> Value:
    """A value without gaps in memory, its dimensions in the order of a type's: random numbers are drawn in that one."""
    order = _order(type_)
    if order == tuple(range(len(order))):
        return _copied(b, value)
    return _back(b, _copied(b, b.call("aten.permute.default", value, order)), order)


def _copied(b: Emitter, value: Value) -> Value:
    return b.call("aten.clone.default", value, memory_format=MemoryFormat("contiguous_format"))


def ones_in_order(b: Emitter, type_: TensorType) -> Value:
    """Ones in such an order."""
    order = _order(type_)
    sizes = tuple(type_.sizes[i] for i in order)
    made = b.call("aten.ones.default", sizes, dtype=type_.dtype, device=Device(type_.device))
    return made if order == tuple(range(len(order))) else _back(b, made, order)


def without_gaps(type_: TensorType) -> TensorType:
    """The type itself, or a row-major one where it has gaps in memory, or elements of one place."""
    if is_dense(Layout(type_.sizes, type_.steps)):
        return type_
    return TensorType(type_.dtype, type_.sizes, None, type_.device)


def _order(type_: TensorType) -> tuple[int, ...]:
    steps = pointwise_strides([Layout(type_.sizes, type_.steps)], type_.sizes)
    return tuple(sorted(range(len(steps)), key=lambda i: -steps[i]))


def _back(b: Emitter, value: Value, order: Sequence[int]) -> Value:
    return b.call("aten.permute.default", value, tuple(order.index(i) for i in range(len(order))))
