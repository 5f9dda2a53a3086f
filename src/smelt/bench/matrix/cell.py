"""One configuration of one program, measured in this process, which runs nothing else but eager beside it.

    compile_s    from the program in memory to its first result, imports of the compiler included
    compile_mb   the highest resident memory until then, above what it was before; run_mb: the same of calls after that
    times        for each number of threads, of calls one after the other, interleaved with eager's
    sizes        calls with twice and three times the rows, then with the first rows again

Invariant: seconds of the clock and of the processor stand beside each other, so that a busy machine is seen.
"""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from smelt._torch.library import inductor
from smelt.bench.matrix.configurations import EAGER, Configuration
from smelt.bench.matrix.program import Loss, Program, rows_of, with_rows
from smelt.bench.measure import describe_error, inner_calls
from smelt.bench.models import as_module, flatten
from smelt.bench.quiet import quiet
from smelt.bench.startup import cpu_s, peak_resident_mb
from smelt.bench.systems import Context, Ready
from smelt.bench.training import Step
from smelt.bench.training_models import Gradients
from smelt.diag.records import record
from smelt.inspect.machine import waited_ns

_SEED = 3
_SAMPLE_MS = 2.0
_LEAST_ROUNDS, _MOST_ROUNDS = 5, 200
_MULTIPLES = (2, 3)
_ALIKE = 1e-2  # of the largest value: results of other sizes that differ by more are wrong


@record
class Times:
    """Calls on so many threads. wall_ms, cpu_ms: medians, of the clock and of all threads of the process.

    eager_*: the same of eager, interleaved. waited: the share of the time in which threads had no core.
    """

    threads: int
    wall_ms: float
    cpu_ms: float
    eager_wall_ms: float
    eager_cpu_ms: float
    rounds: int
    waited: float


@record
class Sizes:
    """Other sizes. builds: how often it compiled for them, None where it does not tell. note: what went wrong."""

    builds: int | None
    first_calls_s: float
    first_calls_cpu_s: float = 0.0
    note: str = ""


@record
class Cell:
    """What one process found; see the module's text. error: the root of the mean square, relative to eager's."""

    compile_s: float
    compile_cpu_s: float
    compile_mb: float | None
    run_mb: float | None
    error: float
    times: Sequence[Times]
    sizes: Sizes | None
    settings: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As plain data that `json.dumps` takes."""
        return asdict(self)


def measure(
    program: Program, configuration: Configuration, cache_dir: Path, threads: Sequence[int], seconds: float
) -> Cell:
    """Everything, on each number of threads, the first one cold. seconds: how long calls are timed on each.

    Raises: what the program or the compiler raises.
    """
    with quiet(), torch.set_grad_enabled(program.trains):
        torch.set_num_threads(threads[0])
        eager = _Subject(program, None, cache_dir, threads[0])
        expected = eager.outputs()
        before_mb = _peak_from_here_mb()
        made, compile_s, compile_cpu_s = _made(program, configuration, cache_dir, threads[0])
        compile_mb = _above(before_mb)
        error = _error(made.outputs(), expected)
        _peak_from_here_mb()
        for _ in range(3):
            made()
        run_mb = _above(before_mb)
        times = [_times(made, eager, threads[0], seconds)]
        sizes = None if program.trains else _sizes(configuration, made, eager)
        settings = {key: value for key, value in made.ready.settings.items() if key != "CACHE_DIR"}
        for more in threads[1:]:
            torch.set_num_threads(more)
            inductor.forget()
            own = cache_dir / f"threads-{more}"
            own.mkdir()
            made, _, _ = _made(program, configuration, own, more)
            times.append(_times(made, eager, more, seconds))
    return Cell(compile_s, compile_cpu_s, compile_mb, run_mb, error, times, sizes, settings)


def compile_again(program: Program, configuration: Configuration, cache_dir: Path, threads: int) -> dict[str, float]:
    """Seconds until the first result in a process that finds the caches of an earlier one."""
    with quiet(), torch.set_grad_enabled(program.trains):
        torch.set_num_threads(threads)
        _Subject(program, None, cache_dir, threads).outputs()
        _, seconds, cpu = _made(program, configuration, cache_dir, threads)
    return {"warm_s": seconds, "warm_cpu_s": cpu}


class _Subject:
    """The program as a configuration makes it, None for eager: a call, and its results."""

    def __init__(self, program: Program, configuration: Configuration | None, cache_dir: Path, threads: int) -> None:
        context = Context(threads, "f32", cache_dir)
        self.flat = program.flat()
        target, args = self.flat
        prepare = None if configuration is None or configuration.name == EAGER else configuration.prepare
        if program.trains:
            step = Step(Gradients(as_module(target) if isinstance(target, Loss) else Loss(target)), args, fused=False)
            found = Ready(step.module, args) if prepare is None else prepare(step.module, args, context)
            step.loss = found.call
            self.ready = Ready(step, args, found.settings, step.outputs)
            self.compiled = found
        elif prepare is None:
            function, given, kwargs = program.function, program.args, program.kwargs
            self.ready = self.compiled = Ready(lambda: function(*given, **kwargs), ())
        else:
            self.ready = self.compiled = prepare(target, args, context)

    def __call__(self) -> Any:
        return self.ready.call(*self.ready.args)

    def outputs(self) -> tuple[Tensor, ...]:
        """Copies of the results of one call, with the same random numbers each time."""
        torch.manual_seed(_SEED)
        return tuple(t.detach().clone() for t in self.ready.outputs(self()))


def _made(
    program: Program, configuration: Configuration, cache_dir: Path, threads: int
) -> tuple[_Subject, float, float]:
    """What the configuration makes, after its first call; seconds of the clock and of the processor."""
    start, cpu = time.perf_counter(), cpu_s()
    for module in configuration.modules:
        importlib.import_module(module)
    made = _Subject(program, configuration, cache_dir, threads)
    made()
    taken = time.perf_counter() - start, cpu_s() - cpu
    if made.ready.keep is not None:
        made.ready.keep()
    return made, *taken


# --- times


def _times(made: _Subject, eager: _Subject, threads: int, seconds: float) -> Times:
    """Both in turns, until `seconds` are over."""
    wall: tuple[list[float], list[float]] = ([], [])
    cpu: tuple[list[float], list[float]] = ([], [])
    both = (made, eager)
    for call in both:
        call()
    inner = [inner_calls(min(_once(call)[0] for _ in range(2)), _SAMPLE_MS) for call in both]
    waiting, begin = waited_ns(), time.perf_counter()
    for number in range(_MOST_ROUNDS):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            _once(both[which], 1)  # what spins for the other ends, and the caches hold this one's data
            ms, cpu_ms = _once(both[which], inner[which])
            wall[which].append(ms)
            cpu[which].append(cpu_ms)
        if time.perf_counter() - begin > seconds and number + 1 >= _LEAST_ROUNDS:
            break
    inside = time.perf_counter() - begin
    waited = min(1.0, max(0.0, (waited_ns() - waiting) / 1e9 / inside))
    return Times(threads, median(wall[0]), median(cpu[0]), median(wall[1]), median(cpu[1]), len(wall[0]), waited)


def _once(call: Callable[[], Any], times: int = 1) -> tuple[float, float]:
    """Milliseconds a call, of the clock and of the processor."""
    start, cpu = time.perf_counter_ns(), time.process_time_ns()
    for _ in range(times):
        call()
    return (time.perf_counter_ns() - start) / times / 1e6, (time.process_time_ns() - cpu) / times / 1e6


# --- other sizes


def _sizes(configuration: Configuration, made: _Subject, eager: _Subject) -> Sizes:
    """Calls with more rows, against eager's; not of a program of training, whose state they would change."""
    target, args = eager.flat
    if not configuration.sized:
        return Sizes(None, 0.0, note="made for one size: others need an export each")
    if rows_of(args) is None:
        return Sizes(None, 0.0, note="no argument has rows")
    call = target if configuration.name == EAGER else made.ready.call
    before, taken, cpu = configuration.builds(made.compiled), 0.0, 0.0
    for times in (*_MULTIPLES, 1):
        given = with_rows(args, times)
        try:
            torch.manual_seed(_SEED)
            expected = [t.clone() for t in flatten(target(*given))]
        except Exception:  # eager's own word on it
            return Sizes(None, taken, cpu, "the program itself is for these sizes alone")
        try:
            torch.manual_seed(_SEED)
            start, begin = time.perf_counter(), cpu_s()
            found = made.ready.outputs(call(*given))
            taken, cpu = taken + time.perf_counter() - start, cpu + cpu_s() - begin
        except Exception as error:
            return Sizes(None, taken, cpu, f"{times} times the rows: {describe_error(error, 160)}")
        if not _error(found, expected) <= _ALIKE:
            return Sizes(None, taken, cpu, f"{times} times the rows: results differ from eager's")
    after = configuration.builds(made.compiled)
    return Sizes(None if before is None or after is None else after - before, taken, cpu)


# --- errors and memory


def _error(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The root of the mean square of all differences, relative to that of eager's results; inf if shapes differ."""
    if [tuple(t.shape) for t in found] != [tuple(t.shape) for t in expected]:
        return math.inf
    gap = scale = 0.0
    for a, b in zip(found, expected, strict=True):
        x, y = a.detach().double(), b.detach().double()
        same = (x == y) | (x.isnan() & y.isnan())
        gap += float(torch.where(same, 0.0, x - y).square().sum())
        scale += float(y.nan_to_num(0, 0, 0).square().sum())
    return math.sqrt(gap / scale) if scale else math.sqrt(gap)


def _peak_from_here_mb() -> float | None:
    """Forget the highest resident memory so far, and say what it is now; None where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return peak_resident_mb()


def _above(before_mb: float | None) -> float | None:
    return None if before_mb is None else max(0.0, peak_resident_mb() - before_mb)
