"""Any operator: through the dispatcher where it takes the call natively, else in Python, counted.

Invariant: the very overload that eager runs is called with the very values eager would pass, so the answer is eager's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt._torch.library.schemas import raw_schema
from smelt._torch.library.stable import dispatchable
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.sharing import feared_sources
from smelt.ir import NONE, Arg, Node, TensorType, TupleType, Type, Value
from smelt.ir.nodes import fill_leaves
from smelt.ir.sizes import Size, SizeFloat
from smelt.ops.convert import dtype_to_torch, to_torch
from smelt.ops.meta import CannotRun, meta_outcome
from smelt.ops.modes import entered
from smelt.ops.record import Trait
from smelt.ops.registry import overload, schema_of
from smelt.ops.sets import in_place_twin, where
from smelt.runtime.plan import Dispatch, PyCall, Use

# Operators that compute the same from any strides, and whose result's strides torch's meta kernels tell exactly.
ANY_LAYOUT = where(Trait.ANY_LAYOUT) | {
    "aten.pad.default",
    "aten.max_pool2d_with_indices.default",
    "aten.max_pool2d_with_indices_backward.default",
    "aten.avg_pool2d_backward.default",
    "aten._adaptive_avg_pool2d_backward.default",
}


def is_in_eager_layout(ctx: Context, node: Node) -> bool:
    """Whether all tensor operands lie as in eager."""
    return all(ctx.is_eager_layout(v) for v in node.operands() if isinstance(v.type, TensorType))


def predicted_strides(ctx: Context, node: Node) -> tuple[int, ...] | None:
    """Strides of the result of an `ANY_LAYOUT` operator for operands as they lie; None to use eager's layout."""
    if node.op not in ANY_LAYOUT or is_in_eager_layout(ctx, node):
        return None

    def as_it_lies(value: Value) -> Type:
        if not isinstance(value.type, TensorType):
            return value.type
        return replace(value.type, strides=ctx.place(value).geometry.strides)

    try:
        result = meta_outcome(node.op, node.args, node.kwargs, as_it_lies)[0].types[0]
    except CannotRun:
        return None
    return result.steps if isinstance(result, TensorType) else None


def operand(ctx: Context, node: Node, arg: Arg, any_layout: bool) -> Any:
    """An argument as `Dispatch` takes it."""
    if isinstance(arg, Value):
        if not isinstance(arg.type, TensorType):
            raise cannot_lower(node, f"its operand %{arg.name} is {arg.type}, which is known at run time only")
        return Use(ctx.slot(arg, any_layout=any_layout))
    if isinstance(arg, tuple):
        return tuple(operand(ctx, node, item, any_layout) for item in arg)
    return to_torch(arg)


def dispatch(ctx: Context, node: Node) -> None:
    """Run a node's own overload."""
    op, schema = overload(node.op), schema_of(node.op)
    if op is None or schema is None:
        raise cannot_lower(node, "torch's registry has no operator of that name")
    if lower_in_place(ctx, node):
        return
    for shared in feared_sources(node):
        # What may stay in use unseen must not be memory that is planned or written.
        if isinstance(shared.type, TensorType) and ctx.is_overwritten(shared):
            ctx.bind(shared, ctx.cloned(ctx.place(shared)))
    strides = predicted_strides(ctx, node)
    call = ctx.call_arguments(node)
    args = [operand(ctx, node, call[a.name], strides is not None) for a in schema.arguments]
    emit_operator(ctx, node, op, args, strides)


def emit_operator(
    ctx: Context, node: Node, op: Any, args: Sequence[Any], strides: tuple[int, ...] | None = None
) -> None:
    """Call an overload for a node's results, natively if the dispatcher takes these arguments."""
    # A result that is none is an undefined tensor, of which nobody asks.
    is_flat = all(isinstance(r.type, TensorType) or (r.type == NONE and not r.users) for r in node.results)
    takes_results = is_flat and len(raw_schema(op).returns) == len(node.results) and "autocast" not in node.mode
    if takes_results and dispatchable(op, args, lambda a: a.slot if isinstance(a, Use) else None):
        outs = tuple(ctx.result(r, strides) if r.users else None for r in node.results)
        ctx.builder.emit(Dispatch(op, tuple(args), outs))
        ctx.note(node, "dispatcher", str(op))
        return
    _emit_python(ctx, node, op, args, strides)


def _emit_python(ctx: Context, node: Node, op: Any, args: Sequence[Any], strides: tuple[int, ...] | None) -> None:
    slots = tuple(dict.fromkeys(_slots_in(tuple(args))))
    outs: list[int] = []
    for value in node.results:
        if isinstance(value.type, TensorType):
            outs.append(ctx.result(value, strides))
        elif isinstance(value.type, TupleType) and all(isinstance(t, TensorType) for t in value.type.elements):
            outs.extend(_element_slots(ctx, value, value.type))
        elif value.type != NONE:
            raise cannot_lower(node, f"its result is {value.type}, and only tensors can be in a plan")
    ctx.builder.emit(PyCall(_python_call(op, tuple(args), slots, node.mode), slots, tuple(outs)))
    ctx.note(node, "python", str(op))


def _element_slots(ctx: Context, value: Value, type_: TupleType) -> list[int]:
    places = []
    for element in type_.elements:
        assert isinstance(element, TensorType)
        storage = ctx.builder.made(Geometry.of(element), dtype_to_torch(element.dtype))
        places.append(Place(storage, storage.base))
    ctx.lists[value] = places
    return [place.storage.slot for place in places]


def _slots_in(arg: Any) -> list[int]:
    if isinstance(arg, Use):
        return [arg.slot]
    return [s for item in arg for s in _slots_in(item)] if isinstance(arg, tuple) else []


def _python_call(op: Any, args: tuple[Any, ...], slots: tuple[int, ...], mode: str) -> Callable[..., Any]:
    """`op` as a function of the tensors in `slots`; the result flat, one tensor per result."""
    names = [a.name for a in raw_schema(op).arguments]
    split = next((i for i, a in enumerate(raw_schema(op).arguments) if a.kwarg_only), len(names))

    def run(*tensors: torch.Tensor) -> Any:
        by_slot = dict(zip(slots, tensors, strict=True))

        def leaf(arg: Any) -> Any:
            if isinstance(arg, Use):
                return by_slot[arg.slot]
            if type(arg) is Size or type(arg) is SizeFloat:  # torch wants the number itself, which the run knows
                return int(arg) if type(arg) is Size else float(arg)
            return arg

        filled = [fill_leaves(arg, leaf) for arg in args]
        keywords = dict(zip(names[split:], filled[split:], strict=False))
        if "autocast" in mode:
            with entered(mode):
                result = op(*filled[:split], **keywords)
        else:
            result = op(*filled[:split], **keywords)
        return _flat(result)

    return run


def _flat(result: Any) -> Any:
    if isinstance(result, torch.Tensor) or result is None:
        return result
    flat = (t for item in result for t in (_flat(item) if isinstance(item, (list, tuple)) else (item,)))
    # What an operator leaves out has no slot.
    return [t for t in flat if t is not None]


def lower_in_place(ctx: Context, node: Node, name: str = "", rest: tuple[Any, ...] | None = None) -> bool:
    """Overwrite an operand that nothing else uses, where the operator has a form that does so.

    %1 = linear(...); %2 = relu(%1)   ==>   linear writes %1, relu_ turns it into %2 in the same memory

    name, rest: the in-place overload and its further arguments, where they are not the node's own.
    """
    op = overload(name or in_place_twin(node.op))
    value = node.args[0] if node.args else None
    if op is None or not isinstance(value, Value) or node.mode or not ctx.is_fresh(value):
        return False
    if value.node is None or value.node.parent is not node.parent:
        # The node's region may run again.
        return False
    if sum(value.users.values()) != 1 or value.type != node.result.type:
        return False
    place = ctx.place(value)
    storage = place.storage
    if place.geometry != storage.base or storage.kind not in ("owned", "arena"):
        return False
    if storage.kind == "arena" and ctx.escapes(node.result):
        return False
    if rest is None:
        rest = (*map(to_torch, node.args[1:]), *map(to_torch, node.kwargs.values()))
    args = [Use(storage.slot), *rest]
    if not dispatchable(op, args, lambda a: a.slot if isinstance(a, Use) else None):
        return False
    ctx.builder.emit(Dispatch(op, tuple(args), (None,)))
    ctx.overwritten(storage)
    ctx.bind(node.result, place)
    ctx.note(node, "dispatcher", str(op))
    return True
