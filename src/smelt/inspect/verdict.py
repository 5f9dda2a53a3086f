"""The first lines of a report: whether the program was compiled, how much of it own kernels do, and whether it paid.

Invariant: a time is shown with all that it depends on (threads, load, rounds), and is called no measurement where the
thread that called did not have a core all the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

import torch

from smelt.analysis.cost import cost
from smelt.compiler import Unit
from smelt.diag.records import record
from smelt.inspect.machine import load_average, waited_ns
from smelt.inspect.native_parts import Part, parts_of
from smelt.inspect.shown import Row, plural

_OWN = ("kernel", "fused")
_LEAST_ROUNDS = 3
_MOST_CALLS = 1000  # of a sample
BUSY = 0.1  # share of the wall time without a core, from which times are no measurement
_EVEN = 0.03  # a speed-up nearer to one than this is none


@record
class Times:
    """Seconds of calls of one program, in the order measured."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The first and the third."""
        if len(self.samples) < 2:
            return self.samples[0], self.samples[0]
        first, _, third = quantiles(self.samples, n=4, method="inclusive")
        return first, third

    def __str__(self) -> str:
        first, third = self.quartiles
        return f"{duration(self.median)} (quartiles {duration(first)} to {duration(third)})"


@record
class Race:
    """Eager and compiled, called in turns. waited: the share of the wall time in which the calling thread, or another
    one of the process that had work, had no core. load: runnable processes of the machine before.
    """

    eager: Times
    compiled: Times
    threads: int
    load: float
    waited: float

    @property
    def speed_up(self) -> float:
        """Eager's time over the compiled one's: of the medians."""
        return self.eager.median / self.compiled.median

    @property
    def is_busy(self) -> bool:
        """Whether the machine had other work meanwhile, so that these times say nothing."""
        return self.waited > BUSY

    def to_dict(self) -> dict[str, Any]:
        """The figures by name, in seconds."""
        return {
            "eager_s": self.eager.median, "eager_quartiles_s": list(self.eager.quartiles),
            "smelt_s": self.compiled.median, "smelt_quartiles_s": list(self.compiled.quartiles),
            "speed_up": self.speed_up, "rounds": len(self.eager.samples), "threads": self.threads, "load": self.load,
            "waited": self.waited, "is_measurement": not self.is_busy,
        }  # fmt: skip

    def lines(self) -> list[str]:
        """As a report shows it."""
        found = [f"eager  {self.eager}", f"smelt  {self.compiled}: {self.worth}"]
        rounds = plural(len(self.eager.samples), "round")
        found.append(f"{plural(self.threads, 'thread')}, load {self.load:.1f}, {rounds} of both, interleaved")
        if self.is_busy:
            found.append(
                f"busy machine: not a measurement (for {self.waited:.0%} of the time a thread had to wait for a core)"
            )
        return found

    @property
    def worth(self) -> str:
        """What the speed-up comes to, in words."""
        if abs(self.speed_up - 1) < _EVEN:
            return "as fast as eager"
        return f"{self.speed_up:.2f} times as fast" + (", slower than eager" if self.speed_up < 1 else "")


def race(
    eager: Callable[[], Any],
    compiled: Callable[[], Any],
    rounds: int,
    budget_s: float = float("inf"),
    step: Callable[[], Any] = lambda: None,
    *,
    sample_s: float = 0.0,
    cpu: bool = False,
) -> Race:
    """Call both in turns, the first one alternating, after an untimed call of each. `step` is called after each round.

    budget_s: no further round is begun after it. sample_s: each sample is of as many calls as eager does in so long,
    behind as many that are not timed: the caches then hold the data of the program that is called. Not for programs
    that a call changes. cpu: by the processor's time of the calling thread, which a busy machine disturbs little.
    """
    times: tuple[list[float], list[float]] = ([], [])
    load = load_average()
    clock = time.thread_time if cpu else time.perf_counter
    for call in (eager, compiled):
        call()
    calls = _calls_in(eager, sample_s) if sample_s else 1
    waiting, thread, begin = waited_ns(), time.thread_time(), time.perf_counter()
    inside = 0.0
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            call = (eager, compiled)[which]
            for _ in range(calls if sample_s else 0):
                call()
            start = clock()
            for _ in range(calls):
                call()
            times[which].append((clock() - start) / calls)
        step()
        inside = time.perf_counter() - begin
        if inside > budget_s and number + 1 >= _LEAST_ROUNDS:
            break
    # A thread that waits for others without sleep counts as running; what these wait for is in the queues' count.
    slept = max(0.0, inside - (time.thread_time() - thread))
    queued = max(0.0, (waited_ns() - waiting) / 1e9)
    waited = max(slept, queued) / inside if inside else 0.0
    waited = 0.0 if cpu else min(waited, 1.0)
    return Race(Times(tuple(times[0])), Times(tuple(times[1])), torch.get_num_threads(), load, waited)


def _calls_in(call: Callable[[], Any], seconds: float) -> int:
    start = time.perf_counter()
    call()
    return max(1, min(_MOST_CALLS, round(seconds / max(time.perf_counter() - start, 1e-7))))


def verdict(
    units: Sequence[tuple[int, Unit]],
    breaks: Sequence[Row],
    fallbacks: Sequence[Row],
    anew: int,
    measured: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What became of a program, as named plain data: `what`, in words, and the shares of own kernels.

    anew: how often a call was compiled anew. measured: the share of time, where it was measured.
    """
    shares = {"operations": _operations_share(parts_of(units)), **(measured or {})}
    known = {what: share for what, share in shares.items() if share is not None}
    return {"what": _what(units, breaks, fallbacks, anew), "own kernels": known}


def lines_of(found: Mapping[str, Any]) -> list[str]:
    """The verdict as a report's text begins with it."""
    lines = [found["what"]] if found.get("what") else []
    shares = found.get("own kernels") or {}
    if shares:
        told = " and ".join(f"{share:.0%} of the {what}" for what, share in shares.items())
        lines.append(f"own kernels do {told}")
    return [*lines, *found.get("times", ()), *found.get("where", ())]


def _what(units: Sequence[tuple[int, Unit]], breaks: Sequence[Row], fallbacks: Sequence[Row], anew: int) -> str:
    if not units:
        if not breaks and not fallbacks:
            return "not compiled yet: call it, or use warmup(...)"
        reason = next((row.get("why") or row.get("reason") for row in (*breaks, *fallbacks)), "")
        return f"not compiled, runs in eager mode: {reason}"
    made = [part.unit for part in parts_of(units)]
    in_python = sum(unit.lowered.report.counts.get("python", 0) for unit in made if unit.lowered is not None)
    native = all(unit.executable is None or unit.executable.is_native for unit in made)
    parts = [
        f"compiled: {plural(len(units), 'graph')}, " + ("native code" if native else "run in Python"),
        plural(in_python, "node") + " in Python" if in_python else "",
        "as partitions" if any("partition" in str(row) for row in breaks) else "",
        plural(sum(row.get("times") or 0 for row in fallbacks), "call") + " in eager mode" if fallbacks else "",
        f"compiled anew {plural(anew, 'time')}" if anew else "",
    ]
    return ", ".join(part for part in parts if part.strip() and not part.startswith(" "))


def _operations_share(parts: Sequence[Part]) -> float | None:
    """The share of floating-point operations that own kernels do; None where there are none to count."""
    own = total = 0
    for part in parts:
        unit = part.unit
        if unit.lowered is None or unit.optimized is None:
            continue
        how = {node.value: node.how for node in unit.lowered.report.nodes}
        for node in unit.optimized.walk():
            flops = cost(node).flops
            total += flops
            if node.results and how.get(node.results[0].name) in _OWN:
                own += flops
    return own / total if total else None


def duration(seconds: float) -> str:
    """A time with its unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
