"""One compiled object's table of entries, and what happens at a call.

Invariant: the answer of a call is that of the original program. An entry runs only if all its guards hold in this
call; whatever is not understood (a mode, a kind of tensor, an effect, a failing build) runs the original and is
counted. The first call's answer comes from the one native run that was recorded.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NoReturn

import torch

from smelt._torch.busy import busy
from smelt._torch.state import foreign_context, is_grad_enabled
from smelt.capture import is_capturing
from smelt.capture.reads import ReadLog, RecorderBusy
from smelt.capture.reads_effects import file_kind
from smelt.compiler.compiled_inputs import first_unsupported, grad_witness
from smelt.compiler.compiled_native import native_entry, plans_of, target_of
from smelt.compiler.compiled_types import Entry, LeftAlone, ObservedProgram, Row, Settings, SplitProgram, Stats
from smelt.compiler.paths import PATH_LIMIT, Outcome, Paths, difference
from smelt.compiler.prints import muted, pieces_since, pieces_written
from smelt.compiler.second_sight import shown
from smelt.compiler.sight import Look, Sight
from smelt.compiler.worth import Worth
from smelt.diag import CaptureError, InternalError, Miss, SmeltError, SmeltWarning, Span, user_level
from smelt.runtime.entry import Counters, EntryCode, keeps_in_reach
from smelt.runtime.guard_constants import Constants
from smelt.runtime.guards import GuardSet

DISPATCHER = "_smelt_dispatcher"  # the slot of compiled objects
ENTRY_LIMIT = 8  # entries kept; the least recently used one goes
STORM_LIMIT = 16  # entries built, after which a value that changes at each call is left to the original
SPLIT_LIMIT = 3  # kinds of calls that were refused, after which others run in pieces at once
EFFECT_ATTEMPTS = 2  # a first run often fills caches: only a program that does it again is given up

_HOW = ("runs as it is, not compiled", "is compiled in pieces, not as one graph")
_GRAD_REMEDY = "call it under torch.no_grad() or torch.inference_mode()"
_GRAD_ADVICE = (
    "{name} runs as it is, not compiled: gradients are needed (grad mode is on and {what} requires grad). "
    "Call it under torch.no_grad() or torch.inference_mode() to run the compiled program."
)


class _Building(threading.local):
    """Whether the thread is recording a program for a compiled object."""

    active: bool = False


_building = _Building()


class Dispatcher:
    """Calls to one compiled object.

    table: where native code finds the rows that it can serve by itself (`runtime.entry`), the first ones of the table
    here. It calls `__call__` for whatever it does not serve.
    """

    __slots__ = ("__dict__", "__weakref__", "table")
    table: bytes

    def __init__(self, target: Callable[..., Any], name: str, settings: Settings) -> None:
        self.target, self.name, self.settings = target, name, settings
        self._rows: tuple[Row, ...] = ()  # most recently used first; replaced whole, so readers need no lock
        self._lock = threading.Lock()
        self._stats = Stats()
        self._warned: set[str] = set()
        self._effects_seen = 0
        self._guarded_builds = 0  # those that no path asked for
        self.splits: SplitProgram | None = None
        self._sight = Sight(target, settings.dynamic, settings.dynamic_shapes)
        self._witness: torch.Tensor | None = None
        self._counters = Counters()
        self._publishing = threading.RLock()
        self._native: EntryCode | None = None
        self._native_type: type | None = None

    def serve(self, compiled: Any) -> None:
        """Take the calls of this object natively where native code can find its dispatcher."""
        if keeps_in_reach(compiled, self):
            self._native_type = type(compiled)

    # ---------------------------------------------------------------- a call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program on these arguments."""
        self._stats.calls += 1
        if _building.active or is_capturing():
            # An entry's own operators are not seen by a recorder: the program itself must run to become part of it.
            return self._original("called while a program around it is recorded", args, kwargs, is_fault=False)
        foreign = foreign_context()
        if foreign is not None:
            return self._original(foreign, args, kwargs)
        if self._witness is not None and is_grad_enabled() and self._witness.requires_grad:
            return self._with_gradients("a parameter", args, kwargs)
        return self._serve(args, kwargs, ())

    def _serve(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        """The answer by the first row that fits, apart from those that missed already."""
        for row in self._rows:
            if row in missed or row.guards.check(args, kwargs) is not None:
                continue
            if row.paths is not None:
                try:
                    result = self._run(row, args, kwargs)
                except Miss:
                    row.missed()
                    missed = (*missed, row)
                    continue
                self._prefer(row, args, kwargs)
                return result
            self._prefer(row, args, kwargs)
            return self._run(row, args, kwargs)
        return self._miss(args, kwargs, missed)

    def _prefer(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Of paths, one that fits twice running: two that take turns would change places at each call.
        first = next(iter(self._rows), row)  # another thread may take rows out
        if first is not row and not row.is_last and (row.paths is None or row.fits_again(first)):
            self._move_to_front(row)
        if row.may_be_native and row.is_ready and row.worth is None:
            self._make_native(row, args, kwargs)

    def run_row(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in Python from where this row's guards are known to hold."""
        self._stats.calls += 1
        if row.paths is None:
            return self._run(row, args, kwargs)
        try:
            return self._run(row, args, kwargs)
        except Miss:
            return self.try_others(row, args, kwargs)

    def try_others(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call that took another path than this row's."""
        row.missed()
        return self._serve(args, kwargs, (row,))

    def _run(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        row.hit(self._counters.tick())
        if row.split is not None:
            self._count(row.reason)
            return row.split.run(*args, **kwargs)
        if row.entry is None or not row.is_ready:
            return self._original(row.reason or "still compiling in the background", args, kwargs, row.is_ready)
        if row.worth is not None:
            return self._weigh(row, row.worth, args, kwargs)
        return self._run_entry(row, row.entry, args, kwargs)

    def _weigh(self, row: Row, worth: Worth, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, by the entry or by the original, until it is known which is faster."""
        entry = row.entry
        assert entry is not None

        def compiled(*args: Any, **kwargs: Any) -> Any:
            return self._run_entry(row, entry, args, kwargs)

        result = worth.run(compiled, self.target, args, kwargs)
        if worth.windows and row.worth is worth:
            row.worth = None
            if worth.is_lost and row.entry is entry:
                row.entry, row.reason = None, "compiled, it took longer than as it is"
                self._withdraw(row)
        return result

    def _run_entry(self, row: Row, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = pieces_written()
        try:
            return entry.run(args, kwargs)
        except SmeltError as error:
            return self.recover(row, error, args, kwargs, pieces_since(before))
        except Miss:
            raise
        except LeftAlone as why:
            return self._original(str(why), args, kwargs, is_fault=False)
        except Exception as error:
            if not entry.repeats_errors:
                raise
            return self.repeat(row, error, args, kwargs)

    def repeat(self, row: Row, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A way that ends in the program's own error: the original takes it, with all that it does before."""
        result = self.target(*args, **kwargs)
        reason = f"the compiled program raised {type(error).__name__}, and the program itself did not"
        if self._is_strict:
            self._refuse(reason)
        self._count(reason)
        row.entry, row.reason = None, reason
        self._withdraw(row)
        self._warn(reason, f"{self.name} runs as it is from now on: {reason}")
        return result

    def recover(
        self,
        row: Row,
        error: SmeltError,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        printed: dict[str, int] | None = None,
    ) -> Any:
        """The answer of a call whose compiled program failed: the original's. printed: what was before it failed.

        Raises: the error in strict mode.
        """
        if self._is_strict:
            raise error
        reason = f"the compiled program failed: {error.what}"
        if row.entry is not None and row.entry.is_staged and not self.settings.fullgraph:
            return self._record_paths(row, reason, args, kwargs)
        # Where it is the data's fault (an index out of range), the original raises here, and the entry stays.
        with muted(printed) if printed is not None and any(printed.values()) else contextlib.nullcontext():
            result = self._original(reason, args, kwargs)
        if error.code == "S0404" and row.entry is not None and row.entry.forms:
            return result  # another number fits
        row.entry, row.reason = None, reason
        self._withdraw(row)
        self._warn(row.reason, f"{self.name} runs as it is from now on: {row.reason}")
        return result

    def _record_paths(self, row: Row, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call in which the graph of all ways failed: recorded, as a path of those that replace it."""
        before, row.reason = self._rows, reason
        result = self._miss(args, kwargs, (row,))
        with self._lock:
            # Where it is the data's fault, that raised, and the entry stays.
            if self._rows is not before:
                self._rows = tuple(other for other in self._rows if other is not row)
                self._withdraw(row)
        self._count(reason)
        return result

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        reason = first_unsupported(args, kwargs)
        if reason is not None:
            return self._original(reason, args, kwargs)
        witness = grad_witness(self.target, args, kwargs) if is_grad_enabled() else None
        if witness is not None:
            self._witness = witness[0] if witness[1] else None
            self._publish()
            return self._with_gradients("a parameter" if witness[1] else "an argument", args, kwargs)
        if not missed and self.splits is not None and self._is_split_for_all:
            self._count("it is in pieces for all further kinds of calls")
            return self.splits.run(*args, **kwargs)
        if not _by_data(missed) and self._guarded_builds >= STORM_LIMIT:
            return self._original("too many different calls were compiled already", args, kwargs)
        if not self._lock.acquire(blocking=False):
            return self._original("another thread is compiling it", args, kwargs, is_fault=False)
        _building.active = True
        try:
            with busy():
                return self._build(args, kwargs, missed)
        finally:
            _building.active = False
            self._lock.release()

    @property
    def _is_split_for_all(self) -> bool:
        """Whether so many kinds of calls were refused that another one need not be recorded as a whole."""
        refused = sum(row.split is not None for row in self._rows)
        return refused >= SPLIT_LIMIT or self._guarded_builds >= STORM_LIMIT

    @property
    def _is_strict(self) -> bool:
        return self.settings.options.strict

    def _original(self, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any], is_fault: bool = True) -> Any:
        """Run the program as it is, for a counted reason. Raises: SmeltError (S0302) in strict mode."""
        if is_fault and (self._is_strict or self.settings.fullgraph):
            self._refuse(reason)
        self._count(reason)
        return self.target(*args, **kwargs)

    def _refuse(
        self,
        reason: str,
        cause: BaseException | None = None,
        remedy: str = "remove the cause",
        where: Span | None = None,
    ) -> NoReturn:
        which = "options={'strict': True}" if self._is_strict else "fullgraph=True"
        raise CaptureError(
            f"{self.name} was not compiled: {reason}",
            where,
            why=f"{which} turns every fallback into an error",
            fix=f"{remedy}, or leave out {which}",
            code="S0302",
        ) from cause

    def _with_gradients(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        reason = f"gradients are needed: {what} requires grad"
        if self._is_strict or self.settings.fullgraph:
            self._refuse(reason, remedy=_GRAD_REMEDY)
        result = self._original(reason, args, kwargs)
        self._warn("gradients", _GRAD_ADVICE.format(name=self.name, what=what))
        return result

    def _count(self, reason: str) -> None:
        self._stats.fallbacks[reason] = self._stats.fallbacks.get(reason, 0) + 1

    def _warn(self, key: str, message: str) -> None:
        """One warning for each reason, at the user's own line."""
        if key not in self._warned and self.settings.refused is None:
            self._warned.add(key)
            warnings.warn(message, SmeltWarning, stacklevel=user_level())

    # ---------------------------------------------------------------- a build

    def _build(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        look = self._look(args, kwargs)
        cause = self._note_misses(args, kwargs)
        self._count_build(missed, 1)
        program = ObservedProgram(self.target, self.name, self.settings, next_path=bool(missed), freedom=look.freedom)
        started = time.perf_counter()
        failure: Exception | None = None
        entry: Entry | None = None
        try:
            entry = self.settings.builder(program, args, kwargs, self.settings.options)
        except RecorderBusy:
            self._count_build(missed, -1)
            return self._original("another thread is recording a program", args, kwargs, is_fault=False)
        except Exception as error:
            failure = error
        if program.error is not None and not isinstance(program.error, (SmeltError, RecorderBusy)):
            if missed:
                self._count_build(missed, -1)  # this way through the program ends in an error: there is no path to keep
            _reraise(program.error)
        if failure is None and not program.was_called:
            failure = CaptureError(f"the builder did not run {self.name}", code="S0104")
        if not program.has_result:
            return self._interrupted(program, failure, args, kwargs)
        self._settle(program, entry, failure, time.perf_counter() - started, args, kwargs, missed, cause, look)
        return program.result

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Look:
        """What is to be free in the build for this call. Raises: SmeltError (S0304) for wishes without a place."""
        look = self._sight.look([row.seen for row in self._rows if row.entry and row.seen], args, kwargs)
        if look.unfit:
            if self._is_strict or self.settings.fullgraph:
                self._refuse(look.unfit, remedy="widen what dynamic_shapes says")
            self._warn("dynamic_shapes", f"{self.name} is compiled for this call alone: {look.unfit}")
        return look

    def _count_build(self, missed: tuple[Row, ...], times: int) -> None:
        self._stats.builds += times
        if not _by_data(missed):
            self._guarded_builds += times

    def _interrupted(
        self, program: ObservedProgram, failure: Exception | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The builder gave up before the program's end: the original answers, recorded, so that it is remembered."""
        if self._is_strict or self.settings.fullgraph:
            self._fail(failure)
        again = ObservedProgram(self.target, self.name, self.settings)
        try:
            again(*args, **kwargs)
        except Exception as error:
            _reraise(error)
        self._settle(again, None, failure, 0.0, args, kwargs)
        return again.result

    def _fail(self, failure: Exception | None) -> NoReturn:
        if isinstance(failure, SmeltError):
            raise failure
        self._refuse(f"{type(failure).__name__}: {failure}", failure)

    def _settle(
        self,
        program: ObservedProgram,
        entry: Entry | None,
        failure: Exception | None,
        build_s: float,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        missed: tuple[Row, ...] = (),
        cause: str = "",
        look: Look | None = None,
    ) -> None:
        """Put the outcome of a build into the table; missed: rows whose guards held, but not what they expect.

        cause: why no row served the call. look: what was to be free.
        """
        log = program.log or ReadLog()
        if not log.is_replayable:
            self._settle_effects(log, entry, args, kwargs, missed)
            return
        if failure is not None or entry is None:
            if self._is_strict or self.settings.fullgraph:
                self._fail(failure)
            reason = _sentence(failure)
            split = self._split(log, failure, entry)
            self._add(Row(GuardSet(log.reads, args, kwargs), None, reason, build_s=build_s, split=split))
            self._count(reason)
            self._warn(reason, f"{self.name} {_HOW[split is not None]}: {reason}")
            return
        broken = None if look is None else self._sight.broken(look, entry)
        if broken is not None:
            raise broken
        forms, checks = entry.forms, entry.checks
        try:
            guards = GuardSet(
                log.reads, args, kwargs, state=entry.state, writes=entry.writes, free=forms, checks=checks
            )
        except InternalError as error:
            if not forms or look is None:
                raise
            # What cannot be guarded is not free: the next such call is compiled as it stands.
            self._sight.refuse(look, error.what)
            return
        if is_grad_enabled() and any(t.requires_grad for t in guards.tensors):
            reason = "gradients are needed: a tensor that the program reads requires grad"
            self._add(Row(guards, None, reason, build_s=build_s))
            self._warn("gradients", _GRAD_ADVICE.format(name=self.name, what="a tensor that it reads"))
            return
        seen = None if look is None else self._sight.settle(look, entry)
        row = Row(guards, entry, build_s=build_s, is_ready=False, cause=cause, seen=seen)
        entry.on_constants(_watcher(weakref.ref(self), weakref.ref(row)))
        if entry.outcomes:
            hopeless = self._join_paths(row, entry.outcomes, missed)
            if hopeless:
                self._give_up_paths(row, hopeless, log, args, kwargs)
                return
        self._add(row)
        # Taken before anything is folded or packed: what changes meanwhile may be in the entry or not.
        before = Constants(entry.state)
        if self.settings.background:
            threading.Thread(target=self._finish, args=(row, before), name=f"smelt {self.name}", daemon=True).start()
        else:
            self._finish(row, before)

    def _join_paths(self, row: Row, outcomes: tuple[Outcome, ...], missed: tuple[Row, ...]) -> str:
        """Make a row one of the paths under its guards; why there should be none, or nothing."""
        row.paths = next((other.paths for other in missed if other.paths is not None), None) or Paths()
        row.paths.note(outcomes)
        row.fits_again(row)
        for other in missed:
            if other.entry is not None:
                row.cause = difference(other.entry.outcomes, outcomes) if other.paths is not None else other.reason
                self._count_miss(row.cause)
        for same in [other for other in missed if other.entry is not None and other.entry.outcomes == outcomes]:
            # It missed and was then recorded to take this very way: another thread drew random numbers in between, or
            # compiled it comes to other values than Python reads. The new one takes its place.
            row.paths.contradict(same.hits)
            self._rows = tuple(other for other in self._rows if other is not same)
        alike = [other for other in self._rows if other.paths is row.paths]
        if len(alike) >= PATH_LIMIT:
            oldest = min(alike[1:], key=lambda other: other.fitted, default=alike[0])
            row.paths.evicted += 1
            row.paths.past_hits += oldest.hits
            self._rows = tuple(other for other in self._rows if other is not oldest)
        return row.paths.why_hopeless(sum(other.hits for other in alike))

    def _give_up_paths(self, row: Row, why: str, log: ReadLog, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_strict or self.settings.fullgraph:
            self._refuse(why)
        self._rows = tuple(other for other in self._rows if other.paths is not row.paths)
        split = self._split(log, row.paths.hopeless(why) if row.paths is not None else None, row.entry)
        # What it reads may differ from path to path, so only the arguments say when this holds again.
        self._add(Row(GuardSet((), args, kwargs), None, why, split=split))
        self._count(why)
        self._warn("paths", f"{self.name} {_HOW[split is not None]} from now on: {why}")

    def _split(self, log: ReadLog, failure: Exception | None, entry: Entry | None) -> SplitProgram | None:
        """What runs in the place of a refused program; None where it can only run as it is."""
        if self.settings.refused is not None:
            self.settings.refused(log, failure, entry)
        elif self.splits is not None:
            self.splits.more(log, failure)
        elif self.settings.split is not None:
            self.splits = self.settings.split(self.target, self.name, self.settings, log, failure, entry)
        return self.splits

    def _settle_effects(
        self, log: ReadLog, entry: Entry | None, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]
    ) -> None:
        self._effects_seen += 1
        reason = f"it has effects that a compiled program would not repeat: {log.why_not()}"
        if self._is_strict or self.settings.fullgraph:
            self._refuse(reason, remedy="do that outside, with what the program returns", where=log.where)
        self._count(reason)
        if self._effects_seen >= EFFECT_ATTEMPTS or self.settings.refused is not None:
            split = self._split(log, None, entry)
            # What it reads may be what it changes, so only the arguments say when this holds again.
            self._add(Row(GuardSet((), args, kwargs), None, reason, is_last=bool(missed), split=split))
            self._warn("effects", f"{self.name} {_HOW[split is not None]}: {reason}")

    def watch_more(self, row: Row) -> bool:
        """Guard what a further plan of a row's entry has baked in, too; whether nothing of it has changed meanwhile."""
        if not row.is_ready or row.entry is None:
            return True  # all of it is watched when the row is finished
        before = row.guards.constants
        row.guards.watch(row.entry.constants)
        self._withdraw(row)
        if not before.changed():
            return True
        with self._lock:
            self._rows = tuple(other for other in self._rows if other is not row)
        self._publish()
        return False

    def _finish(self, row: Row, before: Constants) -> None:
        entry = row.entry
        try:
            if entry is not None:
                entry.finish()
                # Only now is it known what was folded and packed. Nobody runs the entry before it is ready.
                row.guards.watch(entry.constants)
                held = {id(tensor) for tensor in entry.constants}
                if any(id(before.tensors[i]) in held for i in before.changed()):
                    # The row never becomes ready; the next such call compiles anew.
                    self._drop(row)
                    return
        except Exception as error:
            row.entry, row.reason = None, _sentence(error)
            self._count(row.reason)  # the call that came for this entry got the recorded run's answer
            if not self.settings.background:
                if self._is_strict or self.settings.fullgraph:
                    row.is_ready = True
                    self._fail(error)
                self._warn(row.reason, f"{self.name} runs as it is, not compiled: {row.reason}")
        if row.entry is not None and row.paths is None and row.entry.goes_through_python:
            row.worth = None if self._is_strict or self.settings.fullgraph else Worth()
        row.is_ready = True

    # ---------------------------------------------------------------- the table

    def _add(self, row: Row) -> None:
        row.hit(self._counters.tick(), times=0)
        used: dict[Any, int] = {}
        for other in (row, *self._rows):
            used[other.paths or other] = max(used.get(other.paths or other, 0), other.used)
        rows = sorted((row, *self._rows), key=lambda other: (other.is_last, -used[other.paths or other]))
        kinds = list(dict.fromkeys(other.paths or other for other in rows))  # the paths of one set of guards are one
        if len(kinds) > ENTRY_LIMIT:
            self._stats.evictions += 1
            self._warn(
                "storm",
                f"{self.name} is compiled again and again: {self._storming() or 'its arguments differ at each call'}. "
                f"At most {ENTRY_LIMIT} entries are kept; after {STORM_LIMIT} the original runs instead.",
            )
        kept = set(kinds[:ENTRY_LIMIT])
        self._rows = tuple(other for other in rows if (other.paths or other) in kept)
        self._publish()

    def _drop(self, row: Row) -> None:
        """Take a row out of the table."""
        # A build in the foreground holds the lock already.
        with self._lock if self.settings.background else contextlib.nullcontext():
            self._rows = tuple(other for other in self._rows if other is not row)
        self._publish()

    def _move_to_front(self, row: Row) -> None:
        if self._lock.acquire(blocking=False):
            try:
                self._rows = (row, *(other for other in self._rows if other is not row))
                self._publish()
            finally:
                self._lock.release()

    def _note_misses(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Count the guards that failed; the one of the row that was used last, as a sentence."""
        first = ""
        for row in self._rows:
            failed = row.guards.check(args, kwargs)
            if failed is not None:
                text = row.guards.explain(failed, args, kwargs)
                self._count_miss(text)
                first = first or text
        return first

    def _count_miss(self, text: str) -> None:
        self._stats.misses[text] = self._stats.misses.get(text, 0) + 1

    def _storming(self) -> str:
        """The guard that failed most often, by its place rather than by its values."""
        places: dict[str, list[str]] = {}
        for text in self._stats.misses:
            places.setdefault(text.split(" was ")[0], []).append(text)
        return max(places.values(), key=len)[-1] if places else ""

    # ---------------------------------------------------------------- native rows

    def _make_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code serve calls like this one, which has just passed the row's guards."""
        row.may_be_native = False
        if row.entry is None or self._native_type is None:
            return
        code = native_entry(Dispatcher, _slow, self.settings.options)
        if code is None or not (code.is_installed(self._native_type) or code.install(self._native_type)):
            return
        self._native = code
        target, plans = target_of(self, row, args, kwargs), plans_of(self, row, args, kwargs)
        row.native = code.row(row.guards, args, kwargs, target, self._counters, plans)
        self._publish()

    def renew_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code know of a plan that this row has got since; this call has passed the row's guards."""
        if row.guards.check(args, kwargs) is None:  # it may have changed what they ask for
            row.forget_native()
            self._make_native(row, args, kwargs)

    def _publish(self) -> None:
        """Give native code the rows up to the first that only Python can serve, so that the same one answers."""
        with self._publishing:
            rows = []
            for row in self._rows:
                # A parameter that requires gradients may be none of those that the row knows.
                is_doubtful = self._witness is not None and row.guards.is_for_gradients
                if row.native is None or row.entry is None or is_doubtful:
                    break
                rows.append(row.native)
            if rows and self._native is not None:
                self.table = self._native.table(rows)
            elif hasattr(self, "table"):
                del self.table

    def _withdraw(self, row: Row) -> None:
        """What native code knows of a row is no longer so."""
        row.forget_native()
        self._publish()

    # ---------------------------------------------------------------- what the user may ask

    def refresh(self) -> None:
        """Build the entries' constants anew from the present contents of parameters."""
        if self.splits is not None:
            self.splits.refresh()
        with self._lock:
            for row in self._rows:
                if row.entry is not None:
                    self._withdraw(row)
                    row.entry.refresh()
                    row.guards.refresh()
                    row.forget_native()  # another thread may have made it meanwhile
            self._publish()

    def stats(self) -> Stats:
        """Counts and entries at this moment."""
        now = self._stats
        return Stats(
            now.calls + self._counters.calls,
            now.builds,
            now.evictions,
            dict(now.misses),
            dict(now.fallbacks),
            self._rows,
            {shown(spot): why for spot, why in self._sight.refused.items()},
        )


def _slow(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """A call that native code does not serve."""
    dispatcher: Dispatcher = object.__getattribute__(compiled, DISPATCHER)
    return dispatcher(args, dict(kwargs) if kwargs else {})


def _watcher(get_dispatcher: Callable[[], Dispatcher | None], get_row: Callable[[], Row | None]) -> Callable[[], bool]:
    """What an entry tells of more constants: neither the row nor its dispatcher is kept alive."""

    def watch() -> bool:
        dispatcher, row = get_dispatcher(), get_row()
        return dispatcher is not None and row is not None and dispatcher.watch_more(row)

    return watch


def _by_data(missed: tuple[Row, ...]) -> bool:
    """Whether data led a call away from these rows, and not its sizes alone: then their paths are counted instead."""
    return any(row.entry is None or not row.entry.forms for row in missed)


def _sentence(failure: BaseException | None) -> str:
    if isinstance(failure, SmeltError):
        return failure.what + (f" at {failure.where}" if failure.where is not None else "")
    return f"{type(failure).__name__}: {failure}"


def _reraise(error: BaseException) -> NoReturn:
    """Raise the program's own error as the plain program would: without the frames of the recorder in its traceback."""
    raise error.with_traceback(_without_smelt(error.__traceback__))


def _without_smelt(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    rest = _without_smelt(traceback.tb_next)
    if file_kind(traceback.tb_frame.f_code.co_filename) == "smelt":
        return rest
    return TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
