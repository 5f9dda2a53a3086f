"""The kinds of values that arguments hold: told in one order, for generated Python and for native words alike.

    kind_of(value, form, is_opened).visit(visitor, value, place, at)   -> visitor.tensor(...), or .container(...), ...

Invariant: each value is of one kind, and each visitor has a form for each kind.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from smelt.diag.records import record
from smelt.runtime.guarding.guard_sizes import Form, NumberForm

TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
BY_VALUE = (complex, bytes, torch.device, torch.Size, slice, range, set, frozenset)
At = TypeVar("At", contravariant=True)


class Visitor(Protocol[At]):
    """Writes the guards on a value, given its place and where it is found (a variable, a register)."""

    def tensor(self, value: torch.Tensor, place: str, at: At) -> None: ...
    def number(self, value: Any, place: str, at: At) -> None: ...
    def constant(self, value: Any, place: str, at: At) -> None: ...
    def plain(self, value: Any, place: str, at: At) -> None: ...
    def float_number(self, value: float, place: str, at: At) -> None: ...
    def set_of_values(self, value: Any, place: str, at: At) -> None: ...
    def by_value(self, value: Any, place: str, at: At) -> None: ...
    def opened_object(self, value: Any, place: str, at: At) -> None: ...
    def container(self, value: Any, place: str, at: At) -> None: ...
    def identity(self, value: Any, place: str, at: At) -> None: ...


@record
class ArgumentKind:
    """One kind of value. is_of(value, form, is_opened): whether a value is of it, where it is of none before.

    form: of an argument that is free; is_opened: whether an object is compared part by part.
    """

    name: str
    is_of: Callable[[Any, Form | None, bool], bool]
    visit: Callable[[Visitor[Any], Any, str, Any], None]


def _has_members(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)) or type(value) is deque:
        return True
    return dataclasses.is_dataclass(type(value)) and not isinstance(value, type)


ARGUMENT_KINDS: tuple[ArgumentKind, ...] = (
    ArgumentKind("tensor", lambda v, *_: type(v) in TENSORS, lambda to, *found: to.tensor(*found)),
    ArgumentKind("free number", lambda _, form, __: isinstance(form, NumberForm), lambda to, *found: to.number(*found)),
    ArgumentKind("constant", lambda v, *_: v is None or type(v) is bool, lambda to, *found: to.constant(*found)),
    ArgumentKind("int or text", lambda v, *_: type(v) in (int, str), lambda to, *found: to.plain(*found)),
    ArgumentKind("float", lambda v, *_: type(v) is float, lambda to, *found: to.float_number(*found)),
    ArgumentKind("set", lambda v, *_: type(v) is set, lambda to, *found: to.set_of_values(*found)),
    ArgumentKind("value", lambda v, *_: type(v) in BY_VALUE, lambda to, *found: to.by_value(*found)),
    ArgumentKind("opened object", lambda _, __, is_opened: is_opened, lambda to, *found: to.opened_object(*found)),
    ArgumentKind("container", lambda v, *_: _has_members(v), lambda to, *found: to.container(*found)),
    ArgumentKind("object", lambda *_: True, lambda to, *found: to.identity(*found)),
)


def kind_of(value: Any, form: Form | None, is_opened: bool) -> ArgumentKind:
    """The kind of a value: the first that it is of."""
    return next(kind for kind in ARGUMENT_KINDS if kind.is_of(value, form, is_opened))
