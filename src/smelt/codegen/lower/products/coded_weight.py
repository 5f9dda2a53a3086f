"""Coded weights: memory for them, the kernel that fills it, and both ways in torch."""

from __future__ import annotations

import struct

import torch

from smelt.codegen.contract.coding import (
    CODED_NBYTES,
    CODES_AT,
    COLUMNS,
    END_NBYTES,
    ENDS_AT,
    LANES,
    PLAIN_AT,
    PLAIN_NBYTES,
    SEGMENTS_AT,
    THIRDS_AT,
    Coding,
    coding_source,
)
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.diag import Options


def code(
    weight: torch.Tensor, coding: Coding, isa: Isa, options: Options, fills: Fills, *, is_copy: bool = False
) -> torch.Tensor:
    """The coding u8[nbytes] of a weight f32[n, k], filled when `fills` are. is_copy: as of `Fills.add`."""
    if 1 not in weight.stride():
        weight, is_copy = weight.contiguous(), True
    along_columns = weight.stride(1) == 1
    made = torch.empty(coding.nbytes, dtype=torch.uint8)
    step = weight.stride(0) if along_columns else weight.stride(1)
    source = coding_source(coding.tiling, along_columns)
    words = coding.words(step, along_columns)
    if not fills.add(source, isa, options, (weight, made), words, coding.panels, is_copy=is_copy):
        made.copy_(coded_by_torch(weight, coding))
    return made


def coded_by_torch(weight: torch.Tensor, coding: Coding) -> torch.Tensor:
    """A coding of the same weight with plain rows only."""
    whole = torch.zeros(coding.panels * COLUMNS, coding.k)
    whole[: coding.n] = weight
    made = torch.zeros(coding.panels, coding.panel_nbytes, dtype=torch.uint8)
    head = struct.pack("<2q", 1, coding.rows_at) + struct.pack("<2q", 0, coding.k)
    made[:, SEGMENTS_AT : SEGMENTS_AT + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    rows = whole.view(coding.panels, COLUMNS, coding.k).transpose(1, 2).reshape(coding.panels, -1)
    made[:, coding.rows_at :] = rows.view(torch.uint8)
    return made.view(-1)


def decoded(made: torch.Tensor, coding: Coding) -> torch.Tensor:
    """The matrix f32[n, k] that was coded."""
    panels = [_panel(panel, coding) for panel in made.view(coding.panels, coding.panel_nbytes)]
    return torch.cat(panels)[: coding.n]


def _panel(panel: torch.Tensor, coding: Coding) -> torch.Tensor:
    """The columns f32[COLUMNS, k] of one panel."""
    table = panel[:SEGMENTS_AT].clone().view(torch.int32)
    segments, plain = panel[SEGMENTS_AT:ENDS_AT].clone().view(torch.int64).tolist()
    assert plain >= coding.rows_at and PLAIN_AT + 8 == ENDS_AT
    ends = panel[ENDS_AT : ENDS_AT + segments * END_NBYTES].clone().view(torch.int64).view(-1, 2).tolist()
    pieces, begin = [], 0
    for middle, end in ends:
        at = coding.rows_at + begin * CODED_NBYTES
        pieces.append(_rows(panel[at : at + (middle - begin) * CODED_NBYTES].view(-1, CODED_NBYTES), table))
        nbytes = (end - middle) * PLAIN_NBYTES
        pieces.append(panel[plain : plain + nbytes].clone().view(torch.float32).view(end - middle, COLUMNS))
        begin, plain = end, plain + nbytes
    return torch.cat(pieces).t()


def _rows(rows: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Coded rows u8[rows, CODED_NBYTES] as f32[rows, COLUMNS]."""
    halves, thirds, both = rows[:, :THIRDS_AT], rows[:, THIRDS_AT:CODES_AT].int(), rows[:, CODES_AT:].int()
    low = halves[:, ::2].int() | halves[:, 1::2].int() << 8
    pairs = both.view(len(rows), COLUMNS // LANES // 2, LANES)
    codes = torch.stack((pairs & 15, pairs >> 4), 2).view(len(rows), COLUMNS)
    return (low | thirds << 16 | table[codes.long()]).view(torch.float32)
