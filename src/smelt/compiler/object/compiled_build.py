"""What becomes of a call that no row of the table serves: a build, and the row that comes of it.

Invariant: the call's answer is that of the one native run that was recorded. Whatever is not understood (an effect, a
failing build) is put into the table as a row that runs the original, with its reason.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch

from smelt._torch.exact import MISSING
from smelt._torch.seen.busy import busy
from smelt._torch.seen.leaves import is_leaf
from smelt._torch.seen.saved_hooks import is_in_checkpoint
from smelt._torch.state import is_grad_enabled
from smelt._torch.storage import without_elements
from smelt.capture.reads.reads import ReadLog, RecorderBusy
from smelt.capture.recording.kept_casts import KeptCast
from smelt.capture.staging.flow.assumptions import Assumptions
from smelt.capture.staging.flow.stops import PARTLY
from smelt.capture.structure.state import STATE, Place, in_names, without_state
from smelt.compiler.deciding.attempts import Attempts
from smelt.compiler.deciding.call_profile import Look, Sight
from smelt.compiler.deciding.ledger import FREE_BUILDS, MEASURED, SERVED, STOPPED
from smelt.compiler.deciding.trial import Trial, first_trial
from smelt.compiler.deciding.turns import Turns
from smelt.compiler.deciding.worth import Worth
from smelt.compiler.object.compiled_inputs import ON_META, first_unsupported, grad_witness, tensors_in
from smelt.compiler.object.compiled_original import Original
from smelt.compiler.object.compiled_state import StateCalls, UnderWay, number_places
from smelt.compiler.object.compiled_table import STORM_LIMIT, Table
from smelt.compiler.object.compiled_types import (
    ANOMALIES,
    Entry,
    KnownProgram,
    NeedsGradients,
    NotDifferentiable,
    ObservedProgram,
    Row,
    SplitProgram,
    Stats,
    Unmade,
    Unrepeated,
    attempt,
)  # fmt: skip
from smelt.compiler.object.interrupts import SignalsWait, errors_in_programs
from smelt.compiler.object.known_program import known_program, settle_known
from smelt.compiler.object.tracebacks import of_program
from smelt.compiler.paths import PATH_LIMIT, Outcome, Paths, difference
from smelt.compiler.profile_hook import watch_natively
from smelt.compiler.programs.program_modules import is_uninitialized
from smelt.compiler.raised_run import RaisedRun, seen_only
from smelt.diag import CaptureError, InternalError, RanksError, SmeltError, limits
from smelt.diag.collector import collect_young, full_collections_later
from smelt.diag.idle_memory import give_back_code, give_back_freed_memory
from smelt.runtime.guarding.guard_args import Outside
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guards import GuardSet

STATE_LIMIT = limits.STATEFUL_BUILDS  # after which a program is split that needs one at nearly each call
SPLIT_LIMIT = limits.REFUSED_KINDS  # kinds of calls that were refused, after which others run in pieces at once
_OTHERS_S = 0.005  # for other calls that waited for the same build, and only look what it has left
_IN_BACKGROUND = "still compiling in the background"
_BUILT_ELSEWHERE = "another thread is compiling it"
_RECORDED_ELSEWHERE = "another thread is recording a program"
AGAIN = object()
"""In the place of an answer: the table is to be asked once more."""
RAISED = "the last recorded run of it raised"
BEGAN_WITHOUT = "a call that began before its state was known is still running"
_MOST_UNRECORDED = limits.UNRECORDED_CALLS  # calls that run as they are after a recorded run that raised
# Kinds of calls that needed gradients, after which others are not recorded while something needs them.
GRADIENT_LIMIT = limits.GRADIENT_KINDS
# A first run often fills caches: only a program that does it again is given up.
EFFECT_ATTEMPTS = limits.EFFECT_ATTEMPTS

_HOW = ("falls back to eager", "is compiled as partitions, not as one graph")


class _Building(threading.local):
    """Whether the thread is recording a program for a compiled object."""

    active: bool = False


building = _Building()


class Builds:
    """The builds of one compiled object. splits: the pieces of a program that was refused. state: of a program that
    changes places outside its arguments, from when these are known."""

    def __init__(self, original: Original, table: Table, stats: Stats, under_way: UnderWay) -> None:
        self.splits: SplitProgram | None = None
        self.state: StateCalls | None = None
        self._may_have_state = original.settings.refused is None
        self._states = 0
        self._under_way = under_way
        self._turns = Turns()
        self._changes_nothing = False  # as far as a recorded run has shown
        self.sight = Sight(original.target, original.settings.dynamic, original.settings.dynamic_shapes)
        self._original, self._table, self._stats, self.ledger = original, table, stats, original.ledger
        self._target, self._name, self._settings = original.target, original.name, original.settings
        self._effects_seen = 0
        self._guarded = 0  # those that no path asked for
        self._with_gradients = 0  # kinds of calls whose results had a history, and that are not compiled
        self._why_eager = ""  # why the last of these could not be
        self._witness: weakref.ref[torch.Tensor] | None = None  # what required gradients in the last of them
        self._is_looked_at = False
        self._raised = 0  # recorded runs in a row that raised, after which ever more calls run as they are
        self._attempts = Attempts()
        self._exhausted = 0  # stagings that came to no end in their time
        self._as_native = False  # whether graphs are of ways that answers about numbers lead to
        self._counts_apart = False  # whether counters that were one number have come apart
        self._unrecorded = 0  # of these calls, those that are to come
        self.is_idle = False  # of late every call was refused a build
        self._served = -1  # calls that were served by entries when the last one was

    def miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        """The answer of a call that no row serves; `AGAIN` where there is another row by now, from another thread.

        missed: rows whose guards held, but not what they expect.
        """
        reason = first_unsupported(args, kwargs)
        if reason is not None:
            result = self._original.run(reason, args, kwargs)
            if reason != ON_META:  # where nobody waits for an answer
                self._original.warn(reason, f"{self._name} {_HOW[False]}: {reason}")
            return result
        if is_grad_enabled() and (what := self._requiring(args, kwargs)):
            if self._with_gradients >= GRADIENT_LIMIT:
                return self._original.with_gradients(what, self._why_eager, args, kwargs)
            if torch.is_anomaly_enabled():  # which writes down where each operator is called
                return self._original.run(ANOMALIES, args, kwargs, is_fault=False)
            if self._is_in_training:
                return self._look_at_training(what, args, kwargs)
        if not missed and self.splits is not None and self._is_split_for_all:
            self._original.count("all further kinds of calls run its partitions")
            return self.splits.run(*args, **without_state(kwargs))
        if not _by_data(missed) and self._guarded >= STORM_LIMIT and self.state is None:
            return self._original.run("too many different calls were compiled already", args, kwargs)
        if not self._is_free_to_build:
            if self.ledger.asks_for_eager and not self._original.is_piece:
                return self._original.run(MEASURED, args, kwargs, is_fault=False)
            if not self.ledger.may_build():
                return self._run_unbuilt(args, kwargs)
        with SignalsWait():
            return self._miss(args, kwargs, missed)

    @property
    def _is_free_to_build(self) -> bool:
        """Whether nearly all that was built for this object serves calls."""
        served = sum(row.entry is not None and row.hits >= SERVED for row in self._table.rows)
        return not self._original.is_piece and self._stats.builds - served < FREE_BUILDS

    def _run_unbuilt(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's answer, because builds have taken all that its calls are worth."""
        self.ledger.refused += 1
        served = sum(row.hits for row in self._table.rows if row.entry is not None)
        self.is_idle, self._served = served == self._served, served
        cause = self._table.note_misses(args, kwargs) if self.ledger.refused == 1 else ""
        result = self._original.run(STOPPED, args, kwargs, is_fault=False)
        why = f" (the last one because {cause})" if cause else ""
        self._original.warn(
            "budget", f"{self._name} falls back to eager where it is not compiled yet{why}: {self.ledger}"
        )
        return result

    def _requiring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What of all that the call may use is known to require gradients."""
        held = self._witness() if self._witness is not None else None
        is_held = held is not None and held.requires_grad
        return grad_witness(self._target, args, kwargs) or ("a tensor that it reads" if is_held else "")

    @property
    def _is_in_training(self) -> bool:
        """Whether gradients are most likely what the program is called for, so that a recorded run would be lost."""
        if self._settings.options.train:
            return False
        return not self._with_gradients and not self._is_looked_at and getattr(self._target, "training", False) is True

    def _look_at_training(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's answer; what requires gradients in it shows that they are wanted."""
        self._is_looked_at = True
        if self._original.is_whole:
            return self._miss(args, kwargs, ())
        result = self._original.target(*args, **without_state(kwargs))
        if any(tensor.requires_grad and not is_leaf(tensor) for tensor in tensors_in(result)):
            self._with_gradients = GRADIENT_LIMIT
            self._original.needs_gradients(what)
        else:
            self._original.count("whether gradients are needed is being found out")
        return result

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        if self.state is not None and not _by_data(missed) and self._is_state_lost:
            self._give_up_state()
            return self._original.run("its state differs at each call", args, kwargs)
        if not _by_data(missed) and self._guarded >= STORM_LIMIT:
            return self._original.run("too many different calls were compiled already", args, kwargs)
        if self._unrecorded and not missed and not self._original.is_whole:
            self._unrecorded -= 1
            return self._original.run(RAISED, args, kwargs, is_fault=False)
        if self._original.settings.options.train and is_in_checkpoint():
            # A run is repeated there, and must save the same tensors: eagerly both times, or compiled both times.
            return self._original.run("it is first called in a checkpoint", args, kwargs, is_fault=False)
        if is_uninitialized(self._target):
            return self._original.run("parameters get their sizes in this call", args, kwargs, is_fault=False)
        if not self._table.lock.acquire(blocking=False) and not self._await_build():
            return self.run_meanwhile(args, kwargs)
        # A recording replaces for a while what guards look at: only behind it they tell whether a row serves the call.
        self._turns.await_recorder()
        is_replaced = self._turns.is_recorded_elsewhere()
        if not is_replaced:
            self._table.follow()
        if any(row not in missed and row.guards.check(args, kwargs) is None for row in self._table.rows):
            self._table.lock.release()
            return AGAIN
        if self._table.rows and not missed and (is_replaced or self._turns.is_recorded_elsewhere()):
            self._table.lock.release()
            return self._original.run(_RECORDED_ELSEWHERE, args, kwargs, is_fault=False)
        building.active = True
        try:
            if self.state is not None and STATE not in kwargs:
                # Found out since this call began: it has not read the state that a build would put back.
                return self._original.run(BEGAN_WITHOUT, args, kwargs, is_fault=False)
            with busy(), full_collections_later(), self.ledger.building():
                watch_natively(self._settings.options, makes=True)
                give_back_code()  # what imports ran, before the recorded run needs most memory
                result = self._build(args, kwargs, missed)
            collect_young()
            give_back_freed_memory()
            give_back_code()
            return result
        finally:
            building.active = False
            self._table.lock.release()

    def _await_build(self) -> bool:
        """Wait for another thread's build; whether this call holds the table's lock now."""
        lock = self._table.lock
        with self._under_way.aside():
            is_over = self._turns.acquire(lock)
            if is_over:  # calls with a state, which this one waits for now, may need the lock
                lock.release()
        return is_over and lock.acquire(timeout=_OTHERS_S)

    def await_ready(self, row: Row) -> bool:
        """Wait for the rest of a build, which other threads do; whether it is done."""
        if not self._settings.background and self._await_build():
            self._table.lock.release()
        return row.is_ready

    def run_meanwhile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The original's answer while what the call needs is being built."""
        why = _IN_BACKGROUND if self._settings.background else _BUILT_ELSEWHERE
        return self._turns.timed(partial(self._original.run, why, args, kwargs, is_fault=False))

    @property
    def _is_split_for_all(self) -> bool:
        """Whether so many kinds of calls were refused that another one need not be recorded as a whole."""
        refused = sum(row.split is not None for row in self._table.rows)
        return refused >= SPLIT_LIMIT or self._guarded >= STORM_LIMIT

    def _build(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...], *, is_recorded: bool = False
    ) -> Any:
        """The answer of the recorded run; `AGAIN` where there was none, unless `is_recorded`, which wants one."""
        if self._frees_numbers():
            return self._original.run(BEGAN_WITHOUT, args, kwargs, is_fault=False)
        look = self._look(args, kwargs)
        self._attempts.kinds = look.call.kinds
        cause = self._table.note_misses(args, kwargs)
        self._count_build(missed, 1)
        known = None if is_recorded or missed else self._known(look, args, kwargs)
        if known is None:
            look = replace(look, freedom=look.freedom.from_one())
        is_count = any(map(_expects_counts, missed))
        self._counts_apart |= is_count
        program = ObservedProgram(
            self._target, self._name, self._settings,
            next_path=bool(missed) and not (_show(missed) or self._as_native or is_count), freedom=look.freedom,
            state=self._places, replaced=frozenset(self._table.replaced), alone=self._alone, took=self._turns.took,
            attempts=self._attempts, ledger=self.ledger, known=known,
        )  # fmt: skip
        program.learnt.exhausted = self._exhausted
        program.learnt.assumed = Assumptions(as_native=self._as_native, counts=not self._counts_apart)
        started = time.perf_counter()
        before = errors_in_programs()
        failure: Exception | None = None
        entry: Entry | None = None
        unmade: Unmade | None = None
        try:
            try:
                entry = self._settings.builder(program, args, kwargs, self._settings.options)
            except Unrepeated as error:
                unmade = Unmade(error.later)
            self._exhausted = program.learnt.exhausted
            self._as_native |= program.learnt.assumed.as_native
        except RecorderBusy:
            self._count_build(missed, -1)
            return self._original.run(_RECORDED_ELSEWHERE, args, kwargs, is_fault=False)
        except Exception as error:
            failure = error
        if entry is not None and program.is_spared:
            took = time.perf_counter() - started
            attempt(self._settle, program, entry, None, took, args, kwargs, missed, cause, look, None)
            serves, is_new = settle_known(self._table, program, entry, args, kwargs)
            if not is_new:
                self._count_build(missed, -1)
            return AGAIN if serves else self._build(args, kwargs, missed, is_recorded=True)
        if isinstance(program.error, RanksError):
            self._count_build(missed, -1)
            _reraise(program.error)
        if program.error is not None and not isinstance(program.error, (SmeltError, RecorderBusy)):
            self._count_build(missed, -1)  # this way through the program ends in an error: there is nothing to keep
            self._raised += 1
            self._unrecorded = min(2**self._raised // 8, _MOST_UNRECORDED)
            if errors_in_programs() != before or not isinstance(program.error, Exception):
                _reraise(program.error)
            return self._answer(program.raised, program.error, args, kwargs)
        if failure is None and not program.was_called:
            failure = CaptureError(f"the builder did not run {self._name}", code="S0104")
        if not program.has_result:
            if program.error is not None and not program.raised.has_done_nothing:
                self._count_build(missed, -1)
                self._table.add(Row(GuardSet((), args, kwargs), None, _sentence(program.error)))
                _reraise(program.error)  # what it has done is not done twice
            return self._interrupted(program, failure, args, kwargs)
        if errors_in_programs() != before:
            # A handler's error may have chosen the way that was recorded; the next call is compiled.
            self._count_build(missed, -1)
            return program.result
        self._raised = 0
        took = time.perf_counter() - started
        _, unsettled = attempt(self._settle, program, entry, failure, took, args, kwargs, missed, cause, look, unmade)
        if unsettled is not None:
            self._settle_failed(unsettled, args, kwargs)
        return program.result

    def _answer(self, run: RaisedRun, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a program that raised where it was recorded, and does not by itself.

        Raises: the program's own error.
        """
        result, own = attempt(run.answer, error, args, kwargs)
        if own is not None:
            _reraise(own)
        reason = seen_only(error)
        if self._original.is_whole:
            self._original.refuse(reason, error)
        self._raised = self._unrecorded = 0
        self._table.add(Row(GuardSet((), args, kwargs), None, reason))
        self._original.count(reason)
        self._original.warn(reason, f"{self._name} {_HOW[False]}: {reason}")
        return result

    def _known(self, look: Look, args: tuple[Any, ...], kwargs: dict[str, Any]) -> KnownProgram | None:
        """What an earlier build knows of the program that serves for this call, too."""
        if self.state is not None or self._settings.refused is not None or self._original.is_piece:
            return None
        return known_program(self._table.rows, look, args, kwargs)

    def _alone(self) -> AbstractContextManager[None]:
        """No other call is under way in this block, where a run may change what these change, too."""
        return nullcontext() if self._changes_nothing else self._under_way.alone()

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Look:
        """What is to be free in the build for this call. Raises: SmeltError (S0304) for wishes without a place."""
        look = self.sight.look([row.seen for row in self._table.rows if row.entry and row.seen], args, kwargs)
        if look.unfit:
            if self._original.is_whole:
                self._original.refuse(look.unfit, remedy="widen what dynamic_shapes says")
            self._original.warn("dynamic_shapes", f"{self._name} is compiled for this call alone: {look.unfit}")
        return look

    def _count_build(self, missed: tuple[Row, ...], times: int) -> None:
        self._stats.count_builds(times)
        self.ledger.builds += max(times, 0)
        if not _by_data(missed):
            self._guarded += times

    def _interrupted(
        self, program: ObservedProgram, failure: Exception | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The builder gave up before the program's end: the original answers, recorded, so that it is remembered."""
        if self._original.is_whole:
            self._original.fail(failure)
        again = ObservedProgram(self._target, self._name, self._settings, state=self._places, alone=self._alone)
        try:
            again(*args, **kwargs)
        except Exception as error:
            _reraise(error)
        self._settle(again, None, failure, 0.0, args, kwargs)
        return again.result

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
        unmade: Unmade | None = None,
    ) -> None:
        """Put the outcome of a build into the table; missed: rows whose guards held, but not what they expect.

        cause: why no row served the call. look: what was to be free. unmade: stands for the entry, where there is none.
        """
        log = program.log or ReadLog()
        if isinstance(failure, NeedsGradients):
            self._count_build(missed, -1)
            self._leave_to_autograd(log, failure, args, kwargs)
            return
        if not log.is_replayable:
            if not self._takes_state(log):
                self._settle_effects(log, entry or unmade, args, kwargs, missed)
            return
        self._changes_nothing = self.state is None and failure is None
        if entry is not None and PARTLY in entry.why_paths and self._takes_written(program):
            return
        if failure is not None and self._takes_replaced(program):
            return
        if (failure is not None or entry is None) and self.state is not None:
            self._give_up_state()
            self._original.count(_sentence(failure))
            return
        if failure is not None or entry is None:
            if self._original.is_whole:
                self._original.fail(failure)
            reason = _sentence(failure)
            # Casts that autocast keeps are seen by all of the program, or by none of it.
            split = None if isinstance(failure, KeptCast) else self._split(log, failure, entry)
            self._table.add(Row(_guards(log, args, kwargs), None, reason, build_s=build_s, split=split))
            self._original.count(reason)
            self._original.warn(reason, f"{self._name} {_HOW[split is not None]}: {reason}")
            return
        opaque = next(filter(None, map(without_elements, entry.state)), "")
        if opaque:
            reason = f"it reads {opaque} that is no argument"
            if self._original.is_whole:
                self._original.refuse(reason)
            self._table.add(Row(_guards(log, args, kwargs), None, reason, build_s=build_s))
            self._original.count(reason)
            self._original.warn(reason, f"{self._name} {_HOW[False]}: {reason}")
            return
        broken = None if look is None else self.sight.broken(look, entry)
        if broken is not None:
            raise broken
        forms, checks = entry.forms, entry.checks
        try:
            guards = _guards(
                log, args, kwargs,
                state=entry.state, writes=entry.writes, free=forms, checks=checks, enables_grad=entry.enables_grad,
                named=partial(in_names, places=self._places),
            )  # fmt: skip
        except InternalError as error:
            if not forms or look is None:
                raise
            # What cannot be guarded is not free: the next such call is compiled as it stands.
            self.sight.refuse(look, error.what)
            return
        seen = None if look is None else self.sight.settle(look, entry)
        row = Row(guards, entry, build_s=build_s, is_ready=False, cause=cause, seen=seen, is_spared=program.is_spared)
        entry.on_constants(_watcher(weakref.ref(self), weakref.ref(row)))
        if entry.outcomes:
            hopeless = self._join_paths(row, entry.outcomes, missed)
            if hopeless:
                self._give_up_paths(row, hopeless, log, args, kwargs)
                return
        if self._table.is_cast_before(entry):
            return  # calls are recorded, which autocast sees, until its region ends
        if entry.kept_casts:
            self._table.watch_autocast(row)
        # Counters that have come apart seldom meet again; the new row serves both.
        self._table.rows = tuple(r for r in self._table.rows if r not in missed or not _expects_counts(r))
        self._table.add(row)
        # Taken before anything is folded or packed: what changes meanwhile may be in the entry or not.
        before = Constants(entry.state)
        if entry.exchanges:
            # Each process would measure other times, and all have to run the same.
            self.ledger.is_kept = False
        if self._settings.background and not entry.exchanges:
            threading.Thread(target=self._finish, args=(row, before), name=f"smelt {self._name}", daemon=True).start()
            return
        try:
            self._finish(row, before)
        finally:
            entry.pause()

    def _settle_failed(self, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The program has run; what cannot be kept of that is no reason not to give its answer.

        Raises: an error of ours; in strict mode, and with `fullgraph`, any.
        """
        if isinstance(error, SmeltError):
            raise error
        if self._original.is_whole:
            self._original.fail(error)
        reason = _sentence(error)
        guards, _ = attempt(GuardSet, (), args, kwargs)
        if guards is not None:
            self._table.add(Row(guards, None, reason))
        self._original.count(reason)
        self._original.warn(reason, f"{self._name} {_HOW[False]}: {reason}")

    def _leave_to_autograd(
        self, log: ReadLog, failure: NeedsGradients, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Have calls like this one, whose results have a history, run in pieces or as they are."""
        if not self._settings.options.train:
            why = self._original.needs_gradients(self._requiring(args, kwargs) or "a tensor")
        elif not log.is_replayable and self._takes_state(log):
            return
        elif self.state is not None:
            self._give_up_state()
            self._original.count(f"gradients are needed, and {failure}")
            return
        else:
            why = self._original.why_not_trained(str(failure))
            self._effects_seen += not log.is_replayable
            if not log.is_replayable and self._effects_seen < EFFECT_ATTEMPTS and self._settings.refused is None:
                return  # a first run often fills caches
        split = self._split_with_gradients(log, failure)
        if split is None:
            self._with_gradients, self._why_eager = self._with_gradients + 1, why
        # What it reads may be what it changes: then only the arguments say when this holds again.
        reads = _guards(log, args, kwargs, enables_grad=True)
        guards = reads if log.is_replayable else GuardSet((), args, kwargs)
        self._witness = next((weakref.ref(tensor) for tensor in reads.tensors if tensor.requires_grad), None)
        self._table.add(Row(guards, None, why, split=split))
        if self._settings.options.train:
            self._original.warn(why, f"{self._name} {_HOW[split is not None]}: {why}")

    def _split_with_gradients(self, log: ReadLog, failure: NeedsGradients) -> SplitProgram | None:
        """The pieces of a program that cannot be differentiated as a whole, where it is known what is to blame."""
        is_known = failure.where is not None or not log.is_replayable or self._settings.refused is not None
        if not self._settings.options.train or not is_known:
            return None
        return self._split(log, NotDifferentiable(str(failure), failure.where, code="S0303"), None)

    def _first_trial(self, row: Row) -> Trial | None:
        """What compares a row with eager mode; None where seconds do not tell: a call returns before a GPU is done."""
        if row.entry is None or row.entry.is_on_gpu:
            return None
        return first_trial(self.ledger, has_gradients=row.entry.has_gradients and row.paths is None)

    def _join_paths(self, row: Row, outcomes: tuple[Outcome, ...], missed: tuple[Row, ...]) -> str:
        """Make a row one of the paths under its guards; why there should be none, or nothing."""
        row.paths = next((other.paths for other in missed if other.paths is not None), None) or Paths(
            trial=self._first_trial(row)
        )
        row.paths.note(outcomes)
        told = (other.entry.why_paths for other in (*missed, row) if other.entry is not None)
        row.paths.why_many = row.paths.why_many or next(filter(None, told), "")
        row.fits_again(row)
        for other in missed:
            if other.entry is not None:
                row.cause = difference(other.entry.outcomes, outcomes) if other.paths is not None else other.reason
                self._table.count_miss(row.cause)
        for same in [other for other in missed if other.entry is not None and other.entry.outcomes == outcomes]:
            # It missed and was then recorded to take this very way: another thread drew random numbers in between, or
            # compiled it comes to other values than Python reads. The new one takes its place.
            row.paths.contradict(same.hits)
            self._table.rows = tuple(other for other in self._table.rows if other is not same)
        alike = [other for other in self._table.rows if other.paths is row.paths]
        if len(alike) >= PATH_LIMIT:
            oldest = min(alike[1:], key=lambda other: other.fitted, default=alike[0])
            row.paths.evicted += 1
            row.paths.past_hits += oldest.hits
            self._table.rows = tuple(other for other in self._table.rows if other is not oldest)
        return row.paths.why_hopeless(sum(other.hits for other in alike))

    def _give_up_paths(self, row: Row, why: str, log: ReadLog, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if row.paths is not None and row.paths.why_many:
            why = f"{why}; one graph cannot hold all paths: {row.paths.why_many}"
        if self._original.is_whole:
            self._original.refuse(why)
        self._table.rows = tuple(other for other in self._table.rows if other.paths is not row.paths)
        if self.state is not None:
            self._give_up_state()
            kwargs = dict(without_state(kwargs))
        split = self._split(log, row.paths.hopeless(why) if row.paths is not None else None, row.entry)
        # What it reads may differ from path to path, so only the arguments say when this holds again.
        self._table.add(Row(GuardSet((), args, kwargs), None, why, split=split))
        self._original.count(why)
        self._original.warn("paths", f"{self._name} {_HOW[split is not None]} from now on: {why}")

    def _split(self, log: ReadLog, failure: Exception | None, entry: Entry | Unmade | None) -> SplitProgram | None:
        """What runs in the place of a refused program; None where it can only run as it is."""
        if self._settings.refused is not None:
            self._settings.refused(log, failure, entry)
        elif self.splits is not None:
            self.splits.more(log, failure)
        elif self._settings.split is not None:
            settings = replace(self._settings, ledger=self.ledger)
            self.splits = self._settings.split(self._target, self._name, settings, log, failure, entry)
        return self.splits

    def _settle_effects(
        self,
        log: ReadLog,
        entry: Entry | Unmade | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        missed: tuple[Row, ...],
    ) -> None:
        self._effects_seen += 1
        reason = f"it has effects that a compiled program would not repeat: {log.why_not()}"
        if self._original.is_whole:
            self._original.refuse(reason, remedy="do that outside, with what the program returns", where=log.where)
        self._original.count(reason)
        if self._effects_seen >= EFFECT_ATTEMPTS or self._settings.refused is not None:
            split = self._split(log, None, entry)
            # What it reads may be what it changes, so only the arguments say when this holds again.
            self._table.add(Row(GuardSet((), args, kwargs), None, reason, is_last=bool(missed), split=split))
            self._original.warn("effects", f"{self._name} {_HOW[split is not None]}: {reason}")

    @property
    def _places(self) -> tuple[Place, ...]:
        return () if self.state is None else self.state.places

    @property
    def _is_state_lost(self) -> bool:
        """Whether so many builds with state served too few calls."""
        served = sum(row.hits for row in self._table.rows)
        return self._guarded >= STORM_LIMIT or (self._guarded >= STATE_LIMIT and served < 4 * self._guarded)

    def _takes_state(self, log: ReadLog) -> bool:
        """Whether all that the run changed is the program's state from now on, or can be at the next attempt."""
        if self.state is not None and (log.state is None or log.effects or self._states >= STATE_LIMIT):
            self._give_up_state()
            return not self._original.is_whole
        if not self._may_have_state or log.state is None or log.effects:
            return False
        self._effects_seen += 1
        if log.state.is_settled or self._effects_seen >= EFFECT_ATTEMPTS or self._original.is_whole:
            self._states += 1
            self._set_state(StateCalls((*self._places, *log.state.places)))
        self._original.count(f"its state is being found out: {log.why_not()}")
        return True

    def _takes_written(self, program: ObservedProgram) -> bool:
        """Whether what the run only wrote is state from now on: ways that do not write it leave what it held."""
        outer = [] if program.heap is None else [one for one in program.heap.outer if one.before is not MISSING]
        return self._takes([one.place for one in outer])

    def _takes_replaced(self, program: ObservedProgram) -> bool:
        """Whether gradients that the run read, and replaced, are state from now on."""
        return self._takes([] if program.heap is None else program.heap.replaced)

    def _takes(self, places: Sequence[Place]) -> bool:
        """Whether these places, of a run that has changed them, are state from now on."""
        new = self._add_state(places)
        if new:
            self._original.count(f"its state is being found out: it changes {new[0].name}")
        return bool(new)

    def _frees_numbers(self) -> bool:
        """Whether numbers that somebody has set in a dictionary (a learning rate) are arguments from now on.

        They were part of what was compiled, and nothing else in that dictionary is different.
        """
        if not self._may_have_state or self._states >= STATE_LIMIT:
            return False  # before the facts are asked
        tests = (row.guards.changed_fact() for row in self._table.rows if row.entry is not None)
        return bool(self._add_state([place for test in tests if test is not None for place in number_places(test)]))

    def _add_state(self, places: Sequence[Place]) -> list[Place]:
        """Those of these places that become state now: all that are none yet, or, at the limit of builds, none."""
        known = {place.spot for place in self._places}
        new = list({place.spot: place for place in places if place.spot not in known}.values())
        if not new or not self._may_have_state or self._states >= STATE_LIMIT:
            return []
        self._states += 1
        self._set_state(StateCalls((*self._places, *new)))
        return new

    def _give_up_state(self) -> None:
        """The program is split, as if it had none."""
        self._may_have_state, self._effects_seen = False, EFFECT_ATTEMPTS
        self._set_state(None)

    def _set_state(self, state: StateCalls | None) -> None:
        self.state, self._guarded = state, 0
        for row in self._table.rows:
            self._table.withdraw(row)
        self._table.rows = ()
        self._table.publish()
        if state is not None:
            self.sight.forget()
            self._attempts.forget()
            self._as_native = False
            self._table.serve_through(state.core)

    def watch_more(self, row: Row) -> bool:
        """Guard what a further plan of a row's entry has baked in, too; whether nothing of it has changed meanwhile."""
        if not row.is_ready or row.entry is None:
            return True  # all of it is watched when the row is finished
        before = row.guards.constants
        row.guards.watch(row.entry.constants)
        self._table.withdraw(row)
        if not before.changed():
            return True
        with self._table.lock:
            self._table.rows = tuple(other for other in self._table.rows if other is not row)
        self._table.publish()
        return False

    def _finish(self, row: Row, before: Constants) -> None:
        with self.ledger.building():
            self._finish_in_time(row, before)

    def _finish_in_time(self, row: Row, before: Constants) -> None:
        entry = row.entry
        try:
            if entry is not None:
                if self._settings.background:
                    entry.finish()
                else:
                    entry.prepare()
                # Only now is it known what was folded and packed. Nobody runs the entry before it is ready.
                row.guards.watch(entry.constants)
                held = {id(tensor) for tensor in entry.constants}
                if any(id(before.tensors[i]) in held for i in before.changed()):
                    # The row never becomes ready; the next such call compiles anew.
                    self._table.drop(row)
                    return
        except Exception as error:
            row.entry, row.reason = None, _sentence(error)
            self._original.count(row.reason)  # the call that came for this entry got the recorded run's answer
            if not self._settings.background:
                if self._original.is_whole:
                    row.is_ready = True
                    self._original.fail(error)
                self._original.warn(row.reason, f"{self._name} falls back to eager: {row.reason}")
        if row.entry is not None and row.paths is None:
            row.trial = self._first_trial(row)
            is_free = not (self._original.is_whole or row.entry.exchanges or row.entry.is_on_gpu)
            if row.trial is None and row.entry.goes_through_python and is_free:
                row.worth = Worth()
        row.is_ready = True


def _guards(log: ReadLog, args: tuple[Any, ...], kwargs: dict[str, Any], **more: Any) -> GuardSet:
    """The guards for what a run read, and on its arguments as they were before it."""
    if log.heap is None:
        return GuardSet(log.reads, args, kwargs, **more)
    with log.as_before():
        outside = Outside(tuple(log.heap.others), log.heap.outside)
        return GuardSet(log.reads, args, kwargs, opened=log.heap.opened, outside=outside, **more)


def _watcher(get_builds: Callable[[], Builds | None], get_row: Callable[[], Row | None]) -> Callable[[], bool]:
    """What an entry tells of more constants: neither the row nor the object is kept alive."""

    def watch() -> bool:
        builds, row = get_builds(), get_row()
        return builds is not None and row is not None and builds.watch_more(row)

    return watch


def _by_data(missed: tuple[Row, ...]) -> bool:
    """Whether data led a call away from these rows, and not its sizes alone: then their paths are counted instead."""
    return any(row.entry is None or not row.entry.forms for row in missed)


def _expects_counts(row: Row) -> bool:
    """Whether a row's graph holds only while counters are one number."""
    return row.entry is not None and row.entry.expects_counts


def _show(missed: tuple[Row, ...]) -> bool:
    """Whether what these paths print or warn of is in their graphs, as it is in no recorded one."""
    return any(row.entry is not None and row.entry.prints for row in missed)


def _sentence(failure: BaseException | None) -> str:
    if isinstance(failure, SmeltError):
        return failure.reason
    return f"{type(failure).__name__}: {failure}"


def _reraise(error: BaseException) -> NoReturn:
    """Raise the program's own error as the plain program would: without the frames of the recorder in its traceback."""
    raise of_program(error)
