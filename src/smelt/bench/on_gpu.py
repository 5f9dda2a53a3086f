"""Models on a GPU: eager, Smelt and Inductor, timed by events, beside what the device can do at all.

    (wait) (event) (calls) (event) (wait)      ==>      milliseconds of a call, from the first kernel to the last

Every system is warmed up, and systems alternate round by round, so that a clock that changes does so for all. A round
has so many calls that the first one's idle GPU does not count. First calls are timed by the clock, until the GPU is
done.
Invariant: all systems get the same tensors, and their results are compared with eager's.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import smelt
from smelt._torch import gpu
from smelt.bench.measure import describe_error
from smelt.bench.models import Model, flatten
from smelt.codegen.lower.gpu import gpu_program
from smelt.codegen.triton.compile import compile_cuda
from smelt.diag.records import record
from smelt.inspect.kernels import compiled_units
from smelt.inspect.roofline import Ceilings, measure_gpu_ceilings
from smelt.runtime.cuda.machine import Machine, machine

Call = Callable[..., Any]

_WARM_UP_CALLS = 3
_SAMPLE_MS = 5.0
_MOST_CALLS = 200
_ROUNDS = 20

MODES = {"inductor": "default", "inductor-graphs": "reduce-overhead", "inductor-max": "max-autotune"}
"""Inductor's modes by the names of systems; all but the first capture CUDA graphs."""
SYSTEMS = ("eager", "smelt", *MODES)
"""What can be timed; eager always is."""
ARCHITECTURE = 90
"""What a dry run compiles for: H100 and H200."""


@record
class GpuRow:
    """One system on one model. ms: the median of a call by events; first_s: its first call, compilation included.

    ratio: eager's time over this one, the median over rounds. bound_ms: what reading the weights once takes at least.
    error: the greatest difference to eager's results, relative to their greatest element. waits: lines that read from
    the GPU. note: why there is no time.
    """

    model: str
    dtype: str
    system: str
    ms: float | None = None
    ratio: float | None = None
    first_s: float | None = None
    bound_ms: float | None = None
    error: float | None = None
    kernels: int | None = None
    waits: tuple[str, ...] = ()
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As JSON-able data."""
        return asdict(self)


def run(
    models: Sequence[Model], systems: Sequence[str], dtype: torch.dtype, index: int = 0, rounds: int = _ROUNDS
) -> Iterator[tuple[Ceilings, list[GpuRow]]]:
    """The ceilings of the device, and a model's rows, model by model.

    Raises: SmeltError (S0405) where there is no GPU that Smelt can use.
    """
    found = machine(index)
    ceilings = measure_gpu_ceilings(index)
    for model in models:
        with torch.no_grad():
            yield ceilings, _model(model, systems, dtype, found, ceilings, rounds)


def _model(
    model: Model, systems: Sequence[str], dtype: torch.dtype, found: Machine, ceilings: Ceilings, rounds: int
) -> list[GpuRow]:
    device = torch.device("cuda", found.index)
    target, args = model.build(dtype)
    if isinstance(target, torch.nn.Module):
        target = target.to(device)
    given = tuple(a.to(device) for a in args)
    name = str(dtype).removeprefix("torch.")
    weights = [*target.parameters(), *target.buffers()] if isinstance(target, torch.nn.Module) else [*given]
    bound_ms = sum(w.nbytes for w in weights) / ceilings.gbps / 1e6
    want = flatten(target(*given))
    ready: dict[str, Call] = {}
    rows: dict[str, GpuRow] = {}
    for system in dict.fromkeys(("eager", *systems)):
        start = time.perf_counter()
        try:
            call = _prepared(system, target)
            got = call(*given)
            gpu.finish()
            first_s = time.perf_counter() - start
            for _ in range(_WARM_UP_CALLS):
                call(*given)
            gpu.finish()
        except Exception as error:  # whatever a system refuses is its row
            rows[system] = GpuRow(model.name, name, system, bound_ms=bound_ms, note=describe_error(error))
            continue
        ready[system] = call
        kernels, waits = kernels_and_waits(call) if system == "smelt" else (None, ())
        rows[system] = GpuRow(
            model.name, name, system, first_s=first_s, bound_ms=bound_ms, error=_error(flatten(got), want),
            kernels=kernels, waits=waits,
        )  # fmt: skip
    times = interleaved(ready, given, found, rounds)
    return [_timed(row, times.get(system, []), times["eager"]) for system, row in rows.items()]


def _timed(row: GpuRow, own: Sequence[float], eager: Sequence[float]) -> GpuRow:
    if not own:
        return row
    ratio = statistics.median(e / max(o, 1e-9) for e, o in zip(eager, own, strict=True))
    return GpuRow(**{**row.to_dict(), "ms": statistics.median(own), "ratio": ratio, "waits": row.waits})


def _prepared(system: str, target: Call) -> Call:
    if system == "eager":
        return target
    if system == "smelt":
        made: Call = smelt.compile(target)
        return made
    return torch.compile(target, mode=MODES[system], dynamic=False)


def kernels_and_waits(compiled: Any) -> tuple[int, tuple[str, ...]]:
    """How many kernels a compiled program launches, and the lines at which it waits for the GPU."""
    reports = [unit.lowered.report for unit in compiled_units(compiled) if unit.lowered is not None]
    waits = [
        f"{node.where or node.value}: {node.target}"
        for r in reports
        for node in r.python_nodes
        if "waits" in node.target
    ]
    return sum(len(report.kernels) for report in reports), tuple(dict.fromkeys(waits))


def _error(got: Sequence[Tensor], want: Sequence[Tensor]) -> float:
    pairs = [(g.double(), w.double()) for g, w in zip(got, want, strict=True) if w.is_floating_point() and w.numel()]
    return max((float((g - w).abs().max() / w.abs().max().clamp_min(1e-30)) for g, w in pairs), default=0.0)


def interleaved(calls: dict[str, Call], args: tuple[Any, ...], found: Machine, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a call by events, for each system in each round."""
    counts = {}
    for name, call in calls.items():
        once = _sample_ms(call, args, found, 1)
        counts[name] = max(1, min(_MOST_CALLS, int(_SAMPLE_MS / max(once, 1e-4))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for number in range(rounds):
        turn = number % max(1, len(names))
        for name in (*names[turn:], *names[:turn]):
            times[name].append(_sample_ms(calls[name], args, found, counts[name]))
    return times


def _sample_ms(call: Call, args: tuple[Any, ...], found: Machine, count: int) -> float:
    driver, stream = found.driver, gpu.stream_of(found.index)
    with contextlib.ExitStack() as stack:
        begin, end = driver.event(), driver.event()
        stack.callback(driver.destroy_event, begin)
        stack.callback(driver.destroy_event, end)
        gpu.finish()
        driver.record(begin, stream)
        for _ in range(count):
            call(*args)
        driver.record(end, stream)
        return driver.elapsed_us(begin, end) / 1000 / count


def dry_run(models: Sequence[Model], dtype: torch.dtype, arch: int = ARCHITECTURE) -> Iterator[GpuRow]:
    """Without a GPU: each model's kernels, compiled for one; what has no kernel is in the note."""
    for model in models:
        target, args = model.build(dtype)
        name = str(dtype).removeprefix("torch.")
        start = time.perf_counter()
        try:
            with torch.no_grad():
                program = gpu_program(smelt.trace(target, args, check=False).graph_for(*args))
            compile_cuda([kernel.kernel.source for kernel in program.kernels], arch)
        except Exception as error:
            yield GpuRow(model.name, name, "smelt", note=describe_error(error))
            continue
        refused = ", ".join(dict.fromkeys(node.op for node, _ in program.refused))
        seconds = time.perf_counter() - start
        note = f"torch's: {refused}" if refused else "all of it has kernels"
        yield GpuRow(model.name, name, "smelt", first_s=seconds, kernels=len(program.kernels), note=note)
