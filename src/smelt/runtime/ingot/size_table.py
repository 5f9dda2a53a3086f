"""The words of a plan for many sizes, as a file has them: by sizes, not as the functions that gave them.

    low [1, 1]  count [8, 512]        tuples of sizes are numbered, the last size fastest
    a word     [[0, 128, 64], [512, 32896, 64]]        from tuple 0 on 128 + 64 i, from tuple 512 on 32896 + 64 i

Invariant: a table says of each tuple within its bounds whether the plan is for it, and then each word. Nothing of a
file is evaluated but sums and products of whole numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import prod

from smelt.diag.records import distinct_record
from smelt.runtime.ingot.texts.json_text import Part

TUPLE_LIMIT = 1 << 14
_LOW = -(1 << 63)


@distinct_record
class Column:
    """A number for each tuple, in runs: the first tuple of each, the number there, and what it grows by from one tuple
    to the next.
    """

    firsts: tuple[int, ...]
    bases: tuple[int | float, ...]
    steps: tuple[int, ...]

    def at(self, number: int) -> int | float:
        """The number for a tuple."""
        run = bisect_right(self.firsts, number) - 1
        step = self.steps[run]
        return self.bases[run] + step * (number - self.firsts[run]) if step else self.bases[run]

    @staticmethod
    def of(values: Mapping[int, int | float]) -> Column:
        """The column of these values by number of the tuple; between them it may have any."""
        firsts: list[int] = []
        bases: list[int | float] = []
        steps: list[int] = []
        last = 0
        for number, value in sorted(values.items()):
            if firsts:
                base, first, step = bases[-1], firsts[-1], steps[-1]
                if _is_same(value, base + step * (number - first) if step else base):
                    last = number
                    continue
                grown, rest = divmod(value - base, number - first) if type(value) is int else (0, 1)
                if last == first and not rest and type(base) is int:
                    steps[-1], last = int(grown), number
                    continue
            firsts.append(number)
            bases.append(value)
            steps.append(0)
            last = number
        return Column(tuple(firsts), tuple(bases), tuple(steps))

    def written(self) -> list[list[int | str]]:
        return [
            [first, base.hex() if isinstance(base, float) else base, step]
            for first, base, step in zip(self.firsts, self.bases, self.steps, strict=True)
        ]

    @staticmethod
    def read(part: Part, count: int) -> Column:
        """Raises: PackageError (S0701)."""
        firsts, bases, steps = [], [], []
        before = -1
        for run in part.items():
            first, base, step = run.items(3)
            firsts.append(before := first.as_int(before + 1, count - 1))
            is_double = type(base.value) is str
            bases.append(base.as_float() if is_double else base.as_int(_LOW))
            steps.append(step.as_int(0, 0) if is_double else step.as_int(_LOW))
        if not firsts or firsts[0]:
            raise part.bad("do not begin with the first sizes")
        return Column(tuple(firsts), tuple(bases), tuple(steps))


def _is_same(a: int | float, b: int | float) -> bool:
    """Whether they are one number, of one type and sign: -0.0 is not 0.0."""
    return a == b and type(a) is type(b) and (a != 0 or math.copysign(1, a) == math.copysign(1, b))


@distinct_record
class SizeTable:
    """For which sizes a plan is, and its words for these. shares: whether one encoding of the plan serves them, too."""

    low: tuple[int, ...]
    count: tuple[int, ...]
    taken: Column
    shares: Column
    columns: tuple[Column, ...]

    def number(self, sizes: Sequence[int]) -> int | None:
        """The number of a tuple; None outside of the bounds."""
        found = 0
        for size, low, count in zip(sizes, self.low, self.count, strict=True):
            if not low <= size < low + count:
                return None
            found = found * count + size - low
        return found

    def sizes(self, number: int) -> tuple[int, ...]:
        """The sizes of a tuple's number."""
        found = []
        for low, count in zip(reversed(self.low), reversed(self.count), strict=True):
            number, rest = divmod(number, count)
            found.append(low + rest)
        return tuple(reversed(found))

    def holds(self, *sizes: int) -> bool:
        """Whether the plan is for these sizes."""
        number = self.number(sizes)
        return number is not None and bool(self.taken.at(number))

    def can_share(self, *sizes: int) -> bool:
        """Whether one encoding serves these sizes."""
        number = self.number(sizes)
        return number is not None and bool(self.shares.at(number))

    def words(self, *sizes: int) -> tuple[int | float, ...]:
        """The plan's words for sizes that it is for."""
        number = self.number(sizes)
        assert number is not None, "the plan is for other sizes"
        return tuple([column.at(number) for column in self.columns])

    @property
    def least(self) -> tuple[int, ...]:
        """The first sizes that the plan is for."""
        first = next(number for number in range(prod(self.count)) if self.taken.at(number))
        return self.sizes(first)

    @property
    def most(self) -> tuple[int, ...]:
        """The largest sizes that one encoding serves; the first that the plan is for where it serves none."""
        shared = [n for n in range(prod(self.count)) if self.taken.at(n) and self.shares.at(n)]
        return max(map(self.sizes, shared), key=prod, default=self.least)

    def written(self) -> dict[str, object]:
        return {
            "low": list(self.low),
            "count": list(self.count),
            "taken": self.taken.written(),
            "shares": self.shares.written(),
            "columns": [column.written() for column in self.columns],
        }

    @staticmethod
    def read(part: Part) -> SizeTable:
        """Raises: PackageError (S0701)."""
        low, count, taken, shares, columns = part.keys("low", "count", "taken", "shares", "columns")
        counts = count.ints(1, TUPLE_LIMIT)
        if len(counts) != len(low.items()) or prod(counts) > TUPLE_LIMIT:
            raise count.bad("are no numbers of sizes")
        total = prod(counts)
        found = SizeTable(
            low.ints(), counts, Column.read(taken, total), Column.read(shares, total),
            tuple(Column.read(each, total) for each in columns.items()),
        )  # fmt: skip
        if not any(found.taken.at(number) for number in range(total)):
            raise taken.bad("are no sizes")
        return found
