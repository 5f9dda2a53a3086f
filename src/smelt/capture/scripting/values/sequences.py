"""Tuples of a length that only a run knows: the graph has lists in their place.

What tells the two apart (their texts, whether they are equal, what holds them) is given a tuple in the graph, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from smelt.capture.staging.fakes.symbols import ScalarSlot, StagedObject, slot_of
from smelt.ir import ANY, ListType, Type

if TYPE_CHECKING:
    from smelt.capture.scripting.domain import Open

# What is the same of a tuple and of the list that it is in the graph, by the operand that it may be.
_ALIKE = {f"py.{name}": 0 for name in ("getitem", "len", "bool", "not_", "sum", "min", "max")} | {"py.in_": 1}
_TAKING_ITEMS = frozenset(f"builtins.{name}" for name in ("list", "tuple", "sorted", "reversed")) | {"torch.Size"}


class ShapeObject(StagedObject):
    """The sizes of a tensor of unknown rank, or a part of them: a `torch.Size` in the program, a list in the graph."""

    of_class: type | None = torch.Size

    def __init__(self, slot: ScalarSlot, of: torch.Tensor | None = None) -> None:
        super().__init__(slot)
        self.of = of


class PlainShape(ShapeObject):
    """The sizes of a tensor of unknown rank as a plain tuple."""

    of_class = tuple


class OpenTuple(StagedObject):
    """A tuple of a length that a run knows; a list in the graph."""

    of_class = tuple

    @property
    def items_type(self) -> Type:
        """What each of them is."""
        type_ = slot_of(self).type
        return type_.element if isinstance(type_, ListType) else ANY


class Spread:
    """All items of a staged list, among the arguments of a call (`x.view(*shape)`)."""

    def __init__(self, items: StagedObject) -> None:
        self.items = items


def tells_tuples(op: str, args: tuple[object, ...]) -> bool:
    """Whether an operator tells a tuple among its operands from the list that it is in the graph, or gives another."""
    return any(isinstance(arg, OpenTuple) for i, arg in enumerate(args) if _ALIKE.get(op) != i)


def of_tuples(domain: Open, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What such an operator gives in the program."""
    if op == "py.call" and args[0] in _TAKING_ITEMS:
        return domain.emit(op, *map(as_list, args), **kwargs)
    if op == "py.call" and args[0].startswith("list."):
        return domain.emit(
            op, args[0], as_list(domain.taken_in(args[1])), *map(domain.as_in_program, args[2:]), **kwargs
        )
    if op == "py.concat" or (op == "py.add" and all(isinstance(arg, (OpenTuple, tuple)) for arg in args)):
        lists = (as_list(domain.taken_in(arg) if isinstance(arg, OpenTuple) else arg) for arg in args)
        found = domain.emit("py.concat", *lists)
        return found if op == "py.concat" else OpenTuple(slot_of(found))
    if op in ("py.slice", "py.mul"):
        return OpenTuple(slot_of(domain.emit(op, *map(as_list, args))))
    alike = _ALIKE.get(op)
    return domain.emit(op, *(a if i == alike else domain.as_in_program(a) for i, a in enumerate(args)), **kwargs)


def as_list(value: object) -> object:
    """A tuple as the list that it is in the graph."""
    if isinstance(value, (OpenTuple, ShapeObject)):
        return StagedObject(slot_of(value))
    return list(value) if isinstance(value, tuple) else value
