"""What of a table differs between sizes: columns of numbers, one number for each tuple of sizes, and where each goes.

    column 3   [[0, 128, 64], [512, 32896, 64]]       from tuple 0 on 128 + 64 i, from tuple 512 on 32896 + 64 i
    fill       cell 41: column 3                      a call with other sizes puts it there

Invariant: every number that a call needs is in a column; C adds and divides, and knows nothing of how words are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, product
from math import prod

from smelt.diag.records import record
from smelt.package.c.errors import refused
from smelt.runtime.encoding.encoded import Encoded, Later
from smelt.runtime.ingot.size_table import Column, SizeTable
from smelt.runtime.plan import ArenaTensor, Launch, Plan, Word

_LIMIT = 1 << 63
_EXACT = 1 << 53


@record
class Fill:
    """A number's place: kind as `smelt_program.h` has it."""

    kind: str
    column: int
    where: int
    dim: int = 0


@record
class Work:
    """A launch: its descriptor's cell, the columns of its items and of the nanoseconds of one."""

    cell: int
    items: int
    item_ns: int


@record
class Part:
    """Some of the launches, or of the groups, from `first` on; `word` of the code has a number of theirs."""

    word: int
    first: int
    count: int


@record
class Sized:
    """For which sizes a table is, and what differs between them. taken: the column that says for which."""

    low: tuple[int, ...]
    count: tuple[int, ...]
    taken: int
    columns: tuple[Column, ...] = ()
    fills: tuple[Fill, ...] = ()
    works: tuple[Work, ...] = ()
    groups: tuple[Part, ...] = ()
    teams: tuple[Part, ...] = ()

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The least and the most of each size that it is for."""
        taken = self.columns[self.taken]
        tuples = zip(product(*(range(n) for n in self.count)), count(), strict=False)
        found = [offsets for offsets, number in tuples if taken.at(number)]
        return [(low + min(own), low + max(own)) for low, own in zip(self.low, zip(*found, strict=True), strict=True)]

    @staticmethod
    def single(sizes: Sequence[int]) -> Sized:
        """Of a table for these sizes alone."""
        return Sized(tuple(sizes), (1,) * len(sizes), 0, (Column.of({0: 1}),))


@dataclass
class _Columns:
    """Columns of words, each once."""

    table: SizeTable
    taken: Sequence[int]
    name: str
    found: list[Column] = field(default_factory=list)
    _known: dict[object, int] = field(default_factory=dict)

    def of(self, value: int | float) -> int:
        """The number of a value's column."""
        column = _column(value, self.table)
        if _reach(column) >= _LIMIT and any(abs(column.at(number)) >= _LIMIT for number in self.taken):
            why = "for some of its sizes a number is beyond 64 bits"
            raise refused(self.name, why, "save the program for smaller ranges")
        return self.add(column)

    def of_doubles(self, value: int | float) -> int:
        """The number of its column of floating numbers."""
        column = _column(value, self.table)
        if any(type(base) is int for base in column.bases):
            column = Column.of({number: float(column.at(number)) for number in range(prod(self.table.count))})
        return self.add(column)

    def add(self, column: Column) -> int:
        """The number of a column."""
        key = column.firsts, column.bases, column.steps, tuple(map(type, column.bases))
        if key not in self._known:
            self._known[key] = len(self.found)
            self.found.append(column)
        return self._known[key]

    def is_whole(self, word: Word) -> bool:
        """Whether all its numbers are whole, and small enough to be floating numbers."""
        column = _column(word, self.table)
        return all(type(base) is int for base in column.bases) and _reach(column) < _EXACT

    def most(self, value: int | float) -> int:
        """The most that a value is."""
        column = _column(value, self.table)
        return max((int(column.at(number)) for number in self.taken), default=0)


def sized_of(name: str, plan: Plan, encoded: Encoded, table: SizeTable) -> tuple[Sized, int, int]:
    """What differs between the sizes of an encoded plan, and the most bytes of its arena and of a thread's scratch.

    name: of the entry point. Raises: PackageError (S0704) where a number leaves 64 bits.
    """
    assert encoded.later is not None, "it was encoded with words"
    taken = [number for number in range(prod(table.count)) if table.taken.at(number) and table.shares.at(number)]
    columns = _Columns(table, taken, name)
    which = columns.add(Column.of(dict.fromkeys(range(prod(table.count)), 0) | dict.fromkeys(taken, 1)))
    fills = [_mark(columns, cell, word) for cell, word in encoded.later.marks]
    for cell, offset in encoded.arena_addresses:
        if type(offset) is Word:
            fills.append(Fill("ARENA", columns.of(offset), cell))
    for index, tensor in enumerate(handled(plan, encoded)):
        if type(tensor.offset) is Word:
            fills.append(Fill("PLANNED", columns.of(tensor.offset), index))
        for dim, number in enumerate((*tensor.sizes, *tensor.strides)):
            if type(number) is Word:
                fills.append(Fill("DIM", columns.of(number), index, dim))
    works, groups = _launches(plan, encoded.later, columns)
    teams = [Part(team.word, team.groups[0], len(team.groups)) for team in encoded.later.teams if team.groups]
    fills.sort(key=lambda fill: fill.column)
    scratch = [columns.most(each.scratch_nbytes) for each in plan.instructions if isinstance(each, Launch)]
    sized = Sized(
        table.low, table.count, which, tuple(columns.found), tuple(fills), tuple(works), tuple(groups), tuple(teams)
    )
    return sized, columns.most(plan.arena_nbytes), max((encoded.scratch_nbytes, *scratch))


def bounds_of(found: Sequence[Sized]) -> list[tuple[int, int]]:
    """The least and the most of each size that some of them are for."""
    sizes = zip(*(each.bounds for each in found), strict=True)
    return [(min(low for low, _ in own), max(high for _, high in own)) for own in sizes]


def handled(plan: Plan, encoded: Encoded) -> list[ArenaTensor]:
    """The tensors of the arena that need handles."""
    slots = encoded.later.arena_slots if encoded.later is not None else {tensor.slot for tensor in plan.arena}
    return [tensor for tensor in plan.arena if tensor.slot in slots]


def _mark(columns: _Columns, cell: int, word: Word) -> Fill:
    if not word.is_double:
        return Fill("CELL", columns.of(word), cell)
    if columns.is_whole(word):
        return Fill("DOUBLE", columns.of(word), cell)
    return Fill("CELL", columns.of_doubles(word), cell)


def _launches(plan: Plan, later: Later, columns: _Columns) -> tuple[list[Work], list[Part]]:
    works: list[Work] = []
    groups: list[Part] = []
    for group in later.groups:
        groups.append(Part(group.word, len(works), len(group.launches)))
        for cell, index in group.launches:
            launch = plan.instructions[index]
            assert isinstance(launch, Launch)
            works.append(Work(cell, columns.of(launch.items), columns.of_doubles(launch.item_ns)))
    return works, groups


def _column(value: int | float, table: SizeTable) -> Column:
    """The column of a number, or of a word, whose runs begin where one of its terms' runs begins."""
    if type(value) is not Word:
        return Column((0,), (value,), (0,))
    terms = [(table.columns[index], factor) for index, factor in value.terms]
    if len(terms) == 1 and terms[0][1] == 1 and not value.add:
        return terms[0][0]
    firsts = sorted({first for column, _ in terms for first in column.firsts} | {0})
    bases, steps = [], []
    for first in firsts:
        bases.append(value.add + sum(column.at(first) * factor for column, factor in terms))
        steps.append(sum(_step(column, first) * factor for column, factor in terms))
    return Column(tuple(firsts), tuple(bases), tuple(steps))


def _step(column: Column, number: int) -> int:
    return next(s for f, s in zip(reversed(column.firsts), reversed(column.steps), strict=True) if f <= number)


def _reach(column: Column) -> int:
    """What no number of a column is beyond."""
    ends = (*column.firsts[1:], 1 << 14)
    runs = zip(column.firsts, ends, column.bases, column.steps, strict=True)
    whole = [abs(base) + abs(step) * (end - first) for first, end, base, step in runs if type(base) is int]
    return max(whole, default=0)
