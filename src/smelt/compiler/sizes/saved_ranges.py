"""Plans for ranges of sizes, as a file has them: which there are, for which of the sizes, with which words.

    rows 1..512  ==>  a plan for 2..512 with the words of each, a plan for 1

Invariant: what a plan of the compiler computes for its sizes at run time is computed here for each of them, so that no
reader needs the compiler's functions; nothing else tells a file's plan from one that is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from smelt.codegen.lower.result import Lowered
from smelt.codegen.lower.symbolic import NotSymbolic
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.diag import Options, SmeltError
from smelt.ir.sizes import SizeLeak
from smelt.package.sizes import Box
from smelt.runtime.encoding.sizes import SizedPlan, words_in
from smelt.runtime.ingot.free_sizes import Sizes
from smelt.runtime.ingot.size_table import Column, SizeTable
from smelt.runtime.plan import Launch, Plan

PLAN_LIMIT = 4
"""Plans for many sizes that one range may come to; what they leave is compiled where it is loaded."""
ALONE_LIMIT = 8
"""Sizes of a range that may have plans of their own."""
_BITS = 4  # of an estimated time: chunks need no more


@dataclass(frozen=True, slots=True)
class Ranged:
    """A plan for many sizes: `lowered.plan` has words in it."""

    lowered: Lowered
    table: SizeTable


def plans_for(unit: SizedUnit, box: Box, options: Options) -> Iterator[Ranged | Sizes]:
    """Plans for the sizes of a box, and single sizes that need plans of their own."""
    left = set(box.sizes)
    # Sizes of 1 are taken apart by passes and kernels: each way to have some is a group.
    for which in sorted({_ones(sizes) for sizes in left}):
        for _ in range(PLAN_LIMIT):
            group = [sizes for sizes in box.sizes if sizes in left and _ones(sizes) == which]
            made = _ranged(unit, box, group, sorted(left), options) if len(group) > 1 else None
            if made is None:
                break
            yield made
            left = {sizes for sizes in left if not made.table.holds(*sizes)}
        group = [sizes for sizes in box.sizes if sizes in left and _ones(sizes) == which]
        if len(group) <= ALONE_LIMIT:
            yield from group
            left -= set(group)


def _ones(sizes: Sizes) -> tuple[bool, ...]:
    return tuple(n == 1 for n in sizes)


def _ranged(unit: SizedUnit, box: Box, group: list[Sizes], left: list[Sizes], options: Options) -> Ranged | None:
    """A plan for sizes of a group, and others that are left; None where there is none for several."""
    hint = min(group, key=lambda sizes: _off_centre(sizes, box))
    try:
        found = unit.lowered_for_files(hint, options)
    except (NotSymbolic, SmeltError):  # these are lowered one by one, with an error of their own
        return None
    if found.outputs(hint) != found.outputs(group[0]) or found.outputs(hint) != found.outputs(group[-1]):
        return None
    plan = found.plan
    low = tuple(low for low, _ in box.bounds)
    count = tuple(high - low + 1 for low, high in box.bounds)
    blank = SizeTable(low, count, Column.of({0: 0}), Column.of({0: 0}), ())
    words: dict[int, tuple[int | float, ...]] = {}
    shares: dict[int, int] = {}
    for sizes in left:
        number = blank.number(sizes)
        assert number is not None, "it is within the bounds"
        if plan.holds(*sizes):
            try:
                words[number] = plan.words(*sizes)
            except SizeLeak:
                continue
            shares[number] = int(plan.can_share(*sizes))
    if len(words) < 2:
        return None
    taken = dict.fromkeys(range(prod(count)), 0) | dict.fromkeys(words, 1)
    return Ranged(replace(found.lowered, plan=plan.template), _table(blank, plan, words, shares, taken))


def _off_centre(sizes: Sizes, box: Box) -> float:
    """How far sizes are from the middle of each."""
    return sum(
        abs(2 * n - low - high) / (high - low) for n, (low, high) in zip(sizes, box.bounds, strict=True) if low < high
    )


def _table(
    blank: SizeTable, plan: SizedPlan, words: Mapping[int, tuple[int | float, ...]], shares: Mapping[int, int],
    taken: Mapping[int, int],
) -> SizeTable:  # fmt: skip
    rough = _only_estimates(plan.template)
    first = min(words)
    columns = []
    for index in range(len(words[first])):
        values = {number: found[index] for number, found in words.items()}
        if index in rough:
            values = {number: _rough(float(value)) for number, value in values.items()}
        columns.append(Column.of({0: values[first]} | values))
    return replace(
        blank, taken=Column.of(taken), shares=Column.of({0: shares[first]} | dict(shares)), columns=tuple(columns)
    )


def _only_estimates(plan: Plan) -> set[int]:
    """The words that are nothing but times of launches."""
    launches = [each for each in plan.instructions if isinstance(each, Launch)]
    times = {index for each in launches for index in words_in(each.item_ns)}
    without = replace(
        plan,
        instructions=tuple(replace(i, item_ns=0.0) if isinstance(i, Launch) else i for i in plan.instructions),
    )
    return times - words_in((without.instructions, without.arena, without.arena_nbytes))


def _rough(value: float) -> float:
    """The number with its first bits only."""
    if value <= 0:
        return value
    mantissa, exponent = value.hex().split("p")
    return float.fromhex(f"{mantissa[: len('0x1.') + _BITS // 4]}p{exponent}")
