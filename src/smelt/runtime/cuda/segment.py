"""A run of kernels between a program's tensors: what a plan calls once, and what the GPU runs as one graph.

    %3, %4 = segment(%x, %w, %n)    ==>    new memory for %3 and %4, the number %n sent, one launch on the caller's
                                           stream

Invariant: results are tensors of torch's allocator, made on the stream at hand, as an operator's would be; arguments
are read where they are, and what the program writes into them is computed there. Where a graph of the caller's is being
captured, the operators themselves run, one by one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import torch

from smelt._torch import gpu
from smelt.diag import Span
from smelt.diag.records import record
from smelt.runtime.cuda.executable import CudaExecutable
from smelt.runtime.cuda.machine import Machine
from smelt.runtime.cuda.plan import CudaPlan
from smelt.runtime.cuda.timing import launch_times_us

_PROMISED = 16
"""What addresses are a multiple of, where kernels load 16 bytes at once."""


@record
class Made:
    """A result: a new tensor's sizes, strides and dtype."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@record
class Forms:
    """The plans of one segment. aligned: addresses are multiples of 16; any: they may be any, made when one is not.

    eager: the same computation by torch's operators, for the arguments in order. results: new tensors, by the plan's
    numbers. homes: for each of what eager computes, the argument that it is written into; None for a result. numbers:
    how those among the arguments, which stand behind the tensors, lie in memory. where: the line of an operator that
    may refuse its data. tells: it is the first of a call, which raises what earlier calls have left to tell.
    """

    aligned: CudaPlan
    any: Callable[[], CudaPlan]
    eager: Callable[[Sequence[Any]], Sequence[Any]]
    results: tuple[Made, ...]
    homes: tuple[int | None, ...]
    numbers: Struct
    where: Span | None = None
    tells: bool = True


class Segment:
    """Kernels that run as one launch."""

    def __init__(self, name: str, machine: Machine, forms: Forms) -> None:
        self.__qualname__ = self.name = name
        self.forms, self.machine = forms, machine
        self._lock = threading.Lock()
        self._made: dict[bool, tuple[CudaPlan, CudaExecutable]] = {}
        self._times: list[float] | None = None

    def __call__(self, *args: Any) -> Sequence[Any]:
        """The results, for tensors and numbers behind them.

        Raises: SmeltError (S0405), LateError (S0406), torch.OutOfMemoryError.
        """
        index = self.machine.index
        with gpu.on(index):
            if self.forms.tells:
                self.machine.tell()
            if gpu.is_capturing():
                return self._eagerly(args)
            addresses = [t.data_ptr() for t in args if isinstance(t, torch.Tensor)]
            results = [gpu.empty(one.sizes, one.strides, one.dtype, index) for one in self.forms.results]
            made = [result.data_ptr() for result in results]
            is_aligned = not any(address % _PROMISED for address in (*addresses, *made))
            plan, executable = self._ready(is_aligned)
            # One arena, and one set of arguments: calls of several threads come one after another.
            with executable.lock:
                executable.adopt(plan)
                self._launch(executable, addresses, made, self.forms.numbers.pack(*args[len(addresses) :]))
        return results

    def _eagerly(self, args: Sequence[Any]) -> Sequence[Any]:
        """The results by torch's operators, which make in memory of their own what is written into arguments."""
        found = []
        for made, home in zip(self.forms.eager(args), self.forms.homes, strict=True):
            if home is None:
                found.append(made)
            else:
                args[home].detach().copy_(made)
        return found

    def _ready(self, is_aligned: bool) -> tuple[CudaPlan, CudaExecutable]:
        with self._lock:
            if is_aligned not in self._made:
                plan = self.forms.aligned if is_aligned else self.forms.any()
                self._made[is_aligned] = plan, self.machine.executable(self.name, plan, self.forms.where)
            return self._made[is_aligned]

    def _launch(
        self, executable: CudaExecutable, addresses: Sequence[int], made: Sequence[int], numbers: bytes
    ) -> None:
        index, draws = self.machine.index, self.forms.aligned.draws
        stream = gpu.stream_of(index)
        if executable.home not in (None, stream):
            # Its memory is not free again before this stream is past the launch.
            for owner in executable.owners:
                gpu.used_here(owner, index)
        if draws is None:
            executable.run(addresses, (), made, stream, numbers=numbers)
            return
        seed, offset = gpu.generator_state(index)
        executable.run(addresses, (), made, stream, (seed, offset), numbers)
        gpu.move_generator(index, offset + draws.moved)

    def times_us(self) -> list[float]:
        """What each kernel takes, in microseconds, by events; measured once. Raises: SmeltError (S0405)."""
        with self._lock, gpu.on(self.machine.index):
            if self._times is None:
                self._times = launch_times_us(self.machine, self.forms.aligned)
            return self._times

    @property
    def kernels(self) -> int:
        """How many kernels a launch runs."""
        return len(self.forms.aligned.launches)

    @property
    def nbytes(self) -> int:
        """What it keeps of the GPU's memory between calls."""
        return self.forms.aligned.arena_nbytes * len(self._made)
