"""The tables that say which input a product takes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import torch

from smelt.codegen.conv.dense import BLOCK
from smelt.codegen.conv.shape import ConvShape
from smelt.ir.sizes import blind

# Up to this many pixels eager multiplies a matrix and a vector, whose sums it splits among lanes.
_FEW_PIXELS, _SMALL_BLOCK = 8, 32


def block_limit(shape: ConvShape) -> int:
    """The most products of one block of a sum: as the products that eager uses, which differ for few pixels."""
    with blind():
        return _SMALL_BLOCK if shape.pixels <= _FEW_PIXELS else BLOCK


def even_block(depth: int, limit: int) -> int:
    """The length of equal blocks of at most `limit` that cover `depth`."""
    return ceil(depth / ceil(depth / limit))


Tap = tuple[int, int, int, int]
"""A tap of a window: rows and columns from the window's corner, the number of its first product in the weight, and how
many elements further in x its image lies.
"""


def _taps(shape: ConvShape) -> tuple[Tap, ...]:
    down, right = shape.window.dilation
    return tuple(
        (ky * down, kx * right, (ky * shape.kw + kx) * shape.group_in, 0)
        for ky in range(shape.kh)
        for kx in range(shape.kw)
    )


def segment_table(
    shape: ConvShape, strides: tuple[int, int], taps: Sequence[Tap] | None = None
) -> tuple[torch.Tensor, int, int, int]:
    """The table of a window kernel for input strides (row, column); its numbers of blocks and segments; the longest.

    taps: those that are read, all by default.

    int64[blocks + 1] first segments, then int64[segments, 5]: dy, dx, offset in x, first k, length.
    """
    limit = block_limit(shape)
    chunk = even_block(shape.group_in, limit)
    rows: list[list[int]] = []
    starts = [0]
    filled = 0
    for dy, dx, k, image in _taps(shape) if taps is None else taps:
        for first in range(0, shape.group_in, chunk):
            length = min(chunk, shape.group_in - first)
            if filled and filled + length > limit:
                starts.append(len(rows))
                filled = 0
            rows.append([dy, dx, image + dy * strides[0] + dx * strides[1] + first, k + first, length])
            filled += length
    starts.append(len(rows))
    flat = starts + [number for row in rows for number in row]
    return torch.tensor(flat, dtype=torch.int64), len(starts) - 1, len(rows), min(chunk, shape.group_in)


def offset_table(shape: ConvShape, planes: bool, plane_rows: int, row: int | None, taps: int = 1) -> torch.Tensor:
    """int64[depth]: where in scratch product k of a pixel lies, in the order of `pack_dense`.

    planes: scratch is [taps, cin, plane_rows, row]; else [taps, plane_rows, row] with the channels of a pixel together.
    row: None for one that is known at run time only; then int64[depth, 2]: whole rows, and elements within one.
    taps: in time.
    """
    ky = torch.arange(shape.kh).view(-1, 1, 1) * shape.window.dilation[0]
    kx = torch.arange(shape.kw).view(1, -1, 1) * shape.window.dilation[1]
    c = torch.arange(shape.cin).view(1, 1, -1)
    t = torch.arange(taps).view(-1, 1, 1, 1)
    if planes:
        rows, inside = (t * shape.cin + c) * plane_rows + ky, kx
    else:
        rows, inside = t * plane_rows + ky, kx * shape.cin + c
    if row is None:
        return torch.stack(torch.broadcast_tensors(rows, inside), -1).reshape(-1, 2).contiguous()
    return (rows * row + inside).reshape(-1).contiguous()
