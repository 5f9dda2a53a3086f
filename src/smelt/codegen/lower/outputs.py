"""The graph's outputs: new tensors, very inputs, views of inputs or state; never a tensor that the plan keeps."""

from __future__ import annotations

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.geometry import Geometry
from smelt.codegen.lower.result import Fresh, OutputRecipe, Plain, Same, ViewOf
from smelt.codegen.lower.sharing import returns_itself, view_source
from smelt.diag import SmeltError
from smelt.ir import TensorType, Value
from smelt.ops.convert import to_torch
from smelt.runtime.plan import Copy


def lower_outputs(ctx: Context) -> tuple[tuple[int, ...], tuple[OutputRecipe, ...]]:
    """The plan's output slots, and one recipe per output of the graph."""
    ctx.builder.origin = "return"
    slots: list[int] = []
    recipes: list[OutputRecipe] = []
    roots: dict[Value, Place] = {}
    for arg in ctx.graph.outputs:
        if not isinstance(arg, Value):
            recipes.append(Plain(to_torch(arg)))
            continue
        if not isinstance(arg.type, TensorType):
            raise SmeltError(f"output %{arg.name} is {arg.type}, not a tensor", code="S0303")
        seen = _recipe(ctx, arg)
        if seen is not None:
            recipes.append(seen)
            continue
        recipes.append(Fresh(len(slots)))
        slots.append(_fresh_slot(ctx, arg, roots))
    return tuple(slots), tuple(recipes)


def _recipe(ctx: Context, value: Value) -> OutputRecipe | None:
    """How the caller makes the output from a tensor it has itself; None if the plan makes it."""
    place = ctx.origin(value)
    if place is None:
        return None
    source = place.storage.source
    assert source is not None
    current = value
    while current.node is not None and returns_itself(current.node):
        before = view_source(current.node)
        if before is None:
            break
        current = before
    if current is ctx.root(value):
        return Same(source)
    at = place.geometry
    return ViewOf(source, at.sizes, at.strides, at.offset)


def _fresh_slot(ctx: Context, value: Value, roots: dict[Value, Place]) -> int:
    """A slot whose tensor the caller may keep, with eager's strides, sharing memory with no other than eager does."""
    root = ctx.root(value)
    if root not in roots:
        roots[root] = _own_root(ctx, root)
    place = ctx.view_from_root(value, roots[root])
    if place is None:
        # Not to be told by strides: the library made it, over memory that the caller now owns.
        place = ctx.place(value)
    type_ = tensor_type(value)
    if place.geometry.strides != type_.steps:
        # The same memory; eager's strides of dimensions of size 1 are to be seen.
        place = Place(place.storage, Geometry(type_.sizes, type_.steps, place.geometry.offset))
    return ctx.builder.handle(place)


def _own_root(ctx: Context, root: Value) -> Place:
    """Where the root of an output lies, in memory of its own and in eager's layout."""
    if not ctx.statics.is_static(root):
        return ctx.to_eager(root)
    place = ctx.place(root)
    storage = ctx.builder.empty(Geometry.of(tensor_type(root)), place.storage.dtype)
    ctx.builder.emit(Copy(storage.slot, ctx.builder.handle(place)))
    return Place(storage, storage.base)
