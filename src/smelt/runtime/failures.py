"""What a failing run tells: which instruction, where it comes from, what the library said."""

from __future__ import annotations

import re
from typing import Any

from smelt.diag import InternalError, SmeltError
from smelt.runtime.plan import Aside, Call, CheckLayout, Dispatch, Expect, Instruction, Launch, Plan, PyCall, Scalar
from smelt.runtime.steps import LayoutMismatch

_OUT_OF_RANGE = re.compile(r"index -?\d+ is out of bounds for dimension -?\d+ with size \d+$")


def describe(instruction: Instruction) -> str:
    """A short name of an instruction for messages."""
    match instruction:
        case Call(symbol=symbol):
            return symbol
        case Dispatch(op=op):
            return str(op)
        case Launch(kernel=kernel, label=label):
            return label or kernel.symbol
        case Scalar(operation=operation):
            return operation.name.lower()
        case PyCall(fn=fn) | Aside(fn=fn):
            return f"Python function {getattr(fn, '__qualname__', fn)}"
        case _:
            return type(instruction).__name__


def _origin(plan: Plan, index: int) -> tuple[str, ...]:
    notes = (f"instruction {index} of {len(plan.instructions)}",)
    return (*notes, plan.origins[index]) if plan.origins and plan.origins[index] else notes


def step_failed(plan: Plan, index: int, error: BaseException) -> BaseException:
    """The error to raise for an exception in a Python step: a `PyCall`'s own, else one that names the instruction."""
    instruction = plan.instructions[index]
    if isinstance(error, LayoutMismatch):
        return layout_differs(plan, index, str(error))
    # A kernel that refuses its data, or cannot run, leaves it to eager, whose error is the answer.
    # The same holds for numbers, and a miss is no failure.
    is_its_own = isinstance(instruction, PyCall | Aside | Launch | Scalar | Expect)
    if is_its_own or isinstance(error, SmeltError) or not isinstance(error, Exception):
        return error
    failure = call_failed(plan, index, str(error))
    failure.__cause__ = error
    return failure


def call_failed(plan: Plan, index: int, message: str) -> Exception:
    """A library call that reported failure."""
    if _OUT_OF_RANGE.match(message):
        # Data's fault, not the library's: the program's own error, which it may handle.
        return IndexError(message)
    return SmeltError(
        f"{describe(plan.instructions[index])} failed",
        why=message,
        fix="run the model in eager with the same inputs: the same operator fails there",
        code="S0401",
        notes=_origin(plan, index),
    )


def layout_differs(plan: Plan, index: int, found: str = "") -> SmeltError:
    """A library result whose sizes, strides or dtype are not what was planned for."""
    planned = plan.instructions[index]
    expected: Any = planned if isinstance(planned, CheckLayout) else None
    wanted = f"{expected.dtype}{expected.sizes} with strides {expected.strides}" if expected else "another layout"
    return SmeltError(
        f"the tensor in slot {expected.slot if expected else '?'} has another layout than planned",
        why=f"planned was {wanted}" + (f"; {found}" if found else ""),
        fix="compile again on this machine; eager gives the result meanwhile",
        code="S0403",
        notes=_origin(plan, index),
    )


def escaped(plan: Plan) -> InternalError:
    """An output that shares the arena's memory."""
    return InternalError(
        "an output is in the arena",
        why="an operator returned its argument, or a view of it, where the plan expected a new tensor",
        fix="copy the value before it leaves the plan",
        notes=(f"outputs are slots {plan.outputs}",),
    )
