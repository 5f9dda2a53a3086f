"""One staged run: what records Python's operators, answers for values that Python insists on, and explores paths.

A *region* is a stretch of the program that is run as often as it takes: where Python insists on a truth value that
depends on data (`decide`), the region runs again with the other answer, and the outcomes become an `if` whose arms
hold what followed. The whole program is a region, so is each arm and each loop body.

Invariant: between two runs of a region nothing of the first is left: containers are restored, what was recorded inside
is known inside only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2
from typing import Any, NoReturn

import torch

from smelt._torch.seen.dispatch import unseen
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.recording.spans import Site
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.counters import Counters
from smelt.capture.staging.fakes import symbols
from smelt.capture.staging.fakes.symbols import DEAD, WORLDS, ScalarSlot, is_staged, slot_of, wrap
from smelt.capture.staging.flow.stops import (
    AS_NATIVE,
    COUNTED,
    GROWTH,
    NO_GROWTH,
    PARTLY,
    TOO_LONG,
    TOO_MANY,
    Again,
    CannotStage,
    Exhausted,
)
from smelt.capture.staging.flow.unify import unify
from smelt.capture.staging.objects.changed_since import Settled
from smelt.capture.staging.objects.heap import Change, Snapshot
from smelt.capture.staging.objects.unconverted_code import unwatched
from smelt.capture.staging.reading import Reading
from smelt.capture.staging.recording import strides_of, tainted
from smelt.capture.staging.records import Listed, RegionRecords, Structured
from smelt.diag import limits
from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    STR,
    Device,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
)
from smelt.ops.convert import dtype_to_torch

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


class Session(Reading):
    """The staged run of one thread.

    most_explored: regions that may be run where ways multiply; most_regions: in all.
    """

    most_explored = most_regions = MOST_PATHS * 4

    # --- what Python insists on --------------------------------------------------------------------------------------

    def truth(self, value: object) -> bool:
        """The truth of a staged value, for Python itself."""
        slot = slot_of(value)
        return self.decide(slot if slot.type == BOOL else slot_of(self.emit("py.bool", value)))

    def decide(self, slot: Slot) -> bool:
        """An answer to a question that depends on data; the other one is explored as well.

        Raises: Again where the function that asks can be converted; CannotStage where there are too many paths.
        """
        self.want_converted()
        return self.fork(slot)

    def answer(self, slot: Any) -> bool:
        """What an operator that asks a question of data gives Python: any answer where `asked` takes the question."""
        if self.questions is None:
            return self.decide(slot)
        self.questions.append(slot)
        return True

    def asked(self, ask: Callable[[], object]) -> Any:
        """What a call of such an operator gives converted code: a staged answer, of which it makes what it likes."""
        before, self.questions = self.questions, []
        try:
            found = ask()
            return wrap(self.questions[0]) if self.questions else found
        finally:
            self.questions = before

    def fork(self, slot: Slot, site: Site | None = None) -> bool:
        """Answer a question; what follows in the region is explored for both answers."""
        region = self.regions[-1]
        known = self.known(slot)
        if known is not None:
            return known
        number = len(region.taken)
        if number >= MOST_PATHS:
            self.cannot(TOO_MANY, f"more than {MOST_PATHS} continuations")
        answer = region.prefix[number] if number < len(region.prefix) else True
        region.segments.append((self.recorder.records, slot, site or self.site()))
        region.taken.append(answer)
        now = self.taken()
        region.spent.append((now[0] - region.begun[0], now[1] - region.begun[1]))
        region.known[slot] = answer
        self.recorder.records = []
        return answer

    def check_turns(self, site: Site | None) -> None:
        """A branch in which a container grows is come to once more on one way: in a loop, the ways through it multiply.

        Raises: Again where such containers have not been values of the graph yet.
        """
        turns = sum(known == site for _, _, known in self.regions[-1].segments)
        if turns >= _MOST_TURNS and self.whole.isdisjoint((GROWTH, NO_GROWTH)):
            raise Again(whole=GROWTH)

    def check_partly(self, change: Change) -> None:
        """A place outside is written on some ways only. Raises: CannotStage where what it held before is not known."""
        if any(place.is_at(change.container, change.key) for place in self.write_only):
            self.cannot(PARTLY, "it keeps its value from before the call on the others")

    def known(self, slot: Slot) -> bool | None:
        """The answer that a question has already had on this path; None where it had none, or data changed since."""
        if slot.family.written:
            return None
        for region in reversed(self.regions):
            if slot in region.known:
                return region.known[slot]
        inner = self.negations.get(slot)
        answer = None if inner is None else self.known(inner)
        return None if answer is None else not answer

    @unwatched
    def emit(self, op: str, *args: object, **kwargs: object) -> Any:
        """As of `Recording`; what is computed of counters is computed once."""
        counters = self.regions[-1].counters if self.regions else None
        key = counters.key(op, args) if counters is not None and not kwargs else None
        if counters is None or key is None or not self.is_on_all_paths or self.is_catchable():
            return super().emit(op, *args, **kwargs)
        known = counters.made(key)
        if known is not None:
            return wrap(known)
        found = super().emit(op, *args)
        if is_staged(found):
            counters.note(key, slot_of(found))
        return found

    def as_counted(self, found: ScalarSlot, step: float) -> ScalarSlot:
        """The number of the first counter that is where this one is, which the graph then expects."""
        if COUNTED not in self.whole or not self.is_on_all_paths:
            return found
        first = self.regions[-1].counters.first(found, step)
        if first is not found:
            self.expect(slot_of(self.emit("py.eq", wrap(found), wrap(first))), True)
        return first

    def expect(self, slot: Slot, answer: bool) -> bool:
        """Have a question one answer: the graph then holds for this one only. Where every run comes by."""
        if isinstance(slot, ScalarSlot) and self.known(slot) is answer:
            return answer
        read = slot
        if not isinstance(slot, ScalarSlot):
            read = ScalarSlot(BOOL, (answer,) * WORLDS)
            self.append("aten.item.default", [slot], {}, [read])
        self.append("expect", [read, answer], {}, [])
        self.regions[-1].known[slot] = answer
        return answer

    def is_real_power(self, base: object, exponent: object) -> bool:
        kind = slot_of(exponent).type if is_staged(exponent) else FLOAT if type(exponent) is float else None
        if kind != FLOAT or not is_staged(base) or slot_of(base).type not in (INT, FLOAT):
            return False
        op = "py.lt" if type(exponent) is float and exponent > 0 else "py.le"
        if type(exponent) is float and exponent.is_integer():
            return False
        asked = slot_of(self.emit(op, base, 0))
        if asked.is_native and asked.worlds[0] is not DEAD and self.is_on_all_paths:
            if asked.worlds[0]:
                return False
            self.expect(asked, False)
        return True

    def as_native(self, slot: Slot) -> bool | None:
        """What the recorded run found of a question, where the graph is to hold for that only.

        A question about numbers makes a run of its own for that worth it, one about a tensor where sizes are free: else
        what was recorded is a graph for its answer.
        """
        if not self.is_on_all_paths:
            return None
        if not isinstance(slot, ScalarSlot):
            self.asks_natively |= self.size_trace is not None
            native = self._hint("is_nonzero") if AS_NATIVE in self.whole else None
            return None if native is None else self.expect(slot, bool(native))
        if not slot.is_native or slot.worlds[0] is DEAD:
            return None
        self.asks_natively = True
        return self.expect(slot, bool(slot.worlds[0])) if AS_NATIVE in self.whole else None

    def arm_of(self, change: Change) -> object:
        """An arm of a branch without which a place would keep what it held; None where there is none."""
        if not (isinstance(change.new, torch.Tensor) or is_staged(change.new)):
            return None
        known = (bool, int, float, complex, str, type(None))
        if not (isinstance(change.old, torch.Tensor) or is_staged(change.old) or type(change.old) in known):
            return None
        old = self.encode(change.old)
        waiting = [self.encode(change.new)]
        while waiting:
            value = waiting.pop()
            why, *sides = self.sides_of.get(value, (None,)) if isinstance(value, Slot) else (None,)
            for side, other in zip(sides, (False, True), strict=False):
                is_old = self.resolved(side) is self.resolved(old) if isinstance(side, Slot) else _is_literal(side, old)
                if is_old and isinstance(why, tuple) and why[0] == "fork":
                    return ("effect", why[1], other)
            waiting.extend(sides)
        return None

    def specialize(self, slot: ScalarSlot) -> Any:
        """The value that the native run had: the graph then holds for this value only. Raises: CannotStage."""
        self.want_converted()
        if not slot.is_native or slot.type not in (INT, FLOAT, BOOL) or slot.worlds[0] is DEAD:
            self.cannot(f"Python needs the value of a traced {slot.type}", "code that is not converted reads it")
        if not self.is_on_all_paths:
            self.cannot(f"Python needs the value of a traced {slot.type}", "on one path only")
        value = slot.worlds[0]
        self.append("expect", [slot, value], {}, [])
        return value

    def hashed(self, slot: ScalarSlot) -> object:
        """The value of an item of a set, or of a key of a dict. Raises: CannotStage."""
        return self.specialize(slot)

    # --- regions -----------------------------------------------------------------------------------------------------

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
        start = self.copies.state()
        region = self._explore(thunk, (), given)
        self._check_again(region)
        return self._combine(region, 0, (thunk, names, why, given, [1], start))

    def _explore(
        self, thunk: Callable[[], Outcome], prefix: tuple[bool, ...], known: dict[Slot, bool], site: Site | None = None
    ) -> Region:
        """site: where the way that is explored parts from others; the program stands elsewhere by now."""
        self.paths += 1
        if self.paths > self.most_regions:
            raise Exhausted(TOO_MANY, f"more than {MOST_PATHS} continuations", site or self.site())
        self.spend(site)
        region = Region(prefix, known=dict(known), asked=dict(self._asked), begun=self.taken())
        saved = self.recorder.enter()
        self.regions.append(region)
        try:
            try:
                region.outcome = thunk()
            except Ended:
                region.outcome = Outcome(is_raised=True)
            region.segments.append((self.recorder.records, None, None))
        finally:
            self.regions.pop()
            self.recorder.leave(saved)
        return region

    def _combine(self, region: Region, number: int, part: Any) -> tuple[list[object], Outcome]:
        thunk, names, why, known, explored, start = part
        records, slot, site = region.segments[number]
        if slot is None:
            return list(records), region.outcome
        before = explored[0]
        mine, my_outcome = self._combine(region, number + 1, part)
        self._check_growth(explored[0] - before + 1, len(region.taken) - number - 1, number + 1, site)
        saved_asked, self._asked = self._asked, dict(region.asked)
        explored[0] += 1
        copies = self.copies.state()
        self.copies.back(start)
        other = self._explore(thunk, (*region.taken[:number], not region.taken[number]), known, site)
        self.copies.meet(copies)
        self._asked = saved_asked
        try:
            for ours, theirs in zip(region.segments[: number + 1], other.segments[: number + 1], strict=True):
                unify(ours, theirs, self.aliases, self.recorder.constants)
        except CannotStage:
            if not self.learnt:
                raise
            # A branch was merged at first, and could not be later: another run does alike both times.
            raise Again(fork=("learnt", len(self.forked))) from None
        theirs_, their_outcome = self._combine(other, number + 1, part)
        arms = [(mine, my_outcome), (theirs_, their_outcome)]
        if not region.taken[number]:
            arms.reverse()
        saved = self.recorder.enter()
        try:
            merged = self.branch(slot, arms, site, why, names)
            tail = self.recorder.records
        finally:
            self.recorder.leave(saved)
        return [*records, *tail], merged

    def taken(self) -> tuple[int, int]:
        """Steps and regions so far, without those that are not taken again where the program comes by again."""
        steps = 0 if self.budget is None else -self.budget.steps
        return steps - self.once[0], self.paths - self.once[1]

    def not_again(self, since: tuple[int, int]) -> None:
        """What was done meanwhile was to no end, and will not be tried again."""
        now = self.taken()
        self.once = (self.once[0] + now[0] - since[0], self.once[1] + now[1] - since[1])

    def _check_again(self, region: Region) -> None:
        """Each question's other answer takes at least what came before the question once more.

        Raises: CannotStage where that is more than there is left.
        """
        steps, regions = (sum(column) for column in zip(*region.spent, strict=True)) if region.spent else (0, 0)
        if self.paths + regions + len(region.spent) > self.most_regions:
            why = f"{len(region.spent)} data-dependent branches have to be explored on both sides"
            raise Exhausted(TOO_MANY, why, region.segments[0][2])
        if self.budget is not None and steps > self.budget.steps:
            raise Exhausted(
                TOO_LONG, "the program has too many paths, or paths that are too long", region.segments[0][2]
            )

    def _check_growth(self, found: int, levels: int, more: int, site: Site | None) -> None:
        """`found` paths came of the last `levels` branches, and `more` branches have another side to be explored.

        Raises: CannotStage where they have multiplied so far as none that meet again do, and would become too many.
        """
        if found < _MULTIPLIED or levels > 2 * log2(found):
            return
        if found * 2 ** (more * log2(found) / max(levels, 1)) > self.most_explored:
            why = f"{found} paths came of {levels} branches on data, and {more} more have to be explored on both sides"
            raise Exhausted(TOO_MANY, why, site or self.site())

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
        (then, then_out), (other, other_out) = arms
        merger = self.merge(self, site, why, names)
        merger.anew = frozenset(anew)
        outcome = merger.outcomes(then_out, other_out)
        for arm, records, yields in ((then_out, then, merger.left), (other_out, other, merger.right)):
            if arm.is_raised:
                # Never reached; a value of the type stands there all the same.
                yields[:] = [slot_type(r) for r in merger.results]
            yields[:] = [self.placeholder(y, records, site) for y in yields]
        self.note_merged((merger.left, merger.right), merger.results)
        for left, right, result in zip(merger.left, merger.right, merger.results, strict=True):
            self.sides_of[result] = (why, left, right)
        self.structured(
            "if",
            [slot],
            [
                RegionRecords((), then, merger.left),
                RegionRecords((), other, merger.right),
            ],
            merger.results,
            site,
        )
        return outcome

    def structured(
        self,
        op: str,
        args: Sequence[object],
        regions: Sequence[RegionRecords],
        results: Sequence[Slot],
        site: Site | None,
    ) -> None:
        """Record an operator with regions."""
        recorder = self.recorder
        recorder.records.append(
            Structured(op, args, regions, results, site, recorder.scope.path, recorder._modes_now())
        )

    def placeholder(self, value: object, records: list[Any], site: Site | None) -> object:
        """Any value of a type, recorded at the end of a list, where a type stands; a list or tuple; else the value."""
        if isinstance(value, Listed):
            saved, self.recorder.records = self.recorder.records, records
            found = ScalarSlot(value.type, (DEAD,) * WORLDS)
            self.append("py.list" if isinstance(value.type, ListType) else "py.tuple", value.items, {}, [found], site)
            self.recorder.records = saved
            return found
        if not isinstance(value, (TensorType, ScalarType, ListType, TupleType, DictType, OptionalType)):
            return value
        literals: dict[object, object] = {INT: 0, FLOAT: 0.0, BOOL: False, STR: "", COMPLEX: 0j}
        if value in literals:
            return literals[value]
        saved, self.recorder.records = self.recorder.records, records
        try:
            if isinstance(value, TensorType):
                return self._some_tensor(value, site)
            if isinstance(value, (ListType, DictType)):
                found = ScalarSlot(value, ([],) * WORLDS if isinstance(value, ListType) else ({},) * WORLDS)
                self.append("py.list" if isinstance(value, ListType) else "py.dict", [], {}, [found], site)
                return found
        finally:
            self.recorder.records = saved
        return None

    @unwatched
    def _some_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        with unseen():
            return self._new_tensor(type_, site)

    def _new_tensor(self, type_: TensorType, site: Site | None) -> Slot:
        sizes = [d if isinstance(d, int) else 0 for d in type_.shape or ()]
        strides = [d if isinstance(d, int) else 1 for d in type_.strides or strides_of(type_, sizes, None)]
        tensor = self.recorder.fakes.fresh(dtype_to_torch(type_.dtype), sizes, strides, type_.device)
        slot = Slot(tensor, tainted(), "result")
        slot.type = TensorType.of(type_.dtype, sizes, strides, type_.device)
        self.keep.append(tensor)
        kwargs: dict[str, Any] = {"dtype": type_.dtype, "device": Device(type_.device)}
        if type_.strides is None:
            self.append("aten.zeros.default", [sizes], kwargs, [slot], site)
        else:
            self.append("aten.empty_strided.default", [sizes, strides], kwargs, [slot], site)
        return slot

    def is_outer(self, container: object) -> bool:
        """Whether a container was there before the innermost region that is being explored."""
        return bool(self.snapshots) and self.snapshots[-1].holds(container)

    def outer_families(self) -> set[int]:
        """The memory that tensors known outside the region lie in."""
        return {id(s.family) for s in self.recorder._slots.values() if s.ref() is not None}

    def inner_slot(self, tensor: torch.Tensor) -> Slot:
        """The slot of a tensor that a region left."""
        return self.recorder.slot_of(tensor)

    def want_converted(self) -> None:
        """The function that runs now must be converted for the run to go on. Raises: Again where it can be."""
        site = self.site()
        if site is None:
            return
        if self.convertible(site.code):
            raise Again(convert=site.code)
        # Some functions of torch's can be, too.
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_code is not site.code and frame is not self.base_frame:
            if self.convertible(frame.f_code):
                raise Again(convert=frame.f_code)
            frame = frame.f_back

    def end(self) -> NoReturn:
        """The program never gets further on this path. Raises: Ended."""
        raise Ended

    def statement(self, op: str, *args: object, **kwargs: object) -> None:
        """Record an operator without a result."""
        self.emit(op, *args, **kwargs)

    def held_by_callers(self, value: object) -> bool:
        """Whether a variable of a function that runs now holds a value."""
        frame = self.site_frame()
        while frame is not None and frame is not self.base_frame:
            is_ours = frame.f_globals.get("__name__", "").startswith("smelt.capture")
            if not is_ours and any(held is value for held in frame.f_locals.values()):
                return True
            frame = frame.f_back
        return False

    @unwatched
    def snapshot(self, without: Sequence[object] = (), more: Sequence[object] = ()) -> Snapshot:
        """Copies of all containers that the program can reach from where it stands."""
        if self._settled is None:
            self._settled = Settled(self.heap_roots, [self])
        left_out = [*without, self]
        if not self._settled.is_apart_from({id(item) for item in left_out}):
            return self.whole_snapshot(without, more)
        return Snapshot([*self.locals_without(), *more], left_out, settled=self._settled)

    @unwatched
    def whole_snapshot(self, without: Sequence[object] = (), more: Sequence[object] = ()) -> Snapshot:
        """The same, with all that holds a list or a dictionary."""
        return Snapshot([*self.heap_roots, *self.locals_without(), *more], [*without, self])

    def locals_without(self, own: Collection[str] = ()) -> list[object]:
        """What the variables of all functions hold that run now, but for those of these names of the last one."""
        found: list[Any] = []
        frame = self.site_frame()
        while frame is not None and frame is not self.base_frame:
            if not frame.f_globals.get("__name__", "").startswith("smelt.capture"):
                found.extend(v for name, v in frame.f_locals.items() if name not in own)
                # Parts of the converted function are functions of their own, and see its variables, too.
                own = own if frame.f_code.co_name.startswith(HIDDEN) else ()
            frame = frame.f_back
        return found

    def site_frame(self) -> Any:
        """The frame that runs now."""
        return symbols.sys_frame(1)

    def resolved(self, slot: Slot) -> Slot:
        """The slot that stands for a slot: runs of one region repeat what came before they part."""
        while slot in self.aliases:
            slot = self.aliases[slot]
        return slot


def _is_literal(value: object, other: object) -> bool:
    return type(value) is type(other) and not isinstance(other, Slot) and repr(value) == repr(other)
