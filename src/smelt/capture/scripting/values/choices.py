"""Parameters that are one of several things: a member of an enum, one of some literals, a value of one of some types.

    def f(x, mode: Literal["sum", "mean"], n: int | str): ...

Invariant: the graph has an input more, a number that says which of them it is, and a way for each.
"""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from smelt.capture.scripting.annotations import Fields, type_of_annotation
from smelt.ir import BOOL, COMPLEX, FLOAT, INT, STR, DictType, ListType, TensorType, Type

MOST_CHOICES = 16
_CLASSES: dict[Type, type] = {INT: int, FLOAT: float, BOOL: bool, STR: str, COMPLEX: complex}


@dataclass(frozen=True)
class Alternative:
    """One of the things: a value, or values of a type. fits: whether an argument is that."""

    fits: Callable[[object], bool]
    value: Any = None
    type: Type | Fields | None = None


def alternatives_of(annotation: object) -> list[Alternative] | None:
    """What an annotation leaves to choose; None where it does not, or where that is too much."""
    found = _alternatives(annotation)
    return found if found is not None and 0 < len(found) <= MOST_CHOICES else None


def _alternatives(annotation: object) -> list[Alternative] | None:
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [_exactly(member) for member in annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [_exactly(value) for value in args]
    if isinstance(annotation, typing.TypeVar) and (annotation.__constraints__ or annotation.__bound__):
        args = annotation.__constraints__ or (annotation.__bound__,)
    elif origin not in (typing.Union, types.UnionType):
        return None
    found: list[Alternative] = []
    for arg in args:
        if arg is type(None):
            found.append(_exactly(None))
            continue
        inner = _alternatives(arg)
        type_ = type_of_annotation(arg) if inner is None else None
        if inner is None and type_ is None:
            return None
        found += inner or [Alternative(_of_type(type_), type=type_)]
    return found


def _exactly(value: object) -> Alternative:
    return Alternative(lambda given: given is value or (type(given) is type(value) and bool(given == value)), value)


def _of_type(type_: Any) -> Callable[[object], bool]:
    kinds: Any = _CLASSES.get(type_) if isinstance(type_, Type) else type_.cls
    if kinds is None:
        kinds = {TensorType: torch.Tensor, ListType: (list, tuple), DictType: dict}.get(type(type_), object)
    if kinds is int:
        return lambda given: isinstance(given, int) and not isinstance(given, bool)
    return lambda given: isinstance(given, kinds)


def absent(type_: Type) -> object:
    """What stands for an input that another alternative is given in the place of."""
    if isinstance(type_, TensorType):
        return torch.zeros([d if isinstance(d, int) else 0 for d in type_.shape or ()])
    if isinstance(type_, ListType):
        return []
    return {} if isinstance(type_, DictType) else _CLASSES.get(type_, type(None))()
