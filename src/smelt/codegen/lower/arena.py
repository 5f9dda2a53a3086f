"""Offsets of tensors whose lifetimes are known, in one block of memory.

Invariant: two tensors that are alive at the same time never overlap; every offset is a multiple of 64 bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smelt.ir.sizes import late
from smelt.runtime.plan import ARENA_ALIGNMENT


@dataclass(frozen=True, slots=True)
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
    offsets = [0] * len(blocks)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(blocks)), key=lambda i: (-blocks[i].nbytes, blocks[i].first)):
        block, size = blocks[i], aligned(blocks[i].nbytes)
        taken = sorted(
            (offsets[j], offsets[j] + aligned(blocks[j].nbytes))
            for j in placed
            if blocks[j].first <= block.last and block.first <= blocks[j].last
        )
        best, best_gap, end = -1, -1, 0
        for start, stop in taken:
            gap = start - end
            if gap >= size and (best < 0 or gap < best_gap):
                best, best_gap = end, gap
            end = max(end, stop)
        offsets[i] = best if best >= 0 else end
        placed.append(i)
        total = max(total, offsets[i] + size)
    return offsets, total
