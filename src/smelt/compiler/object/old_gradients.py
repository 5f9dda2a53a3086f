"""Gradients of the call before, which a call replaces: let go of before the new ones are made.

    empty %g; launch(..., %g)       ==>       aside: `w.grad = None`; empty %g; launch(..., %g)

In eager `zero_grad()` frees them ahead of `backward()`. A plan puts what it leaves when all is computed, so that two
sets would be there at once. From there on the memory of the new ones is there for others, too (`hosted`).

Invariant: nothing behind that place can send the call another way, so whoever sees a failed call's `.grad` sees what
eager leaves of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from smelt._torch.seen.leaves import GRAD_SLOT
from smelt.capture import Captured
from smelt.capture.structure.tree import TensorLeaf
from smelt.codegen.lower.memory.hosted import hosted
from smelt.codegen.lower.result import Fresh, Lowered
from smelt.runtime.control import blocks_of
from smelt.runtime.plan import Aside, Empty, Expect, Instruction, outs_of

LEAST_NBYTES = 1 << 20
"""New gradients of less are not worth the call of Python."""


def letting_go(lowered: Lowered, captured: Captured) -> Lowered:
    """The plan with that call of Python, where gradients of some size are put that no call reads before."""
    puts = list(_puts(captured))
    slots = {
        lowered.plan.outputs[recipe.index] for _, number in puts if isinstance(recipe := lowered.outputs[number], Fresh)
    }
    plan = lowered.plan
    at = _first(plan.instructions, slots)
    if at is None or _nbytes(plan.instructions, slots) < LEAST_NBYTES:
        return lowered
    if captured.begins_bare:
        at = min(at, 1 + max((i for i, one in enumerate(plan.instructions) if isinstance(one, Expect)), default=-1))
    origins = plan.origins and (*plan.origins[:at], "", *plan.origins[at:])
    aside = Aside(_forgetting([tensor for tensor, _ in puts]))
    instructions = (*plan.instructions[:at], aside, *plan.instructions[at:])
    plan = hosted(replace(plan, instructions=instructions, origins=origins), at + 1)
    return replace(lowered, plan=plan)


def _puts(captured: Captured) -> Iterator[tuple[torch.Tensor, int]]:
    """The tensors from outside whose `.grad` each call puts, with the number of the output that it becomes."""
    puts = None if captured.signature is None else captured.signature.puts
    if puts is None:
        return
    for put in puts.puts:
        if put.kind == "slot" and put.keys == (GRAD_SLOT,) and isinstance(put.items[0], TensorLeaf):
            (_, tensor), *_ = puts.ways[put.place]
            yield tensor, put.items[0].index


def _first(instructions: Sequence[Instruction], slots: set[int]) -> int | None:
    """Where the first of these slots is filled; None in a branch or a loop, and where a miss may follow."""
    at = next((i for i, instruction in enumerate(instructions) if not slots.isdisjoint(outs_of(instruction))), None)
    if at is None or any(isinstance(instruction, Expect) for instruction in instructions[at:]):
        return None
    return None if any(block.first < at <= block.last for block in blocks_of(instructions).blocks) else at


def _nbytes(instructions: Sequence[Instruction], slots: set[int]) -> int:
    made = (i for i in instructions if isinstance(i, Empty) and i.dst in slots)
    return sum(math.prod(i.sizes) * i.dtype.itemsize for i in made)


def _forgetting(tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    forget = GRAD_SLOT.__set__

    def old_gradients() -> None:
        for tensor in tensors:
            forget(tensor, None)

    return old_gradients
