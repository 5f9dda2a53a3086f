"""Writing through a view: the base with one view's elements replaced.

%v = select(%b, 0, 1), then %v becomes %n   ==>   %b becomes select_scatter(%b, %n, 0, 1)

Invariant: the result has the base's type, strides included, so that the same views can be taken of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smelt.ir import Arg, Node, TensorType, TupleType, Value
from smelt.ir.dims import is_static
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import tensor_type
from smelt.passes.base import call_of
from smelt.passes.mutation.placed_views import AS_STRIDED, can_place_again, placed

Inverse = Callable[[GraphEmitter, Value, Value, Node], Value]
"""Takes the emitter, the base as it is, the new content of the view, and the view's node; gives the new base."""


def inverse_of(node: Node, base: TensorType, view: TensorType) -> Inverse | None:
    """How to write through a view, or None where that is not known."""
    if node.op == AS_STRIDED:
        return placed if can_place_again(node) else None
    found = _INVERSES.get(node.op)
    if found is not None and not (node.op in _CUTS and base == view and base.is_static):
        return found
    # What gives back the very tensor: contiguous, to, dropout, a slice of all and the like where they do nothing.
    return same if base == view else None


def element_inverse(node: Node, elements: TupleType, index: int, base: TensorType) -> Inverse | None:
    """How to write through one element of a list of views (`split`, `unbind`, ...)."""
    call = call_of(node)
    dim = call.get("dim", 0)
    if not isinstance(dim, int):
        return None
    parts = [t for t in elements.elements if isinstance(t, TensorType)]
    if node.op == "aten.unbind.int":
        return lambda b, whole, new, _: b.call("aten.select_scatter.default", whole, new, dim, index)
    if node.op not in SPLITS or any(p.rank != base.rank for p in parts):
        return None
    lengths = tuple(p.shape[dim] for p in parts[: index + 1] if p.shape is not None)
    if not is_static(lengths):
        return _part(call, dim, index)
    start = sum(lengths[:-1])
    end = start + lengths[index]
    return lambda b, whole, new, _: b.call("aten.slice_scatter.default", whole, new, dim, start, end)


SPLITS = (
    "aten.split.Tensor", "aten.split.sizes", "aten.split_with_sizes.default", "aten.chunk.default",
    "aten.tensor_split.sections", "aten.tensor_split.indices", "aten.unsafe_split.Tensor", "aten.unsafe_chunk.default",
)  # fmt: skip


def _part(call: Mapping[str, Arg], dim: int, index: int) -> Inverse | None:
    """How to write through one part of a split whose sizes only a run knows."""
    sizes = call.get("split_sizes", call.get("split_size"))
    if not isinstance(sizes, tuple) or not all(isinstance(size, (int, Value)) for size in sizes):
        return None

    def inverse(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
        start: Arg = 0
        for size in sizes[:index]:
            start = _sum(b, start, size)
        return b.call("aten.slice_scatter.default", whole, new, dim, start, _sum(b, start, sizes[index]))

    return inverse


def _sum(b: GraphEmitter, first: Arg, second: Arg) -> Arg:
    if isinstance(first, int) and isinstance(second, int):
        return first + second
    return second if first == 0 else b.call("py.add", first, second)


def same(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    """Through what gives the very tensor."""
    return new


def _reshape(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return b.call("aten.reshape.default", new, tensor_type(whole).sizes)


def _transpose(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    call = call_of(node)
    first, second = call.get("dim0", call.get("axis0")), call.get("dim1", call.get("axis1"))
    return b.call("aten.transpose.int", new, first, second)


def _t(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return b.call("aten.t.default", new)


def _matrix(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    if tensor_type(new).rank == 0:
        return new
    return b.call("aten.transpose.int", new, -2, -1)


def _reverse(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    rank = len(tensor_type(new).sizes)
    return b.call("aten.permute.default", new, tuple(range(rank - 1, -1, -1)))


def _permute(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    dims = call_of(node)["dims"]
    order = [d % len(dims) for d in dims if isinstance(d, int)] if isinstance(dims, tuple) else []
    return b.call("aten.permute.default", new, tuple(order.index(i) for i in range(len(order))))


def _movedim(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    call = call_of(node)
    return b.call("aten.movedim.int", new, call["destination"], call["source"])


def _conjugate(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    """Memory holds the conjugates of what such a view shows; of real numbers the numbers."""
    return b.call("aten.conj_physical.default", new) if tensor_type(whole).dtype.kind == "complex" else new


def _adjoint(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return _conjugate(b, whole, _matrix(b, whole, new, node), node)


def _negative(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    return b.call("aten.neg.default", new)


def _scatter(op: str, *names: str) -> Inverse:
    def inverse(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
        call = call_of(node)
        return b.call(op, whole, new, *(call[n] for n in names))

    return inverse


def _narrow(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    call = call_of(node)
    start, length, dim = call["start"], call["length"], call["dim"]
    if not (isinstance(start, int) and isinstance(length, int) and isinstance(dim, int)):
        raise TypeError("torch.narrow by a value is not static")
    first = start + tensor_type(whole).sizes[dim] if start < 0 else start
    return b.call("aten.slice_scatter.default", whole, new, dim, first, first + length)


_CUTS = ("aten.slice.Tensor", "aten.narrow.default")

_INVERSES: dict[str, Inverse] = {
    **dict.fromkeys(("aten.alias.default", "aten.detach.default", "aten.lift_fresh.default"), same),
    **dict.fromkeys(
        (
            "aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.flatten.using_ints",
            "aten.unflatten.int", "aten.view_as.default", "aten.reshape_as.default", "aten.ravel.default",
            "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims", "aten.unsqueeze.default",
        ),
        _reshape,
    ),
    **dict.fromkeys(("aten.transpose.int", "aten.swapaxes.default", "aten.swapdims.default"), _transpose),
    "aten.t.default": _t,
    "aten.mT.default": _matrix,
    **dict.fromkeys(("aten.mH.default", "aten.adjoint.default", "aten.matrix_H.default"), _adjoint),
    **dict.fromkeys(("aten.conj.default", "aten._conj.default"), _conjugate),
    "aten._neg_view.default": _negative,
    "aten.numpy_T.default": _reverse,
    "aten.permute.default": _permute,
    "aten.movedim.int": _movedim,
    "aten.select.int": _scatter("aten.select_scatter.default", "dim", "index"),
    "aten.slice.Tensor": _scatter("aten.slice_scatter.default", "dim", "start", "end", "step"),
    "aten.narrow.default": _narrow,
    "aten.diagonal.default": _scatter("aten.diagonal_scatter.default", "offset", "dim1", "dim2"),
}  # fmt: skip


def fitted(b: GraphEmitter, new: Value, like: Value) -> Value:
    """`new` with the dtype, sizes and strides that `like` has, copied into its layout where they differ."""
    return new if new.type == like.type else b.call("aten.copy.default", like, new)
