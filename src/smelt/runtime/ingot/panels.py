"""Matrices in the panels that kernels read, as torch has them.

    packed[panel][k][column] = matrix[first + ..., k]        panel * columns + column counts the rows of all matrices

Invariant: a matrix that is read is the one that was packed, bit by bit; writing one changes nothing of the others.
"""

from __future__ import annotations

import torch

from smelt.runtime.ingot.manifest import InPanels


def matrix_of(packed: torch.Tensor, where: InPanels, sizes: tuple[int, ...]) -> torch.Tensor:
    """The matrix [sizes], in memory of its own."""
    along, across = sizes[:: -1 if where.is_transposed else 1]
    first, last = where.first // where.columns, -(-(where.first + along) // where.columns)
    panels = packed.view(where.count, where.rows, where.columns)[first:last, :across]
    start = where.first - first * where.columns
    made = torch.empty(sizes, dtype=packed.dtype)
    lines = panels.transpose(1, 2).reshape(-1, across)[start : start + along]
    made.copy_(lines.t() if where.is_transposed else lines)
    return made


def put_matrix(packed: torch.Tensor, where: InPanels, matrix: torch.Tensor) -> None:
    """Write a matrix into its place in the panels."""
    lines = matrix.t() if where.is_transposed else matrix
    along, across = lines.shape
    panels = packed.view(where.count, where.rows, where.columns)
    whole = panels.transpose(1, 2).reshape(-1, where.rows)
    whole[where.first : where.first + along, :across] = lines
    panels.copy_(whole.view(where.count, where.columns, where.rows).transpose(1, 2))
