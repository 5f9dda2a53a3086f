"""A weight in 4 bits: how its panels lie in memory, on every instruction set.

    panel, for each group of K:   for each 8 of K: u32[column], the 4 bits of each k from the lowest up
                                  bf16[column], what a step stands for

4 bits hold a step -8..7 as 0..15. A column beyond the last is 0 throughout.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from smelt.diag.records import record
from smelt.ops.own.narrow_linear import in_cache, nibble_weight

COLUMNS = 16
"""Columns of a panel."""
STEPS = 8
"""Elements of a column in a word, and what is added to a step."""


@record
class Int4Form:
    """Panels of 4 bits of a weight [n, k]; K is a multiple of `group`, that of 8."""

    n: int
    k: int
    group: int

    @property
    def panels(self) -> int:
        """How many panels there are."""
        return -(-self.n // COLUMNS)

    @property
    def group_nbytes(self) -> int:
        """Bytes from one group of a panel to the next."""
        return COLUMNS * (self.group // 2 + 2)

    @property
    def panel_nbytes(self) -> int:
        """Bytes from one panel to the next."""
        return self.k // self.group * self.group_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all panels."""
        return self.panels * self.panel_nbytes

    def packed(self, weight: torch.Tensor) -> torch.Tensor:
        """The panels u8[nbytes] of a weight f32[n, k]."""
        return torch.cat([replace(self, n=len(rows))._packed(rows) for rows in in_cache(weight)])

    def _packed(self, weight: torch.Tensor) -> torch.Tensor:
        steps, step = nibble_weight(weight.contiguous(), self.group)
        groups, columns = self.k // self.group, self.panels * COLUMNS
        bits = torch.full((columns, self.k), STEPS, dtype=torch.uint8)
        bits[: self.n] = steps + STEPS
        pairs = bits.view(columns, -1, 2)
        words = (pairs[:, :, 0] | pairs[:, :, 1] << 4).view(torch.int32).view(self.panels, COLUMNS, groups, -1)
        made = torch.zeros(self.panels, groups, self.group_nbytes, dtype=torch.uint8)
        at = COLUMNS * self.group // 2
        made[:, :, :at] = words.permute(0, 2, 3, 1).reshape(self.panels, groups, -1).view(torch.uint8)
        whole = torch.zeros(columns, groups, dtype=torch.bfloat16)
        whole[: self.n] = step
        turned = whole.view(self.panels, COLUMNS, groups).transpose(1, 2).contiguous()
        made[:, :, at:] = turned.view(torch.uint8).view(self.panels, groups, -1)
        return made.view(-1)

    def steps_of(self, made: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the panels stand for f64[n, k], and 1 for each column f32[n]."""
        return self.matrix(made).double(), torch.ones(self.n)

    def matrix(self, made: torch.Tensor) -> torch.Tensor:
        """What the panels stand for, f32[n, k]."""
        groups, at = self.k // self.group, COLUMNS * self.group // 2
        panels = made.view(self.panels, groups, self.group_nbytes)
        nbytes = panels[:, :, :at].reshape(self.panels, groups, self.group // 8, COLUMNS, 4).permute(0, 3, 1, 2, 4)
        pairs = torch.stack((nbytes & 15, nbytes >> 4), -1).reshape(self.panels * COLUMNS, groups, self.group)
        step = panels[:, :, at:].contiguous().view(torch.bfloat16).view(self.panels, groups, COLUMNS)
        whole = (pairs.float() - STEPS) * step.transpose(1, 2).reshape(-1, groups, 1).float()
        return whole.reshape(-1, self.k)[: self.n]
