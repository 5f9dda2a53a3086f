"""Which launches run side by side, in how many chunks, and where threads come in.

Invariant: an instruction moves only where nobody can tell: new tensors and views are made before a group of launches
that stands ahead of them in the plan, releases wait until its end. Launches are in one group only if none writes what
another reads or writes, or the plan says that they write apart from one another; and none writes to the caller's memory
if another may refuse its data, as refusals are looked at behind the group.

    before:  launch a; empty 7; launch b; release 3; call f
    after:   empty 7; group(a, b); release 3; call f            (if a and b are independent)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from smelt.diag.records import record
from smelt.runtime.encoding.table import MAX_CHUNKS
from smelt.runtime.launches import Launches
from smelt.runtime.plan import Bump, Empty, Launch, Plan, Release, View, outs_of, uses_of

CHUNK_NS = 10_000.0
"""The least work worth handing to a thread: a hundred times what claiming it costs."""
REGION_NS = 20_000.0
"""The least work that may be shared for which a region is entered: it costs one to two microseconds, and more to wake
threads that sleep."""
SERIAL_NS = 300_000.0
"""Work of one thread, amid a region, for which the others are sent away instead of waiting."""
CHUNKS_A_THREAD = 4
"""So many, where there is enough work, that a thread which loses its core holds up little."""
_MOST_IN_GROUP = 16


@record
class Single:
    """An instruction of the plan, by index."""

    index: int


@record
class Group:
    """Independent launches, by index, with the items of one chunk and the number of chunks of each."""

    indices: tuple[int, ...]
    chunk: tuple[int, ...]
    chunks: tuple[int, ...]

    @property
    def total(self) -> int:
        """Chunks of all of them."""
        return sum(self.chunks)


@record
class Enter:
    """A region begins, for at most `size` threads."""

    size: int


@record
class Leave:
    """It ends."""


Item: TypeAlias = Single | Group | Enter | Leave


def schedule(
    plan: Plan, launches: Launches, limit: int, *, apart: bool = False, any_offsets: bool = False
) -> list[Item]:
    """The plan's instructions in the order in which they run; `limit` threads at most, each launch `apart` if so asked.

    any_offsets: it must be right wherever tensors lie in the arena that are not alive at the same time, and at other
    sizes, at which other launches have no items. Else those without are `Single`, as are all that are not native.
    """
    return _with_regions(plan, _grouped(plan, launches, limit, apart, any_offsets), limit)


# --- groups -----------------------------------------------------------------------------------------------------------


def _grouped(plan: Plan, launches: Launches, limit: int, apart: bool, any_offsets: bool) -> list[Item]:
    items: list[Item] = []
    group: list[int] = []
    after: list[Item] = []
    conflicts = _Conflicts(plan, launches, any_offsets)

    def flush() -> None:
        if group:
            items.append(_group_of(plan, group, limit))
        items.extend(after)
        group.clear()
        after.clear()

    for index, instruction in enumerate(plan.instructions):
        match instruction:
            case Launch(items=count) if index in launches.code and (count or any_offsets):
                if apart or len(group) == _MOST_IN_GROUP or conflicts.any(index, group):
                    flush()
                group.append(index)
            case Empty() | View():
                items.append(Single(index))
            case Release() if group:
                after.append(Single(index))
            case _:
                flush()
                items.append(Single(index))
    flush()
    return items


def _group_of(plan: Plan, indices: Iterable[int], limit: int) -> Group:
    found = [plan.instructions[i] for i in indices]
    sizes = [chunk_size(launch, limit) for launch in found if isinstance(launch, Launch)]
    counts = [-(-launch.items // size) for launch, size in zip(found, sizes, strict=True) if isinstance(launch, Launch)]
    return Group(tuple(indices), tuple(sizes), tuple(counts))


def chunk_size(launch: Launch, limit: int) -> int:
    """Items of one chunk for at most `limit` threads: all where the work is too little to share."""
    return chunk_of(launch.items, launch.item_ns, limit)


def chunk_of(items: int, item_ns: float, limit: int) -> int:
    """The same for so many items of this time each."""
    worth = min(items, MAX_CHUNKS, int(items * item_ns / CHUNK_NS))
    count = min(worth, CHUNKS_A_THREAD * limit)
    if count < 2 or limit < 2:
        return max(items, 1)
    # Of 36 items chunks of 5 are 20 for one thread and 16 for the other, chunks of 3 are 18 for both.
    most = _ceil(items, count)
    sizes = range(most, max(_ceil(most, 2), _ceil(items, worth)) - 1, -1)
    return min(sizes, key=lambda size: _ceil(_ceil(items, size), limit) * size)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


class _Conflicts:
    """Whether launches may run side by side, by the memory that they use."""

    def __init__(self, plan: Plan, launches: Launches, any_offsets: bool) -> None:
        self._plan, self._launches = plan, launches
        self._arena = {t.slot: (t.offset, t.offset + t.nbytes) for t in plan.arena}
        self._views = {i.dst: i.src for i in plan.instructions if isinstance(i, View)}
        self._lives = self._lifetimes() if any_offsets and launches.spots else None
        self._made = {i.dst for i in plan.instructions if isinstance(i, Empty)}
        self._lent = {*plan.inputs, *(slot for slot, _ in plan.held)}
        # What launches write of it shares memory with no other of it (`Bump`).
        self._apart = {i.slot for i in plan.instructions if isinstance(i, Bump)}

    def any(self, index: int, group: Iterable[int]) -> bool:
        """Whether the launch conflicts with one of a group."""
        reads, writes = self._memory(index)
        for other in group:
            if self._are_pieces(index, other):
                continue
            other_reads, other_writes = self._memory(other)
            if self._comes_too_late(index, writes, other, other_writes):
                return True
            if self._meet(writes, other_reads | other_writes) or self._meet(other_writes, reads):
                return True
        return False

    def _comes_too_late(self, index: int, writes: set[int], other: int, other_writes: set[int]) -> bool:
        """Whether one of two launches writes to the caller's memory, and only behind both is known if one refused."""
        if self._apart.isdisjoint(writes) and self._apart.isdisjoint(other_writes):
            return False
        both = (self._plan.instructions[i] for i in (index, other))
        return any(isinstance(launch, Launch) and launch.may_refuse for launch in both)

    def _are_pieces(self, index: int, other: int) -> bool:
        """Whether two launches are pieces of one computation, which write apart."""
        one, two = self._plan.instructions[index], self._plan.instructions[other]
        return isinstance(one, Launch) and isinstance(two, Launch) and 0 != one.piece_of == two.piece_of

    def _memory(self, index: int) -> tuple[set[int], set[int]]:
        launch = self._plan.instructions[index]
        assert isinstance(launch, Launch)
        roots = [self._root(slot) for slot in launch.buffers]
        return set(roots), {roots[i] for i in launch.writes}

    def _root(self, slot: int) -> int:
        """The tensor in whose memory a slot lies, through views with and without handles."""
        root = self._launches.spots[slot].root
        while root in self._views:
            root = self._launches.spots[self._views[root]].root
        return root

    def _lifetimes(self) -> dict[int, tuple[int, int]]:
        """First and last instruction that touches each tensor of the arena, or a view of it."""
        lives: dict[int, tuple[int, int]] = {}
        for index, instruction in enumerate(self._plan.instructions):
            for slot in (*uses_of(instruction), *outs_of(instruction)):
                root = self._root(slot)
                first, _ = lives.get(root, (index, index))
                lives[root] = first, index
        whole = (0, len(self._plan.instructions))
        return {tensor.slot: lives.get(tensor.slot, whole) for tensor in self._plan.arena}

    def _meet(self, some: set[int], others: set[int]) -> bool:
        return any(self._overlap(a, b) for a in some for b in others)

    def _overlap(self, a: int, b: int) -> bool:
        if a == b:
            return True
        in_arena = self._arena.get(a), self._arena.get(b)
        if in_arena[0] is not None and in_arena[1] is not None and self._lives is not None:
            # Two that are alive at one time never lie in the same memory; of others who knows.
            (first, last), (begin, end) = self._lives[a], self._lives[b]
            return last < begin or end < first
        if in_arena[0] is not None and in_arena[1] is not None:
            return in_arena[0][0] < in_arena[1][1] and in_arena[1][0] < in_arena[0][1]
        if {a, b} <= self._lent and not self._apart.isdisjoint((a, b)):
            return False
        # Inputs, live state and what libraries return may be views of each other; the rest is nobody else's.
        return not any(slot in self._arena or slot in self._made or slot in self._plan.fixed for slot in (a, b))


# --- regions ----------------------------------------------------------------------------------------------------------


def _with_regions(plan: Plan, items: list[Item], limit: int) -> list[Item]:
    """The items with regions around runs of launches, from the first group that is shared to the last."""
    if limit < 2:
        return items
    found: list[Item] = []
    run: list[Item] = []
    for item in items:
        if not _may_stand_inside(plan, item) or _serial_ns(plan, item) > SERIAL_NS:
            found += [*_region(plan, run, limit), item]
            run = []
        else:
            run.append(item)
    return found + _region(plan, run, limit)


def _may_stand_inside(plan: Plan, item: Item) -> bool:
    if isinstance(item, Single):
        instruction = plan.instructions[item.index]
        return isinstance(instruction, Empty | View | Release)
    return isinstance(item, Group)


def _work(plan: Plan, group: Group) -> float:
    found = (plan.instructions[i] for i in group.indices)
    return sum(i.items * i.item_ns for i in found if isinstance(i, Launch))


def _serial_ns(plan: Plan, item: Item) -> float:
    return _work(plan, item) if isinstance(item, Group) and item.total == 1 else 0.0


def _region(plan: Plan, run: list[Item], limit: int) -> list[Item]:
    shared = [i for i, item in enumerate(run) if isinstance(item, Group) and item.total > 1]
    groups = [item for i in shared if isinstance(item := run[i], Group)]
    size = team_size([(_work(plan, group), group.total) for group in groups], limit)
    if size < 2:
        return run
    first, last = shared[0], shared[-1] + 1
    return [*run[:first], Enter(size), *run[first:last], Leave(), *run[last:]]


def team_size(groups: Sequence[tuple[float, int]], limit: int) -> int:
    """Threads for a region, given the work and the chunks of its groups that are shared; 1 where it is too little."""
    if not groups or sum(work for work, _ in groups) < REGION_NS:
        return 1
    return min(limit, max(chunks for _, chunks in groups))
