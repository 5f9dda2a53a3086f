"""Namespaces: dicts of which a program read some names, checked for change by CPython's own dict versions.

Invariant: `first_changed` answers None only if every name that was read (or found absent) holds the same value as when
it was last verified. CPython up to 3.12 stamps a dict with a new number at each change (PEP 509), 3.13 all but those
that hold an object's attributes: all stamps are gathered in one call and compared; of these dicts only those whose
stamp moved are looked into. The others are looked into each time.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from operator import attrgetter, is_
from typing import Any

import numpy as np
import numpy.typing as npt

from smelt._torch.exact import MISSING, same, still
from smelt.diag.interpreter import is_free_threaded
from smelt.diag.records import record

_STAMP_OFFSET = 24  # PyDictObject: object header (16), ma_used (8), ma_version_tag
_VALUES_OFFSET = 40  # then ma_keys, and ma_values: null but in the dict of an object that shares its keys with others
_TYPE_OFFSET = 8  # PyObject: ob_type
_DICT_OFFSET = -24  # the managed dict pointer, before the object
_FUNCTION_OFFSETS = (48, 56, 64)  # PyFunctionObject: func_code, func_defaults, func_kwdefaults
_SET_OFFSETS = (24, 32, 40)  # PySetObject: object header, fill, then used, mask, table
_SET_ENTRY = 16  # key, hash
_SET_LIMIT = 4096
# What a class is that its dict does not hold; the words are looked for in the class, as the interpreter lays it out.
CLASS_PARTS = ("__mro__", "__name__", "__qualname__")
_CLASS_PARTS = attrgetter(*CLASS_PARTS)
_FUNCTION_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_DICT_OF = attrgetter("__dict__")
Stamps = npt.NDArray[np.int64]


@record
class Namespace:
    """A dict and the names of it that were read, with the values seen (MISSING: the name was not there).

    order: all keys, in order, if the whole content was read; None if only the names count.
    """

    entries: dict[Any, Any]
    names: tuple[Any, ...]
    values: tuple[Any, ...]
    order: tuple[Any, ...] | None

    def holds(self) -> bool:
        """Whether every name still has the value that was seen."""
        entries = self.entries
        if self.order is not None and not self.in_order():
            return False
        now_all = map(dict.get, repeat(entries), self.names, repeat(MISSING))
        if all(map(is_, now_all, self.values)):
            return True
        for name, seen in zip(self.names, self.values, strict=True):
            now = dict.get(entries, name, MISSING)
            if not still(now, seen):
                return False
        return True

    def in_order(self) -> bool:
        """Whether the keys are those of `order`, in that order."""
        order = self.order or ()
        if len(self.entries) != len(order):
            return False
        return all(map(is_, self.entries, order)) or all(map(same, self.entries, order))


class Namespaces:
    """All dicts that a program read, each once; `ordered` are those among them whose stamps do not tell all."""

    def __init__(self, spaces: Sequence[Namespace]) -> None:
        self.spaces = tuple(spaces)
        ordered = (s for s in spaces if s.order is not None and len(s.order) > 1)
        self.ordered = tuple(s for s in ordered if isinstance(s.entries, OrderedDict))
        self.stamped = tuple(space for space in spaces if has_stamp(space.entries))
        self.unstamped = tuple(space for space in spaces if not has_stamp(space.entries))
        self._empty = tuple(s.entries for s in self.unstamped if not s.order and s.order is not None and not s.names)
        self._filled = tuple(s for s in self.unstamped if s.order or s.order is None or s.names)
        addresses = [id(space.entries) + _STAMP_OFFSET for space in self.stamped]
        self._read = reader(addresses) if addresses else None
        self._seen: Stamps | None = None
        self._seen_bytes = b""

    def unchanged(self) -> bool:
        """Whether all names hold what was seen, about 3 us for a thousand dicts when nothing was written."""
        if any(self._empty) or not all(space.holds() for space in self._filled):
            return False
        if self._read is None:
            return True
        now = self._read()
        stamps = now.tobytes()
        if stamps != self._seen_bytes:
            moved = self.stamped if self._seen is None else [self.stamped[i] for i in np.flatnonzero(now != self._seen)]
            if not all(space.holds() for space in moved):
                return False
            self._seen, self._seen_bytes = now, stamps
        return all(space.in_order() for space in self.ordered)  # moving a key to the end leaves the stamp alone


def class_namespace(cls: type) -> dict[str, Any] | None:
    """The dict behind a class's read-only `__dict__`, to be looked at only; None for classes that cannot change."""
    immutable = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
    if cls.__flags__ & immutable:
        return None
    found = [value for value in gc.get_referents(cls.__dict__) if isinstance(value, dict)]
    return found[0] if len(found) == 1 else None


def lookup_path(cls: type, name: str) -> list[tuple[type, Any]]:
    """The classes that a lookup of `name` asks, in order, with what each holds (the last one may have it)."""
    path: list[tuple[type, Any]] = []
    for base in cls.__mro__:
        found = base.__dict__.get(name, MISSING)
        path.append((base, found))
        if found is not MISSING:
            break
    return path


def _is_known_build() -> bool:
    """Whether objects lie in memory as in CPython with its lock, with 64 bits a word."""
    is_free = is_free_threaded()
    return sys.implementation.name == "cpython" and not is_free and ctypes.sizeof(ctypes.c_void_p) == 8


def stamps_work(of_objects: bool) -> bool:
    """Whether this interpreter keeps versions of dicts, or of those of objects, where we look for them: asked of the
    interpreter, not assumed.
    """
    if not _is_known_build():
        return False
    probe: dict[str, Any] = {"a": 1}

    class Thing:
        pass

    thing = Thing()
    thing.a = 1  # type: ignore[attr-defined]
    of_dicts: list[tuple[dict[str, Any], Callable[[], Any]]] = [
        (probe, lambda: probe.__setitem__("a", 2)),
        (probe, lambda: probe.__setitem__("b", 2)),
        (probe, lambda: probe.pop("b")),
    ]
    things: list[tuple[dict[str, Any], Callable[[], Any]]] = [
        (thing.__dict__, lambda: setattr(thing, "a", 2)),
        (thing.__dict__, lambda: setattr(thing, "b", 2)),
        (thing.__dict__, lambda: thing.__dict__.__setitem__("b", 3)),
        (thing.__dict__, lambda: delattr(thing, "b")),
    ]
    if not of_objects and (_word(id(probe) + _VALUES_OFFSET) or not _word(id(thing.__dict__) + _VALUES_OFFSET)):
        return False
    for entries, change in things if of_objects else of_dicts:
        before = _stamp(entries)
        if _stamp(entries) != before or entries.get("a") is None or _stamp(entries) != before:
            return False
        change()
        if _stamp(entries) == before:
            return False
    return True


def pointers_work() -> bool:
    """Whether an object's type and dict, and a function's code and defaults, are where we look for them."""
    if not _is_known_build():
        return False

    class Thing:
        pass

    class Other:
        pass

    def function(a: int = 1, *, b: int = 2) -> None: ...

    def another() -> int:
        return 1

    thing = Thing()
    for _ in range(2):
        if not has_dict_pointer(thing) or _word(id(thing) + _TYPE_OFFSET) != id(type(thing)):
            return False
        parts = (function.__code__, function.__defaults__, function.__kwdefaults__)
        seen = [_word(id(function) + offset) for offset in _FUNCTION_OFFSETS]
        if seen != [0 if part is None else id(part) for part in parts]:
            return False
        thing.__class__, thing.__dict__ = Other, {"x": 1}  # type: ignore[assignment]
        function.__code__, function.__defaults__, function.__kwdefaults__ = another.__code__, None, {"c": 3}
    return True


@lru_cache(maxsize=1)
def class_offsets() -> tuple[int, ...]:
    """Where in a class the words are that change with its `CLASS_PARTS`; none where they are not found."""

    class Base:
        pass

    class Other:
        pass

    class Probe(Base):
        pass

    def found() -> tuple[int, ...]:
        words = [_word(id(Probe) + offset) for offset in range(0, sys.getsizeof(Probe), 8)]
        parts = [id(part) for part in _CLASS_PARTS(Probe)]
        return tuple(8 * words.index(part) if words.count(part) == 1 else -1 for part in parts)

    if not _HAVE_POINTERS:
        return ()
    Probe.__name__, Probe.__qualname__ = "AProbe", "A.Probe"
    first = found()
    Probe.__bases__, Probe.__name__, Probe.__qualname__ = (Other,), "Renamed", "Re.Named"
    return first if first == found() and -1 not in first else ()


def has_dict_pointer(value: Any) -> bool:
    """Whether this object's `__dict__` is held at the usual place."""
    return id(value.__dict__) == _word(id(value) + _DICT_OFFSET)  # asking for the dict first: it may be made now


def set_words(members: set[Any]) -> list[tuple[int, int]]:
    """Addresses, each with the word there now, that stay as they are while nobody changes a set; none if unknown.

    In this order: each is read only while those before it are as they were.
    """
    start = id(members)
    used, mask, table = (_word(start + offset) for offset in _SET_OFFSETS)
    if not _sets_work() or used != len(members) or mask >= _SET_LIMIT:
        return []
    found = [(start + offset, _word(start + offset)) for offset in _SET_OFFSETS]
    entries = [(table + _SET_ENTRY * i, _word(table + _SET_ENTRY * i)) for i in range(mask + 1)]
    keys = {word for _, word in entries}
    return [*found, *entries] if {id(member) for member in members} <= keys else []


@lru_cache(maxsize=1)
def _sets_work() -> bool:
    """Whether a set keeps its size, its table and the keys in it where `set_words` looks, as seen on a small one."""
    members = {"a", "b", 3}
    start = id(members)
    used, mask, table = (_word(start + offset) for offset in _SET_OFFSETS)
    if used != 3 or mask != 7 or not start < table <= start + set.__basicsize__ - 8 * _SET_ENTRY:
        return False
    return {id(member) for member in members} <= {_word(table + _SET_ENTRY * i) for i in range(8)}


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _stamp(entries: Mapping[str, Any]) -> int:
    return _word(id(entries) + _STAMP_OFFSET)


HAVE_STAMPS, HAVE_OBJECT_STAMPS = stamps_work(False), stamps_work(True)
_HAVE_POINTERS = pointers_work()


def has_stamp(entries: Mapping[Any, Any]) -> bool:
    """Whether each change of a dict moves its stamp."""
    return HAVE_STAMPS and (HAVE_OBJECT_STAMPS or not _word(id(entries) + _VALUES_OFFSET))


def reader(addresses: Sequence[int]) -> Callable[[], Stamps]:
    """A function that gathers 8-byte words at all addresses in one call; the caller keeps their objects alive."""
    places = np.array(addresses, dtype=np.int64)
    first = int(places.min())
    window = (ctypes.c_int64 * ((int(places.max()) - first) // 8 + 1)).from_address(first)
    take, indices = np.frombuffer(memoryview(window), dtype=np.int64).take, (places - first) // 8
    return lambda: take(indices)


class Identities:
    """Objects that must keep their type and `__dict__`, functions that must keep their code and defaults, and classes
    that must keep their bases and names."""

    def __init__(self, objects: Sequence[Any], functions: Sequence[Any], classes: Sequence[type] = ()) -> None:
        fast = [value for value in objects if _HAVE_POINTERS and has_dict_pointer(value)]
        known = {id(value) for value in fast}
        self._objects = [value for value in objects if id(value) not in known]
        self._types = [type(value) for value in self._objects]
        self._dicts = [value.__dict__ for value in self._objects]
        self._functions = [] if _HAVE_POINTERS else list(functions)
        self._parts = [part for function in self._functions for part in _FUNCTION_PARTS(function)]
        offsets = class_offsets()
        self._classes = [] if offsets else list(classes)
        self._class_parts = [part for cls in self._classes for part in _CLASS_PARTS(cls)]
        # What the words point to is kept alive here, so a word names one object only.
        self._is_of_any = bool(objects or functions or classes)
        self._alive = [(value, type(value), value.__dict__) for value in fast]
        self._alive_parts = [(function, _FUNCTION_PARTS(function)) for function in functions]
        self._alive_classes = [(cls, _CLASS_PARTS(cls)) for cls in classes]
        self._addresses = [id(value) + offset for value in fast for offset in (_TYPE_OFFSET, _DICT_OFFSET)]
        if _HAVE_POINTERS:
            self._addresses += [id(function) + offset for function in functions for offset in _FUNCTION_OFFSETS]
        self._addresses += [id(cls) + offset for cls in classes for offset in offsets]
        self._read = reader(self._addresses) if self._addresses else None
        self._seen = b"" if self._read is None else self._read().tobytes()

    def __bool__(self) -> bool:
        return self._is_of_any

    @property
    def words(self) -> list[tuple[int, int]]:
        """Addresses, each with the word that was seen there; valid while this object lives."""
        return list(zip(self._addresses, np.frombuffer(self._seen, dtype=np.int64).tolist(), strict=True))

    @property
    def needs_python(self) -> bool:
        """Whether something is not told by `words`."""
        return bool(self._objects or self._functions or self._classes)

    def unchanged(self) -> bool:
        """Whether all of them are what they were, about 2 us for 200 objects and 100 functions."""
        if self._read is not None and self._read().tobytes() != self._seen:
            return False
        return (
            all(map(is_, map(type, self._objects), self._types))
            and all(map(is_, map(_DICT_OF, self._objects), self._dicts))
            and all(map(is_, chain.from_iterable(map(_FUNCTION_PARTS, self._functions)), self._parts))
            and all(map(is_, chain.from_iterable(map(_CLASS_PARTS, self._classes)), self._class_parts))
        )
