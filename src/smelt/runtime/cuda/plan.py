"""What a GPU runs at a call, as frozen data: kernels, memory, launches and conditions with what each waits for.

    if %c { A } else { B }; C      ==>      order: condition 0, launch C      condition 0: if byte c: (A), (B)

Steps are numbers: n is launch n, ~n is condition n; a condition holds steps of its own.
Invariant: a step waits for every earlier one of its level that writes what it touches, or touches what it writes, parts
of the arena that overlap included; steps that share nothing may run side by side.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Literal, Protocol, TypeAlias

from smelt.diag.records import record
from smelt.runtime.cuda.code import CudaCode

Kind: TypeAlias = Literal["argument", "state", "result", "arena", "generator", "number"]


@record
class CudaMemory:
    """Memory that kernels touch: of an argument, of a parameter or constant, of a result, a range of the arena, the
    generator's seed and offset, i64 each, or a number of the call (f64, i64 or a bool).

    number: which argument, state, result or number; of the arena it is the offset in bytes. nbytes: how much of it is
    touched.
    """

    kind: Kind
    number: int
    nbytes: int

    def overlaps(self, other: CudaMemory) -> bool:
        """Whether two have bytes in common. Arguments may share memory: those that are written are results."""
        if self.kind != other.kind:
            return False
        if self.kind == "arena":
            return self.number < other.number + other.nbytes and other.number < self.number + self.nbytes
        return self.number == other.number


@record
class CudaLaunch:
    """One kernel's launch.

    buffers: numbers of memories, in the kernel's order. words: the numbers behind their addresses. programs: blocks of
    threads. writes: positions in `buffers` of what is written. after: the steps of its level that come before it.
    """

    kernel: str
    buffers: tuple[int, ...]
    words: tuple[int, ...]
    programs: int
    writes: tuple[int, ...]
    after: tuple[int, ...] = ()


@record
class CudaCondition:
    """Steps that run as a byte of the GPU's memory says, which nobody but the GPU reads.

    kind: of an "if" the first arm where the byte is not 0, the second where it is; of a "while" the only arm as long as
    it is not 0. test: the byte's memory. arms: the steps of each. after: the steps of its level that come before it.
    last: of a loop, those of its arm behind which the byte is read again.
    """

    kind: Literal["if", "while"]
    test: int
    arms: tuple[tuple[int, ...], ...]
    after: tuple[int, ...] = ()
    last: tuple[int, ...] = ()


@record
class CudaDraws:
    """What a call's random numbers take: how far its draws move the generator's offset. processors, threads: the number
    of the device's multiprocessors, and of threads that each runs, on which torch's numbers depend.
    """

    moved: int
    processors: int
    threads: int


@record
class CudaPlan:
    """A program's launches in order.

    conditions: in which some of them stand. steps: those of the program's own level; None: all launches.
    """

    kernels: tuple[CudaCode, ...]
    memories: tuple[CudaMemory, ...]
    launches: tuple[CudaLaunch, ...]
    arena_nbytes: int
    draws: CudaDraws | None = None
    conditions: tuple[CudaCondition, ...] = ()
    steps: tuple[int, ...] | None = None

    @property
    def order(self) -> Sequence[int]:
        """The steps of the program's own level."""
        return range(len(self.launches)) if self.steps is None else self.steps

    @property
    def structure(self) -> Hashable:
        """What two plans have alike that one graph of the driver can run in turn: kernels, and who waits for whom."""
        launches = tuple((launch.kernel, launch.after) for launch in self.launches)
        conditions = tuple((one.kind, one.arms, one.after, one.last) for one in self.conditions)
        codes = tuple(code.name for code in self.kernels)
        return launches, conditions, tuple(self.order), codes, self.draws is not None, self.count("number")

    def count(self, kind: Kind) -> int:
        """How many of a kind there are, those that no kernel touches left out at the end."""
        return max((m.number + 1 for m in self.memories if m.kind == kind), default=0)


class _Touching(Protocol):
    """buffers: memories; writes: positions of those that are written."""

    @property
    def buffers(self) -> tuple[int, ...]: ...
    @property
    def writes(self) -> tuple[int, ...]: ...


@record
class _Touched:
    buffers: tuple[int, ...]
    writes: tuple[int, ...]


def predecessors(memories: Sequence[CudaMemory], steps: Sequence[_Touching]) -> tuple[tuple[int, ...], ...]:
    """For each step the earlier ones that it waits for, those that these wait for left out."""
    found: list[tuple[int, ...]] = []
    before: list[set[int]] = []
    for number, step in enumerate(steps):
        direct: list[int] = []
        known: set[int] = set()
        for earlier in reversed(range(number)):
            if earlier not in known and _meet(memories, step, steps[earlier]):
                direct.append(earlier)
                known |= before[earlier] | {earlier}
        found.append(tuple(sorted(direct)))
        before.append(known)
    return tuple(found)


def _meet(memories: Sequence[CudaMemory], a: _Touching, b: _Touching) -> bool:
    return any(
        memories[x].overlaps(memories[y])
        for i, x in enumerate(a.buffers)
        for j, y in enumerate(b.buffers)
        if i in a.writes or j in b.writes
    )


def ordered(plan: CudaPlan) -> CudaPlan:
    """The plan with what each step waits for."""
    launches, conditions = list(plan.launches), list(plan.conditions)

    def touched(step: int) -> _Touching:
        if step >= 0:
            return plan.launches[step]
        condition = plan.conditions[~step]
        inner = [touched(one) for arm in condition.arms for one in arm]
        read = dict.fromkeys([condition.test, *(b for one in inner for b in one.buffers)])
        written = {one.buffers[k] for one in inner for k in one.writes}
        return _Touched(tuple(read), tuple(k for k, number in enumerate(read) if number in written))

    def arranged(steps: Sequence[int], test: int | None = None) -> tuple[int, ...]:
        """Order a level; the steps that a last look at a byte waits for."""
        found = [touched(step) for step in steps]
        if test is not None:
            found.append(_Touched((test,), ()))
        before = [tuple(steps[n] for n in one) for one in predecessors(plan.memories, found)]
        for step, after in zip(steps, before, strict=False):
            if step >= 0:
                launches[step] = replace(launches[step], after=after)
                continue
            condition = conditions[~step]
            is_loop = condition.kind == "while"
            last = [arranged(arm, condition.test if is_loop else None) for arm in condition.arms]
            conditions[~step] = replace(condition, after=after, last=last[0] if is_loop else ())
        return before[-1] if test is not None else ()

    arranged(plan.order)
    return replace(plan, launches=tuple(launches), conditions=tuple(conditions))
