"""Times of work on a GPU, by events on the stream at hand.

    (clear the cache) (event) (work) (event)      ==>      microseconds that the GPU took

The cache that multiprocessors share is overwritten before each run: in a program, other kernels have run since a weight
was last read. Meanwhile the host launches the work, so that what the host takes is not in the times.
Invariant: all events are destroyed; work that fails has no time, and the others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import median
from typing import Final, TypeAlias

import torch

from smelt._torch import gpu
from smelt.diag import SmeltError
from smelt.runtime.cuda.code import CudaCode
from smelt.runtime.cuda.executable import CudaExecutable
from smelt.runtime.cuda.machine import Machine
from smelt.runtime.cuda.plan import CudaLaunch, CudaMemory, CudaPlan

Work: TypeAlias = Callable[[], object]

_LOOKS, _ROUNDS = 3, 8
"""Runs of all that is compared, then of what was not far behind the first of it."""
_HOPELESS = 1.5
FAILURES: Final = (SmeltError, RuntimeError)
"""What a driver and torch raise where a GPU cannot do something: memory, a launch, an operator."""


class Stopwatch:
    """Times work on one GPU."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        nbytes = max(1, 2 * machine.driver.cache_nbytes(machine.index))
        self._cleared = gpu.memory(nbytes, machine.index)

    def time_us(self, work: Work, rounds: int = _ROUNDS) -> float:
        """The median time of a run. Raises: what the work raises; SmeltError (S0405)."""
        return median(self.times_us(work, rounds))

    def times_us(self, work: Work, rounds: int = _ROUNDS) -> list[float]:
        """The times of runs behind one that is not counted. Raises: as `time_us`."""
        work()  # What is made or chosen at a first run is not in the times.
        return self._times_us(work, rounds)

    def _times_us(self, work: Work, rounds: int) -> list[float]:
        driver, stream = self.machine.driver, gpu.stream_of(self.machine.index)
        events: list[int] = []
        try:
            for _ in range(rounds):
                events += [driver.event(), driver.event()]
                self._cleared.zero_()
                driver.record(events[-2], stream)
                work()
                driver.record(events[-1], stream)
            return [driver.elapsed_us(*pair) for pair in zip(events[::2], events[1::2], strict=True)]
        finally:
            for event in events:
                driver.destroy_event(event)

    def compare(self, candidates: Mapping[str, Work]) -> tuple[dict[str, float], dict[str, str]]:
        """The median time of each candidate, and why others failed."""
        times: dict[str, list[float]] = {}
        failed: dict[str, str] = {}
        for rounds in (_LOOKS, _ROUNDS):
            least = min(map(median, times.values()), default=0.0)
            for name, work in candidates.items():
                if name in failed or (name in times and median(times[name]) > _HOPELESS * least):
                    continue
                try:
                    if name not in times:
                        work()
                    times.setdefault(name, []).extend(self._times_us(work, rounds))
                except FAILURES as error:
                    failed[name] = said(error)
                    times.pop(name, None)
        return {name: median(found) for name, found in times.items()}, failed


def said(error: Exception) -> str:
    """An error in one line."""
    if isinstance(error, SmeltError):
        return f"{error.what}: {error.why}" if error.why else error.what
    return str(error).partition("\n")[0]


def launch_times_us(machine: Machine, plan: CudaPlan) -> list[float]:
    """The time of each launch of a plan, run by itself over memory of its own. Raises: SmeltError (S0405)."""
    watch, codes = Stopwatch(machine), {code.name: code for code in plan.kernels}
    return [_launch_us(watch, plan, launch, codes[launch.kernel]) for launch in plan.launches]


def _launch_us(watch: Stopwatch, plan: CudaPlan, launch: CudaLaunch, code: CudaCode) -> float:
    machine, numbers = watch.machine, list(dict.fromkeys(launch.buffers))
    memories = tuple(CudaMemory("argument", k, plan.memories[number].nbytes) for k, number in enumerate(numbers))
    kinds = {number: code.parameters[at][1] for at, number in enumerate(launch.buffers)}
    tensors = [
        filled_memory(plan.memories[n].nbytes, _DTYPES.get(kinds[n], torch.uint8), machine.index) for n in numbers
    ]
    alone = replace(launch, buffers=tuple(numbers.index(n) for n in launch.buffers), after=())
    executable = CudaExecutable(
        CudaPlan((code,), memories, (alone,), 0), machine.driver, machine.allocate, machine.index, machine.modules
    )
    addresses = [tensor.data_ptr() for tensor in tensors]
    try:
        return watch.time_us(lambda: executable.run(addresses, (), (), gpu.stream_of(machine.index)))
    finally:
        executable.close()


_DTYPES = {"*fp16": torch.float16, "*bf16": torch.bfloat16, "*fp32": torch.float32, "*fp64": torch.float64}


def filled(
    sizes: tuple[int, ...], strides: tuple[int, ...], extent: int, dtype: torch.dtype, index: int
) -> torch.Tensor:
    """A tensor of a GPU with different numbers from -1 to 1; zeros of integers, which are safe as positions.

    extent: elements of memory from its first to its last one.
    """
    memory = filled_memory(max(1, extent) * dtype.itemsize, dtype, index)
    return memory.view(dtype).as_strided(sizes, strides)


def filled_memory(nbytes: int, dtype: torch.dtype, index: int) -> torch.Tensor:
    """Such memory, as bytes."""
    made = gpu.memory(max(16, -(-nbytes // 16) * 16), index)
    if not dtype.is_floating_point:
        return made.zero_()
    elements = made.view(dtype)
    elements.copy_(_ramp(elements.numel(), index))
    return made


def _ramp(count: int, index: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.float32, device=torch.device("cuda", index)).sin_()
