"""Plans for ranges of sizes, as a file has them: which there are, for which of the sizes, with which words.

    rows 1..512  ==>  a plan for 2..512 with the words of each, a plan for 1

Numbers that are results and follow from sizes become words, too: a plan copies them at its end. So do the sizes,
strides and offsets of results that are views of arguments or of state.

Invariant: what a plan of the compiler computes for its sizes at run time is computed here for each of them, so that no
reader needs the compiler's functions; nothing else tells a file's plan from one that is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from smelt.codegen.lower.python.numbers import same
from smelt.codegen.lower.result import Lowered
from smelt.codegen.lower.symbolic import NotSymbolic
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.diag import Options, SmeltError, limits
from smelt.diag.records import record
from smelt.ir.sizes import SizeLeak
from smelt.package.sizes import Box
from smelt.runtime.encoding.sizes import words_in
from smelt.runtime.encoding.table import Arith
from smelt.runtime.ingot.free_sizes import Sizes
from smelt.runtime.ingot.size_table import Column, SizeTable
from smelt.runtime.plan import Kind, Launch, Plan, Scalar, Word
from smelt.runtime.recipes import Either, Fresh, Number, OutputRecipe, Plain, Same, SizedView, ViewOf

PLAN_LIMIT = limits.SAVED_PLANS
"""Plans for many sizes that one range may come to; what they leave is compiled where it is loaded."""
ALONE_LIMIT = limits.SAVED_SIZES
"""Sizes of a range that may have plans of their own."""
_BITS = 4  # of an estimated time: chunks need no more
_LIMIT = 1 << 63
_NUMBERS: Mapping[type, Kind] = {int: "int", float: "float"}


@record
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
    plan = found.plan
    low = tuple(low for low, _ in box.bounds)
    count = tuple(high - low + 1 for low, high in box.bounds)
    blank = SizeTable(low, count, Column.of({0: 0}), Column.of({0: 0}), ())
    words: dict[int, tuple[int | float, ...]] = {}
    outputs: dict[int, tuple[OutputRecipe, ...]] = {}
    shares: dict[int, int] = {}
    for sizes in left:
        number = blank.number(sizes)
        assert number is not None, "it is within the bounds"
        if plan.holds(*sizes):
            try:
                words[number], outputs[number] = plan.words(*sizes), found.outputs(sizes)
            except SizeLeak:
                continue
            shares[number] = int(plan.can_share(*sizes))
    results = _results(plan.template, outputs, len(next(iter(words.values())))) if len(words) > 1 else None
    if results is None:
        return None
    words = {number: (*own, *results.words[number]) for number, own in words.items()}
    taken = dict.fromkeys(range(prod(count)), 0) | dict.fromkeys(words, 1)
    lowered = replace(found.lowered, plan=results.plan, outputs=results.recipes)
    return Ranged(lowered, _table(blank, results.plan, words, shares, taken))


@record
class _Results:
    """Recipes that are right at all sizes, the plan that they are of, and its further words, by the number of sizes."""

    recipes: tuple[OutputRecipe, ...]
    plan: Plan
    words: Mapping[int, tuple[int | float, ...]]


def _results(plan: Plan, outputs: Mapping[int, tuple[OutputRecipe, ...]], nwords: int) -> _Results | None:
    """The results of a plan with so many words, where only numbers differ between sizes; None where others do."""
    joined = _Joined(plan, nwords)
    recipes = [joined.of(different) for different in zip(*outputs.values(), strict=True)]
    known = tuple(recipe for recipe in recipes if recipe is not None)
    if len(known) < len(recipes):
        return None
    copies = tuple(Scalar(Arith.COPY, slot, (word,), same) for slot, _, word in joined.made)
    extended = replace(
        plan,
        nslots=plan.nslots + len(copies),
        outputs=(*plan.outputs, *(slot for slot, _, _ in joined.made)),
        instructions=(*plan.instructions, *copies),
        origins=(*plan.origins, *("a result that follows from sizes" for _ in copies)) if plan.origins else (),
        kinds={**plan.kinds, **{slot: kind for slot, kind, _ in joined.made}},
    )
    values = zip(*joined.values, strict=True) if joined.values else ((),) * len(outputs)
    return _Results(known, extended, dict(zip(outputs, values, strict=True)))


@dataclass
class _Joined:
    """Recipes that are one at each tuple of sizes, as one for all. made: slots that copies of further words go to,
    which are results behind the plan's own. values: of each such word, by tuple.
    """

    plan: Plan
    nwords: int
    made: list[tuple[int, Kind, Word]] = field(default_factory=list)
    values: list[list[int | float]] = field(default_factory=list)

    def of(self, different: tuple[OutputRecipe, ...]) -> OutputRecipe | None:
        """The recipe for all tuples; None where more than numbers differ."""
        first = different[0]
        if len(set(map(repr, different))) == 1:  # not by ==, by which -0.0 is 0.0
            return first
        kind = _number_kind(different)
        if kind is not None:
            return Number(self._number([each.value for each in different if isinstance(each, Plain)], kind))
        if isinstance(first, ViewOf):
            return self._view(first, [each for each in different if isinstance(each, ViewOf)], len(different))
        if isinstance(first, Either):
            return self._either(first, [each for each in different if isinstance(each, Either)], len(different))
        return None

    def _view(self, first: ViewOf, views: list[ViewOf], count: int) -> SizedView | None:
        kinds = {(view.source, len(view.sizes), view.is_detached, view.number) for view in views}
        if len(kinds) > 1 or len(views) < count:
            return None
        numbers = [(*view.sizes, *view.strides, view.offset) for view in views]
        results = [self._number(list(values), "int") for values in zip(*numbers, strict=True)]
        return SizedView(first.source, len(first.sizes), results[0], first.is_detached, first.number)

    def _either(self, first: Either, choices: list[Either], count: int) -> Either | None:
        if len({(choice.which, len(choice.options)) for choice in choices}) > 1 or len(choices) < count:
            return None
        options = [self.of(different) for different in zip(*(choice.options for choice in choices), strict=True)]
        known = tuple(option for option in options if isinstance(option, Fresh | Same | ViewOf | SizedView))
        return Either(first.which, known) if len(known) == len(options) else None

    def _number(self, values: list[int | float], kind: Kind) -> int:
        """A further result of the plan, of these values by tuple; its number."""
        index = len(self.made)
        word = Word.of(self.nwords + index, is_double=kind == "float")
        self.made.append((self.plan.nslots + index, kind, word))
        self.values.append(values)
        return len(self.plan.outputs) + index


def _number_kind(recipes: tuple[OutputRecipe, ...]) -> Kind | None:
    """What all are, where they are numbers that words can be."""
    values = [each.value for each in recipes if isinstance(each, Plain)]
    kinds = set(map(type, values))
    if len(values) < len(recipes) or len(kinds) != 1 or not all(map(_is_word, values)):
        return None
    return _NUMBERS[kinds.pop()]


def _is_word(value: object) -> bool:
    return abs(value) < _LIMIT if type(value) is int else type(value) is float and math.isfinite(value)


def _off_centre(sizes: Sizes, box: Box) -> float:
    """How far sizes are from the middle of each."""
    return sum(
        abs(2 * n - low - high) / (high - low) for n, (low, high) in zip(sizes, box.bounds, strict=True) if low < high
    )


def _table(
    blank: SizeTable, plan: Plan, words: Mapping[int, tuple[int | float, ...]], shares: Mapping[int, int],
    taken: Mapping[int, int],
) -> SizeTable:  # fmt: skip
    rough = _only_estimates(plan)
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
