"""Nodes that no native form computes: the evaluator runs them, regions included, as one call of Python, counted.

    %3: list[f32[4]] = py.append(%xs, %h)        ==>        PyCall(evaluate that node, slots of %xs and %h)

Invariant: nothing that Python keeps (an element of a list, a result that is an operand) shares memory with what a later
instruction writes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.codegen.fusion.regions import used_values
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.geometry import Geometry
from smelt.codegen.lower.plain import is_plain_type
from smelt.codegen.lower.statics import STATE_OPS
from smelt.ir import NONE, Graph, ListType, Node, TensorType, TupleType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.evaluate import evaluate_node
from smelt.runtime.plan import PyCall

_Lookup = Callable[[str, str], Any]


def lower_python(ctx: Context, node: Node) -> None:
    """Evaluate a node where it stands."""
    inner = [n for region in node.regions for n in region.walk()]
    # The evaluator looks these up itself; as operands they are guarded, and known to be read.
    read = [_state_slot(ctx, n.result) for n in inner if n.op in STATE_OPS]
    values = list(dict.fromkeys(used_values(node)))
    slots: list[int] = []
    counts: list[int | None] = []
    unsafe: list[int] = []
    for value in values:
        found = _slots(ctx, value)
        counts.append(None if isinstance(found, int) else len(found))
        for slot in (found,) if isinstance(found, int) else found:
            if _is_unsafe(ctx, slot):
                unsafe.append(len(slots))
            slots.append(slot)
    outs: list[int] = []
    wanted: list[TensorType | int | None] = []
    for value in node.results:
        type_ = value.type
        if isinstance(type_, TensorType) and is_plain_type(type_):
            outs.append(ctx.result(value))
            wanted.append(type_)
        elif isinstance(type_, TupleType) and is_plain_type(type_) and type_.elements:
            outs.extend(_element_slots(ctx, value, type_))
            wanted.append(len(type_.elements))
        elif type_ == NONE and not value.users:
            wanted.append(None)
        else:
            outs.append(ctx.number(value).slot)
            wanted.append(0)
    ctx.share(node.results)
    run = _Evaluated(ctx.statics.graph, node, tuple(values), tuple(counts), tuple(unsafe), tuple(wanted), ctx.lookup)
    ctx.builder.emit(PyCall(run, (*slots, *read), tuple(outs)))
    ctx.note(node, "python", node.op)


def _state_slot(ctx: Context, value: Value) -> int:
    ctx.add_state(value)
    return ctx.builder.handle(ctx.place(value))


def collect(ctx: Context, value: Value) -> None:
    """Make the list of tensors that leaves the program of the places that they have in the plan."""
    slots = tuple(ctx.builder.handle(place) for place in ctx.lists[value])
    make = list if isinstance(value.type, ListType) else tuple
    storage = ctx.number(value)
    ctx.builder.emit(PyCall(lambda *tensors: (make(t.clone() for t in tensors),), slots, (storage.slot,)))


def _slots(ctx: Context, value: Value) -> int | list[int]:
    """The slot of a value; several for a tuple of tensors."""
    if value in ctx.lists:
        return [ctx.builder.handle(place) for place in ctx.lists[value]]
    if is_plain_type(value.type) and isinstance(value.type, TensorType):
        return ctx.slot(value)
    return ctx.number(value).slot


def _is_unsafe(ctx: Context, slot: int) -> bool:
    """Whether a tensor's memory is written over, or must not be: what Python keeps of it is a copy."""
    kind = ctx.builder.storage_of(slot).kind
    return kind in ("arena", "held") or (kind in ("input", "state", "owned") and ctx.has_writes)


def _element_slots(ctx: Context, value: Value, type_: TupleType) -> list[int]:
    places = []
    for element in type_.elements:
        assert isinstance(element, TensorType)
        storage = ctx.builder.made(Geometry.of(element), dtype_to_torch(element.dtype))
        places.append(Place(storage, storage.base))
    ctx.lists[value] = places
    return [place.storage.slot for place in places]


class _Evaluated:
    """One node as a function of the values it uses, flat."""

    def __init__(
        self,
        graph: Graph,
        node: Node,
        values: tuple[Value, ...],
        counts: tuple[int | None, ...],
        unsafe: tuple[int, ...],
        wanted: tuple[TensorType | int | None, ...],
        lookup: _Lookup,
    ) -> None:
        self._graph, self._node, self._values, self._lookup = graph, node, values, lookup
        self._counts, self._unsafe, self._wanted = counts, unsafe, wanted
        self.__qualname__ = node.op

    def __call__(self, *found: Any) -> Sequence[Any]:
        rest = iter(found)
        env = {
            value: next(rest) if count is None else _sequence(value, [next(rest) for _ in range(count)])
            for value, count in zip(self._values, self._counts, strict=True)
        }
        unsafe = {t.untyped_storage().data_ptr() for i in self._unsafe if isinstance(t := found[i], torch.Tensor)}
        results: list[Any] = []
        made = evaluate_node(self._graph, self._node, env, self._lookup)
        for result, wanted in zip(made, self._wanted, strict=True):
            kept = _kept(result, unsafe)
            if isinstance(wanted, TensorType):
                results.append(_laid_out(kept, wanted))
            elif wanted == 0:
                results.append(kept)
            elif wanted is not None:
                results.extend(kept)
        return results


def _sequence(value: Value, items: list[Any]) -> Any:
    return items if isinstance(value.type, ListType) else tuple(items)


def _kept(value: Any, unsafe: set[int]) -> Any:
    """A value as Python may keep it."""
    match value:
        case torch.Tensor():
            shares = value.layout == torch.strided and value.untyped_storage().data_ptr() in unsafe
            return value.clone() if shares else value
        case tuple() | list():
            parts = [_kept(item, unsafe) for item in value]
            return _like(value, parts)
        case dict():
            return {key: _kept(item, unsafe) for key, item in value.items()}
    return value


def _like(value: Sequence[Any], parts: list[Any]) -> Any:
    if isinstance(value, list):
        return parts
    return tuple(parts) if type(value) is tuple else value


def _laid_out(tensor: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """The tensor in the strides of its type: the arms of a branch may differ in theirs."""
    if tensor.stride() == type_.steps or tuple(tensor.shape) != type_.sizes:
        return tensor
    return torch.empty_strided(type_.sizes, type_.steps, dtype=tensor.dtype).copy_(tensor)
