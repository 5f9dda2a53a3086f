"""Weights in panels, coded or not: memory for them, and the kernel that fills it, now or while Python goes on.

Invariant: the panels are those of the weight as it lies when they are filled; the caller's guards see to it that they
are used for no other.
"""

from __future__ import annotations

from typing import TypeAlias

import torch

from smelt.codegen.contract.coding import Coding
from smelt.codegen.contract.narrow.int4_forms import Int4Form
from smelt.codegen.contract.narrow.int4_packing import is_packed_natively, nibble_panels_source, nibble_words
from smelt.codegen.contract.narrow.int8_forms import Int8Form
from smelt.codegen.contract.narrow.int8_packing import byte_panels_source, byte_words
from smelt.codegen.contract.packing import Packing, TilePacking, packing_source
from smelt.codegen.llvm.isa import Isa, is_for_elsewhere
from smelt.codegen.lower.products.coded_weight import code, coded_by_torch, decoded
from smelt.codegen.lower.products.packs import packs
from smelt.codegen.lower.products.weight_packing import Fills
from smelt.diag import Options

Form: TypeAlias = Packing | Coding | Int8Form | Int4Form
Narrow: TypeAlias = Int8Form | Int4Form


def packed_weight(
    weight: torch.Tensor, form: Form, isa: Isa, options: Options, fills: Fills, *, is_state: bool
) -> torch.Tensor:
    """Panels of a weight [n, k], filled when `fills` are.

    is_state: it lies in memory of the program's own, so that plans share the panels for as long as it stays as it is.
    """
    if is_for_elsewhere():  # memory alone: the plan is for a process that packs by itself
        return _blank(form, weight.dtype)
    if not is_state:
        return _made(weight, form, isa, options, fills, is_copy=True)
    return packs().get_or_pack(weight, form, lambda: _made(weight, form, isa, options, fills), fills)


def _made(
    weight: torch.Tensor, form: Form, isa: Isa, options: Options, fills: Fills, *, is_copy: bool = False
) -> torch.Tensor:
    if isinstance(form, Narrow):
        return _narrowed(weight, form, isa, options, fills, is_copy=is_copy)
    if isinstance(form, Coding):
        return code(weight, form, isa, options, fills, is_copy=is_copy)
    return pack(weight, form, isa, options, fills, is_copy=is_copy)


def _narrowed(
    weight: torch.Tensor, form: Narrow, isa: Isa, options: Options, fills: Fills, *, is_copy: bool
) -> torch.Tensor:
    """New panels u8[nbytes] of a weight f32[n, k] over few bits, filled when `fills` are."""
    if isinstance(form, Int4Form) and not is_packed_natively(form):
        return form.packed(weight)
    if weight.stride(1) != 1:
        weight, is_copy = weight.contiguous(), True
    made, step = torch.empty(form.nbytes, dtype=torch.uint8), weight.stride(0)
    if isinstance(form, Int4Form):
        source, words = nibble_panels_source(form.group), nibble_words(form, step)
    else:
        source, words = byte_panels_source(form.tiling), byte_words(form, step)
    if not fills.add(source, isa, options, (weight, made), words, form.panels, is_copy=is_copy):
        made.copy_(form.packed(weight))
    return made


def _blank(form: Form, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(form, Coding | Narrow):
        return torch.empty(form.nbytes, dtype=torch.uint8)
    return torch.empty(form.nelements, dtype=dtype)


def panels_by_torch(weight: torch.Tensor, form: Form) -> torch.Tensor:
    """Panels of a weight [n, k] that need no kernel to be made."""
    if isinstance(form, Narrow):
        return form.packed(weight)
    return coded_by_torch(weight, form) if isinstance(form, Coding) else packed_by_torch(weight, form)


def matrix_again(made: torch.Tensor, form: Form) -> torch.Tensor:
    """The matrix [n, k] of a weight in a form."""
    if isinstance(form, Narrow):
        return form.matrix(made)
    return decoded(made, form) if isinstance(form, Coding) else unpacked(made, form)


def pack(
    weight: torch.Tensor, packing: Packing, isa: Isa, options: Options, fills: Fills, *, is_copy: bool = False
) -> torch.Tensor:
    """New panels of a weight [n, k], filled when `fills` are. is_copy: as of `Fills.add`."""
    if 1 not in weight.stride():
        weight, is_copy = weight.contiguous(), True
    along_columns = weight.stride(1) == 1
    made = torch.empty(packing.nelements, dtype=weight.dtype)
    step = weight.stride(0) if along_columns else weight.stride(1)
    source = packing_source(packing.tiling, along_columns)
    words = packing.words(step, along_columns)
    if not fills.add(source, isa, options, (weight, made), words, packing.panels, is_copy=is_copy):
        made.copy_(packed_by_torch(weight, packing))
    return made


def packed_by_torch(weight: torch.Tensor, packing: Packing) -> torch.Tensor:
    """The same panels by tensor operations; weight [n, k] -> [panels * panel_nelements]."""
    columns, group = packing.columns, packing.tiling.group
    rows = packing.panel_nelements // columns
    whole = torch.zeros(packing.panels * columns, rows, dtype=weight.dtype)
    whole[: packing.n, : packing.k] = weight
    return whole.view(packing.panels, columns, rows // group, group).transpose(1, 2).reshape(-1)


def unpacked(made: torch.Tensor, packing: Packing) -> torch.Tensor:
    """The matrix [n, k] of packed panels."""
    columns, group = packing.columns, packing.tiling.group
    rows = packing.panel_nelements // columns
    panels = made.view(packing.panels, rows // group, columns, group).transpose(1, 2)
    return panels.reshape(packing.panels * columns, rows)[: packing.n, : packing.k]


def tiles_by_torch(left: torch.Tensor, packing: TilePacking) -> torch.Tensor:
    """The tiles of a left matrix, the last one's rows beyond the matrix 0: [.., m, k] -> [nelements]."""
    height = packing.tiling.rows
    whole = torch.zeros(packing.nelements // packing.k, packing.k, dtype=left.dtype)
    whole[: packing.m] = left.reshape(packing.m, packing.k)
    return whole.view(-1, height, packing.k).transpose(1, 2).reshape(-1)


def tiles_in_rows(made: torch.Tensor, packing: TilePacking) -> torch.Tensor:
    """The matrix [m, k] of its tiles."""
    tiles = made.view(-1, packing.k, packing.tiling.rows).transpose(1, 2)
    return tiles.reshape(-1, packing.k)[: packing.m]
