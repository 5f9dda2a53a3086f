"""Exact equality of Python values: what a guard means by "the same value as before".

Invariant: `same(a, b)` is True only if no Python program could tell a from b by value, type or sign of zero. Tensors
and all objects that are not plain data count as the same only when they are the same object. `still(now, seen)` asks
for more: what can be changed in place is the same object, too, since its contents are watched in the one that was seen.
"""

from __future__ import annotations

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Final

import torch


class _Missing:
    """The value of a name that is not there."""

    def __repr__(self) -> str:
        return "<missing>"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()

_BY_EQUALITY = (int, str, bytes, torch.device, range)
_SEQUENCES = (tuple, list, torch.Size)
_MAPPINGS = (dict, OrderedDict)
_HASHED = frozenset({*_BY_EQUALITY, bool, float, complex, type(None), tuple, frozenset, torch.Size})
_MUTABLE = frozenset({dict, OrderedDict, list, set, deque})


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)


def same(a: Any, b: Any) -> bool:
    """Whether a and b are the same plain value of the same type, or the same object."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b) or isinstance(a, Enum):
        return False
    if kind in _BY_EQUALITY:
        return bool(a == b)
    if kind is float:
        return _bits(a) == _bits(b)
    if kind is complex:
        return _bits(a.real) == _bits(b.real) and _bits(a.imag) == _bits(b.imag)
    if kind in _SEQUENCES:
        return len(a) == len(b) and all(map(same, a, b))
    if kind in _MAPPINGS:
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    if kind is slice:
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if kind in (set, frozenset):
        return _same_set(a, b)
    return kind is deque and a.maxlen == b.maxlen and len(a) == len(b) and all(map(same, a, b))


def still(now: Any, seen: Any) -> bool:
    """Whether a place that held `seen` holds it now: the same plain value, with the very same lists, dicts and sets."""
    if now is seen:
        return True
    kind = type(now)
    if kind in _MUTABLE:
        return False
    if kind is tuple:
        return type(seen) is tuple and len(now) == len(seen) and all(map(still, now, seen))
    return same(now, seen)


def _same_set(a: Any, b: Any) -> bool:
    """Sets are compared member by member: 1, 1.0 and True hash alike, so equality alone is not enough. Of members that
    are no plain data only the very same ones count, and nothing is asked of them.
    """
    if len(a) != len(b):
        return False
    left = {id(x): x for x in _members(b)}
    others = [x for x in _members(a) if left.pop(id(x), MISSING) is MISSING]
    if not all(type(x) in _HASHED for x in others):
        return False
    partner = {x: x for x in left.values() if type(x) in _HASHED}
    return all(x in partner and same(x, partner[x]) for x in others)


def _items(container: dict[Any, Any]) -> Any:
    """The items as stored, in the order a program sees; an ordered dict keeps its order apart from the dict's."""
    return OrderedDict.items(container) if isinstance(container, OrderedDict) else dict.items(container)


def contents(container: Any) -> Any:
    """A shallow copy of a container as plain data (dict, tuple or frozenset): what a content guard compares with."""
    # As they are stored, without a question to a key's own `__hash__` and `__eq__`; an ordered dict's order is its own.
    if isinstance(container, dict):
        return dict(_items(container)) if isinstance(container, OrderedDict) else dict.copy(container)
    if isinstance(container, (set, frozenset)):
        return frozenset(container)
    return tuple(_members(container))


_KINDS: Final = (list, tuple, set, frozenset, deque)


def _members(container: Any) -> Iterator[Any]:
    """The members as stored, past the methods of a class of the user's."""
    kind: Any = next((kind for kind in _KINDS if isinstance(container, kind)), None)
    members: Iterator[Any] = iter(container) if kind is None else kind.__iter__(container)
    return members


def same_contents(container: Any, seen: Any, alike: Callable[[Any, Any], bool] = same) -> bool:
    """Whether a container still holds what `contents` saw: the same members in the same order."""
    if isinstance(container, dict):
        now = _items(container)
        return len(now) == len(seen) and all(
            alike(k, k0) and alike(v, v0) for (k, v), (k0, v0) in zip(now, seen.items(), strict=True)
        )
    if isinstance(container, (set, frozenset)):
        return _same_set(container, seen)
    members = tuple(_members(container))
    return len(members) == len(seen) and all(map(alike, members, seen))
