"""The paths of a run: the regions that are open, what is known in each, and how all that a region can do becomes one.

A *region* is a stretch of the program that is run as often as it takes: where Python insists on a truth value that
depends on data (`Session.decide`), the region runs again with the other answer, and the outcomes become an `if` whose
arms hold what followed. The whole program is a region, so is each arm and each loop body.

Invariant: between two runs of a region nothing of the first is left: containers are restored, what was recorded inside
is known inside only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.counters import Counters
from smelt.capture.staging.fakes.symbols import WORLDS, ScalarSlot, is_staged
from smelt.capture.staging.flow.assumptions import Assumptions, forked
from smelt.capture.staging.flow.stops import TOO_LONG, TOO_MANY, Again, CannotStage, Exhausted
from smelt.capture.staging.flow.unify import unify
from smelt.capture.staging.objects.heap import Change
from smelt.capture.staging.records import RegionRecords
from smelt.diag import limits
from smelt.ir import BOOL

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

MOST_PATHS = limits.STAGED_PATHS
_MOST_TURNS = 3  # of a loop in which a container grows in some
_MULTIPLIED = 48  # ways of which it is told whether they multiply with each question


@dataclass
class Outcome:
    """What a region ends with: values, places of containers that changed, or an exception that nobody catches."""

    value: Any = None
    writes: Mapping[tuple[int, Any], Change] = field(default_factory=dict)
    is_raised: bool = False
    test: Any = None


class Ended(BaseException):
    """The rest of a region is never reached."""


@dataclass
class Region:
    """One run of a region: answers given so far, and the records between them.

    answers: values that were asked for, by the question. orders: in how many ways lists may have been put in order.
    begun, spent: steps and regions that the session had taken when it began, and that it had taken since at each
    question.
    """

    prefix: tuple[bool, ...]
    taken: list[bool] = field(default_factory=list)
    segments: list[tuple[list[Any], Any, Site | None]] = field(default_factory=list)
    outcome: Outcome = field(default_factory=Outcome)
    known: dict[Slot, bool] = field(default_factory=dict)
    asked: dict[tuple[str, int, str], int] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    answers: dict[Any, Any] = field(default_factory=dict)
    orders: int = 1
    begun: tuple[int, int] = (0, 0)
    spent: list[tuple[int, int]] = field(default_factory=list)


class _Exploring(NamedTuple):
    """A region whose paths are explored. found: how many were, so far; start: which containers had copies before it."""

    thunk: Callable[[], Outcome]
    names: Sequence[str]
    why: object
    known: dict[Slot, bool]
    found: list[int]
    start: Any


class Paths:
    """Of one session.

    regions: those that are open, the outermost first. count: how many were explored. asked: how often a value was asked
    for, by the place, on this path. aliases: slots that stand for others. negations: what a value says not of;
    opposites: what says not of it, where that has to be known. sides_of: of which two a value of a branch is, and why;
    turns_of: the same of what a loop carries (what it begins with, and what a turn gives), and of elements of
    containers. told_apart: tensors that a program was told to be two. first: how many questions the first path answers
    before the program itself begins, where that is known.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.regions: list[Region] = []
        self.count = 0
        self.once = (0, 0)  # steps and regions of merging what could not be merged
        self.asked: dict[tuple[str, int, str], int] = {}
        self.aliases: dict[Slot, Slot] = {}
        self.negations: dict[Slot, Slot] = {}
        self.opposites: dict[Slot, Slot] = {}
        self.sides_of: dict[Slot, tuple[object, object, object]] = {}
        self.turns_of: dict[Slot, tuple[object, ...]] = {}
        self.told_apart: list[tuple[Slot, Slot]] = []
        self.first: int | None = None

    # --- what is known here ------------------------------------------------------------------------------------------

    @property
    def is_on_all(self) -> bool:
        """Whether every run comes here: in no region of an arm or loop, and behind no question that forked the rest."""
        return len(self.regions) == 1 and not self.regions[0].taken

    def known(self, slot: Slot) -> bool | None:
        """The answer that a question has already had on this path; None where it had none, or data changed since."""
        found = self._known(slot)
        opposite = self.opposites.get(slot)
        if found is not None or opposite is None:
            return found
        return next((not r.known[opposite] for r in reversed(self.regions) if opposite in r.known), None)

    def _known(self, slot: Slot) -> bool | None:
        if slot.family.written:
            return None
        for region in reversed(self.regions):
            if slot in region.known:
                return region.known[slot]
        inner = self.negations.get(slot)
        answer = None if inner is None else self.known(inner)
        return None if answer is None else not answer

    def answered(self, key: object) -> Any:
        """What a question with an answer of any kind had for one on this path; None where it was not asked."""
        return None if key is None else next((r.answers[key] for r in reversed(self.regions) if key in r.answers), None)

    def note_answer(self, key: object, answer: object) -> None:
        """What such a question has for an answer from here on."""
        if key is not None and self.regions:
            self.regions[-1].answers[key] = answer

    def expect(self, slot: Slot, answer: bool) -> bool:
        """Have a question one answer: the graph then holds for this one only. Where every run comes by."""
        if isinstance(slot, ScalarSlot) and self.known(slot) is answer:
            return answer
        read = slot
        if not isinstance(slot, ScalarSlot):
            read = ScalarSlot(BOOL, (answer,) * WORLDS)
            self.session.append("aten.item.default", [slot], {}, [read])
        self.session.append("expect", [read, answer], {}, [])
        self.regions[-1].known[slot] = answer
        return answer

    def resolved(self, slot: Slot) -> Slot:
        """The slot that stands for a slot: runs of one region repeat what came before they part."""
        while slot in self.aliases:
            slot = self.aliases[slot]
        return slot

    def fork(self, slot: Slot, site: Site | None = None) -> bool:
        """Answer a question; what follows in the region is explored for both answers."""
        session, region = self.session, self.regions[-1]
        known = self.known(slot)
        if known is not None:
            return known
        session.domain.check_fork()
        number = len(region.taken)
        if number >= MOST_PATHS:
            session.cannot(TOO_MANY, f"more than {MOST_PATHS} continuations")
        answer = region.prefix[number] if number < len(region.prefix) else True
        region.segments.append((session.recorder.records, slot, site or session.site()))
        region.taken.append(answer)
        now = self.taken()
        region.spent.append((now[0] - region.begun[0], now[1] - region.begun[1]))
        region.known[slot] = answer
        session.recorder.records = []
        return answer

    def check_turns(self, site: Site | None) -> None:
        """A branch in which a container grows is come to once more on one way: in a loop, the ways through it multiply.

        Raises: Again where such containers have not been values of the graph yet.
        """
        turns = sum(known == site for _, _, known in self.regions[-1].segments)
        if turns >= _MOST_TURNS and not (self.session.assumed.grows or self.session.assumed.grows_not):
            raise Again(Assumptions(grows=True))

    def arm_of(self, change: Change) -> tuple[object, bool] | None:
        """A branch, and the arm of it without which a place would keep what it held; None where there is none."""
        if not (_is_of_graph(change.new) and (_is_of_graph(change.old) or type(change.old) in _PLAIN)):
            return None
        old = self.session.encode(change.old)
        waiting = [self.session.encode(change.new)]
        while waiting:
            value = waiting.pop()
            why, *sides = self.sides_of.get(value, (None,)) if isinstance(value, Slot) else (None,)
            for side, other in zip(sides, (False, True), strict=False):
                is_old = self.resolved(side) is self.resolved(old) if isinstance(side, Slot) else _is_literal(side, old)
                if is_old and isinstance(why, tuple) and why[0] == "fork":
                    return why[1], other
            waiting.extend(sides)
        return None

    # --- exploring ---------------------------------------------------------------------------------------------------

    def trace(
        self,
        thunk: Callable[[], Outcome],
        names: Sequence[str] = (),
        why: object = None,
        known: Mapping[Slot, bool] | None = None,
    ) -> tuple[list[Any], Outcome]:
        """Run a region along all its paths: its records, with the paths merged, and the merged outcome.

        known: questions that have an answer throughout the region.
        """
        given = dict(known or {})
        start = self.session.copies.state()
        region = self._explore(thunk, (), given)
        self._check_again(region)
        self._check_first()
        return self._combine(region, 0, _Exploring(thunk, names, why, given, [1], start))

    def _explore(
        self, thunk: Callable[[], Outcome], prefix: tuple[bool, ...], known: dict[Slot, bool], site: Site | None = None
    ) -> Region:
        """site: where the way that is explored parts from others; the program stands elsewhere by now."""
        session = self.session
        self.count += 1
        if self.count > session.domain.most_regions:
            raise Exhausted(TOO_MANY, f"more than {MOST_PATHS} continuations", site or session.site())
        session.spend(site)
        region = Region(prefix, known=dict(known), asked=dict(self.asked), begun=self.taken())
        saved = session.recorder.enter()
        self.regions.append(region)
        try:
            try:
                region.outcome = thunk()
            except Ended:
                region.outcome = Outcome(is_raised=True)
            region.segments.append((session.recorder.records, None, None))
        finally:
            self.regions.pop()
            session.recorder.leave(saved)
        return region

    def _combine(self, region: Region, number: int, part: _Exploring) -> tuple[list[object], Outcome]:
        session = self.session
        records, slot, site = region.segments[number]
        if slot is None:
            return list(records), region.outcome
        before = part.found[0]
        mine, my_outcome = self._combine(region, number + 1, part)
        self._check_growth(part.found[0] - before + 1, len(region.taken) - number - 1, number + 1, site)
        saved_asked, self.asked = self.asked, dict(region.asked)
        part.found[0] += 1
        copies = session.copies.state()
        session.copies.back(part.start)
        other = self._explore(part.thunk, (*region.taken[:number], not region.taken[number]), part.known, site)
        session.copies.meet(copies)
        self.asked = saved_asked
        try:
            for ours, theirs in zip(region.segments[: number + 1], other.segments[: number + 1], strict=True):
                unify(ours, theirs, self.aliases, session.recorder.constants)
        except CannotStage:
            if not session.has_learnt:
                raise
            # A branch was merged at first, and could not be later: another run does alike both times.
            raise Again(forked(("learnt", len(session.assumed.forked)))) from None
        theirs_, their_outcome = self._combine(other, number + 1, part)
        arms = [(mine, my_outcome), (theirs_, their_outcome)]
        if not region.taken[number]:
            arms.reverse()
        saved = session.recorder.enter()
        try:
            merged = self.branch(slot, arms, site, part.why, part.names)
            tail = session.recorder.records
        finally:
            session.recorder.leave(saved)
        return [*records, *tail], merged

    def taken(self) -> tuple[int, int]:
        """Steps and regions so far, without those that are not taken again where the program comes by again."""
        budget = self.session.budget
        steps = 0 if budget is None else -budget.steps
        return steps - self.once[0], self.count - self.once[1]

    def not_again(self, since: tuple[int, int]) -> None:
        """What was done meanwhile was to no end, and will not be tried again."""
        now = self.taken()
        self.once = (self.once[0] + now[0] - since[0], self.once[1] + now[1] - since[1])

    def _check_again(self, region: Region) -> None:
        """Each question's other answer takes at least what came before the question once more.

        Raises: CannotStage where that is more than there is left.
        """
        budget = self.session.budget
        steps, regions = (sum(column) for column in zip(*region.spent, strict=True)) if region.spent else (0, 0)
        if self.count + regions + len(region.spent) > self.session.domain.most_regions:
            why = f"{len(region.spent)} data-dependent branches have to be explored on both sides"
            raise Exhausted(TOO_MANY, why, region.segments[0][2])
        if budget is not None and steps > budget.steps:
            raise Exhausted(
                TOO_LONG, "the program has too many paths, or paths that are too long", region.segments[0][2]
            )

    def _check_first(self) -> None:
        """Each answer to the first questions takes at least what the first path took. Raises: CannotStage."""
        if not self.regions and self.first and self.count * 2**self.first > self.session.domain.most_explored:
            why = f"optional parameters are {self.first} data-dependent branches, and one path is {self.count} regions"
            raise Exhausted(TOO_MANY, why)

    def _check_growth(self, found: int, levels: int, more: int, site: Site | None) -> None:
        """`found` paths came of the last `levels` branches, and `more` branches have another side to be explored.

        Raises: CannotStage where they have multiplied so far as none that meet again do, and would become too many.
        """
        if found < _MULTIPLIED or levels > 2 * log2(found):
            return
        if found * 2 ** (more * log2(found) / max(levels, 1)) > self.session.domain.most_explored:
            why = f"{found} paths came of {levels} branches on data, and {more} more have to be explored on both sides"
            raise Exhausted(TOO_MANY, why, site or self.session.site())

    def branch(
        self,
        slot: Slot,
        arms: Sequence[tuple[list[object], Outcome]],
        site: Site | None,
        why: object = None,
        names: Sequence[str] = (),
        anew: Sequence[str] = (),
    ) -> Outcome:
        """Record an `if` over two traced arms; the outcome that holds after either. Raises: CannotMerge."""
        session = self.session
        (then, then_out), (other, other_out) = arms
        merger = session.domain.merger(slot, site, why, names)
        merger.anew = frozenset(anew)
        outcome = merger.outcomes(then_out, other_out)
        for arm, records, yields in ((then_out, then, merger.left), (other_out, other, merger.right)):
            if arm.is_raised:
                # Never reached; a value of the type stands there all the same.
                yields[:] = [slot_type(r) for r in merger.results]
            yields[:] = [session.placeholder(y, records, site) for y in yields]
        session.domain.note_merged((merger.left, merger.right), merger.results)
        for left, right, result in zip(merger.left, merger.right, merger.results, strict=True):
            self.sides_of[result] = (why, left, right)
        regions = [RegionRecords((), then, merger.left), RegionRecords((), other, merger.right)]
        session.structured("if", [slot], regions, merger.results, site)
        if session.domain.knows_what_goes_on and then_out.is_raised != other_out.is_raised and self.regions:
            self.regions[-1].known[slot] = other_out.is_raised
        return outcome


_PLAIN = (bool, int, float, complex, str, type(None))


def _is_of_graph(value: object) -> bool:
    return isinstance(value, torch.Tensor) or is_staged(value)


def _is_literal(value: object, other: object) -> bool:
    return type(value) is type(other) and not isinstance(other, Slot) and repr(value) == repr(other)
