"""Builtins that go over other values, in Python: where only a run knows how many there are, these are converted and run
in their place, as functions of the program's own would be.

    map(fn, xs)    ==>    [fn(x) for x in xs]    ==>    a `for` of the graph that fills a list

Invariant: each gives what the builtin gives, in its order; what is an iterator there is a list.
"""

# Each line is to be a loop, a call or a comparison that is converted.
# ruff: noqa: C416, C420, SIM110

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def listed(items: Any) -> list[Any]:
    """`list(items)`."""
    return [item for item in items]


def mapped(fn: Callable[..., Any], items: Any) -> list[Any]:
    """`map(fn, items)`."""
    return [fn(item) for item in items]


def mapped_together(fn: Callable[..., Any], items: Any) -> list[Any]:
    """`map(fn, a, b)`; items: `zip(a, b)`."""
    return [fn(*parts) for parts in items]


def filtered(fn: Callable[..., Any] | None, items: Any) -> list[Any]:
    """`filter(fn, items)`."""
    if fn is None:
        return [item for item in items if item]
    return [item for item in items if fn(item)]


def as_dict(pairs: Any) -> dict[Any, Any]:
    """`dict(pairs)`."""
    return {key: value for key, value in pairs}


def from_keys(keys: Any, value: Any = None) -> dict[Any, Any]:
    """`dict.fromkeys(keys, value)`."""
    return {key: value for key in keys}


def as_set(items: Any) -> set[Any]:
    """`set(items)`."""
    return {item for item in items}


def any_of(items: Any) -> bool:
    """`any(items)`."""
    for item in items:
        if item:
            return True
    return False


def all_of(items: Any) -> bool:
    """`all(items)`."""
    for item in items:
        if not item:
            return False
    return True


def total(items: Any, start: Any) -> Any:
    """`sum(items, start)`."""
    found = start
    for item in items:
        found = found + item
    return found


def reduced(fn: Callable[..., Any], items: Any, start: Any) -> Any:
    """`functools.reduce(fn, items, start)`."""
    found = start
    for item in items:
        found = fn(found, item)
    return found


def running(items: Any, fn: Callable[..., Any]) -> list[Any]:
    """`itertools.accumulate(items, fn)`."""
    if len(items) == 0:
        return items[:0]
    found = items[0]
    out = [found]
    for item in items[1:]:
        found = fn(found, item)
        out.append(found)
    return out


def error_text(error: BaseException) -> str:
    """`str(error)`."""
    args = error.args
    if len(args) == 0:
        return ""
    return str(args[0]) if len(args) == 1 else str(args)


def error_repr(error: BaseException) -> str:
    """`repr(error)`."""
    args = error.args
    name = type(error).__name__
    return f"{name}({args[0]!r})" if len(args) == 1 else f"{name}{args!r}"


def key_error_text(error: KeyError) -> str:
    """`str(error)`, which shows the key as it is written."""
    args = error.args
    return repr(args[0]) if len(args) == 1 else error_text(error)


def pairs_of(a: Any, b: Any) -> list[Any]:
    """`itertools.product(a, b)`."""
    return [(x, y) for x in a for y in b]
