"""Knobs: choices that a scheduling function asks for where it uses them, and the tree of what was asked so far.

    shape(s) asks "fuse" ── True ── asks "tile" ── 16 ── done
                         └─ False ─ done          └─ 32 ── (open)

Invariant: the tree holds what runs asked, in their order, and nothing that none asked for: a knob that is there only
where another has a certain value takes no part elsewhere. No way through the tree is run twice.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from smelt.diag import ScheduleError
from smelt.diag.records import record
from smelt.scheduling.steps import shown

Choose = Callable[[str, Sequence[Any]], Any]
"""Answers `knob(name, choices)`."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@record
class Knob:
    """A name and its choices; two are equal where they read the same, since each run makes the choices anew."""

    name: str
    choices: tuple[Any, ...] = field(compare=False)
    texts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.texts)}"


def first(name: str, choices: Sequence[Any]) -> Any:
    """What a knob is where nothing is tuned. Raises: ScheduleError (S0631) where it is none."""
    return knob_of(name, choices).choices[0]


def knob_of(name: str, choices: Sequence[Any]) -> Knob:
    """A knob as it was asked for. Raises: ScheduleError (S0631) for one without a name or choices."""
    given = () if isinstance(choices, str) else tuple(choices)
    if not isinstance(name, str) or not name or not given:
        raise ScheduleError(
            f"knob({name!r}, {choices!r}) leaves nothing to choose", why="a knob has a name and a list of choices",
            fix='write s.knob("tile", [16, 32, 64])', code="S0631",
        )  # fmt: skip
    return Knob(name, given, tuple(described(choice) for choice in given))


def described(value: Any) -> str:
    """A value in one line that is the same in each process."""
    return without_addresses(shown(value))


def without_addresses(text: str) -> str:
    """A text without places in this process's memory."""
    return _ADDRESS.sub("", text)


class Tree:
    """What follows some answers: the knob that is asked next, or nothing. is_done: there is no way left through it."""

    __slots__ = ("below", "is_done", "knob")

    def __init__(self) -> None:
        self.knob: Knob | None = None
        self.below: tuple[Tree, ...] = ()
        self.is_done = False

    def is_open(self, wanted: Mapping[str, int]) -> bool:
        """Whether the way of these answers (elsewhere the first) has not been run, as far as it is known."""
        at = self
        while at.knob is not None and not at.is_done:
            at = at.below[wanted.get(at.knob.name, 0)]
        return not at.is_done


class Run:
    """One run of a scheduling function through a tree: it answers by `prefer(knob, open)`, an index of those open.

    answers: what it asked, in order, and the index that it got.
    """

    def __init__(self, tree: Tree, prefer: Callable[[Knob, Sequence[int]], int]) -> None:
        self._way, self._prefer = [tree], prefer
        self.answers: dict[str, tuple[Knob, int]] = {}

    def __call__(self, name: str, choices: Sequence[Any]) -> Any:
        """The answer. Raises: ScheduleError (S0631) where another knob, or other choices, were asked for before."""
        knob, at = knob_of(name, choices), self._way[-1]
        if name in self.answers:
            known, index = self.answers[name]
            _same(known, knob)
            return known.choices[index]
        if at.knob is None:
            at.knob, at.below = knob, tuple(Tree() for _ in knob.choices)
        _same(at.knob, knob)
        index = self._prefer(knob, [i for i, below in enumerate(at.below) if not below.is_done])
        self.answers[name] = knob, index
        self._way.append(at.below[index])
        return knob.choices[index]

    @property
    def values(self) -> dict[str, Any]:
        """What the knobs were."""
        return {name: knob.choices[index] for name, (knob, index) in self.answers.items()}

    @property
    def indices(self) -> dict[str, int]:
        """What the knobs were, by the places of the choices."""
        return {name: index for name, (_, index) in self.answers.items()}

    def close(self) -> None:
        """The run is over: what it was is not to be run again."""
        self._way[-1].is_done = True
        for at in reversed(self._way[:-1]):
            at.is_done = all(below.is_done for below in at.below)


class Search:
    """Which answers are tried next: all in order where they are few, else at random, then around the best so far.

    trials: how many there are to be at most. seed: of the random ones; the same trials come each time.
    """

    def __init__(self, trials: int, seed: int) -> None:
        self.tree = Tree()
        self._trials, self._random = trials, random.Random(seed)
        self._known: dict[str, int] = {}
        self._best: dict[str, int] | None = None
        self._count = 0

    def next(self) -> Run | None:
        """The next run, None where no way is left or the trials are used up."""
        if self.tree.is_done or self._count >= self._trials:
            return None
        self._count += 1
        if self._count == 1 or math.prod(self._known.values()) <= self._trials:
            return Run(self.tree, lambda knob, left: left[0])
        wanted = self._near_best() if self._count > max(2, self._trials // 2) else {}
        return Run(self.tree, lambda knob, left: self._pick(wanted, knob, left))

    def closed(self, run: Run, *, is_best: bool) -> None:
        """Take notice of a run that is over. is_best: none so far was better."""
        run.close()
        self._known.update({name: len(knob.choices) for name, (knob, _) in run.answers.items()})
        if is_best:
            self._best = run.indices

    @property
    def space(self) -> int:
        """How many candidates there may be, by the knobs known so far."""
        return math.prod(self._known.values())

    def _pick(self, wanted: Mapping[str, int], knob: Knob, left: Sequence[int]) -> int:
        index = wanted.get(knob.name)
        return index if index is not None and index in left else self._random.choice(left)

    def _near_best(self) -> dict[str, int]:
        """The best with one knob turned, as little as possible first; nothing where all of these are done."""
        best = self._best or {}
        near = [(abs(i - at), name, i) for name, at in best.items() for i in range(self._known[name]) if i != at]
        self._random.shuffle(near)
        for _, name, i in sorted(near, key=lambda turn: turn[0]):
            if self.tree.is_open({**best, name: i}):
                return {**best, name: i}
        return {}


def _same(known: Knob, asked: Knob) -> None:
    if known != asked:
        raise ScheduleError(
            f"the knob {asked} was {known} before", why="which knobs there are may depend on other knobs' values alone",
            fix="give each knob a name and choices of its own, and request them in the same order", code="S0631",
        )  # fmt: skip
