"""A tensor that is cut at a number as it leaves the program: the same memory in a size that the run tells."""

from __future__ import annotations

import operator

import torch

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.python.numbers import operand
from smelt.codegen.lower.unknown.returned_slices import is_copy, is_view
from smelt.ir import Node, Region, TensorType, Value
from smelt.ir.sizes import equals
from smelt.runtime.calls import cut
from smelt.runtime.encoding.table import Arith
from smelt.runtime.plan import Dispatch, Scalar, Use


def lower_cut(ctx: Context, node: Node) -> bool:
    """Make the handle; False, with nothing done, where the memory is not the caller's own, or lies otherwise."""
    source = ctx.cuts[node]
    if is_copy(node):
        return _lower_copy(ctx, node, source)
    if is_view(node):
        return _lower_view(ctx, node, source)
    type_, whole = node.result.type, tensor_type(source)
    place = ctx.place(source)
    assert isinstance(type_, TensorType)
    dim, end = node.args[1], node.args[3]
    if place.geometry.strides != whole.steps or type(dim) is not int:
        return False
    is_copied = not isinstance(next(iter(node.result.users)), Region)
    if not is_copied and not _may_leave(place, type_, whole, dim):
        return False
    # A cut begins at its start, and ends within the tensor.
    left = _within(ctx, operand(ctx, end), whole.sizes[dim])
    sizes: list[int | Use] = list(whole.sizes)
    sizes[dim] = left
    if place.storage.kind == "held" and not is_copied:
        made = ctx.builder.empty(Geometry.of(whole), place.storage.dtype)
        copy_into(ctx.builder, Place(made, made.base), place)
        place = Place(made, made.base)
    storage = place.storage
    slot = ctx.builder.handle(place)
    ctx.builder.check(storage)
    made = ctx.builder.made(place.geometry, storage.dtype, checked=True)
    ctx.builder.emit(cut(made.slot, slot, sizes, whole.steps))
    ctx.cut_slots[node.result] = made.slot
    ctx.note(node, "view", "cut")
    return True


def _may_leave(place: Place, type_: TensorType, whole: TensorType, dim: int) -> bool:
    """Whether a cut of this place is the caller's own, and lies as its type says."""
    if place.storage.kind not in ("owned", "held"):
        return False
    if type_.strides is None:
        return whole.strides is None and all(size == 1 for size in whole.sizes[:dim])
    told = zip(type_.strides, whole.steps, strict=True)
    return all(not isinstance(stride, int) or equals(stride, step) for stride, step in told)


def _lower_copy(ctx: Context, node: Node, source: Value) -> bool:
    """Copy a cut together; False where it was not made."""
    slot = ctx.cut_slots.get(source)
    if slot is None:
        return False
    # Row-major, also where nothing is left: by itself, torch's clone keeps the strides of that.
    storage = ctx.builder.made(ctx.builder.storage_of(slot).base, ctx.builder.storage_of(slot).dtype, checked=True)
    ctx.builder.emit(Dispatch(torch.ops.aten.clone.default, (Use(slot), torch.contiguous_format), (storage.slot,)))
    ctx.cut_slots[node.result] = storage.slot
    ctx.note(node, "dispatcher", "aten.clone")
    return True


def _lower_view(ctx: Context, node: Node, source: Value) -> bool:
    """Make a handle over a copy of a cut; False where that was not made."""
    slot = ctx.cut_slots.get(source)
    if slot is None:
        return False
    _, sizes, strides, offset = node.args
    assert isinstance(sizes, tuple) and isinstance(strides, tuple) and isinstance(offset, int)
    whole = ctx.builder.storage_of(slot)
    made = ctx.builder.made(whole.base, whole.dtype, checked=True)
    told = [operand(ctx, size) for size in sizes]
    steps = [step for step in strides if isinstance(step, int)]
    ctx.builder.emit(cut(made.slot, slot, [n for n in told if isinstance(n, int | Use)], steps, offset))
    ctx.cut_slots[node.result] = made.slot
    ctx.note(node, "view", "cut")
    return True


def _within(ctx: Context, end: Use | int | float | bool, size: int) -> Use:
    """The length of what ends there."""
    assert isinstance(end, Use)
    negative = ctx.builder.number("bool")
    ctx.builder.emit(Scalar(Arith.I_LT, negative.slot, (end, 0), operator.lt))
    added = ctx.builder.number("int")
    ctx.builder.emit(Scalar(Arith.I_MUL, added.slot, (Use(negative.slot), size), operator.mul))
    total = ctx.builder.number("int")
    ctx.builder.emit(Scalar(Arith.I_ADD, total.slot, (end, Use(added.slot)), operator.add))
    positive = ctx.builder.number("int")
    ctx.builder.emit(Scalar(Arith.I_MAX, positive.slot, (Use(total.slot), 0), max))
    least = ctx.builder.number("int")
    ctx.builder.emit(Scalar(Arith.I_MIN, least.slot, (Use(positive.slot), size), min))
    return Use(least.slot)
