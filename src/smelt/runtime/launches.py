"""Where the buffers of a plan's launches lie, and which views need no handle because only kernels use them.

Invariant: an address is settled as early as it is certain. The arena and held memory that cannot move are known when a
frame is made; inputs, live state and results are asked for once a run, as soon as their tensor is there.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field

import torch

from smelt.diag.records import record
from smelt.runtime.encoding.addresses import HERE, Code, LoadKernel
from smelt.runtime.plan import Blit, Expect, Launch, Load, Plan, Release, View, uses_of

ADDRESSED = (Load, Blit, Expect)
"""Instructions that, like launches, need to know where tensors lie, and no handles."""


@record
class Spot:
    """The first element of a slot's tensor: `offset` bytes from that of slot `root`."""

    root: int
    offset: int = 0


@record
class Launches:
    """What is known of a plan's launches before it is encoded.

    code: the loaded kernel of each native launch, by instruction. spots: where slots lie, for all that launches use.
    elided: views by slot that are made for no one but native launches. own: slots whose memory is nobody else's
    (`Empty`'s and the arena's), so that two of them never overlap but as the arena's offsets say.
    """

    code: dict[int, Code] = field(default_factory=dict)
    spots: dict[int, Spot] = field(default_factory=dict)
    elided: dict[int, View] = field(default_factory=dict)

    @staticmethod
    def of(plan: Plan, is_possible: bool, load: LoadKernel = HERE.kernel) -> Launches:
        """Load the plan's kernels and settle where their buffers lie; nothing is native unless `is_possible`."""
        if not is_possible or not any(isinstance(i, (Launch, *ADDRESSED)) for i in plan.instructions):
            return Launches()
        code = {}
        # A packed weight's memory is the library's own.
        odd = {slot for slot, tensor in plan.held if tensor.layout != torch.strided}
        for index, instruction in enumerate(plan.instructions):
            if isinstance(instruction, Launch) and odd.isdisjoint(instruction.buffers):
                loaded = load(instruction.kernel)
                if loaded is not None:
                    code[index] = loaded
        elided = _elided(plan, {*code, *(i for i, one in enumerate(plan.instructions) if isinstance(one, ADDRESSED))})
        spots = {slot: Spot(slot) for slot in range(plan.nslots)}
        for slot, view in elided.items():
            source = spots[view.src]
            spots[slot] = Spot(source.root, source.offset + view.offset * view.itemsize)
        return Launches(code, spots, elided)


def _elided(plan: Plan, code: Set[int]) -> dict[int, View]:
    """Views, sources first, that nothing but instructions of `code`, releases and other such views uses.

    A tensor made for a view would keep its memory alive, so one whose source is released before its last use is made.
    """
    needed = set(plan.outputs)
    views = {i.dst: i for i in plan.instructions if isinstance(i, View) and i.itemsize}
    last: dict[int, int] = {}
    ends: dict[int, int] = {}
    for index, instruction in enumerate(plan.instructions):
        if isinstance(instruction, Release):
            ends.update((slot, index) for slot in instruction.slots)
            continue
        last.update((slot, index) for slot in uses_of(instruction))
        if not isinstance(instruction, View) and index not in code:
            needed.update(uses_of(instruction))
    for instruction in reversed(plan.instructions):
        if not isinstance(instruction, View):
            continue
        dst, src = instruction.dst, instruction.src
        if dst in last and last[dst] > ends.get(src, len(plan.instructions)):
            needed.add(dst)
        if dst in needed or dst not in views:
            needed.add(src)
        else:
            last[src] = max(last.get(src, 0), last.get(dst, 0))
    return {slot: view for slot, view in views.items() if slot not in needed}
