"""One compiled object, and what happens at a call.

Invariant: the answer of a call is that of the original program. An entry runs only if all its guards hold in this
call; whatever is not understood (a mode, a kind of tensor, an effect, a failing build) runs the original and is
counted. The first call's answer comes from the one native run that was recorded.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from smelt._torch.seen.saved_hooks import is_in_checkpoint
from smelt._torch.state import foreign_context
from smelt.capture import is_capturing
from smelt.capture.structure.state import STATE, Place, in_names, without_state
from smelt.compiler.deciding.generalisation import shown
from smelt.compiler.deciding.ledger import MEASURED, STOPPED, Ledger
from smelt.compiler.deciding.trial import Trial
from smelt.compiler.deciding.turns import thread
from smelt.compiler.deciding.worth import Worth
from smelt.compiler.object.compiled_build import AGAIN, BEGAN_WITHOUT, Builds, building
from smelt.compiler.object.compiled_original import Original
from smelt.compiler.object.compiled_state import SLOT, StateCalls, StateGone, UnderWay
from smelt.compiler.object.compiled_table import Table
from smelt.compiler.object.compiled_types import (
    Entry,
    LeftAlone,
    Row,
    Settings,
    SplitProgram,
    Stats,
    Undelivered,
    attempt,
)
from smelt.compiler.object.output_replay import muted_again, pieces_since, pieces_written
from smelt.compiler.object.tracebacks import of_program
from smelt.compiler.paths import contradicts
from smelt.diag import LateError, Miss, RanksError, SmeltError, limits
from smelt.runtime.entering.entry import Counters

DISPATCHER = SLOT  # of compiled objects
LOST: Final = "the compiled program was slower than eager"
# Calls that fall back to eager after one that nothing compiled can serve, without a look at the guards.
RESTING = limits.RESTING_CALLS


class Dispatcher:
    """Calls to one compiled object.

    table: where native code finds the rows that it can serve by itself (`runtime.entering.entry`), the first ones of
    the table here. It calls `__call__` for whatever it does not serve.
    """

    __slots__ = ("__dict__", "__weakref__", "table")
    table: bytes

    def __init__(self, target: Callable[..., Any], name: str, settings: Settings) -> None:
        self.target, self.name, self.settings = target, name, settings
        self._stats = Stats()
        whole = settings.fullgraph or settings.options.strict
        self.ledger = settings.ledger or Ledger.of(settings.options, whole, _call_counter(weakref.ref(self)))
        self._original = Original(target, name, settings, self._stats, self.ledger)
        self._table = Table(self, _slow, self._original, self._stats)
        # Two calls at once would read the same numbers of a state; and a call that records may call another one.
        self._state_lock = threading.RLock()
        self._under_way = UnderWay(self._state_lock)  # no state was known when they began
        self._builds = Builds(self._original, self._table, self._stats, self._under_way)
        self._resting, self._why_resting = 0, ""

    @property
    def calls(self) -> int:
        """How many calls there were."""
        return self._stats.calls + self._table.counters.calls

    def _rest(self, reason: str) -> None:
        """Have some calls run as they are, without a look at the guards."""
        self._resting, self._why_resting = RESTING, reason

    @property
    def counters(self) -> Counters:
        """Calls that native code served."""
        return self._table.counters

    @property
    def splits(self) -> SplitProgram | None:
        """The pieces of a program that was refused."""
        return self._builds.splits

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What runs compiled, the most recently used first."""
        return tuple(row.entry for row in self._table.rows if row.entry is not None)

    @property
    def has_state(self) -> bool:
        """Whether places outside its arguments, which it changes, are arguments of what is compiled."""
        return self._builds.state is not None

    @property
    def state_places(self) -> tuple[Place, ...]:
        """These places."""
        return () if self._builds.state is None else self._builds.state.places

    def checks(self) -> tuple[Callable[[tuple[Any, ...], dict[str, Any]], Any], bool] | None:
        """What looks at the guards of the first row, and whether its run holds the GIL; None where there is none."""
        row = next((row for row in self._table.rows if row.entry is not None), None)
        if row is None:
            return None
        return self._table.checks_of(row), row.native is not None and row.native.keeps_gil

    def serve(self, compiled: Any) -> None:
        """Take the calls of this object natively where native code can find its dispatcher."""
        self._table.serve(compiled)

    # ---------------------------------------------------------------- a call

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the program on these arguments."""
        if STATE in kwargs:
            return self._call(args, kwargs)
        if self._builds.state is None:
            this = self._under_way.begin()
            try:
                if self._builds.state is None:  # still: a call that finds one later finds this call under way, too
                    return self._call(args, kwargs)
            finally:
                self._under_way.end(this)
        return self._with_state(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._stats.count_call()
        if self._resting > 0:  # below: of two threads that took the last one
            self._resting -= 1
            self._original.count(self._why_resting)
            return self.target(*args, **without_state(kwargs))
        if building.active or is_capturing():
            # An entry's own operators are not seen by a recorder: the program itself must run to become part of it.
            return self._original.run("called while a program around it is recorded", args, kwargs, is_fault=False)
        foreign = foreign_context()
        if foreign is not None:
            return self._original.run(foreign, args, kwargs)
        return self._serve(args, kwargs, ())

    def _with_state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, the program's state as one more argument."""
        with self._state_lock:
            state = self._builds.state
            if state is None:  # given up by the call that was waited for
                return self._call(args, kwargs)
            try:
                if not self._under_way:
                    return state.run(self, args, dict(kwargs))
                reason, is_fault = BEGAN_WITHOUT, False
            except StateGone:
                reason, is_fault = "a part of its state is unset", True
            self._stats.count_call()
            return self._original.run(reason, args, kwargs, is_fault)

    def _serve(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...], why: Miss | None = None
    ) -> Any:
        """The answer by the first row that fits, apart from those that missed already; why: where the last one did.

        Paths that the value found there leads away from are tried last, when no other fits: what leads to the value
        is not computed once more for each of them.
        """
        rows, unlikely = deque(self._table.rows), list[Row]()
        while rows or unlikely:
            if rows:
                row = rows.popleft()
            else:
                rows, unlikely, why = deque(unlikely), [], None
                continue
            if row in missed:
                continue
            if why is not None and row.paths is not None and _leads_elsewhere(missed[-1], why, row):
                unlikely.append(row)
                continue
            failed = row.guards.check(args, kwargs)
            if failed is not None:
                if self._table.is_as_autocast_keeps_it(row, failed):
                    return self._run(row, args, kwargs)
                continue
            trial = self._trial_of(row) if not missed else None
            # Whoever calls meanwhile, in another thread or from within the program, is served as usual.
            if trial is not None and trial.lock.acquire(blocking=False):
                return self._compare(row, trial, args, kwargs)
            if row.paths is None:
                self._prefer(row)
            if row.paths is None or row.changes_arguments:
                self._let_be_native(row, args, kwargs)
            try:
                result = self._run(row, args, kwargs)
            except Miss as miss:
                row.missed()
                missed, why = (*missed, row), miss
                if miss.printed is not None and any(miss.printed.values()):
                    return self._serve_next(args, kwargs, missed, miss)
                continue
            if row.paths is not None:
                self._prefer(row)
                self._let_be_native_after(row, args, kwargs)
            return result
        return self._miss(args, kwargs, missed)

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...]) -> Any:
        """The answer of a call that none of the rows serves."""
        result = self._builds.miss(args, kwargs, missed)
        if self._builds.is_idle:
            self._builds.is_idle = False
            self._rest(STOPPED)
        if result is not AGAIN:
            return result
        thread.has_waited = True
        try:
            return self._serve(args, kwargs, missed)
        finally:
            thread.has_waited = False

    def _prefer(self, row: Row) -> None:
        # Of paths, one that fits twice running: two that take turns would change places at each call.
        first = next(iter(self._table.rows), row)  # another thread may take rows out
        if row.entry is None and first.native is not None:
            return  # behind it native code would see no row
        if first is not row and not row.is_last and (row.paths is None or row.fits_again(first)):
            self._table.move_to_front(row)

    def _let_be_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have native code take the calls that are like this one, which has just passed the row's guards."""
        if row.may_be_native and row.is_ready and row.worth is None:
            self._table.make_native(row, args, kwargs)

    def _let_be_native_after(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The same once the call is over: what it has left in its arguments may be like no call of this row."""
        if row.may_be_native:
            row.changes_arguments = row.guards.check(args, kwargs) is not None
            if not row.changes_arguments:
                self._let_be_native(row, args, kwargs)

    def run_row(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in Python from where this row's guards are known to hold."""
        self._stats.count_call()
        try:
            return self._run(row, args, kwargs)
        except Miss as miss:
            why = miss.with_traceback(None)
        return self.try_others(row, args, kwargs, why)

    def try_others(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any], why: Exception | None = None) -> Any:
        """The answer of a call that took another path than this row's; why: where it did."""
        row.missed()
        return self._serve_next(args, kwargs, (row,), why if isinstance(why, Miss) else None)

    def _serve_next(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], missed: tuple[Row, ...], why: Miss | None
    ) -> Any:
        """The answer by another row, which shows nothing again that the last one has shown."""
        with muted_again(None if why is None else why.printed):
            return self._serve(args, kwargs, missed, why)

    def _run(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not row.is_ready and not self._builds.await_ready(row):
            return self._builds.run_meanwhile(args, kwargs)
        row.hit(self._table.counters.tick())
        if row.split is not None:
            if self.ledger.asks_for_eager:
                return self._original.run(MEASURED, args, kwargs, is_fault=False)
            self._original.count(row.reason)
            if row.split.is_left:
                self._rest(LOST)
            return row.split.run(*args, **kwargs)
        if row.entry is None:
            if row.reason is LOST and all(other.entry is None for other in self._table.rows):
                self._rest(LOST)
            return self._original.run(row.reason, args, kwargs)
        if row.worth is not None:
            return self._weigh(row, row.worth, args, kwargs)
        return self._run_entry(row, row.entry, args, kwargs)

    def _trial_of(self, row: Row) -> Trial | None:
        """The comparison that a call of this row's is part of, if any."""
        trial = row.open_trial
        if trial is None or not row.is_ready or row.entry is None or self._table.keeps_casts_of(row):
            return None
        # A checkpoint runs it once more, and must find it as it was.
        return None if trial.has_gradients and is_in_checkpoint() else trial

    def _compare(self, row: Row, trial: Trial, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call that is timed, compiled or in eager mode: the whole of it, guards and misses included.

        The lock of the trial is held.
        """
        try:
            trial.catch_up()
            if not trial.is_over:
                return self._measure(row, trial, args, kwargs)
        finally:
            trial.is_measuring = False
            if trial.is_over:
                self._settle(row, trial)
            trial.lock.release()
            self._table.publish()
        return self._run(row, args, kwargs)

    def _measure(self, row: Row, trial: Trial, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if trial.is_eagers_turn:
            row.hit(self._table.counters.tick())
            return trial.run(self._original.run_timed, (args, kwargs), {})
        core = StateCalls.core(self)
        self._table.serve(core)
        self._stats.count_call(-1)  # which this call of itself counts
        trial.is_measuring = True
        self._table.publish()
        return trial.run(core, args, kwargs)

    def _settle(self, row: Row, trial: Trial) -> None:
        """Act on the outcome of a comparison."""
        if row.paths is None:
            alike, row.trial = [row], None
            if row.entry is not None and row.entry.goes_through_python and not trial.is_lost:
                row.worth = Worth()
        else:
            alike, row.paths.trial = [other for other in self._table.rows if other.paths is row.paths], None
        if trial.is_lost:
            for other in alike:
                other.entry, other.reason, other.times = None, LOST, trial.times
                self._table.withdraw(other)

    def _weigh(self, row: Row, worth: Worth, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer, by the entry or by the original, until it is known which is faster."""
        entry = row.entry
        assert entry is not None

        def compiled(*args: Any, **kwargs: Any) -> Any:
            return self._run_entry(row, entry, args, kwargs)

        def whole(*args: Any, **kwargs: Any) -> Any:
            return self.target(*args, **without_state(kwargs))

        result = worth.run(compiled, whole, args, kwargs)
        if (worth.is_lost or worth.is_won) and row.worth is worth:
            row.worth = None
            if worth.is_lost and row.entry is entry:
                row.entry, row.reason = None, LOST
                self._table.withdraw(row)
        return result

    def _run_entry(self, row: Row, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = pieces_written()
        result, failure = attempt(entry.run, args, kwargs)
        match failure:
            case None:
                return result
            case Undelivered():
                raise failure.error
            case SmeltError():
                return self.recover(row, failure, args, kwargs, pieces_since(before))
            case LeftAlone():
                return self._original.run(str(failure), args, kwargs, is_fault=False)
            case Exception() if entry.repeats_errors and not isinstance(failure, Miss):
                return self.repeat(row, failure, args, kwargs, pieces_since(before))
            case Miss():
                failure.printed = pieces_since(before)
        raise failure

    def repeat(
        self,
        row: Row,
        error: Exception,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        printed: dict[str, int] | None = None,
    ) -> Any:
        """A way that ends in the program's own error: the original takes it, with all that it does before.

        printed: what the compiled program had shown by then.
        """
        with muted_again(printed):
            result = self.target(*args, **without_state(kwargs))
        reason = f"the compiled program raised {type(error).__name__}, and the program itself did not"
        if self._original.is_strict:
            self._original.refuse(reason)
        self._original.count(reason)
        if not row.bears_failure():
            self._give_up(row, reason)
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
        if self._original.is_strict or isinstance(error, RanksError | LateError):
            raise error
        reason = f"the compiled program failed: {error.what}"
        if row.entry is not None and row.entry.is_staged and not self.settings.fullgraph:
            return self._record_paths(row, reason, args, kwargs)
        if self._original.is_whole:
            self._original.refuse(reason)
        # Where it is the data's fault (an index out of range), the original raises here: no fallback, the entry stays.
        with muted_again(printed):
            result = self.target(*args, **without_state(kwargs))
        self._original.count(reason)
        if error.code == "S0404" and row.entry is not None and row.entry.forms:
            return result  # another number fits
        if row.bears_failure():
            self._original.warn(reason, f"a call of {self.name} fell back to eager: {reason}")
        else:
            self._give_up(row, reason)
        return result

    def _give_up(self, row: Row, reason: str) -> None:
        row.entry, row.reason = None, reason
        self._table.withdraw(row)
        self._original.warn(f"for good: {reason}", f"{self.name} falls back to eager from now on: {reason}")

    def _record_paths(self, row: Row, reason: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call in which the graph of all ways failed: recorded, as a path of those that replace it."""
        before, row.reason = self._table.rows, reason
        counted = self._original.counted
        try:
            result = self._miss(args, kwargs, (row,))
        except BaseException:
            row.reason = ""
            raise
        with self._table.lock:
            # Where it is the data's fault, that raised, and the entry stays without fault.
            if self._table.rows is not before:
                self._table.rows = tuple(other for other in self._table.rows if other is not row)
                self._table.withdraw(row)
        if self._original.counted == counted:  # a call falls back once, for whatever reasons
            self._original.count(reason)
        return result

    def renew_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code know of a plan that this row has got since; this call has passed its guards."""
        self._table.renew_native(row, args, kwargs)

    # ---------------------------------------------------------------- what the user may ask

    @contextmanager
    def asked_for(self) -> Iterator[None]:
        """What calls in this block need is built, whatever it takes."""
        before, self.ledger.is_asked_for = self.ledger.is_asked_for, True
        try:
            yield
        finally:
            self.ledger.is_asked_for = before

    def finish(self) -> None:
        """Leave nothing to be done by the next call of those that were made already."""
        for row in self._table.rows:
            if row.entry is not None and row.is_ready:
                row.entry.finish()

    def refresh(self) -> None:
        """Build the entries' constants anew from the present contents of parameters."""
        if self._builds.splits is not None:
            self._builds.splits.refresh()
        with self._table.lock:
            for row in self._table.rows:
                if row.entry is not None:
                    self._table.withdraw(row)
                    row.entry.refresh()
                    row.guards.refresh()
                    row.forget_native()  # another thread may have made it meanwhile
            self._table.publish()

    def stats(self) -> Stats:
        """Counts and entries at this moment."""
        return self._stats.now(
            calls=self.calls,
            rows=self._table.rows,
            stopped=str(self.ledger),
            refused={in_names(shown(spot), self.state_places): why for spot, why in self._builds.sight.refused.items()},
        )


def _call_counter(get: Callable[[], Dispatcher | None]) -> Callable[[], int]:
    """The calls of a dispatcher, which is not kept alive."""

    def count() -> int:
        found = get()
        return 0 if found is None else found.calls

    return count


def _leads_elsewhere(missed: Row, why: Miss, row: Row) -> bool:
    if missed.entry is None or row.entry is None or missed.paths is not row.paths:
        return False
    return contradicts(missed.entry.outcomes, why, row.entry.outcomes)


def _slow(compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
    """A call that native code does not serve."""
    __tracebackhide__ = True  # this one frame of Smelt's stays; debuggers and notebooks leave it out
    dispatcher: Dispatcher = object.__getattribute__(compiled, DISPATCHER)
    try:
        return dispatcher(args, dict(kwargs) if kwargs else {})
    except Exception as error:
        of_program(error)
        raise  # what the program raised, at the lines below
