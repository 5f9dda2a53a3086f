"""Views: values that share the memory of another. They cost nothing until something other than a view uses them."""

from __future__ import annotations

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.geometry import view_geometry
from smelt.ir import Node, TensorType, Value


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
