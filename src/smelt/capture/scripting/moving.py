"""Which operators put values into containers and take them out again: what is taken out may be what was put in.

    %0 = py.list(%x, %y)    %1 = py.getitem(%0, %n)    ==>    `%1` may be `%x`, `%y`, or what `py.getitem(%0, %m)` gave

Invariant: what is told to be two objects is never one of these pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.records import Listed
from smelt.ir import ANY, DictType, ListType, OptionalType, TensorType, TupleType, Type

WHOLE_VALUES = "a graph's containers are values, and a value has no identity"
HELD_VALUES = "a graph's containers are values: who holds the other one would not see the change"
# What gives lists where its type says so; of another a list by its type may be a tuple in a run.
LISTING = frozenset((
    "py.list", "py.append", "py.insert", "py.setitem", "py.delitem", "py.concat", "py.call",
))  # fmt: skip
_CONTAINERS = (ListType, TupleType, DictType)
_MOVING = frozenset((
    "py.append", "py.setitem", "py.insert", "py.list", "py.tuple", "py.dict", "py.getitem", "py.min", "py.max",
    "py.pop", "py.concat", "py.slice", "py.delitem", "py.call",
))  # fmt: skip


def moved_by(op: str, operands: Sequence[object], result: Slot) -> list[Slot]:
    """The operands that a result of an operator may be, hold, or be out of."""
    type_ = slot_type(result)
    if not _may_be_object(type_) or not (op in _MOVING or (op == "py.add" and isinstance(type_, _CONTAINERS))):
        return []
    return _objects_in(operands)


def _objects_in(operands: Sequence[object]) -> list[Slot]:
    found: list[Slot] = []
    for operand in operands:
        if isinstance(operand, Listed):
            found += _objects_in(operand.items)
        elif isinstance(operand, (list, tuple)):
            found += _objects_in(operand)
        elif isinstance(operand, Slot) and _may_be_object(slot_type(operand)):
            found.append(operand)
    return found


def _may_be_object(type_: Type) -> bool:
    """Whether values of a type are tensors or containers, as far as it tells."""
    return type_ == ANY or isinstance(type_, (TensorType, OptionalType, *_CONTAINERS))
