"""What the facade of `compile` and its builder say to each other.

Invariant: a builder runs the program once, by calling the `ObservedProgram` it is given, in the calling thread; that
run's answer is the first call's answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from math import inf
from time import perf_counter
from typing import Any, Protocol

import torch

from smelt._torch.autocast import is_kept
from smelt.capture import Captured
from smelt.capture.dynamic.spec import Spot
from smelt.capture.reads.reads import ReadLog, record_reads
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.staging.stage import Learnt
from smelt.capture.structure.state import Place, without_state
from smelt.compiler.deciding.attempts import Attempts
from smelt.compiler.deciding.generalisation import NO_FREEDOM, Earlier, Freedom, shown
from smelt.compiler.deciding.ledger import Ledger
from smelt.compiler.deciding.trial import Trial
from smelt.compiler.deciding.worth import Worth
from smelt.compiler.object.miss_texts import joined_misses
from smelt.compiler.paths import Outcome, Paths
from smelt.compiler.raised_run import RaisedRun
from smelt.diag import CaptureError, Options, Span
from smelt.diag.records import distinct_record, record
from smelt.ir import Graph
from smelt.runtime.entering.entry import NativeRow
from smelt.runtime.guarding.guards import Form, GuardSet, SizeCheck


class Entry(Protocol):
    """A program compiled for one set of guards."""

    @property
    def captured(self) -> Captured | None:
        """The recorded program that it was made of, for builds of the same program; None where it was made of none."""

    @property
    def constants(self) -> tuple[torch.Tensor, ...]:
        """Tensors whose contents were folded or packed into the entry: guarded by contents."""

    @property
    def state(self) -> tuple[torch.Tensor, ...]:
        """All tensors from outside the arguments that the program uses."""

    @property
    def writes(self) -> bool:
        """Whether a call writes into arguments or state: then it matters which of them share memory."""

    @property
    def kept_casts(self) -> tuple[torch.Tensor, ...]:
        """Of the constants, those of which only casts are used that autocast keeps in the caller's region."""

    @property
    def enables_grad(self) -> bool:
        """Whether gradients matter where the caller has them off."""

    @property
    def has_gradients(self) -> bool:
        """Whether its results have a history, through which autograd goes back."""

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """What Python read of data on the recorded path; empty where nothing was, and the guards decide alone."""

    @property
    def is_staged(self) -> bool:
        """Whether it holds for all ways that data may choose, none of them with effects, in the place of paths."""

    @property
    def goes_through_python(self) -> bool:
        """Whether Python goes through parts of a call, so that the program as it is may be faster; after `finish`."""

    @property
    def is_on_gpu(self) -> bool:
        """Whether what a call computes may still be under way when it returns."""

    @property
    def exchanges(self) -> bool:
        """Whether a call talks to other processes."""

    @property
    def expects_counts(self) -> bool:
        """Whether its graph holds while counters that were one number are."""

    @property
    def prints(self) -> bool:
        """Whether a call prints something, or gives a warning."""

    @property
    def repeats_errors(self) -> bool:
        """Whether an error of `run` that is none of Smelt's is the program's own, before which nothing has happened."""

    @property
    def forms(self) -> Mapping[str, Form]:
        """The arguments with free sizes, or that are free numbers, by place; empty where it holds for one call's."""

    @property
    def free(self) -> frozenset[Spot]:
        """The sizes and numbers of these that may differ from call to call."""

    @property
    def checks(self) -> Sequence[SizeCheck]:
        """What free sizes and numbers must fulfil."""

    @property
    def why_fixed(self) -> str:
        """Why sizes and numbers that were to be free are not; empty where they are, or where none was to be."""

    @property
    def why_paths(self) -> str:
        """Why a program whose path depends on data is not one merged graph; empty where it is, or need not be."""

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The program's answer for arguments that pass the guards.

        Raises: SmeltError if it cannot be computed; Miss where other `outcomes` are found: nothing has happened;
            LeftAlone where it is left to the original; Undelivered after all that it does.
        """

    def prepare(self) -> None:
        """Do what is left of the compilation, but for what the first `run` may still have to wait for."""

    def pause(self) -> None:
        """Read and write no memory of the program's any more until the next `run` or `finish`."""

    def finish(self) -> None:
        """Do all of it, maybe in another thread. Either this or `prepare` is called before the first `run`."""

    def on_constants(self, watch: Callable[[], bool]) -> None:
        """Have `watch` called when `constants` have become more, before anything runs that needs those.

        It tells whether none of them has changed meanwhile.
        """

    def refresh(self) -> None:
        """Fold and pack the constants anew from their present contents."""


class Builder(Protocol):
    """Makes an entry from one native run.

    Raises: NeedsGradients where autograd gave a history in it; Unrepeated where it did more than a graph does.
    """

    def __call__(
        self, fn: ObservedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
    ) -> Entry: ...


def attempt(run: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    """What a call returns, or what it raised.

    For failures that the program itself answers: in the handler, its own errors would have ours as their context.
    """
    try:
        return run(*args), None
    except Exception as error:
        return None, error


class Undelivered(Exception):
    """The program ran to its end, with all that it does, and its result cannot be made: it must not run once more."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Unrepeated(Exception):
    """The program ran, and did what no replay of its graph does: there is no entry.

    later: makes the functional graph, which seldom anybody wants to see.
    """

    def __init__(self, later: Callable[[], Graph]) -> None:
        super().__init__()
        self.later = later


@record
class Unmade:
    """Stands for the entry of a program that did more than its graph. later: makes its functional graph."""

    later: Callable[[], Graph]

    @property
    def graph(self) -> Graph | None:
        """The functional graph; None where it cannot be made."""
        return attempt(self.later)[0]


class NeedsGradients(Exception):
    """What the program gives, or leaves behind, has a history for autograd: nothing compiled stands in for it.

    Its text says why, where that is more than that nobody asked for it. where: the line that is to blame, if one is.
    """

    def __init__(self, why: str = "", where: Span | None = None) -> None:
        super().__init__(why)
        self.where = where


ANOMALIES = "anomaly detection names operators"
"""Why the original runs where torch writes down which operator a gradient is of."""


class LeftAlone(Exception):
    """The original runs for this call, and the entry stays as it is. The text says why."""


class NotDifferentiable(CaptureError):
    """Why a program whose results have a history is compiled in pieces."""


@record
class Settings:
    """How an object was asked to be compiled.

    dynamic_shapes: as the user wrote them (`dynamic_shapes`). split: makes pieces of a program that was refused.
    refused: for such a piece, what is told when it is refused, too; ledger: its program's.
    """

    builder: Builder
    options: Options
    fullgraph: bool = False
    dynamic: bool | None = None
    background: bool = False
    dynamic_shapes: Any = None
    split: Callable[..., SplitProgram | None] | None = None
    refused: Callable[[ReadLog, Exception | None, Entry | Unmade | None], None] | None = None
    ledger: Ledger | None = None


class SplitProgram(Protocol):
    """A refused program in pieces (`splitting`)."""

    @property
    def is_left(self) -> bool:
        """Whether it took longer in pieces, and runs as it is."""

    def run(self, /, *args: Any, **kwargs: Any) -> Any:
        """The program's answer."""

    def more(self, log: ReadLog, error: Exception | None) -> None:
        """Take up another refusal."""

    def refresh(self) -> None:
        """Build the constants of its pieces anew from the present contents of parameters."""


@distinct_record
class KnownProgram:
    """A program as an earlier build knows it. captured: its recorded run, as one of another call. log: a new one with
    all that it read. narrow: what is compiled with the same sizes free, from 2 on."""

    captured: Captured
    log: ReadLog
    narrow: Entry | None = None


class ObservedProgram:
    """The user's program, to be called once by a builder: runs it natively and records what it reads.

    target: the function or module itself (for its parameters, names, signature). next_path: other ways through it are
    kept as recorded paths already. freedom: the sizes and numbers that are to be free. state: the places that it is
    called with (`capture.structure`). replaced: places of objects that differ from call to call, to be known by their
    parts. alone: keeps other calls away while it runs. took: is told how long it ran. raised: this run, should it
    raise. learnt: by its stagings, one for each choice of sizes that are free. attempts: those that came to nothing, in
    earlier builds, too. ledger: says how long stagings may take. known: what an earlier build for other sizes learnt,
    which may spare the run.
    """

    def __init__(
        self,
        target: Callable[..., Any],
        name: str,
        settings: Settings,
        *,
        next_path: bool = False,
        freedom: Freedom = NO_FREEDOM,
        state: Sequence[Place] = (),
        replaced: Collection[str] = (),
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        took: Callable[[float], None] = lambda seconds: None,
        attempts: Attempts | None = None,
        ledger: Ledger | None = None,
        known: KnownProgram | None = None,
    ) -> None:
        self.known = known
        self._alone, self._took, self.ledger = alone, took, ledger
        self._took_s = 0.0
        self.attempts = Attempts() if attempts is None else attempts
        self.target = target
        self.name = name
        self.next_path = next_path
        self.freedom = freedom
        self.state = state
        self.replaced = replaced
        self.learnt = Learnt()
        self.fullgraph = settings.fullgraph
        self.background = settings.background
        self.log: ReadLog | None = None
        self.error: BaseException | None = None
        self.result: Any = None
        self.was_called = False
        self.raised = RaisedRun(target)

    @property
    def staging_s(self) -> float:
        """The seconds that one staging of it may take."""
        return inf if self.ledger is None else self.ledger.staging_s(self._took_s)

    @property
    def is_spared(self) -> bool:
        """Whether what an earlier build learnt stands in for the run."""
        return self.known is not None and not self.was_called and self.log is self.known.log

    @property
    def has_result(self) -> bool:
        """Whether the program ran to its end."""
        return self.log is not None and self.error is None

    @property
    def heap(self) -> ArgumentHeap | None:
        """The objects of the arguments, after the run, of which some may be known by structure alone."""
        return None if self.log is None else self.log.heap

    def as_before(self) -> AbstractContextManager[None]:
        """The arguments' objects as they were before the run, for the time of a block."""
        return nullcontext() if self.log is None else self.log.as_before()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        self.was_called = True
        try:
            heap = ArgumentHeap(args, kwargs, replaced=self.replaced)
            with self._alone(), record_reads({self.name: self.target}, args, kwargs, heap, self.state) as log:
                self.raised.log, start = log, perf_counter()
                self.result = self.target(*args, **without_state(kwargs))
                self._took_s = perf_counter() - start
                self._took(self._took_s)
        except BaseException as error:
            self.error = error
            raise
        self.log = log
        return self.result


# Calls that an entry may fail in, at first and of all later ones: one in so many.
_FEW_FAILURES, _RARE = 4, 8


_COUNTING = threading.Lock()  # of calls: `+=` of two threads at once counts one of them


@dataclass(slots=True, weakref_slot=True, eq=False)
class Row:
    """A line of the table: guards, and the entry to run when they hold; entry None: the original runs, for `reason`.

    native: the same for native code, once a call has shown what it is made of; may_be_native: until that was tried.
    changes_arguments: after a call, its arguments were none of this row's any more.
    paths: for an entry that holds for some outcomes only, what it shares with the others under the same guards.
    is_last: it fits whatever others fit, too, and stands behind them. cause: why no earlier row served the call.
    fitted: when it fitted last, by the clock of its paths; those in front may do so unseen. seen: the call that it was
    made for, and what is free. split: runs in the place of the original where there is no entry. trial, then worth:
    while it is to be found out whether the entry is faster than the original; of paths, these have the trial. times:
    what a call took compiled and in eager mode, where that decided against the entry. failures: calls in which the
    entry raised, and the original did not. number: how many were made before it. is_spared: the call that it was made
    for was its own, not a recorded run's.
    """

    guards: GuardSet
    entry: Entry | None
    reason: str = ""
    build_s: float = 0.0
    is_ready: bool = True
    native: NativeRow | None = None
    may_be_native: bool = True
    changes_arguments: bool = False
    paths: Paths | None = None
    is_last: bool = False
    cause: str = ""
    fitted: int = 0
    seen: Earlier | None = None
    split: SplitProgram | None = None
    worth: Worth | None = None
    trial: Trial | None = None
    times: tuple[float, float] | None = None
    failures: int = 0
    number: int = -1
    is_spared: bool = False
    _hits: int = 0
    _used: int = 0
    _forgotten: NativeRow | None = None

    @property
    def hits(self) -> int:
        """Calls for which the guards held."""
        return self._hits + sum(one.hits for one in (self.native, self._forgotten) if one is not None)

    @property
    def calls(self) -> int:
        """Calls that it has answered, with the one that it was made for."""
        return self.hits + (not self.is_spared)

    def follow_on(self, narrow: Row) -> None:
        """Stand for a row that it was made of, and that goes."""
        self.hit(narrow.used, times=narrow.calls)
        self.trial, self.worth = narrow.trial, narrow.worth

    @property
    def open_trial(self) -> Trial | None:
        """The comparison with eager mode that is not over."""
        return self.trial if self.paths is None else self.paths.trial

    @property
    def is_for_python(self) -> bool:
        """Whether native code may not take its calls: there is no entry, or each call is to be looked at."""
        trial = self.open_trial
        return self.entry is None or self.worth is not None or (trial is not None and not trial.is_measuring)

    @property
    def why(self) -> str:
        """Why the original runs, with the times that say so."""
        if self.times is None:
            return self.reason
        compiled, eager = self.times
        return f"{self.reason}: {1e3 * compiled:.3f} ms a call against {1e3 * eager:.3f} ms in eager mode"

    @property
    def used(self) -> int:
        """When that was the case last, by the object's clock."""
        return max(self._used, self.native.used if self.native is not None else 0)

    def hit(self, now: int, times: int = 1) -> None:
        """Count a call that was not counted natively."""
        with _COUNTING:
            self._hits += times
        self._used = now

    def changed_casts(self) -> list[tuple[torch.Tensor, int]] | None:
        """The constants that have changed, with the versions that the entry has, where these are casts that autocast
        keeps and nothing else; None else.
        """
        constants = self.guards.constants
        copied = (
            {id(tensor) for tensor in self.entry.kept_casts if is_kept(tensor)} if self.entry is not None else set()
        )
        changed = [constants.tensors[i] for i in constants.changed()]
        if any(id(tensor) not in copied for tensor in changed):
            return None
        return [(tensor, constants.version_of(tensor)) for tensor in changed]

    def fits_again(self, front: Row) -> bool:
        """Note that this path fitted; whether no other did since it did so last. front: the row that is asked first."""
        assert self.paths is not None
        paths, hits = self.paths, front.hits
        again = self.fitted == paths.clock and paths.hits_in_front == hits
        paths.clock += 1
        self.fitted, paths.hits_in_front = paths.clock, hits
        return again

    def missed(self) -> None:
        """Take the last hit back: the guards held, and the call took another path."""
        with _COUNTING:
            self._hits -= 1
        if self.paths is not None:
            self.paths.misses += 1

    def bears_failure(self) -> bool:
        """Count a call in which the entry raised and the original did not, as where the program handles what operators
        raise; whether the entry stays: a few such calls, or a small part of all, cost less than having none.
        """
        self.failures += 1
        return self.failures <= _FEW_FAILURES or self.failures * _RARE <= self.hits

    def forget_native(self) -> None:
        """Make the native row anew at the next chance: what it was made of has changed."""
        with _COUNTING:
            # Another thread may be on its way through it, and still be counted there.
            self._hits += self._forgotten.hits if self._forgotten is not None else 0
            self._used, self._forgotten, self.native, self.may_be_native = self.used, self.native, None, True


_MOST_SHOWN = 4  # compiled entries that have a line each in the text of counts; more have one together


@dataclass(slots=True)
class Stats:
    """Counts since the object was made. guard_failures: the guard that failed -> times; fallbacks: reason -> times.

    refused: sizes and numbers that were to be free and could not, by place -> why. stopped: why nothing more is built,
    where that came up. rows: the entries, those that were used last in front; printed are their numbers, and the calls
    that each served.
    """

    calls: int = 0
    builds: int = 0
    evictions: int = 0
    guard_failures: dict[str, int] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)
    stopped: str = ""

    def count_call(self, times: int = 1) -> None:
        """Count a call that native code did not serve, or take one back."""
        with _COUNTING:
            self.calls += times

    def count_builds(self, times: int) -> None:
        """Count builds, or take them back."""
        with _COUNTING:
            self.builds += times

    def count_fallback(self, reason: str) -> None:
        """Count a call that was not the compiled program's."""
        with _COUNTING:
            self.fallbacks[reason] = self.fallbacks.get(reason, 0) + 1

    def count_miss(self, text: str) -> None:
        """Count a guard that failed."""
        with _COUNTING:
            self.guard_failures[text] = self.guard_failures.get(text, 0) + 1

    def now(self, **more: Any) -> Stats:
        """The counts at this moment, some of them others."""
        with _COUNTING:
            copied = replace(self, guard_failures=dict(self.guard_failures), fallbacks=dict(self.fallbacks))
        return replace(copied, **more)

    @property
    def entries(self) -> list[Row]:
        """The rows in the order in which they were made, which is that of their numbers."""
        return sorted(self.rows, key=lambda row: row.number)

    def __str__(self) -> str:
        lines = [f"{self.calls} calls, {self.builds} builds, {self.evictions} evictions"]
        lines += [f"fell back {count} times: {why}" for why, count in self.fallbacks.items()]
        lines += [f"no further builds: {self.stopped}"] if self.stopped else []
        lines += [f"not free: {place}: {why}" for place, why in self.refused.items()]
        lines += [f"guard failure, {count} times: {why}" for why, count in joined_misses(self.guard_failures).items()]
        compiled = [row for row in self.entries if row.entry is not None]
        many = compiled if len(compiled) > _MOST_SHOWN else []
        for row in self.entries:
            runs = f"the original ({row.why})" if row.entry is None else "compiled"
            if not (many and row.entry is not None):
                lines.append(f"entry {row.number}: {row.hits} calls, runs {runs}, made in {row.build_s:.3f} s")
        if many:
            which, calls = f"{many[0].number} to {many[-1].number}", sum(row.hits for row in many)
            took = sum(row.build_s for row in many)
            lines.append(f"{len(many)} entries, {which}: {calls} calls, run compiled, made in {took:.3f} s")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<Stats: {str(self).splitlines()[0]}, {len(self.rows)} entries>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for reports."""
        return {
            "calls": self.calls,
            "builds": self.builds,
            "evictions": self.evictions,
            "guard_failures": dict(self.guard_failures),
            "fallbacks": dict(self.fallbacks),
            "refused": dict(self.refused),
            "stopped": self.stopped,
            "entries": [
                {
                    "entry": row.number,
                    "hits": row.hits,
                    "build_s": row.build_s,
                    "runs": "original" if row.entry is None else "compiled",
                    "reason": row.why,
                    "free": sorted(map(shown, row.seen.free)) if row.seen is not None else [],
                    "guards": [str(guard) for guard in row.guards.listed],
                }
                for row in self.entries
            ],
        }
