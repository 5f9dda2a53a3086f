"""The ladder's last rung: a plan run instruction by instruction in Python, for where no native code can run.

Invariant: same answers and same errors as the native executor, on any platform that torch runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter_ns

import torch

from smelt.runtime.failures import escaped, step_failed
from smelt.runtime.plan import Counts, Plan, Release
from smelt.runtime.profile import Profile
from smelt.runtime.steps import make_arena, python_step, results_of


class Interpreter:
    """Runs one plan; every call has its own slots and arena, so any number of threads may run it at once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps = [None if isinstance(i, Release) else python_step(i) for i in plan.instructions]
        self.profile = Profile(plan) if plan.profile else None
        self.counts = Counts(python=sum(step is not None for step in self._steps))

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The plan's outputs for these inputs.

        Raises: SmeltError (S0401, S0403), or whatever a `PyCall` of the plan raises.
        """
        plan = self._plan
        memory, arena = make_arena(plan)
        slots: dict[int, torch.Tensor] = dict(plan.held)
        slots.update(zip(plan.inputs, inputs, strict=True))
        slots.update((planned.slot, tensor) for planned, tensor in zip(plan.arena, arena, strict=True))
        off: AbstractContextManager[object] = nullcontext() if plan.keep_grad_mode else torch.no_grad()
        with off:
            for index, (instruction, step) in enumerate(zip(plan.instructions, self._steps, strict=True)):
                if isinstance(instruction, Release):
                    for slot in instruction.slots:
                        del slots[slot]
                elif step is not None:
                    begin = perf_counter_ns()
                    try:
                        found = results_of(step, step.fn(*(slots[s] for s in step.args)))
                    except BaseException as error:
                        failure = step_failed(plan, index, error)
                        if failure is error:
                            raise
                        raise failure from error
                    if self.profile is not None:
                        self.profile.add(index, perf_counter_ns() - begin)
                    slots.update(zip(step.outs, found, strict=True))
        outputs = [slots[slot] for slot in plan.outputs]
        if memory is not None:
            check_escapes(plan, outputs, memory)
        return outputs


def check_escapes(plan: Plan, outputs: Sequence[torch.Tensor], memory: torch.Tensor) -> None:
    """No output may lie in the arena, which the next run overwrites.

    Raises: InternalError.
    """
    low = memory.data_ptr()
    for tensor in outputs:
        if tensor.layout == torch.strided and low <= tensor.data_ptr() < low + memory.numel():
            raise escaped(plan)
