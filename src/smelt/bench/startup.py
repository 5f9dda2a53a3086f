"""Start-up of one system in a fresh process: first result with empty caches, then again with what that left behind.

What is counted, all in seconds, in a process that only ever runs this one system:
  import_s   importing the system's own packages (Dynamo and Inductor, OpenVINO, ONNX Runtime, ...), after torch's
  cold_s     from the model in memory to its first result, everything in between: capture, export, compile, first run
  cold_cpu_s the same in CPU seconds of all threads and of children that have ended
  second_s   the call after that
Importing torch and transformers and building the model with its weights is outside all three. Eager is measured in the
same way, so `cold_s` beyond one eager first run is the difference of the two rows. `peak_mb` is the highest resident
memory of the cold process (without its children, such as a C++ compiler), `base_mb` the same just before the clock.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from smelt.bench.fresh import NoAnswerError, answer, ask
from smelt.bench.models import MODELS
from smelt.bench.quiet import quiet
from smelt.bench.systems import DTYPES, Context, systems
from smelt.bench.training import training_systems
from smelt.bench.training_models import TRAINING_MODELS
from smelt.bench.wide.wide_models import WIDE_MODELS


@dataclass(frozen=True, slots=True)
class Startup:
    """What one fresh process measured; see the module's text."""

    import_s: float
    cold_s: float
    cold_cpu_s: float
    second_s: float
    base_mb: float
    peak_mb: float


@dataclass(frozen=True, slots=True)
class StartupPair:
    """A cold start and the warm one after it; `error` says why one is missing."""

    cold: Startup | None = None
    warm: Startup | None = None
    error: str | None = None


def peak_resident_mb() -> float:
    """Highest resident memory of this process image in MB.

    On Linux from /proc, since `ru_maxrss` also counts the parent's memory at the time of the fork.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    scale = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def measure_startup(model_name: str, system_name: str, threads: int, dtype: str, cache_dir: Path) -> Startup:
    """Run in a fresh process: prepare and run the system once, with the clocks of the module's text."""
    model = next(m for m in (*MODELS, *WIDE_MODELS, *TRAINING_MODELS) if m.name == model_name)
    known = training_systems() if model.trains else systems()
    system = next(s for s in known if s.name == system_name)
    torch.set_num_threads(threads)
    with quiet(), torch.no_grad():
        target, args = model.build(DTYPES[dtype])
        start = time.perf_counter()
        for module in system.modules:
            importlib.import_module(module)
        import_s = time.perf_counter() - start
        base_mb = peak_resident_mb()
        start, cpu = time.perf_counter(), cpu_s()
        ready = system.prepare(target, args, Context(threads, dtype, cache_dir))
        ready.outputs(ready.call(*ready.args))
        first, cpu = time.perf_counter(), cpu_s() - cpu
        ready.call(*ready.args)
        second = time.perf_counter()
        peak_mb = peak_resident_mb()
        if ready.keep is not None:
            ready.keep()
    return Startup(import_s, first - start, cpu, second - first, base_mb, peak_mb)


def cpu_s() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def startup_pair(
    model_name: str, system_name: str, threads: int, dtype: str, cache_dir: Path, budget_s: float
) -> StartupPair:
    """A cold and a warm start, each in its own process; `cache_dir` must be empty and holds the system's cache after.

    A process that runs longer than `budget_s` is ended together with its children.
    """
    cold: Startup | None = None
    try:
        cold = _in_fresh_process(model_name, system_name, threads, dtype, cache_dir, budget_s)
        warm = _in_fresh_process(model_name, system_name, threads, dtype, cache_dir, budget_s)
    except NoAnswerError as error:
        return StartupPair(cold, None, f"start-up: {error}")
    return StartupPair(cold, warm)


def _in_fresh_process(
    model_name: str, system_name: str, threads: int, dtype: str, cache_dir: Path, budget_s: float
) -> Startup:
    request = [model_name, system_name, threads, dtype, str(cache_dir)]
    return Startup(**ask("smelt.bench.startup", request, cache_dir, budget_s))


def _answer(request: list[Any]) -> dict[str, Any]:
    model_name, system_name, threads, dtype, cache_dir = request
    return asdict(measure_startup(model_name, system_name, threads, dtype, Path(cache_dir)))


if __name__ == "__main__":
    answer(_answer)
