"""Sizes and strides of a product: the words of its kernel."""

from __future__ import annotations

from dataclasses import fields

from smelt.codegen.contract.tiling import BLOCK
from smelt.diag.records import record


@record
class Problem:
    """Sizes and strides (in elements) of one product, in the order of the kernel's words.

    Batches are numbered by two loops, the inner one of `inner` turns. `right_panel`: from one panel to the next;
    `right_step`: from one k (where columns have unit stride: from one column) to the next. `block_rows`: rows of an
    item (in `dots`, `lines`: columns). `block_terms`: terms of one chain (in `lines`: of an item). `reading`: how the
    right matrix is read, 0 or 1: for `gemm`, 1 if full panels of rows are read where they lie, not copied first, and if
    packed panels are walked from the first to the last, not back; `dots` and `lines` say what it is for them.
    """

    m: int
    n: int
    k: int
    left_row: int
    left_k: int
    right_panel: int
    right_step: int
    out_row: int
    block_rows: int
    inner: int = 1
    left_outer: int = 0
    left_inner: int = 0
    right_outer: int = 0
    right_inner: int = 0
    out_outer: int = 0
    out_inner: int = 0
    reading: int = 1
    block_terms: int = BLOCK

    def words(self) -> tuple[int, ...]:
        """The values in the order of the fields."""
        return tuple(getattr(self, f.name) for f in fields(self))


WORDS = tuple(f.name for f in fields(Problem))
