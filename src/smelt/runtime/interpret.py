"""The ladder's last rung: a plan run instruction by instruction in Python, for where no native code can run.

Invariant: same answers and same errors as the native executor, on any platform that torch runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt.runtime.control import blocks_of
from smelt.runtime.failures import escaped, step_failed
from smelt.runtime.plan import CONTROL, Branch, Counts, End, Exit, Launch, Otherwise, Plan, PyCall, Release
from smelt.runtime.profile import Profile
from smelt.runtime.steps import as_tensor, make_arena, python_step, results_of


class Interpreter:
    """Runs one plan; every call has its own slots and arena, so any number of threads may run it at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = [None if isinstance(i, (Release, *CONTROL)) else python_step(i) for i in plan.instructions]
        self._after = blocks_of(plan.instructions).after
        self.profile = Profile(plan) if plan.profile else None
        self.counts = Counts(python=sum(step is not None for step in self._steps))

    def run(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The plan's outputs for these inputs.

        Raises: SmeltError (S0401, S0403, S0404), Miss, or whatever a `PyCall` of the plan raises.
        """
        plan = self._plan
        memory, arena = make_arena(plan)
        slots: dict[int, Any] = dict(plan.held)
        slots.update(zip(plan.inputs, inputs, strict=True))
        slots.update((planned.slot, tensor) for planned, tensor in zip(plan.arena, arena, strict=True))
        off: AbstractContextManager[object] = nullcontext() if plan.keep_grad_mode else torch.no_grad()
        with off, no_autocast():
            index, count = 0, len(self._steps)
            while index < count:
                step = self._steps[index]
                index = self._jump(index, slots) if step is None else self._run_step(index, step, slots)
        outputs = [slots[slot] for slot in plan.outputs]
        if memory is not None:
            check_escapes(plan, outputs, memory)
        return outputs

    def _run_step(self, index: int, step: PyCall, slots: dict[int, Any]) -> int:
        plan = self._plan
        begin = perf_counter_ns()
        try:
            values = [slots[slot] for slot in step.args]
            if plan.kinds and isinstance(plan.instructions[index], Launch):
                values = [as_tensor(v, plan.kinds.get(s)) for v, s in zip(values, step.args, strict=True)]
            found = results_of(step, step.fn(*values), plan.kinds)
        except BaseException as error:
            failure = step_failed(plan, index, error)
            if failure is error:
                raise
            raise failure from error
        if self.profile is not None:
            self.profile.add(index, perf_counter_ns() - begin)
        slots.update(zip(step.outs, found, strict=True))
        return index + 1

    def _jump(self, index: int, slots: dict[int, Any]) -> int:
        """What follows a release or an instruction of a block."""
        match self._plan.instructions[index]:
            case Release(slots=released):
                for slot in released:
                    del slots[slot]
            case Branch(test=test) | Exit(test=test):
                if not slots[test]:
                    return self._after[index]
            case Otherwise() | End():
                return self._after.get(index, index + 1)
            case _:
                pass
        return index + 1


def check_escapes(plan: Plan, outputs: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
    """No output may lie in the arena, which the next run overwrites.

    Raises: InternalError.
    """
    low = memory.data_ptr()
    for tensor in outputs:
        if (
            isinstance(tensor, torch.Tensor)
            and tensor.layout == torch.strided
            and low <= tensor.data_ptr() < low + memory.numel()
        ):
            raise escaped(plan)
