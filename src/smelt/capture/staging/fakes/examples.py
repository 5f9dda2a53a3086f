"""Examples of values that depend on data: what each may be in each world.

    n = a.item()       n, m: (2, 0, 1, 7, 3254503), (2, 0, 1, 15, 3245503)
    m = b.item()       torch.ones(n - m + 3): f32[_], though three worlds have 3 and one has none

What is equal in all worlds is taken to follow from types, so values that have nothing to do with each other must not
come to the same everywhere. In the first worlds all are alike, so that what is computed of them fits together. In the
others each has a number of its own: in one they rise ever slower from value to value, in the other they fall ever
slower. A difference of two, or of two differences, is negative, and so the size of nothing, in one of these at most.

Invariant: a stretch of the program that is run again has the examples that it had.
"""

from __future__ import annotations

from typing import Any

from smelt.capture.staging.fakes.symbols import WORLDS
from smelt.ir import ListType, Type

_KEY = ("", 0, "examples")
_SMALL = (7, 15, 22, 28, 33, 37, 40, 42, 43)
_LARGE, _LARGES, _STEP = 1_000_003, 500, 18
_LONG = 60  # items of a list, less than the small number
_SIDES = (
    (0, 1, 0, 1, 0), (0, 0, 1, 1, 0), (0, 1, 1, 0, 0), (0, 0, 0, 1, 1), (0, 1, 0, 0, 1), (0, 0, 1, 0, 1),
    (0, 1, 1, 1, 0), (0, 1, 0, 1, 1), (0, 0, 1, 1, 1), (0, 1, 1, 0, 1), (0, 1, 1, 1, 1),
)  # fmt: skip
_STR = ("a", "", "b", "abc", "abcd")
_COMPLEX = (1.5 + 1j, 0j, 1 + 0j)


class Examples:
    """Makes them. counts: how many there were, by a key of its own among what a region keeps for each way."""

    def __init__(self, counts: dict[tuple[str, int, str], int]) -> None:
        self._counts = counts

    def ints(self, first: int = 2) -> tuple[int, ...]:
        """Sizes and other whole numbers. first: in the program's world."""
        return (first, 0, 1, *self._own())

    def index(self) -> tuple[int, ...]:
        """The index of a loop: small ones, for it lies inside of something."""
        number = self.turn(7)
        return (1, 0, 0, 2 + number, 11 - number)

    def sides(self) -> tuple[int, ...]:
        """In which worlds the second of two values stands for what a branch leaves: 0 for the first, 1 for it."""
        return _SIDES[self.turn(len(_SIDES))]

    def turn(self, count: int) -> int:
        """One of so many ways to have examples, another one than the last time."""
        return self._next() % count

    def of(self, type_: Type, first: object = None) -> tuple[Any, ...]:
        """Examples of any type; None where it has none. first: in the program's world, where it is of the type."""
        found: tuple[Any, ...]
        match str(type_):
            case "int":
                found = self.ints()
            case "float":
                found = (1.5, 0.0, 1.0, *(n + 0.5 for n in self._own()))
            case "complex":
                found = (*_COMPLEX, *(complex(n + 0.5, -2) for n in self._own()))
            case "bool":
                found = tuple(side == 0 for side in self.sides())
            case "str":
                found = _STR
            case _ if isinstance(type_, ListType):
                inner = self.of(type_.element)
                small, _ = self._own()
                return ([inner[0]] * 3, [], [inner[2]], [inner[3]] * small, [inner[4]] * (_LONG - small))
            case _:
                return (None,) * WORLDS
        return (first, *found[1:]) if type(first) is type(found[0]) else found

    def _own(self) -> tuple[int, int]:
        """Numbers that no other value has, small and large."""
        number = self._next()
        left = _LARGES - number % _LARGES
        return _SMALL[number % len(_SMALL)], _LARGE + _STEP * (left * (left + 1) // 2)

    def _next(self) -> int:
        number = self._counts.get(_KEY, 0)
        self._counts[_KEY] = number + 1
        return number
