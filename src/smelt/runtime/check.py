"""The plan's rules, checked before anything runs: a plan that passes cannot leak, free twice or hand out shared
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from smelt._torch.library.schemas import raw_schema
from smelt.diag import InternalError
from smelt.runtime.control import blocks_of
from smelt.runtime.encoding.table import CALL_CLASSES, MAX_DOUBLES
from smelt.runtime.plan import (
    ARENA_ALIGNMENT,
    Blit,
    Branch,
    Bump,
    Dispatch,
    End,
    Exit,
    Expect,
    Instruction,
    Launch,
    Loop,
    Otherwise,
    Plan,
    PyCall,
    Release,
    View,
    outs_of,
    uses_of,
)

MAX_WORDS = CALL_CLASSES[-1][0]


def _bad(what: str) -> InternalError:
    return InternalError(what, why="the plan breaks its own rules", fix="report this with the plan that was printed")


def check_plan(plan: Plan) -> None:
    """Slots are defined once, before use, and released at most once; outputs are owned and alive; the arena fits; what
    launches write of the caller's is counted in its version, and no run ends as a miss behind that.

    Raises: InternalError that names the instruction.
    """
    lent = _lent_slots(plan)
    blocks_of(plan.instructions)
    known = _Known(plan, lent)
    callers = _Callers(plan)
    for index, instruction in enumerate(plan.instructions):
        where = f"instruction {index} ({type(instruction).__name__})"
        for slot in uses_of(instruction):
            if slot not in lent and slot not in known.alive and slot not in known.given:
                raise _bad(f"{where} reads slot {slot}, which holds nothing there")
        if isinstance(instruction, Dispatch) and len(instruction.outs) != len(raw_schema(instruction.op).returns):
            raise _bad(f"{where} has {len(instruction.outs)} outs, but {instruction.op} returns another number")
        if isinstance(instruction, Launch):
            _check_launch(where, instruction)
        callers.enter(where, instruction)
        known.enter(where, instruction)
    callers.finish()
    alive = known.alive | known.given
    roots = {i.dst: i.src for i in plan.instructions if isinstance(i, View)}
    for slot in plan.outputs:
        is_number = plan.kinds.get(slot, "object") != "object"
        if slot not in alive and not (is_number and slot in plan.inputs):
            raise _bad(f"output slot {slot} is not an owned result")
        if is_number:
            continue
        root = slot
        while root in roots:
            root = roots[root]
        if root in lent:
            raise _bad(f"output slot {slot} is a view of slot {root}, which is an input, retained or in the arena")
    if plan.origins and len(plan.origins) != len(plan.instructions):
        raise _bad(f"there are {len(plan.origins)} origins for {len(plan.instructions)} instructions")


@dataclass(slots=True)
class _Open:
    """A block that has begun: tensors and numbers that were there, and the numbers that are there where it is left."""

    alive: set[int]
    given: set[int]
    is_loop: bool
    left: set[int] | None = None


class _Known:
    """What slots hold at a point of the plan: owned tensors, and numbers and objects that were given."""

    def __init__(self, plan: Plan, lent: set[int]) -> None:
        self.plan = plan
        self.alive: set[int] = set()
        self.given: set[int] = set()
        self._ever = set(lent)
        self._inputs = set(plan.inputs)
        self._open: list[_Open] = []

    def enter(self, where: str, instruction: Instruction) -> None:
        """Note what an instruction does. Raises: InternalError."""
        match instruction:
            case Release(slots=slots):
                for slot in slots:
                    if slot not in self.alive:
                        raise _bad(f"{where} releases slot {slot}, which it does not own or releases twice")
                    self.alive.discard(slot)
            case Branch() | Loop():
                self._open.append(_Open(set(self.alive), set(self.given), isinstance(instruction, Loop)))
            case Otherwise() | Exit() | End():
                self._leave(where, instruction)
            case _:
                self._fill(where, instruction)

    def _leave(self, where: str, instruction: Otherwise | Exit | End) -> None:
        block = self._open[-1]
        if block.alive != self.alive:
            raise _bad(f"{where} ends a block that leaks tensors of its own, or consumes those of others")
        left = block.left
        match instruction:
            case Exit():
                block.left = set(self.given) if left is None else left & self.given
            case Otherwise():
                block.left, self.given = self.given, set(block.given)
            case End():
                self._open.pop()
                if block.is_loop:
                    self.given = left or block.given
                else:
                    self.given = block.given if left is None else left & self.given

    def _fill(self, where: str, instruction: Instruction) -> None:
        for slot in outs_of(instruction):
            if slot in self.plan.kinds and slot not in self._inputs:
                self.given.add(slot)
            elif not 0 <= slot < self.plan.nslots or slot in self._ever:
                raise _bad(f"{where} writes slot {slot}, which is out of range or written already")
            else:
                self.alive.add(slot)
                self._ever.add(slot)


class _Callers:
    """Which of the caller's tensors launches have written to, and whether that was counted."""

    def __init__(self, plan: Plan) -> None:
        self._roots = {i.dst: i.src for i in plan.instructions if isinstance(i, View)}
        held = {slot for slot, _ in plan.held}
        self._callers = {*plan.inputs, *held} - plan.fixed
        self._kept = plan.fixed & held
        self._written: set[int] = set()
        self._counted: set[int] = set()

    def enter(self, where: str, instruction: Instruction) -> None:
        """Note what an instruction does. Raises: InternalError."""
        match instruction:
            case Launch(buffers=touched, writes=writes) | PyCall(args=touched, writes=writes):
                for root in (self._root(touched[i]) for i in writes):
                    if root in self._kept:
                        raise _bad(f"{where} writes slot {root}, a constant")
                    if root in self._callers:
                        self._written.add(root)
            case Blit(dst=dst) if (root := self._root(dst)) in self._callers:
                self._written.add(root)
            case Bump(slot=slot):
                if slot not in self._written:
                    raise _bad(f"{where} counts a write to slot {slot}, which no launch before it made")
                self._counted.add(slot)
            case Expect() if self._written:
                raise _bad(f"{where} may end the run behind a launch that writes a tensor of the caller")
            case _:
                pass

    def finish(self) -> None:
        """Raises: InternalError for a write that is not counted."""
        for slot in self._written - self._counted:
            raise _bad(f"slot {slot} of the caller is written by a launch, and no Bump counts that")

    def _root(self, slot: int) -> int:
        while slot in self._roots:
            slot = self._roots[slot]
        return slot


def _check_launch(where: str, launch: Launch) -> None:
    if not 0 <= launch.items < 2**63 or launch.scratch_nbytes < 0 or not 0 <= launch.item_ns < inf:
        raise _bad(f"{where} has {launch.items} items of {launch.item_ns} ns, {launch.scratch_nbytes} bytes of scratch")
    if any(not 0 <= i < len(launch.buffers) for i in launch.writes):
        raise _bad(f"{where} writes a buffer that it does not have")
    if any(not -(2**63) <= word < 2**63 for word in launch.words):
        raise _bad(f"{where} has a word that is no int64")


def _lent_slots(plan: Plan) -> set[int]:
    slots = [*plan.inputs, *(slot for slot, _ in plan.held), *(t.slot for t in plan.arena)]
    lent = set(slots)
    if len(lent) != len(slots) or any(not 0 <= slot < plan.nslots for slot in slots):
        raise _bad("an input, retained or arena slot is used twice or out of range")
    if any(plan.kinds.get(slot) == "object" for slot in plan.inputs):
        raise _bad("an input is neither a tensor nor a number")
    for tensor in plan.arena:
        if tensor.offset % ARENA_ALIGNMENT or tensor.offset < 0 or tensor.offset + tensor.nbytes > plan.arena_nbytes:
            raise _bad(f"the arena tensor of slot {tensor.slot} is not aligned or does not fit")
    return lent


def fits_call(nwords: int, ndoubles: int) -> bool:
    """Whether the executor can make a call with this many integer and double arguments."""
    return nwords <= MAX_WORDS and ndoubles <= MAX_DOUBLES
