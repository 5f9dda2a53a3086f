"""The GPUs of this process: one driver for all, what each can do, memory of torch's allocator for what runs there.

Invariant: the driver is loaded when a program first has tensors on a GPU, never by an import. A driver that is missing
or too old is looked for again at the next compilation. What kernels refused is told once: by the next call of any
program on that GPU, or as a warning where the process ends before one.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from collections.abc import Hashable
from dataclasses import field
from functools import partial
from typing import TypeAlias
from weakref import WeakValueDictionary, ref

import torch

from smelt._torch import gpu
from smelt.diag import LateError, SmeltError, SmeltWarning, Span
from smelt.diag.records import record
from smelt.runtime.cuda.conditions import why_none
from smelt.runtime.cuda.driver import CudaDriver, Driver
from smelt.runtime.cuda.executable import CudaExecutable, Modules
from smelt.runtime.cuda.plan import CudaPlan

Source: TypeAlias = "tuple[str, Span | None]"
"""A launch's name, and the line of an operator that may refuse its data."""


@record
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
    # Who may refuse data, and what those refused that are gone.
    refusing: list[tuple[ref[CudaExecutable], Source]] = field(default_factory=list)
    untold: list[Source] = field(default_factory=list)
    # Whether its graphs are known to have conditional nodes: a driver that refused them may have had no memory left.
    has_conditions: list[bool] = field(default_factory=list)

    def executable(self, name: str, plan: CudaPlan, where: Span | None = None) -> CudaExecutable:
        """What runs a plan: the one of another plan of that name, where kernels and their order are the same.

        where: the line of an operator that may refuse its data. Raises: SmeltError (S0405), torch.OutOfMemoryError.
        """
        key = name, plan.structure
        found = self.graphs.get(key)
        if found is None:
            refused = partial(self.untold.append, (name, where))
            found = CudaExecutable(plan, self.driver, self.allocate, self.index, self.modules, gpu.send, refused)
            self.graphs[key] = found
            if found.can_refuse:
                self.refusing[:] = [one for one in self.refusing if one[0]() is not None]
                self.refusing.append((ref(found), (name, where)))
        return found

    def why_no_conditions(self) -> str:
        """Why its graphs have no conditional nodes, so that the host drives branches and loops; empty: they have."""
        if self.has_conditions:
            return ""
        with gpu.on(self.index):
            why = why_none(self.driver)
        if not why:
            self.has_conditions.append(True)
        return why

    def tell(self) -> None:
        """Raise what kernels of earlier calls found (LateError, S0406): a call does not wait for its own."""
        for executable, source in tuple(self.refusing):
            one = executable()
            if one is not None and one.has_refused():
                self.untold.append(source)
        if self.untold:
            raise _late(*self.untold.pop(0))

    def allocate(self, nbytes: int) -> tuple[int, torch.Tensor]:
        """Memory of torch's allocator: its address, and the tensor that owns it. Raises: torch.OutOfMemoryError."""
        made = gpu.memory(nbytes, self.index)
        return made.data_ptr(), made


def _late(name: str, where: Span | None) -> LateError:
    return LateError(
        f"an earlier call of {name} had an index out of range, or divided integers by zero",
        where,
        why="a call returns before the GPU has done it, so that a later one reports what it finds",
        fix="check the indices; call torch.cuda.synchronize() behind each call to see which one it is",
        code="S0406",
    )


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


@atexit.register
def warn_at_exit() -> None:
    """Say what no later call has told."""
    for machine in tuple(_made.values()):
        try:
            for executable, _ in tuple(machine.refusing):
                one = executable()
                if one is not None:
                    one.wait()
            machine.tell()
        except LateError as error:
            warnings.warn(str(error), SmeltWarning, stacklevel=1)
        except SmeltError:  # the device is gone
            continue


def forget() -> None:
    """Look for the driver anew."""
    with _lock:
        _made.clear()
        _driver.clear()
