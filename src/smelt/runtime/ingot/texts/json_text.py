"""JSON as ingots have it: one spelling of each value, and a reader that takes what it is told to expect.

Invariant: reading costs memory and time in proportion to the text; whatever is wrong is a PackageError that names the
entry and the place in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from smelt.runtime.ingot.errors import broken

TEXT_LIMIT = 64 << 20
_DEPTH_LIMIT = 64
_INT_LIMIT = 1 << 63
_ONE_INT = frozenset((int,))
_LONG = re.compile(r"(?<![\w.])(?:\d{20}|9\d{18})", re.ASCII)


def dumps(value: Any) -> bytes:
    """The value's only spelling: sorted keys, no spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def loads(data: memoryview, entry: str) -> Part:
    """What a text holds. Raises: PackageError (S0701)."""
    if len(data) > TEXT_LIMIT:
        raise broken(entry, f"it has {len(data):,} bytes, more than {TEXT_LIMIT:,}")
    raw = bytes(data)
    _check_depth(raw, entry)
    try:
        text = raw.decode("ascii")
        # Where no number has so many digits, each is within 64 bits.
        parse_int = _int if _LONG.search(text) else None
        value = json.loads(text, object_pairs_hook=_no_key_twice, parse_int=parse_int, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise broken(entry, f"it is no JSON of an ingot: {error}") from None
    return Part(value, entry)


def _check_depth(raw: bytes, entry: str) -> None:
    # Brackets in strings count too: none of an ingot's strings has so many.
    steps = map((-1, 1).__getitem__, raw.translate(_OPENS, _NO_BRACKETS))
    if max(accumulate(steps), default=0) > _DEPTH_LIMIT:
        raise broken(entry, f"it is nested more than {_DEPTH_LIMIT} deep")


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPENS = bytes.maketrans(b"[{]}", b"\1\1\0\0")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a number is beyond 64 bits")
    number = int(text)
    if not -_INT_LIMIT <= number < 2 * _INT_LIMIT:
        raise ValueError("a number is beyond 64 bits")
    return number


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


class Part:
    """A value of a text, with where it stands. Each method gives the value as what it is named after.

    Raises: PackageError (S0701) where it is of another type, in each.
    """

    __slots__ = ("_place", "entry", "value")

    def __init__(self, value: Any, entry: str, place: str | tuple[Part, str | int] = "") -> None:
        """place: where it stands in the text, or the value that it is in and its key or number there."""
        self.value, self.entry, self._place = value, entry, place

    @property
    def where(self) -> str:
        if isinstance(self._place, str):
            return self._place
        inside, key = self._place
        return f"{inside.where}[{key}]" if isinstance(key, int) else f"{inside.where}.{key}"

    def bad(self, why: str) -> Exception:
        """The error for this place."""
        return broken(self.entry, f"{self.where or 'the text'} {why}")

    def is_null(self) -> bool:
        return self.value is None

    def as_int(self, low: int = 0, high: int = _INT_LIMIT - 1) -> int:
        """A whole number within bounds, both included."""
        if type(self.value) is not int or not low <= self.value <= high:
            raise self.bad(f"is no whole number from {low} to {high}")
        return self.value

    def as_bool(self) -> bool:
        if type(self.value) is not bool:
            raise self.bad("is neither true nor false")
        return self.value

    def as_float(self) -> float:
        """A number that is written with all its bits."""
        try:
            return float.fromhex(self.as_str())
        except (ValueError, OverflowError):
            raise self.bad("is no hexadecimal number") from None

    def as_str(self) -> str:
        if type(self.value) is not str:
            raise self.bad("is no string")
        return self.value

    def one_of(self, *names: str) -> str:
        """One of these strings."""
        if type(self.value) is not str or self.value not in names:
            raise self.bad(f"is none of {', '.join(names)}")
        return self.value

    def items(self, count: int | None = None) -> list[Part]:
        """The elements of a list, of this length."""
        if type(self.value) is not list or (count is not None and len(self.value) != count):
            raise self.bad("is no list" if count is None else f"is no list of {count}")
        return [Part(item, self.entry, (self, i)) for i, item in enumerate(self.value)]

    def ints(self, low: int = 0, high: int = _INT_LIMIT - 1) -> tuple[int, ...]:
        """A list of whole numbers within bounds."""
        found = self.value
        if type(found) is not list or not _ONE_INT.issuperset(map(type, found)):
            raise self.bad(f"is no list of whole numbers from {low} to {high}")
        if found and not (low <= min(found) and max(found) <= high):
            raise self.bad(f"is no list of whole numbers from {low} to {high}")
        return tuple(found)

    def keys(self, *names: str) -> list[Part]:
        """The values of an object that has these keys and no others, in this order."""
        if type(self.value) is not dict or self.value.keys() != set(names):
            raise self.bad(f"is no object of {', '.join(names)}")
        return [Part(self.value[name], self.entry, (self, name)) for name in names]

    def pairs(self) -> Iterator[tuple[str, Part]]:
        """The keys and values of an object."""
        if type(self.value) is not dict:
            raise self.bad("is no object")
        return ((key, Part(value, self.entry, (self, key))) for key, value in self.value.items())
