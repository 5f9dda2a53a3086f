"""Nodes that no native form computes: the evaluator runs them, regions included, as one call of Python, counted.

    %3: list[f32[4]] = py.append(%xs, %h)        ==>        PyCall(evaluate that node, slots of %xs and %h)

Invariant: nothing that Python keeps (an element of a list, a result that is an operand) shares memory with what a later
instruction writes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.analysis import used_values
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.python.plain import is_plain_type
from smelt.codegen.lower.python.python_parts import Part, parts_of
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, ListType, Node, TensorType, TupleType, Value
from smelt.ops.convert import dtype_to_torch, strided_copy, to_torch
from smelt.runtime.plan import PyCall

Wanted = TensorType | int
"""How a result is given: laid out as this type says, so many tensors, or 0 for any other value."""


def lower_python(ctx: Context, node: Node) -> None:
    """Go through a node in Python where it stands, regions included; what can be compiled inside is."""
    inner = [n for region in node.regions for n in region.walk()]
    # Looked up when it runs; as operands they are guarded, and known to be read.
    read = [_state_slot(ctx, n.result) for n in inner if n.op in STATE_OPS]
    uses = tuple(dict.fromkeys(used_values(node)))
    used = [value for value in node.results if value.users or value in ctx.told]
    parts = parts_of([node], ctx.statics.graph, ctx.lookup, ctx.compiler)

    emit_python(ctx, parts, uses, used, read)
    ctx.note(node, "python", node.op)


def emit_python(
    ctx: Context, parts: Sequence[Part], uses: Sequence[Value], results: Sequence[Value], read: Sequence[int] = ()
) -> None:
    """Go through parts in one call, with the values that they use, for these results. read: slots read besides."""
    slots: list[int] = []
    counts: list[int | None] = []
    unsafe: list[int] = []
    for value in uses:
        found = _slots(ctx, value)
        counts.append(None if isinstance(found, int) else len(found))
        for slot in (found,) if isinstance(found, int) else found:
            if is_unsafe(ctx, slot, value):
                unsafe.append(len(slots))
            slots.append(slot)
    outs: list[int] = []
    wanted: list[Wanted] = []
    for value in results:
        type_ = value.type
        if isinstance(type_, TensorType) and is_plain_type(type_):
            outs.append(ctx.result(value))
            wanted.append(type_)
        elif isinstance(type_, TupleType) and is_plain_type(type_) and type_.elements:
            outs.extend(_element_slots(ctx, value, type_))
            wanted.append(len(type_.elements))
        else:
            outs.append(ctx.number(value).slot)
            wanted.append(0)
    ctx.share(results)
    run = PythonRun(parts, uses, results, tuple(counts), tuple(unsafe), tuple(wanted))
    ctx.builder.emit(PyCall(run, (*slots, *read), tuple(outs)))


def move(ctx: Context, rows: Sequence[tuple[Arg, int]]) -> None:
    """Let slots of objects hold values, or literals, all at once."""
    sources: list[int] = []
    takes: list[_Take] = []
    rows = [(arg, slot) for arg, slot in rows if not (isinstance(arg, Value) and _slots(ctx, arg) == slot)]
    for arg, _ in rows:
        if not isinstance(arg, Value):
            takes.append(_Take(None, 0, literal=to_torch(arg)))
            continue
        found = _slots(ctx, arg)
        slots = (found,) if isinstance(found, int) else tuple(found)
        unsafe = tuple(len(sources) + n for n, slot in enumerate(slots) if is_unsafe(ctx, slot, arg))
        make = None if isinstance(found, int) else (list if isinstance(arg.type, ListType) else tuple)
        takes.append(_Take(make, len(slots), unsafe))
        sources.extend(slots)
    if rows:
        ctx.builder.emit(PyCall(_Moved(tuple(takes)), tuple(sources), tuple(slot for _, slot in rows)))


@record
class _Take:
    """How an object is made of what slots hold: of one, of so many, or of none. unsafe: whose memory must be copied."""

    make: Callable[[Sequence[Any]], Any] | None
    count: int
    unsafe: tuple[int, ...] = ()
    literal: Any = None


class _Moved:
    """What slots held, for other slots."""

    def __init__(self, takes: tuple[_Take, ...]) -> None:
        self._takes = takes
        self.__qualname__ = "move"

    def __call__(self, *found: Any) -> Sequence[Any]:
        results: list[Any] = []
        at = 0
        for take in self._takes:
            own = [strided_copy(found[n]) if n in take.unsafe else found[n] for n in range(at, at + take.count)]
            at += take.count
            results.append(take.literal if not take.count and take.make is None else _made(take.make, own))
        return results


def _made(make: Callable[[Sequence[Any]], Any] | None, parts: Sequence[Any]) -> Any:
    return parts[0] if make is None else make(parts)


def _state_slot(ctx: Context, value: Value) -> int:
    ctx.add_state(value)
    return ctx.builder.handle(ctx.place(value))


def collect(ctx: Context, value: Value) -> None:
    """Make the list of tensors that leaves the program of the places that they have in the plan."""
    slots = tuple(ctx.builder.handle(place) for place in ctx.lists[value])
    make = list if isinstance(value.type, ListType) else tuple
    storage = ctx.number(value)
    ctx.builder.emit(PyCall(lambda *tensors: (make(map(strided_copy, tensors)),), slots, (storage.slot,)))


def _slots(ctx: Context, value: Value) -> int | list[int]:
    """The slot of a value; several for a tuple of tensors."""
    if value in ctx.lists:
        return [ctx.builder.handle(place) for place in ctx.lists[value]]
    if is_plain_type(value.type) and isinstance(value.type, TensorType):
        return ctx.object_slot(value)
    return ctx.number(value).slot


def is_unsafe(ctx: Context, slot: int, value: Value) -> bool:
    """Whether a tensor's memory is written over, or must not be: what Python keeps of it is a copy."""
    kind = ctx.builder.storage_of(slot).kind
    if kind in ("arena", "held"):
        return True
    return ctx.writes_to_come > 0 and kind in ("input", "state", "owned") and ctx.may_be_written(value)


def _element_slots(ctx: Context, value: Value, type_: TupleType) -> list[int]:
    places = []
    for element in type_.elements:
        assert isinstance(element, TensorType)
        storage = ctx.builder.made(Geometry.of(element), dtype_to_torch(element.dtype))
        places.append(Place(storage, storage.base))
    ctx.lists[value] = places
    return [place.storage.slot for place in places]


class PythonRun:
    """Parts as a step of a plan: what it gives lies as planned, and is the plan's own.

    counts: how many tensors each value of `uses` is (None: it is one value). unsafe: which of them all are memory that
    is written over or must not be. wanted: how each value of `gives` is.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        uses: Sequence[Value],
        gives: Sequence[Value],
        counts: tuple[int | None, ...],
        unsafe: tuple[int, ...],
        wanted: tuple[Wanted, ...],
    ) -> None:
        self._parts, self._uses, self._gives = tuple(parts), tuple(uses), tuple(gives)
        self._counts, self._unsafe, self._wanted = counts, unsafe, wanted
        self._is_flat = all(count is None for count in counts)
        self.__qualname__ = "python"

    def __call__(self, *found: Any) -> Sequence[Any]:
        unsafe = {t.untyped_storage().data_ptr() for i in self._unsafe if isinstance(t := found[i], torch.Tensor)}
        given = found[: len(self._uses)] if self._is_flat else _grouped(self._uses, self._counts, found)
        values = dict(zip(self._uses, given, strict=True))
        for part in self._parts:
            part.take(values)
        results: list[Any] = []
        for value, wanted in zip(self._gives, self._wanted, strict=True):
            own = _kept(values[value], unsafe) if unsafe else values[value]
            if isinstance(wanted, TensorType):
                results.append(_laid_out(own, wanted))
            elif wanted == 0:
                results.append(own)
            else:
                results.extend(own)
        return results


def _grouped(values: Sequence[Value], counts: Sequence[int | None], found: Sequence[Any]) -> list[Any]:
    """The values from what lies in the slots: the tensors of a tuple or a list are put together."""
    rest = iter(found)
    return [
        next(rest) if count is None else _sequence(value, [next(rest) for _ in range(count)])
        for value, count in zip(values, counts, strict=True)
    ]


def _sequence(value: Value, items: list[Any]) -> Any:
    return items if isinstance(value.type, ListType) else tuple(items)


def _kept(value: Any, unsafe: set[int]) -> Any:
    """A value as Python may keep it."""
    match value:
        case torch.Tensor():
            shares = value.layout == torch.strided and value.untyped_storage().data_ptr() in unsafe
            return strided_copy(value) if shares else value
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
