"""Tensors of the arena that lie in the memory of results which are written only when those are of no use any more, or
in memory of their own, which the results made behind them take.

    arena: %a, %b     launch(%a); launch(%b); ...; empty %g; launch(..., %g)
==>
    arena: %b         empty %g; %a = view %g; launch(%a); launch(%b); ...; launch(..., %g)

A training step keeps most between forward and backward, and then makes gradients of as much memory. Eager frees the one
as it allocates the other; an arena beside the gradients would be both at once.

Invariant: a result's memory holds something else only before the first instruction that touches the result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from smelt.codegen.lower.memory.arena import Lifetime, aligned, plan_offsets
from smelt.runtime.control import blocks_of
from smelt.runtime.plan import ArenaTensor, Empty, Instruction, Launch, Plan, Release, View, outs_of, uses_of

LEAST_NBYTES = 1 << 20
"""Smaller results are no room, and less than this is not worth the work."""


@dataclass(slots=True)
class _Room:
    """A result's memory: free up to instruction `until`, and what lies in it by then."""

    made: Empty
    at: int
    nbytes: int
    until: int
    guests: list[tuple[ArenaTensor, int, Lifetime]] = field(default_factory=list)

    def place(self, tensor: ArenaTensor, life: Lifetime) -> bool:
        """Find room for a tensor of the arena; whether there is any."""
        if tensor.dtype != self.made.dtype or life.last >= self.until:
            return False
        beside = [(at, at + aligned(one.nbytes)) for one, at, other in self.guests if _meet(life, other)]
        start = 0
        for begin, end in sorted(beside):
            if begin - start >= aligned(tensor.nbytes):
                break
            start = max(start, end)
        if start + tensor.nbytes > self.nbytes:
            return False
        self.guests.append((tensor, start, life))
        return True


def hosted(plan: Plan, at: int) -> Plan:
    """The plan with as little arena as that leads to. at: the first instruction before which results may be made."""
    if not isinstance(plan.arena_nbytes, int) or plan.arena_nbytes < LEAST_NBYTES:
        return plan
    lives = _lives(plan.instructions)
    rooms = _rooms(plan, at, lives)
    guests = _guests(plan, at, lives)
    left = {tensor.slot: tensor for tensor in plan.arena if tensor.slot in lives}
    while rooms and _moved(left, guests, lives, rooms):
        pass
    hosts = sum(one.nbytes for room in rooms for one, *_ in room.guests)
    apart = _apart(plan, at, lives, left, _nbytes_made(plan, at) - hosts)
    for tensor in apart:
        del left[tensor.slot]
    offsets, total = plan_offsets([Lifetime(tensor.nbytes, *lives[slot]) for slot, tensor in left.items()])
    if total + LEAST_NBYTES > plan.arena_nbytes:
        return plan
    arena = tuple(replace(tensor, offset=at) for tensor, at in zip(left.values(), offsets, strict=True))
    edits = _Edits(plan)
    for room in rooms:
        if room.guests:
            edits.host(room, at)
    for tensor in apart:
        edits.allocate(tensor, *lives[tensor.slot])
    return replace(edits.plan(), arena=arena, arena_nbytes=total)


def _nbytes_made(plan: Plan, at: int) -> int:
    """Bytes of the results that are made behind an instruction."""
    outputs = set(plan.outputs)
    made = (i for i in plan.instructions[at:] if isinstance(i, Empty) and i.dst in outputs)
    return sum(math.prod(i.sizes) * i.dtype.itemsize for i in made if all(type(n) is int for n in i.sizes))


def _most(tensors: Iterable[ArenaTensor], lives: dict[int, tuple[int, int]]) -> int:
    """The instruction at which most of these is alive."""
    change: dict[int, int] = {}
    for tensor in tensors:
        first, last = lives[tensor.slot]
        change[first] = change.get(first, 0) + tensor.nbytes
        change[last + 1] = change.get(last + 1, 0) - tensor.nbytes
    alive = most = peak = 0
    for place in sorted(change):
        alive += change[place]
        if alive > most:
            most, peak = alive, place
    return peak


def _moved(
    left: dict[int, ArenaTensor], guests: set[int], lives: dict[int, tuple[int, int]], rooms: Sequence[_Room]
) -> bool:
    """Find rooms for what is alive where most is, the largest first; whether any was found."""
    peak, before = _most(left.values(), lives), len(left)
    there = [t for slot, t in left.items() if slot in guests and lives[slot][0] <= peak <= lives[slot][1]]
    for tensor in sorted(there, key=lambda t: -t.nbytes):
        life = Lifetime(tensor.nbytes, *lives[tensor.slot])
        if any(room.place(tensor, life) for room in rooms):
            del left[tensor.slot]
    return len(left) < before


def _apart(
    plan: Plan, at: int, lives: dict[int, tuple[int, int]], left: dict[int, ArenaTensor], nbytes: int
) -> list[ArenaTensor]:
    """Tensors of so many bytes, alive where most is, for memory of their own: what ends first, for a result may take
    its memory then."""
    inside = _in_blocks(plan.instructions)
    peak, found = _most(left.values(), lives), list[ArenaTensor]()
    for tensor in sorted(left.values(), key=lambda t: lives[t.slot][1]):
        first, last = lives[tensor.slot]
        if nbytes <= 0 or tensor.nbytes < LEAST_NBYTES or not at <= first <= peak <= last:
            continue
        if first not in inside and last not in inside:
            found.append(tensor)
            nbytes -= tensor.nbytes
    return found


def _lives(instructions: Sequence[Instruction]) -> dict[int, tuple[int, int]]:
    """The first and the last instruction that touches the memory of each slot that is no view; those in a block touch
    it all the time that the block runs."""
    roots = {i.dst: i.src for i in instructions if isinstance(i, View)}
    spans = [(index, index) for index in range(len(instructions))]
    for block in reversed(blocks_of(instructions).blocks):
        spans[block.first : block.last + 1] = [(block.first, block.last)] * (block.last + 1 - block.first)
    lives: dict[int, tuple[int, int]] = {}
    for (first, last), instruction in zip(spans, instructions, strict=True):
        if isinstance(instruction, Release | Empty):
            continue
        for slot in (*uses_of(instruction), *outs_of(instruction)):
            while slot in roots:
                slot = roots[slot]
            lives[slot] = lives.get(slot, (first, last))[0], last
    return lives


def _rooms(plan: Plan, at: int, lives: dict[int, tuple[int, int]]) -> list[_Room]:
    """The results whose memory has room, the smallest first."""
    inside = _in_blocks(plan.instructions)
    outputs, found = set(plan.outputs), list[_Room]()
    for index, made in enumerate(plan.instructions):
        if index < at or index in inside or not isinstance(made, Empty) or made.dst not in outputs:
            continue
        if any(type(n) is not int for n in (*made.sizes, *made.strides)) or made.dst not in lives:
            continue
        count = math.prod(made.sizes)
        is_dense = count == 1 + sum((size - 1) * stride for size, stride in zip(made.sizes, made.strides, strict=True))
        if is_dense and count * made.dtype.itemsize >= LEAST_NBYTES:
            found.append(_Room(made, index, count * made.dtype.itemsize, lives[made.dst][0]))
    return sorted(found, key=lambda room: room.nbytes)


def _guests(plan: Plan, at: int, lives: dict[int, tuple[int, int]]) -> set[int]:
    """Slots of the arena that kernels alone use, directly or by views, from an instruction on."""
    elsewhere = {s for i in plan.instructions if not isinstance(i, Launch | View | Release) for s in uses_of(i)}
    for view in reversed([i for i in plan.instructions if isinstance(i, View)]):
        if view.dst in elsewhere or not view.itemsize:
            elsewhere.add(view.src)
    return {t.slot for t in plan.arena if t.slot not in elsewhere and lives.get(t.slot, (-1, -1))[0] >= at}


def _in_blocks(instructions: Sequence[Instruction]) -> set[int]:
    return {i for block in blocks_of(instructions).blocks for i in range(block.first, block.last + 1)}


class _Edits:
    """Instructions of a plan to leave out, and others to put before and behind those that stay."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._out: set[int] = set()
        self._before: dict[int, list[Instruction]] = {}
        self._behind: dict[int, list[Instruction]] = {}

    def host(self, room: _Room, at: int) -> None:
        """Make a result at once, and what lies in it by views of it."""
        self._out.add(room.at)
        views = [
            View(one.slot, room.made.dst, one.sizes, one.strides, start // one.dtype.itemsize, one.dtype.itemsize)
            for one, start, _ in room.guests
        ]
        self._before.setdefault(at, []).extend((room.made, *views))

    def allocate(self, tensor: ArenaTensor, first: int, last: int) -> None:
        """Make a tensor before the first instruction that touches it, and free it behind the last."""
        self._before.setdefault(first, []).append(Empty(tensor.slot, tensor.sizes, tensor.strides, tensor.dtype))
        self._behind.setdefault(last, []).append(Release((tensor.slot,)))

    def plan(self) -> Plan:
        """The plan with all that."""
        plan, made, origins = self._plan, list[Instruction](), list[str]()
        for index, instruction in enumerate(plan.instructions):
            here = [*self._before.get(index, ()), *(() if index in self._out else (instruction,))]
            here += self._behind.get(index, ())
            made += here
            origins += [plan.origins[index] if plan.origins else ""] * len(here)
        return replace(plan, instructions=tuple(made), origins=tuple(origins) if plan.origins else ())


def _meet(one: Lifetime, other: Lifetime) -> bool:
    return one.first <= other.last and other.first <= one.last
