"""What a person wants of the loops of one kernel: an option of a program that is compiled, so plain values.

A loop is known by its name in the kernel's listing: `i0`, `i1` for points that are independent, `j0` for what is
combined within each. Kernels are numbered in the order in which a plan launches them, products and the like left out.
"""

from __future__ import annotations

from typing import TypeAlias

from smelt.diag.records import record


@record
class Tile:
    """A loop in blocks of `size` iterations; the loop over the blocks goes around all loops that are there."""

    kernel: int
    loop: str
    size: int


@record
class Vectorize:
    """Vectors of `lanes` elements along a loop: 1 for one element at a time, None for whole registers."""

    kernel: int
    loop: str
    lanes: int | None = None


@record
class Unroll:
    """A loop's body `times` times in a row; along the vectorized loop so many vectors at once. None: all iterations."""

    kernel: int
    loop: str
    times: int | None = None


@record
class Parallel:
    """A loop spread over threads, `iterations` of it as one piece of work: its tiles where it is tiled."""

    kernel: int
    loop: str
    iterations: int | None = None


@record
class Warps:
    """On a GPU: how many warps of 32 threads a program has, a power of two up to 32."""

    kernel: int
    count: int


@record
class Stages:
    """On a GPU: how many blocks are under way at once in a program's loop, 1 to 8."""

    kernel: int
    count: int


LoopStep: TypeAlias = Tile | Vectorize | Unroll | Parallel | Warps | Stages
