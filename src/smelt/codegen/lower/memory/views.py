"""Views: values that share the memory of another. They cost nothing until something other than a view uses them."""

from __future__ import annotations

import torch

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.memory.geometry import row_major, view_geometry
from smelt.codegen.lower.memory.sharing import view_source
from smelt.ir import STATE_OPS, Graph, Node, Region, TensorType, Value
from smelt.ops.lazy_bits import is_copied
from smelt.runtime.plan import Copy, Dispatch, Use

# Their results' memory may hold the negated elements (torch's negative bit), which only torch's own operators heed.
_NEGATED = ("aten.imag.default", "aten._neg_view.default")
_CONJUGATED = frozenset(f"aten.{name}.default" for name in ("conj", "_conj", "adjoint", "mH", "matrix_H", "_neg_view"))


def lower_view(ctx: Context, node: Node, source: Value) -> None:
    """Bind the results of a view of `source`."""
    place = ctx.place(source)
    found = view_geometry(node, source, place.geometry)
    if found is None and not ctx.is_eager_layout(source):
        place = ctx.to_eager(source)
        found = view_geometry(node, source, place.geometry)
    if found is None:
        _lower_opaque(ctx, node, source)
        return
    ctx.note(node, "view")
    places = [Place(place.storage, geometry) for geometry in found]
    if isinstance(node.result.type, TensorType):
        ctx.bind(node.result, places[0])
    else:
        ctx.lists[node.result] = places


def lower_resolved(ctx: Context, node: Node) -> bool:
    """A `resolve_conj` or `resolve_neg` that copies: the elements as they read, whether its operand's memory holds them
    or, here, a copy of that stands for it."""
    if not is_copied(node, view_source):
        return False
    (source,) = node.operands()
    handle = ctx.builder.handle(ctx.place(source))
    ctx.note(node, "dispatcher", "aten.clone.default")
    ctx.builder.emit(Dispatch(torch.ops.aten.clone.default, (Use(handle),), (ctx.result(node.result),)))
    return True


def lower_unpack(ctx: Context, node: Node) -> None:
    """Bind the elements of a list of tensors."""
    (packed,) = node.operands()
    places = ctx.lists.get(packed)
    if places is None or len(places) != len(node.results):
        raise cannot_lower(node, "the list has another length than was recorded")
    ctx.note(node, "view")
    for value, place in zip(node.results, places, strict=True):
        ctx.bind(value, place)


def _lower_opaque(ctx: Context, node: Node, source: Value) -> None:
    """A view that strides cannot tell (another dtype, a conjugate): the library makes it, over memory that stays."""
    place = ctx.place(source)
    if place.storage.kind == "arena":
        ctx.bind(source, ctx.cloned(place))
    dispatch(ctx, node)
    if node.op in _NEGATED and any(not _is_output(user) for user in node.result.users):
        _copy_elements(ctx, node)


def _is_output(user: Node | Region) -> bool:
    return isinstance(user, Region) and isinstance(user.owner, Graph)


def _copy_elements(ctx: Context, node: Node) -> None:
    """Memory with the elements as they read, for kernels know no bits.

    Raises: SmeltError (S0303) where the memory that torch would read them from is seen outside, too.
    """
    value = node.result
    if ctx.escapes(value):
        if _may_be_negated(node):
            raise cannot_lower(node, "its memory, which is seen outside, may hold the negated elements")
        return
    lazy = ctx.place(value)
    at = lazy.geometry
    is_repeated = at.extent < at.numel
    storage = ctx.builder.empty(row_major(at.sizes) if is_repeated else at, lazy.storage.dtype)
    ctx.builder.emit(Copy(storage.slot, ctx.builder.handle(lazy)))
    read = Place(storage, storage.base)
    ctx.bind(value, ctx.with_strides(read, at.strides) if is_repeated else read)


def _may_be_negated(node: Node) -> bool:
    source = view_source(node)
    while source is not None and node.op not in _CONJUGATED:
        made = source.node
        if made is None or made.op in STATE_OPS:
            return True
        node, source = made, view_source(made)
    return node.op in _CONJUGATED
