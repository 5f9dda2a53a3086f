"""Offsets of tensors whose lifetimes are known, in one block of memory.

Invariant: two tensors that are alive at the same time never overlap; every offset is a multiple of 64 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache

from smelt.diag.records import record
from smelt.ir.sizes import late
from smelt.runtime.plan import ARENA_ALIGNMENT


@record
class Lifetime:
    """A block of `nbytes` that is in use from instruction `first` to instruction `last`, both included."""

    nbytes: int
    first: int
    last: int


def aligned(nbytes: int) -> int:
    """Bytes rounded up to the arena's alignment."""
    return -(-nbytes // ARENA_ALIGNMENT) * ARENA_ALIGNMENT


@late
def plan_offsets(blocks: Sequence[Lifetime]) -> tuple[list[int], int]:
    """The offset of each block and the size of the arena: largest first, each into the smallest gap that takes it.

    Source: greedy by size with best fit, arXiv:2001.03288, section 5.
    """
    meeting = _meeting(tuple([(block.first, block.last) for block in blocks]))
    starts, stops = [-1] * len(blocks), [-1] * len(blocks)
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first)):
        size = aligned(blocks[i].nbytes)
        best, best_gap, end = -1, -1, 0
        for start, stop in sorted([(starts[j], stops[j]) for j in meeting[i] if starts[j] >= 0]):
            gap = start - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        starts[i] = best if best >= 0 else end
        stops[i] = starts[i] + size
        total = max(total, stops[i])
    return starts, total


@lru_cache(maxsize=64)
def _meeting(lives: tuple[tuple[int, int], ...]) -> tuple[Sequence[int], ...]:
    """For each block the others that are alive while it is. Sizes change from call to call, this does not."""
    return tuple(
        array("I", [j for j, (begin, end) in enumerate(lives) if j != i and begin <= last and first <= end])
        for i, (first, last) in enumerate(lives)
    )
