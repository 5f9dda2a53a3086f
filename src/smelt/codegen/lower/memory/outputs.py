"""The graph's outputs: new tensors, very inputs, views of inputs or state; never a tensor that the plan keeps."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, cannot_lower, tensor_type
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.output_choices import Choice
from smelt.codegen.lower.memory.sharing import sources_of, very_tensor
from smelt.codegen.lower.python.plain import is_plain_type
from smelt.codegen.lower.python.python_nodes import collect
from smelt.codegen.lower.result import Either, Fresh, Number, OutputRecipe, Plain, Same, ViewOf
from smelt.codegen.lower.unknown.outside_memory import reached
from smelt.ir import STATE_OPS, TensorType, Value, values_in
from smelt.ops.convert import to_torch


def lower_outputs(ctx: Context, chosen: Mapping[int, Choice]) -> tuple[tuple[int, ...], tuple[OutputRecipe, ...]]:
    """The plan's output slots, and one recipe per output of the graph; `chosen`: what outputs may be instead."""
    ctx.builder.origin = "return"
    slots: list[int] = []
    recipes: list[OutputRecipe] = []
    roots: dict[Value, Place] = {}
    slot_of: dict[Value, int] = {}
    views: dict[Value, int] = {}
    for number, arg in enumerate(ctx.graph.outputs):
        if not isinstance(arg, Value):
            recipes.append(Plain(to_torch(arg)))
            continue
        if arg in ctx.cut_slots:
            recipes.append(Fresh(len(slots)))
            slots.append(ctx.cut_slots[arg])
            continue
        if not isinstance(arg.type, TensorType) or not is_plain_type(arg.type):
            made, choice = _mixed(ctx, arg, slots), chosen.get(number)
            if choice is not None and isinstance(made, Fresh) and _was_placed(arg):
                made = _either(ctx, made, choice, slots, views)
            recipes.append(made)
            continue
        seen = _recipe(ctx, arg, views)
        if seen is not None:
            recipes.append(seen)
            continue
        fresh = Fresh(len(slots))
        very = very_tensor(arg)
        if very not in slot_of:
            slot_of[very] = _own_slot(ctx, _fresh_place(ctx, very, roots), slots)
        slots.append(slot_of[very])
        choice = chosen.get(number)
        recipes.append(fresh if choice is None else _either(ctx, fresh, choice, slots, views))
    return tuple(slots), tuple(recipes)


def _was_placed(value: Value) -> bool:
    """Whether a tensor that is handed on as an object may have come through a branch whose results have places."""
    return any(v.node is not None and v.node.regions and is_plain_type(v.type) for v in reached([value]))


def _either(ctx: Context, fresh: Fresh, choice: Choice, slots: list[int], views: dict[Value, int]) -> Either:
    """What was made, or one of the tensors that the caller has itself."""
    which = _mixed(ctx, choice.which, slots)
    options = [_recipe(ctx, option, views) for option in choice.options]
    known = tuple(option for option in options if isinstance(option, Same | ViewOf))
    if len(known) < len(options) or not isinstance(which, Number):
        node = choice.which.node
        assert node is not None
        raise cannot_lower(node, "it may be a view of a tensor from outside, which strides cannot distinguish")
    return Either(which.index, (fresh, *known))


def _mixed(ctx: Context, value: Value, slots: list[int]) -> OutputRecipe:
    """A number or an object, which leave the plan as they are."""
    if value in ctx.lists:
        collect(ctx, value)
    source = ctx.number(value)
    if source.kind == "object":
        slots.append(source.slot)
        return Fresh(len(slots) - 1)
    if source.slot not in slots:
        slots.append(source.slot)
    return Number(slots.index(source.slot))


def _recipe(ctx: Context, value: Value, views: dict[Value, int]) -> OutputRecipe | None:
    """How the caller makes the output from a tensor it has itself; None if the plan makes it. views: made so far."""
    place = ctx.origin(value)
    if place is None:
        return None
    source = place.storage.source
    assert source is not None
    very = very_tensor(value)
    if very is ctx.root(value):
        return Same(source)
    at = place.geometry
    nodes = [v.node for v in sources_of(value)]
    is_detached = any(node is not None and node.op == "aten.detach.default" for node in nodes)
    return ViewOf(source, at.sizes, at.strides, at.offset, is_detached, views.setdefault(very, len(views)))


def _own_slot(ctx: Context, place: Place, taken: list[int]) -> int:
    """A slot that is no other output's: two outputs over one memory are two tensors still."""
    slot = ctx.builder.handle(place)
    return slot if slot not in taken else ctx.builder.another_handle(place)


def _fresh_place(ctx: Context, value: Value, roots: dict[Value, Place]) -> Place:
    """A place that the caller may keep, with eager's strides, sharing memory with no other than eager does."""
    root = ctx.root(value)
    if value in ctx.free.values():
        return ctx.place(value)
    if root not in roots:
        roots[root] = _own_root(ctx, root)
    place = ctx.view_from_root(value, roots[root])
    if place is None and ctx.statics.is_static(root):
        # The value is baked, and the plan keeps that tensor.
        place = _copy_of_static(ctx, value, root)
    elif place is None:
        # Not to be told by strides: the library made it, over memory that the caller now owns.
        place = ctx.place(value)
    type_ = tensor_type(value)
    if place.geometry.strides != type_.steps:
        # The same memory; eager's strides of dimensions of size 1 are to be seen.
        place = Place(place.storage, Geometry(type_.sizes, type_.steps, place.geometry.offset))
    return place


def _copy_of_static(ctx: Context, value: Value, root: Value) -> Place:
    """A copy of a baked value, where nobody can tell it from a view. Raises: SmeltError (S0303) where somebody can."""
    others = [v for arg in ctx.graph.outputs for v in values_in(arg) if v is not value and ctx.root(v) is root]
    is_dense = Geometry.of(tensor_type(value)).extent == Geometry.of(tensor_type(value)).numel
    if others or not is_dense or (root.node is not None and root.node.op in STATE_OPS):
        node = value.node
        assert node is not None
        raise cannot_lower(node, "it is a view of a tensor that is seen outside, which strides cannot distinguish")
    return _own_root(ctx, value)


def _own_root(ctx: Context, root: Value) -> Place:
    """Where the root of an output lies, in memory of its own and in eager's layout."""
    if not ctx.statics.is_static(root):
        return ctx.to_eager(root)
    place = ctx.place(root)
    storage = ctx.builder.empty(Geometry.of(tensor_type(root)), place.storage.dtype)
    made = Place(storage, storage.base)
    copy_into(ctx.builder, made, place)
    return made
