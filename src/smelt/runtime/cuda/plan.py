"""What a GPU runs at a call, as frozen data: kernels, memory, and launches with those that each waits for.

Invariant: a launch waits for every earlier one that writes what it touches, or touches what it writes, parts of the
arena that overlap included; launches that share nothing may run side by side.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from smelt.runtime.cuda.code import CudaCode

Kind: TypeAlias = Literal["argument", "state", "result", "arena", "generator", "number"]


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class CudaLaunch:
    """One kernel's launch.

    buffers: numbers of memories, in the kernel's order. words: the numbers behind their addresses. programs: blocks of
    threads. writes: positions in `buffers` of what is written. after: numbers of the launches that come before it.
    """

    kernel: str
    buffers: tuple[int, ...]
    words: tuple[int, ...]
    programs: int
    writes: tuple[int, ...]
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaDraws:
    """What a call's random numbers take: how far its draws move the generator's offset. processors, threads: the number
    of the device's multiprocessors, and of threads that each runs, on which torch's numbers depend.
    """

    moved: int
    processors: int
    threads: int


@dataclass(frozen=True, slots=True)
class CudaPlan:
    """A program's launches in order."""

    kernels: tuple[CudaCode, ...]
    memories: tuple[CudaMemory, ...]
    launches: tuple[CudaLaunch, ...]
    arena_nbytes: int
    draws: CudaDraws | None = None

    @property
    def structure(self) -> Hashable:
        """What two plans have alike that one graph of the driver can run in turn: kernels, and who waits for whom."""
        launches = tuple((launch.kernel, launch.after) for launch in self.launches)
        return launches, tuple(code.name for code in self.kernels), self.draws is not None, self.count("number")

    def count(self, kind: Kind) -> int:
        """How many of a kind there are, those that no kernel touches left out at the end."""
        return max((m.number + 1 for m in self.memories if m.kind == kind), default=0)


def predecessors(memories: Sequence[CudaMemory], launches: Sequence[CudaLaunch]) -> tuple[tuple[int, ...], ...]:
    """For each launch the earlier ones that it waits for, those that these wait for left out."""
    found: list[tuple[int, ...]] = []
    before: list[set[int]] = []
    for number, launch in enumerate(launches):
        direct: list[int] = []
        known: set[int] = set()
        for earlier in reversed(range(number)):
            if earlier not in known and _meet(memories, launch, launches[earlier]):
                direct.append(earlier)
                known |= before[earlier] | {earlier}
        found.append(tuple(sorted(direct)))
        before.append(known)
    return tuple(found)


def _meet(memories: Sequence[CudaMemory], a: CudaLaunch, b: CudaLaunch) -> bool:
    return any(
        memories[x].overlaps(memories[y])
        for i, x in enumerate(a.buffers)
        for j, y in enumerate(b.buffers)
        if i in a.writes or j in b.writes
    )
