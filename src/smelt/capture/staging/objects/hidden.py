"""State that objects hold outside of any container: fields of C's (a function's defaults, an error's arguments), bytes,
arrays, a thread's own, generators of random numbers.

Invariant: nothing of the user's is called.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import functools
import mmap
import queue
import random
import sys
import threading
import types
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from itertools import chain, count
from operator import attrgetter, is_
from typing import Any, NamedTuple

from smelt._torch.annotations import annotate_held, annotations_held, put_annotations
from smelt._torch.exact import MISSING
from smelt.capture.reads.reads_values import field_of, fields_of_errors

_MOST_BYTES = 1 << 20  # of an array that is copied
_PLAIN = frozenset((bool, int, float, complex, str, bytes, tuple))
_IN_MEMORY = (ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
_ONCE = frozenset(
    map(type, (iter([]), iter(()), iter(""), iter("\u20ac"), iter(b""), iter(range(0)), iter(range(1 << 70)),
               reversed([]), reversed(range(0))))
)  # fmt: skip
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_OF_CONTEXTS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")

PutBack = Callable[[], bool]
"""Puts back what was there; whether that was another."""


class _Kind(NamedTuple):
    """How the state of objects of a kind is read, as parts, and put again; where it cannot be put, a change is told of,
    and its object is one that a staged run does not meet again: it was made by it.
    """

    read: Callable[[Any], Sequence[Any]]
    put: Callable[[Any, Any], object] = lambda value, old: None


def is_keeper(value: object) -> bool:
    """Whether an object holds something outside of any container."""
    return _kind_of(value) is not None


def keepers_of(value: object) -> Iterator[PutBack]:
    """What puts an object's own state back as it is now."""
    kind = _kind_of(value)
    if kind is not None:
        yield _kept(value, kind)


def _kept(value: object, kind: _Kind) -> PutBack:
    old = kind.read(value)

    def put_back() -> bool:
        now = kind.read(value)
        if len(now) == len(old) and all(map(are_one, now, old)):
            return False
        kind.put(value, old)
        return True

    return put_back


def are_one(some: Any, other: Any) -> bool:
    """Whether two parts of a state are the same object, or plain values that nobody can tell apart."""
    if some is other:
        return True
    kind = type(some)
    if kind is not type(other) or kind not in _PLAIN:
        return False
    return len(some) == len(other) and all(map(are_one, some, other)) if kind is tuple else bool(some == other)


# --- many objects at once --------------------------------------------------------------------------------------------


class Fields:
    """What objects of one kind hold in some fields, compared at once."""

    def __init__(self, values: Iterable[object], kind: _Kind) -> None:
        self._values = list(values)
        self._kind = kind
        self._held = list(map(kind.read, self._values))

    def put_back(self) -> bool:
        """Put back what was there; whether that was another."""
        now = list(map(self._kind.read, self._values))
        if all(map(is_, chain.from_iterable(now), chain.from_iterable(self._held))):
            return False
        is_other = False
        for value, old, new in zip(self._values, self._held, now, strict=True):
            if not all(map(are_one, old, new)):
                self._kind.put(value, old)
                is_other = True
        return is_other


def _set_all(names: Sequence[str]) -> Callable[[object, object], None]:
    def put(value: object, old: Any) -> None:
        for name, held in zip(names, old, strict=True):
            if getattr(value, name) is not held:
                setattr(value, name, held)

    return put


_OF_FUNCTIONS = ("__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__doc__", "__module__", "__dict__")
_plain_fields, _put_plain_fields = attrgetter(*_OF_FUNCTIONS), _set_all(_OF_FUNCTIONS)


def _read_function(function: object) -> tuple[object, ...]:
    return (*_plain_fields(function), annotate_held(function), annotations_held(function))


def _put_function(function: object, old: tuple[object, ...]) -> None:
    *fields, annotate, annotations = old
    _put_plain_fields(function, fields)
    put_annotations(function, annotate, annotations)


FUNCTIONS = _Kind(_read_function, _put_function)
CODES = _Kind(attrgetter("__code__", "__name__"), _set_all(("__code__", "__name__")))
_OF_CLASSES = [type.__dict__[name] for name in ("__bases__", "__name__", "__qualname__")]


def _read_class(cls: type) -> tuple[object, ...]:
    return tuple(field.__get__(cls) for field in _OF_CLASSES)


def _put_class(cls: type, old: tuple[object, ...]) -> None:
    for field, held in zip(_OF_CLASSES, old, strict=True):
        if field.__get__(cls) is not held:
            field.__set__(cls, held)


CLASSES = _Kind(_read_class, _put_class)


def _read_object(value: object) -> tuple[object, ...]:
    return type(value), None if isinstance(value, type) else _space(value)


def _space(value: object) -> object:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _put_object(value: object, old: tuple[object, ...]) -> None:
    cls, space = old
    if type(value) is not cls:
        (type if isinstance(value, type) else object).__setattr__(value, "__class__", cls)
    if space is not None and _space(value) is not space:
        object.__setattr__(value, "__dict__", space)


OBJECTS = _Kind(_read_object, _put_object)
"""The class of an object, and its own dictionary."""


# --- kinds -----------------------------------------------------------------------------------------------------------


def _put_bytes(value: Any, old: Any) -> None:
    value[:] = old[0]


_BYTES = _Kind(lambda value: (bytes(value),), _put_bytes)


def _put_array(value: Any, old: Any) -> None:
    value[:] = array.array(value.typecode, old[0])


_ARRAY = _Kind(lambda value: (value.tobytes(),), _put_array)
_MEMORY = _Kind(
    lambda value: (ctypes.string_at(ctypes.addressof(value), ctypes.sizeof(value)),),
    lambda value, old: ctypes.memmove(ctypes.addressof(value), old[0], len(old[0])),
)
_RANDOM = _Kind(lambda value: (value.getstate(),), lambda value, old: value.setstate(old[0]))
_PARTIAL = _Kind(
    attrgetter("func", "args", "keywords"),
    lambda value, old: functools.partial.__setstate__(value, (*old, vars(value))),  # type: ignore[attr-defined]
)
_PROPERTY = _Kind(attrgetter("fget", "fset", "fdel", "__doc__"), lambda value, old: property.__init__(value, *old))
_FACTORY = _Kind(lambda value: (value.default_factory,), lambda value, old: setattr(value, "default_factory", old[0]))


def _read_own(value: object) -> Any:
    own = value.__dict__
    return (*own, *own.values())


def _put_own(value: Any, old: Any) -> None:
    half = len(old) // 2
    value.__dict__.clear()
    value.__dict__.update(zip(old[:half], old[half:], strict=True))


def _put_variable(value: ContextVar[Any], old: Any) -> None:
    # One that had no value has none again when the context ends that the run has of its own.
    if old[0] is not MISSING:
        value.set(old[0])


def _read_array(value: Any) -> Any:
    form = (value.shape, value.strides, value.dtype.str, value.flags.writeable)
    if value.nbytes > _MOST_BYTES:
        return form
    return (*form, *value.ravel().tolist()) if value.dtype.hasobject else (*form, value.tobytes())


def _put_elements(value: Any, old: Any) -> None:
    shape, strides, dtype, is_writeable, *elements = old
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy's, which would have arrays made anew
        if value.dtype.str != dtype:
            value.dtype = dtype
        if value.shape != shape:
            value.shape = shape
        if value.strides != strides:
            value.strides = strides
    value.flags.writeable = True
    if value.dtype.hasobject:
        for place, held in zip(_places(value), elements, strict=False):
            value[place] = held
    elif elements:
        value[...] = _array_of(value, elements[0])
    value.flags.writeable = is_writeable


def _places(value: Any) -> Iterator[object]:
    return iter(sys.modules["numpy"].ndindex(value.shape))


def _array_of(value: Any, elements: bytes) -> object:
    return sys.modules["numpy"].frombuffer(elements, dtype=value.dtype).reshape(value.shape)


def _put_fields(value: object, fields: Sequence[Any], old: Any) -> None:
    for field, held in zip(fields, old, strict=True):
        if field_of(value, field) is held:
            continue
        with contextlib.suppress(AttributeError, TypeError):  # not each may be set
            if held is MISSING:
                field.__delete__(value)
            else:
                field.__set__(value, held)


def _of_fields(fields: Sequence[object]) -> _Kind:
    return _Kind(
        lambda value: [field_of(value, field) for field in fields],
        lambda value, old: _put_fields(value, fields, old),
    )


def _error(cls: type) -> _Kind:
    return _of_fields(list(fields_of_errors(cls).values()))


def _in_slots(cls: type) -> _Kind:
    return _of_fields(
        [place for base in cls.__mro__ for place in vars(base).values() if type(place) is types.MemberDescriptorType]
    )


def _put_lock(value: Any, old: Any) -> None:
    if old[0]:
        value.acquire(blocking=False)
    else:
        value.release()


_NDARRAY = _Kind(_read_array, _put_elements)
_CONTEXT = _Kind(attrgetter(*_OF_CONTEXTS), _set_all(_OF_CONTEXTS))
_BY_CLASS: dict[Any, _Kind] = {
    bytearray: _BYTES,
    mmap.mmap: _Kind(lambda value: (value[:],), _put_bytes),
    array.array: _ARRAY,
    random.Random: _RANDOM,
    threading.local: _Kind(_read_own, _put_own),
    ContextVar: _Kind(lambda value: (value.get(MISSING),), _put_variable),
    type(threading.Lock()): _Kind(lambda value: (value.locked(),), _put_lock),
    queue.SimpleQueue: _Kind(lambda value: (value.qsize(),)),
    count: _Kind(lambda value: (repr(value),)),
    **dict.fromkeys(_ONCE, _Kind(lambda value: (value.__length_hint__(),))),
    **dict.fromkeys(_GENERATORS, _Kind(attrgetter("__name__", "__qualname__"))),
}


def _kind_of(value: object) -> _Kind | None:
    cls = type(value)
    kind = _BY_CLASS.get(cls)
    if kind is not None:
        return kind
    if isinstance(value, BaseException):
        return _error(cls)
    if isinstance(value, functools.partial):
        return _PARTIAL
    if isinstance(value, property):
        return _PROPERTY
    if cls.__module__ == "numpy" and cls.__name__ == "ndarray":
        return _NDARRAY
    if cls.__module__ == "decimal" and cls.__name__ == "Context":
        return _CONTEXT
    if isinstance(value, _IN_MEMORY) and ctypes.sizeof(value) <= _MOST_BYTES:
        return _MEMORY
    if cls is defaultdict:
        return _FACTORY
    if isinstance(value, (dict, list, set, deque)) and hasattr(cls, "__slots__"):
        return _in_slots(cls)  # of other objects with slots these are containers
    return None
