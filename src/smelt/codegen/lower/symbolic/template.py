"""Plans with sizes in them: taken apart into numbers, turned into templates, or into the plan at the sizes at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from smelt.ir.sizes import Size, SizeFloat, expression, value
from smelt.runtime.encoding.sizes import SizedFunction, field_names
from smelt.runtime.plan import Word

T = TypeVar("T")

_NOT_COMPARED = frozenset(("eager", "fn", "object", "op", "origins"))
_FUNCTIONS = frozenset(("eager", "fn"))


class NotSymbolic(Exception):
    """A graph has no plan for many sizes; its plans are made for one tuple of sizes each."""

    def __init__(self, reason: str, *details: str) -> None:
        super().__init__("; ".join((reason, *details[:4])))
        self.reason, self.details = reason, details


def numbers_of(x: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Everything in a plan that tells it from another, each with the way there; functions are left out."""
    found: list[tuple[tuple[Any, ...], Any]] = []
    _note_numbers(x, (), found)
    return found


def _note_numbers(x: Any, path: tuple[Any, ...], found: list[tuple[tuple[Any, ...], Any]]) -> None:
    kind = type(x)
    if kind is int or kind is str:
        found.append((path, x))
    elif kind is tuple or kind is list:
        found.append((path, len(x)))
        for i, item in enumerate(x):
            _note_numbers(item, (*path, i), found)
    elif isinstance(x, Mapping):
        _note_numbers(tuple(x.items()), path, found)
    elif (names := field_names(kind)) is not None:
        found.append((path, kind))
        for name in names:
            if name not in _NOT_COMPARED:
                _note_numbers(getattr(x, name), (*path, name), found)
    else:
        found.append((path, x))


def templated(x: T, sized: Callable[[Callable[..., Any]], Callable[..., Any]]) -> tuple[T, list[Any]]:
    """The same with `Word`s in the place of sizes, and what these are; functions that may hold sizes become `sized`."""
    numbers: list[Any] = []
    known: dict[Any, Word] = {}

    def word(number: Any) -> Word:
        key = expression(number)
        if key not in known:
            known[key] = Word.of(len(numbers), is_double=type(number) is SizeFloat)
            numbers.append(number)
        return known[key]

    def function(old: Any) -> Any:
        return SizedFunction(sized(old))

    return _mapped(x, word, function), numbers


def at_hand(x: T) -> T:
    """The same with the sizes at hand as numbers; what functions keep stays as it is."""
    return _mapped(x, value, lambda old: old)


def _mapped(x: Any, number: Callable[[Any], Any], function: Callable[[Any], Any]) -> Any:
    kind = type(x)
    if kind is Size or kind is SizeFloat:
        return number(x)
    if kind is tuple or kind is list:
        items = [_mapped(item, number, function) for item in x]
        return kind(items) if any(new is not old for new, old in zip(items, x, strict=True)) else x
    names = field_names(kind)
    if names is not None:
        changed = {}
        for name in names:
            old = getattr(x, name)
            new = function(old) if name in _FUNCTIONS else _mapped(old, number, function)
            if new is not old:
                changed[name] = new
        return replace(x, **changed) if changed else x
    return x
