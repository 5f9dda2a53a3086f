"""How the operands of a product of bytes lie in memory: rows of the left matrix, panels of the weight.

    left     row: K elements (16-bit words of -255..255, or unsigned bytes), zero points to a multiple of 32; f32 scale;
             i32 zero point
    weight   panel: [group of K][column][K of the group] signed bytes, 0 beyond K; f32 scale[column]; i32 sum[column]

A word is the byte of a row less the row's zero point, so the zero point of words is 0: both kinds give the same sums.
Invariant: the bytes are those of `smelt.ops.own.narrow_linear`, on every instruction set.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from smelt.codegen.contract.tiling import Tiling
from smelt.diag.records import record
from smelt.ops.own.narrow_linear import byte_rows, byte_weight, in_cache

TAIL_NBYTES = 8
"""Bytes behind the elements of a row: its scale and its zero point."""
_STEP = 32


def padded(k: int) -> int:
    """Elements of a row, and terms of a column, for K terms."""
    return -(-k // _STEP) * _STEP


@record
class Int8Form:
    """Panels of signed bytes of a weight [n, k] for a tiling."""

    tiling: Tiling
    n: int
    k: int

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.tiling.packed_columns

    @property
    def panels(self) -> int:
        """How many panels there are."""
        return self.tiling.packed_panels(self.n)

    @property
    def scales_at(self) -> int:
        """Where a panel has its scales, in bytes."""
        return padded(self.k) * self.columns

    @property
    def panel_nbytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.scales_at + 8 * self.columns

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.panels * self.panel_nbytes

    def packed(self, weight: torch.Tensor) -> torch.Tensor:
        """The panels u8[nbytes] of a weight f32[n, k]."""
        return torch.cat([replace(self, n=len(rows))._packed(rows) for rows in in_cache(weight)])

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        steps, scale = byte_weight(weight)
        whole = torch.zeros(self.panels * self.columns, padded(self.k), dtype=torch.int8)
        whole[: self.n, : self.k] = steps
        made = torch.zeros(self.panels, self.panel_nbytes, dtype=torch.uint8)
        at = self.scales_at
        words = whole.view(torch.int16 if self.tiling.group == 2 else torch.int32)
        groups = words.view(self.panels, self.columns, -1).transpose(1, 2)
        made[:, :at] = groups.reshape(self.panels, -1).view(torch.uint8)
        scales = torch.zeros(self.panels * self.columns)
        scales[: self.n] = scale
        made[:, at : at + 4 * self.columns] = scales.view(torch.uint8).view(self.panels, -1)
        sums = whole.sum(1, dtype=torch.int32)
        made[:, at + 4 * self.columns :] = sums.view(torch.uint8).view(self.panels, -1)
        return made.view(-1)

    def steps_of(self, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes i8[n, k] and scales f32[n] of panels."""
        panels, at = made.view(self.panels, self.panel_nbytes), self.scales_at
        groups = panels[:, :at].reshape(self.panels, -1, self.columns, self.tiling.group).view(torch.int8)
        steps = groups.transpose(1, 2).reshape(self.panels * self.columns, -1)
        scales = panels[:, at : at + 4 * self.columns].clone().view(torch.float32).reshape(-1)
        return steps[: self.n, : self.k], scales[: self.n]

    def matrix(self, made: torch.Tensor) -> torch.Tensor:
        """What the panels stand for, f32[n, k]."""
        steps, scales = self.steps_of(made)
        return steps * scales[:, None]


@record
class RowForm:
    """Rows of bytes of a left matrix [m, k] for a tiling."""

    tiling: Tiling
    k: int

    @property
    def row_nbytes(self) -> int:
        """Bytes from one row to the next."""
        return padded(self.k) * self.tiling.element_nbytes + TAIL_NBYTES

    @property
    def row_nelements(self) -> int:
        """The same in elements."""
        return self.row_nbytes // self.tiling.element_nbytes

    def write(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Fill out u8[m, row_nbytes] with the bytes of x f32[m, k]."""
        steps, scale, zero = byte_rows(x)
        rows = out.view(-1, self.row_nbytes)
        rows.zero_()
        end = self.row_nbytes - TAIL_NBYTES
        if self.tiling.kind == "pairs":
            elements, zero = steps.to(torch.int16), torch.zeros_like(zero)
        else:
            elements = (steps + zero).to(torch.uint8)
            rows[:, :end] = zero.to(torch.uint8)
        rows[:, : self.k * self.tiling.element_nbytes] = elements.view(torch.uint8)
        rows[:, end : end + 4] = scale.contiguous().view(torch.uint8)
        rows[:, end + 4 :] = zero.to(torch.int32).contiguous().view(torch.uint8)

    def read(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The steps f64[m, k] from each row's zero point, and the scales f32[m, 1]."""
        rows = rows.reshape(-1, self.row_nbytes)
        end = self.row_nbytes - TAIL_NBYTES
        dtype = torch.int16 if self.tiling.kind == "pairs" else torch.uint8
        steps = rows[:, :end].clone().view(dtype)[:, : self.k].double()
        scale = rows[:, end : end + 4].clone().view(torch.float32)
        return steps - rows[:, end + 4 :].clone().view(torch.int32), scale
