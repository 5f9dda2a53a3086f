"""State that objects hold outside of any container: slots, bytes, arrays, a thread's own, generators of random numbers.

Invariant: nothing of the user's is called.
"""

from __future__ import annotations

import array
import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

_MISSING = object()
_KINDS = (bytearray, array.array, random.Random, threading.local, ContextVar)
_MOST_BYTES = 1 << 20  # of an array that is copied

PutBack = Callable[[], bool]
"""Puts back what was there; whether that was another."""


def is_keeper(value: Any) -> bool:
    """Whether an object holds something outside of any container."""
    cls = type(value)
    if cls in _KINDS or isinstance(value, BaseException):
        return True
    if isinstance(value, (dict, list, set, deque)):
        return hasattr(cls, "__slots__")  # of other objects with slots these are containers
    return cls.__module__ == "numpy" and cls.__name__ == "ndarray"


def keepers_of(value: Any) -> Iterator[PutBack]:
    """What puts an object's own state back as it is now."""
    cls = type(value)
    if cls is bytearray or cls is array.array:
        yield _bytes(value)
    elif cls is random.Random:
        yield _drawn(value)
    elif cls is threading.local:
        yield _own_of_thread(value)
    elif cls is ContextVar:
        yield _variable(value)
    elif cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject and value.flags.writeable:
            yield _elements(value)
    elif isinstance(value, BaseException):
        yield _error(value)
    elif cls is types.FunctionType:
        yield _named(value)
    elif hasattr(cls, "__slots__"):
        yield _slots(value)


def _bytes(value: Any) -> PutBack:
    old = value[:]

    def put_back() -> bool:
        if value == old:
            return False
        value[:] = old
        return True

    return put_back


def _drawn(value: random.Random) -> PutBack:
    old = value.getstate()

    def put_back() -> bool:
        if value.getstate() == old:
            return False
        value.setstate(old)
        return True

    return put_back


def _elements(value: Any) -> PutBack:
    old = value.copy()

    def put_back() -> bool:
        if value.shape != old.shape or value.tobytes() == old.tobytes():
            return False
        value[...] = old
        return True

    return put_back


def _own_of_thread(value: Any) -> PutBack:
    held = value.__dict__
    old = dict(held)

    def put_back() -> bool:
        if len(held) == len(old) and all(held.get(name, _MISSING) is before for name, before in old.items()):
            return False
        held.clear()
        held.update(old)
        return True

    return put_back


def _variable(value: ContextVar[Any]) -> PutBack:
    old = value.get(_MISSING)

    def put_back() -> bool:
        now = value.get(_MISSING)
        # One that had no value has none again when the context ends that the run has of its own.
        if old is not _MISSING and now is not old:
            value.set(old)
        return now is not old

    return put_back


def _error(value: BaseException) -> PutBack:
    args, cause = value.args, value.__cause__

    def put_back() -> bool:
        if value.args is args and value.__cause__ is cause:
            return False
        value.args, value.__cause__ = args, cause
        return True

    return put_back


def _named(value: types.FunctionType) -> PutBack:
    names, defaults, by_name = (value.__name__, value.__qualname__), value.__defaults__, value.__kwdefaults__

    def put_back() -> bool:
        now = (value.__name__, value.__qualname__)
        if now == names and value.__defaults__ is defaults and value.__kwdefaults__ is by_name:
            return False
        (value.__name__, value.__qualname__), value.__defaults__, value.__kwdefaults__ = names, defaults, by_name
        return True

    return put_back


def _slots(value: Any) -> PutBack:
    cls = type(value)
    places = [
        place for base in cls.__mro__ for place in vars(base).values() if type(place) is types.MemberDescriptorType
    ]
    old = [_read(place, value, cls) for place in places]

    def put_back() -> bool:
        is_other = False
        for place, before in zip(places, old, strict=True):
            if _read(place, value, cls) is before:
                continue
            is_other = True
            if before is _MISSING:
                place.__delete__(value)
            else:
                place.__set__(value, before)
        return is_other

    return put_back


def _read(place: Any, value: Any, cls: type) -> Any:
    try:
        return place.__get__(value, cls)
    except AttributeError:
        return _MISSING
