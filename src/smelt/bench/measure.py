"""Timing of several systems in one process so that their ratios hold on a machine that others use too.

Systems alternate round by round, the order rotating, so a disturbance falls on all of them. A turn begins with a rest
(`Plan.rest_ms`) and first runs
untimed for as many calls as it then times: the previous system's worker threads stop spinning and the caches hold this
system's data. The ratio to eager is the median of the ratios within a round, which a slow drift of the machine leaves
alone; `blocks_ms` is the median with the system running alone, for comparison.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import resource
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from smelt.bench.systems import Ready
from smelt.diag.records import record

_MINIMUM_ROUNDS = 3
_MOST_INNER_CALLS = 20_000


@record
class Plan:
    """How long to measure: `repeats` rounds, each sample at least `sample_ms`, at most `budget_s` per system.

    rest_ms: how long all threads rest before a turn, for a peer's threads that go on spinning slow whoever comes next.
    cpu_time: count the calling thread's CPU time, which other processes disturb little. It says nothing of what other
    threads do, so it is for one thread. Of a system that calls from a thread of its own, it is the process' CPU time.
    """

    repeats: int = 30
    sample_ms: float = 1.0
    budget_s: float = 60.0
    blocks: bool = True
    cpu_time: bool = False
    rest_ms: float = 0.0


@dataclass
class Timing:
    """Samples of one system in ms per call, by round, and page faults per call; `error` ends its series."""

    samples_ms: dict[int, float] = field(default_factory=dict)
    faults: list[float] = field(default_factory=list)
    blocks_ms: float | None = None
    error: str | None = None

    @property
    def median_ms(self) -> float | None:
        return statistics.median(self.samples_ms.values()) if self.samples_ms else None

    @property
    def p20_ms(self) -> float | None:
        """The 20th percentile: the calls that were least disturbed."""
        ordered = sorted(self.samples_ms.values())
        return ordered[len(ordered) // 5] if ordered else None

    @property
    def faults_per_call(self) -> float | None:
        return statistics.median(self.faults) if self.faults else None

    def ratio_to(self, reference: Timing) -> float | None:
        """Median over common rounds of reference / self: above 1 is faster than the reference."""
        common = self.samples_ms.keys() & reference.samples_ms.keys()
        if not common:
            return None
        return statistics.median(reference.samples_ms[r] / self.samples_ms[r] for r in common)


class BudgetExceededError(BaseException):
    """The time for one step is over. Not an `Exception`, so that no library takes it for a failed attempt."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise `BudgetExceededError` in the block after `seconds`, in the main thread of a POSIX system, else never."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        raise BudgetExceededError(f"not ready after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def describe_error(error: BaseException, limit: int = 300) -> str:
    """One line that says what went wrong: the type and the first lines of the message."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:limit].rstrip(": ")


def call_ms(
    call: Callable[..., Any], args: tuple[Any, ...], calls: int, clock: Callable[[], int] = time.perf_counter_ns
) -> float:
    """Milliseconds per call over `calls` calls in a row, by a clock of nanoseconds."""
    start = clock()
    for _ in itertools.repeat(None, calls):
        call(*args)
    return (clock() - start) / calls / 1e6


def _clock(ready: Ready, plan: Plan) -> Callable[[], int]:
    """The clock of a plan: for CPU time that of the threads which run the system."""
    if not plan.cpu_time:
        return time.perf_counter_ns
    return time.process_time_ns if ready.own_threads else time.thread_time_ns


def page_faults() -> int:
    """Page faults of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def inner_calls(once_ms: float, sample_ms: float) -> int:
    """Calls per sample so that the sample lasts `sample_ms` and the clock's cost disappears in it."""
    return min(_MOST_INNER_CALLS, max(1, round(sample_ms / max(once_ms, 1e-5) + 0.5)))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def interleave(
    systems: Mapping[str, Ready], plan: Plan, inner: int, tick: Callable[[], None] = lambda: None
) -> dict[str, Timing]:
    """Time all systems round by round (see the module's text); a system that raises keeps what it has and stops.

    `tick` is called after every round. A system stops early when it has used `plan.budget_s`.
    """
    timings = {name: Timing() for name in systems}
    spent = dict.fromkeys(systems, 0.0)
    names = list(systems)
    with _no_garbage_collection():
        for round_ in range(plan.repeats):
            shift = round_ % max(len(names), 1)
            for name in names[shift:] + names[:shift]:
                timing = timings[name]
                if timing.error or (spent[name] > plan.budget_s and len(timing.samples_ms) >= _MINIMUM_ROUNDS):
                    continue
                start = time.perf_counter()
                _one_turn(systems[name], timing, round_, inner, plan)
                spent[name] += time.perf_counter() - start
            tick()
        if plan.blocks:
            for name, ready in systems.items():
                _one_block(ready, timings[name], plan, inner)
    return timings


def _one_turn(ready: Ready, timing: Timing, round_: int, inner: int, plan: Plan) -> None:
    """A rest, one untimed and one timed sample."""
    time.sleep(plan.rest_ms / 1e3)
    try:
        call_ms(ready.call, ready.args, inner)
        before = page_faults()
        sample = call_ms(ready.call, ready.args, inner, _clock(ready, plan))
        timing.faults.append((page_faults() - before) / inner)
        timing.samples_ms[round_] = sample
    except Exception as error:
        timing.error = describe_error(error)


def _one_block(ready: Ready, timing: Timing, plan: Plan, inner: int) -> None:
    """The system alone, for at most a quarter of its budget."""
    if timing.error:
        return
    samples: list[float] = []
    stop = time.perf_counter() + plan.budget_s / 4
    try:
        call_ms(ready.call, ready.args, inner)
        while len(samples) < max(_MINIMUM_ROUNDS, plan.repeats // 2):
            samples.append(call_ms(ready.call, ready.args, inner, _clock(ready, plan)))
            if time.perf_counter() > stop and len(samples) >= _MINIMUM_ROUNDS:
                break
    except Exception as error:
        timing.error = describe_error(error)
        return
    timing.blocks_ms = statistics.median(samples)


def load_average() -> float:
    """Runnable processes over the last minute; 0.0 where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return 0.0
