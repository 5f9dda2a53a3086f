"""Where the time of a call goes, compiled and in eager mode, by the same rules: is Python slow?

    eager     its operators, called one after the other by native code instead of by Python, each measured; what a call
              takes beyond that are Python, torch's dispatch and its bookkeeping for gradients
    compiled  the instructions of its plan, each measured; guards, measured alone; what a call takes beyond these are
              the entry: arguments, addresses, and the objects of the results

Invariant: all times are the least of several runs, so that parts and whole are of the same kind; parts add up to the
whole. Operators that eager calls natively take memory from a plan's arena, so the allocator counts for eager's rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.inspect.kernels import compiled_units
from smelt.inspect.machine import waited_ns
from smelt.inspect.page.steps import steps_of
from smelt.inspect.shares import Measured, profile_of
from smelt.inspect.shown import Row
from smelt.inspect.verdict import BUSY, duration
from smelt.ops.catalogue import family_of

GUARDS, ENTRY, REST, THREADS = "guards", "entry and results", "Python, dispatch, bookkeeping", "entering threads"
_PYTHON = "nodes in Python"
_STEPS = {
    "memory": "memory",
    "move": "views and moves",
    "number": "numbers",
    "block": "control flow",
    "python": _PYTHON,
}
_WORDS = (
    ("attention", "attention"), ("conv", "convolutions"), ("product", "products"), ("mm", "products"),
    ("linear", "products"), ("lstm", "recurrent layers"), ("gru", "recurrent layers"), ("norm", "norms"),
    ("softmax", "softmax"), ("embedding", "gathers"), ("pool", "pooling"),
)  # fmt: skip
"""What a step computes, by what stands in its name; all others by the family of its operator."""
_HELD = (GUARDS, ENTRY, REST, _PYTHON)
_RUNS, _SECONDS, _SAMPLE_S = 30, 1.0, 5e-5
_EAGERS: Mapping[str, Any] = {
    "adaptive": False, "own_kernels": False, "numerics": "eager-library", "stop_after": 2, "keep_plans": False,
    "measure": False, "code_weights": False,
}  # fmt: skip
"""Options that leave eager's own operators, in its order: of the passes only those that make a graph functional."""


@record
class Split:
    """Microseconds of a call by what they go to, in all `total_us`. held_us: those in which the GIL is held."""

    total_us: float
    parts: Mapping[str, float]
    held_us: float

    @property
    def held(self) -> float:
        """The share of a call in which no other thread can run Python."""
        return self.held_us / self.total_us if self.total_us else 0.0


@record
class Where:
    """Both splits; where one is None, `missing` says why.

    at_once: calls that two threads of Python make at the same time, over those of one, of eager and of the compiled
    program, each with one thread of torch. is_busy: threads had to wait for a core, so all is of one thread of torch,
    and of the processor's time, and nothing is said of several threads at once.
    """

    eager: Split | None
    smelt: Split | None
    at_once: tuple[float, float] | None = None
    is_busy: bool = False
    missing: Sequence[str] = field(default=())

    def rows(self) -> list[Row]:
        """A row for each part, the largest of eager's first."""
        found = [split for split in (self.eager, self.smelt) if split is not None]
        names = dict.fromkeys(name for split in found for name in _by_size(split))
        rows: list[Row] = []
        for name in names:
            row: dict[str, Any] = {"part": name}
            for title, split in (("eager", self.eager), ("smelt", self.smelt)):
                us = None if split is None else split.parts.get(name)
                row[f"{title} us"] = us
                row[f"{title} %"] = None if us is None or split is None else 100 * us / split.total_us
            rows.append(row)
        return rows

    def sentences(self) -> list[str]:
        """Is Python slow? In words."""
        lines = ["busy machine: this is of one thread, by the processor's time"] if self.is_busy else []
        if self.eager is not None:
            rest = self.eager.parts.get(REST, 0.0)
            share = rest / self.eager.total_us
            worth = "worth removing" if share > 0.3 else "not the bottleneck" if share < 0.1 else "a part of it"
            lines.append(
                f"is Python slow? of eager's {_us(self.eager.total_us)} a call, {_us(rest)} ({share:.0%}) are no "
                f"operator's but Python's, the dispatcher's and autograd's: {worth}"
            )
        if self.smelt is not None:
            outside = sum(self.smelt.parts.get(name, 0.0) for name in (GUARDS, ENTRY, _PYTHON))
            lines.append(
                f"compiled, {_us(outside)} of {_us(self.smelt.total_us)} ({outside / self.smelt.total_us:.0%}) are "
                "guards, entry and nodes in Python"
            )
        if self.eager is not None and self.smelt is not None:
            lines.append(
                f"other threads wait for the GIL during {self.eager.held:.0%} of a call in eager mode, "
                f"{self.smelt.held:.0%} compiled"
                + (" (too short to release it)" if self.smelt.held == 1 else "")
                + self._of_two_threads()
            )
        return [*lines, *self.missing]

    def _of_two_threads(self) -> str:
        if self.at_once is None:
            return ""
        eager, ours = self.at_once
        return f"; two threads at once make {eager:.1f} times the calls of one in eager mode, {ours:.1f} times compiled"


def where_time_goes(
    function: Callable[..., Any], compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Where:
    """Measure both, for a few seconds at most. compiled: with measured plans or without; a call must have no effect.

    Raises: what the program raises.
    """
    whole = len(compiled_units(compiled)) == 1
    with torch.no_grad():
        plain = smelt.compile(function, options={"adaptive": False})
        for _ in range(3):
            plain(*args, **kwargs)
        calls = _Calls(function, plain, args, kwargs)
        waiting, begin = waited_ns(), time.perf_counter()
        totals = _least_us(calls.eager, calls.ours)
        if (waited_ns() - waiting) / 1e9 <= BUSY * (time.perf_counter() - begin):
            return _divided(calls, totals, whole, is_busy=False)
        with _one_thread():
            totals = _least_us(calls.eager, calls.ours, time.thread_time)
            return _divided(calls, totals, whole, is_busy=True)


@record
class _Calls:
    """What is measured: the same call of the program and of the compiled one."""

    function: Callable[..., Any]
    compiled: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def eager(self) -> Any:
        return self.function(*self.args, **self.kwargs)

    def ours(self) -> Any:
        return self.compiled(*self.args, **self.kwargs)


def _divided(calls: _Calls, totals: tuple[float, float], whole: bool, is_busy: bool) -> Where:
    missing: list[str] = []
    mine = _of_plan(calls.compiled, totals[1], calls.args, calls.kwargs) if whole else None
    if mine is None:
        missing.append("of the compiled program nothing more is known: it is not one graph of one plan")
    theirs = _of_eager(calls.function, totals[0], calls.args, calls.kwargs)
    if theirs is None:
        missing.append("eager's operators cannot be measured one by one: they are not one graph of one plan")
    told = mine is not None and theirs is not None and not is_busy
    return Where(theirs, mine, _at_once(calls.eager, calls.ours) if told else None, is_busy, missing)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Within it torch runs on the calling thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_size(split: Split) -> list[str]:
    return sorted(split.parts, key=lambda name: -split.parts[name])


def _us(us: float) -> str:
    return duration(us / 1e6)


# --- the parts


def _of_plan(compiled: Any, total_us: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Split | None:
    (unit,) = compiled_units(compiled)
    measured = None if unit.acts else profile_of(unit, args, kwargs, _RUNS)
    if measured is None:
        return None
    parts = _steps(measured)
    checks = dispatcher_of(compiled).checks()
    if checks is None:
        return None
    check, keeps = checks
    parts[GUARDS] = _guards_us(check, args, dict(kwargs))
    parts[ENTRY] = max(0.0, total_us - sum(parts.values()))
    held = total_us if keeps else sum(parts.get(name, 0.0) for name in _HELD)
    return Split(total_us, _fitted(parts, total_us), min(held, total_us))


def _of_eager(
    function: Callable[..., Any], total_us: float, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Split | None:
    """Its operators as a plan of their own calls them, and what is left of a call."""
    try:
        bare = smelt.compile(function, options=_EAGERS)
        for _ in range(2):
            bare(*args, **kwargs)
        units = compiled_units(bare)
    except SmeltError:
        return None
    measured = None if len(units) != 1 or units[0].acts else profile_of(units[0], args, kwargs, _RUNS)
    if measured is None:
        return None
    parts = _steps(measured)
    parts.pop("memory", None)  # of the plan's arena; eager's allocator is in the rest
    parts[REST] = max(0.0, total_us - sum(parts.values()))
    return Split(total_us, _fitted(parts, total_us), parts[REST])


def _fitted(parts: Mapping[str, float], total_us: float) -> dict[str, float]:
    """The parts that there are; scaled where they were measured, one by one, as more than the whole."""
    whole = sum(parts.values())
    scale = min(1.0, total_us / whole) if whole else 1.0
    return {name: us * scale for name, us in parts.items() if us > 0}


def _steps(measured: Measured) -> dict[str, float]:
    """Microseconds of the instructions by what they compute."""
    assert measured.unit.lowered is not None
    report = measured.unit.lowered.report
    ops = {node.value: node.op for node in report.nodes}
    found: dict[str, float] = {}
    for step in steps_of(measured.plan, report, measured.rows):
        name = _STEPS.get(step.kind) or f"{_computes(step.what, [ops.get(n, '') for n in step.nodes])}{_by(step.kind)}"
        found[name] = found.get(name, 0.0) + (step.us or 0.0)
    for row in measured.rows:
        if row.index < 0 and row.label == "threads":
            found[THREADS] = found.get(THREADS, 0.0) + row.min_ns / 1e3
    return found


def _by(kind: str) -> str:
    return ", own kernels" if kind == "kernel" else ", torch's operators"


def _computes(what: str, ops: Sequence[str]) -> str:
    """The kind of work of a step, from its own name, else from its operators."""
    for word, kind in _WORDS:
        if word in what:
            return kind
    families = {family_of(op) for op in ops} or {"other"}
    return next((f"{one}s" for one in ("reduction", "gather", "pointwise") if one in families), "other").replace(
        "pointwises", "pointwise"
    )


def _guards_us(check: Callable[[Any, Any], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """What all guards of the entry that serves this call take: a look at them, less one that fails at the first."""
    held, failed = _least_us(lambda: check(args, kwargs), lambda: check((), {}))
    return max(0.0, held - failed)


# --- the whole


def _least_us(
    first: Callable[[], Any], second: Callable[[], Any], clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """The least that a call of each takes, in turns; several calls are one sample where they are short."""
    calls = (first, second)
    inner = []
    for call in calls:
        call()
        begin = time.perf_counter()
        call()
        inner.append(max(1, min(100, round(_SAMPLE_S / max(time.perf_counter() - begin, 1e-8)))))
    least = [float("inf"), float("inf")]
    end = time.perf_counter() + _SECONDS
    for number in range(_RUNS):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            begin = clock()
            for _ in range(inner[which]):
                calls[which]()
            least[which] = min(least[which], (clock() - begin) / inner[which])
        if time.perf_counter() > end and number > 2:
            break
    return least[0] * 1e6, least[1] * 1e6


def _at_once(eager: Callable[[], Any], ours: Callable[[], Any]) -> tuple[float, float] | None:
    """Calls of two threads of Python over those of one, of both; None where threads had to wait for a core."""
    with _one_thread():
        waiting, begin = waited_ns(), time.perf_counter()
        found = tuple(_calls_a_second(call, 2) / _calls_a_second(call, 1) for call in (eager, ours))
        waited = (waited_ns() - waiting) / 1e9 / (time.perf_counter() - begin)
    return None if waited > BUSY else (found[0], found[1])


def _calls_a_second(call: Callable[[], Any], threads: int, seconds: float = 0.15) -> float:
    counts = [0] * threads
    barrier = threading.Barrier(threads)

    def work(index: int) -> None:
        with torch.no_grad():
            call()
            barrier.wait()
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                call()
                counts[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / seconds
