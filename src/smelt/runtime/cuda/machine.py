"""The GPUs of this process: one driver for all, what each can do, memory of torch's allocator for what runs there.

Invariant: the driver is loaded when a program first has tensors on a GPU, never by an import. A driver that is missing
or too old is looked for again at the next compilation.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import torch

from smelt._torch import gpu
from smelt.runtime.cuda.driver import CudaDriver, Driver
from smelt.runtime.cuda.executable import CudaExecutable, Modules
from smelt.runtime.cuda.plan import CudaPlan


@dataclass(frozen=True, slots=True)
class Machine:
    """One GPU. arch: its compute capability, 90 for 9.0. processors: its multiprocessors, and threads of each. modules,
    graphs: what is loaded, and what runs as one graph of the driver, as long as some program needs it.
    """

    index: int
    driver: Driver
    arch: int
    processors: tuple[int, int]

    modules: Modules
    graphs: WeakValueDictionary[Hashable, CudaExecutable] = field(default_factory=WeakValueDictionary)

    def executable(self, name: str, plan: CudaPlan) -> CudaExecutable:
        """What runs a plan: the one of another plan of that name, where kernels and their order are the same.

        Raises: SmeltError (S0405), torch.OutOfMemoryError.
        """
        key = name, plan.structure
        found = self.graphs.get(key)
        if found is None:
            found = CudaExecutable(plan, self.driver, self.allocate, self.index, self.modules, gpu.send)
            self.graphs[key] = found
        return found

    def allocate(self, nbytes: int) -> tuple[int, torch.Tensor]:
        """Memory of torch's allocator: its address, and the tensor that owns it. Raises: torch.OutOfMemoryError."""
        made = gpu.memory(nbytes, self.index)
        return made.data_ptr(), made


_lock = threading.Lock()
_made: dict[int, Machine] = {}
_driver: list[Driver] = []


def machine(index: int) -> Machine:
    """The GPU of a number. Raises: SmeltError (S0405) if it has no driver that fits."""
    with _lock:
        if index not in _made:
            if not _driver:
                _driver.append(CudaDriver())
            with gpu.on(index):
                arch = _driver[0].start(index)
                _made[index] = Machine(index, _driver[0], arch, _driver[0].processors(index), Modules(_driver[0]))
        return _made[index]


def forget() -> None:
    """Look for the driver anew."""
    with _lock:
        _made.clear()
        _driver.clear()
