"""State that objects hold outside of any container: slots, bytes, arrays, a thread's own, generators of random numbers.

Invariant: nothing of the user's is called.
"""

from __future__ import annotations

import array
import random
import threading
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

_MISSING = object()
_MOST_BYTES = 1 << 20  # of an array that is copied

PutBack = Callable[[], None]


def keepers_of(value: Any) -> Iterator[PutBack]:
    """What puts an object's own state back as it is now."""
    cls = type(value)
    if cls is bytearray or cls is array.array:
        yield _bytes(value)
    elif cls is random.Random:
        state = value.getstate()
        yield lambda: value.setstate(state)
    elif cls is threading.local:
        yield _own_of_thread(value)
    elif cls is ContextVar:
        yield _variable(value)
    elif cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        if value.nbytes <= _MOST_BYTES and not value.dtype.hasobject and value.flags.writeable:
            yield _elements(value)
    elif hasattr(cls, "__slots__"):
        yield _slots(value)


def _bytes(value: Any) -> PutBack:
    old = value[:]

    def put_back() -> None:
        if value != old:
            value[:] = old

    return put_back


def _elements(value: Any) -> PutBack:
    old = value.copy()

    def put_back() -> None:
        if value.shape == old.shape:
            value[...] = old

    return put_back


def _own_of_thread(value: Any) -> PutBack:
    held = value.__dict__
    old = dict(held)

    def put_back() -> None:
        held.clear()
        held.update(old)

    return put_back


def _variable(value: ContextVar[Any]) -> PutBack:
    old = value.get(_MISSING)

    def put_back() -> None:
        # One that had no value has none again when the context ends that the run has of its own.
        if old is not _MISSING and value.get(_MISSING) is not old:
            value.set(old)

    return put_back


def _slots(value: Any) -> PutBack:
    cls = type(value)
    places = [
        place for base in cls.__mro__ for place in vars(base).values() if type(place) is types.MemberDescriptorType
    ]
    old = [_read(place, value, cls) for place in places]

    def put_back() -> None:
        for place, before in zip(places, old, strict=True):
            if _read(place, value, cls) is before:
                continue
            if before is _MISSING:
                place.__delete__(value)
            else:
                place.__set__(value, before)

    return put_back


def _read(place: Any, value: Any, cls: type) -> Any:
    try:
        return place.__get__(value, cls)
    except AttributeError:
        return _MISSING
