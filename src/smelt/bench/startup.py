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
import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from smelt.bench.measure import describe_error
from smelt.bench.models import MODELS
from smelt.bench.quiet import quiet
from smelt.bench.systems import DTYPES, Context, systems
from smelt.bench.training import training_systems
from smelt.bench.training_models import TRAINING_MODELS

_MARK = "smelt-startup:"


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
    model = next(m for m in (*MODELS, *TRAINING_MODELS) if m.name == model_name)
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
        start, cpu = time.perf_counter(), _cpu_s()
        ready = system.prepare(target, args, Context(threads, dtype, cache_dir))
        ready.outputs(ready.call(*ready.args))
        first, cpu = time.perf_counter(), _cpu_s() - cpu
        ready.call(*ready.args)
        second = time.perf_counter()
        peak_mb = peak_resident_mb()
        if ready.keep is not None:
            ready.keep()
    return Startup(import_s, first - start, cpu, second - first, base_mb, peak_mb)


def _cpu_s() -> float:
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
    except _StartupFailedError as error:
        return StartupPair(cold, None, str(error))
    return StartupPair(cold, warm)


class _StartupFailedError(Exception):
    """The fresh process gave no measurement; the text says why."""


def _environment(cache_dir: Path) -> dict[str, str]:
    """The parent's environment with every cache that a system finds by itself pointed at `cache_dir`."""
    caches = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "SMELT_CACHE_DIR")
    return {**os.environ, **dict.fromkeys(caches, str(cache_dir)), "HF_HUB_OFFLINE": "1"}


def _in_fresh_process(
    model_name: str, system_name: str, threads: int, dtype: str, cache_dir: Path, budget_s: float
) -> Startup:
    request = json.dumps([model_name, system_name, threads, dtype, str(cache_dir)])
    with subprocess.Popen(
        [sys.executable, "-m", "smelt.bench.startup", request],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=_environment(cache_dir), start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=budget_s)
        except subprocess.TimeoutExpired:
            raise _StartupFailedError(f"start-up: no result after {budget_s:.0f} s") from None
        finally:
            _end_group(process)
    for line in reversed(out.splitlines()):
        if line.startswith(_MARK):
            answer: dict[str, Any] = json.loads(line[len(_MARK) :])
            if "error" in answer:
                raise _StartupFailedError(f"start-up: {answer['error']}")
            return Startup(**answer)
    last = (err.strip().splitlines() or ["no output"])[-1]
    raise _StartupFailedError(f"start-up: process ended with code {process.returncode}: {last[:200]}")


def _end_group(process: subprocess.Popen[str]) -> None:
    """End the process and whatever it started and left behind (compile workers)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _main(request: str) -> None:
    """The fresh process: one request in, one marked line of JSON out."""
    model_name, system_name, threads, dtype, cache_dir = json.loads(request)
    try:
        answer: dict[str, Any] = asdict(measure_startup(model_name, system_name, threads, dtype, Path(cache_dir)))
    except Exception as error:
        answer = {"error": describe_error(error)}
    print(_MARK + json.dumps(answer), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
