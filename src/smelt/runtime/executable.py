"""A plan ready to run: natively where that is possible, in Python where it is not, with the same answers.

Invariant: runs may happen in any number of threads at once; each has its own slots and arena. Whatever ends a run,
every handle it made is deleted and the grad mode is the caller's again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.seen import handles
from smelt.diag.records import record
from smelt.runtime.check import check_plan
from smelt.runtime.interpret import Interpreter
from smelt.runtime.machine.heap import keep_freed_memory
from smelt.runtime.machine.native import native_entry
from smelt.runtime.plan import Counts, Plan
from smelt.runtime.profile import ProfileRow
from smelt.runtime.runner import NativeRunner, check_inputs


@record
class Stats:
    """Runs so far, and the calls all of them made to the library, the dispatcher and Python."""

    runs: int
    calls: Counts


class Executable:
    """A plan with what it needs to run. `machine_code` is the executor's object code, None to run in Python; a plan
    with `profile` set needs the executor that measures.

    `call(*inputs)` gives the plan's outputs as a list. The inputs are CPU tensors with the shapes, strides and dtypes
    that were planned for, without conjugate or negative bit, and numbers of the planned types: whoever calls has
    checked. Raises SmeltError (S0401: a library call failed; S0403: a result has another layout than planned; S0404: a
    number beyond 64 bits), InternalError, Miss where an `Expect` of the plan does not hold, or what a `PyCall` or a
    signal's handler raises.

    `counts` are the calls of one run; `nbytes` is what the plan's arena takes, with what it holds for its sizes alone,
    where it is one of a plan for many. The plan, hence its packed weights, lives as long as this or its `call`.

    keeps_arena: between runs, too; else each run takes memory for it, some microseconds, of what others have freed.
    """

    call: Callable[..., list[torch.Tensor]]
    counts: Counts
    nbytes: int

    def __init__(self, plan: Plan, machine_code: bytes | None, *, keeps_arena: bool = True) -> None:
        check_plan(plan)
        keep_freed_memory()
        self.plan, self.nbytes = plan, plan.arena_nbytes
        bridge = handles.bridge()
        entry = native_entry(machine_code) if machine_code is not None and bridge is not None else None
        self._runner = None
        if bridge is not None and entry is not None:
            self._runner = NativeRunner.make(plan, bridge, entry, keeps_arena=keeps_arena)
        if self._runner is not None:
            self.counts = self._runner.encoded.counts
            self.call = self._runner.builtin() or self._runner.run
        else:
            interpreted = _Interpreted(plan)
            self._interpreted, self.counts, self.call = interpreted, interpreted.counts, interpreted.run

    @property
    def is_native(self) -> bool:
        """Whether runs go through native code."""
        return self._runner is not None

    @property
    def stats(self) -> Stats:
        """Successful runs so far and what they called."""
        runs = self._runner.runs if self._runner is not None else self._interpreted.runs
        return Stats(runs, self.counts * runs)

    def profile(self) -> tuple[ProfileRow, ...]:
        """What each instruction took over all calls so far; nothing unless the plan was made with `profile`."""
        profile = self._runner.encoded.profile if self._runner is not None else self._interpreted.profile
        return profile.rows() if profile is not None else ()

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The same as `call(*inputs)`."""
        return self.call(*inputs)


class _Interpreted:
    """The interpreter with a count of its runs."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._interpreter = Interpreter(plan)
        self._lock = threading.Lock()
        self.counts, self.profile = self._interpreter.counts, self._interpreter.profile
        self.runs = 0

    def run(self, *inputs: Any) -> list[torch.Tensor]:
        check_inputs(self._plan, inputs)
        outputs = self._interpreter.run(inputs)
        with self._lock:
            self.runs += 1
        return outputs
