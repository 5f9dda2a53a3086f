"""The sum of what the parts of a product gave, and its epilogue.

    for item in block of columns:
      sums[m][block] = part[0][m][block] + part[1][m][block] + ..        # in the order of the parts
      out[:, block] = epilogue(sums)

Parts are cut by sizes alone, so the answer does not depend on which thread computed which.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import ceil_div, minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import lane_mask, load_some
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record

COLUMNS = 512
"""Columns of an item."""


@record
class Joined:
    """A kernel over f[parts, height, n], then the epilogue's buffers and the result; words are those of the parts'
    product, whose `block_rows` is at most `COLUMNS` here.
    """

    tiling: Tiling
    height: int
    epilogue: Epilogue

    @property
    def scratch_nbytes(self) -> int:
        """Sums of one item."""
        return self.height * COLUMNS * self.tiling.sum_nbytes


@lru_cache(maxsize=256)
def joined_source(joined: Joined, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(_JoinedDriver(joined, isa).text())


class _JoinedDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, joined: Joined, isa: Isa) -> None:
        tiling = replace(joined.tiling, vectors=COLUMNS // joined.tiling.lanes)
        super().__init__(tiling, joined.epilogue, isa, rights=0)
        self.height = joined.height

    def text(self) -> str:
        """The whole module."""
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return module_text(self.fn, ())

    def _item(self, item: str) -> None:
        fn, word, tiling = self.fn, self.word, self.tiling
        column = fn.mul(item, word["block_rows"])
        columns = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['n']}, {column}", "i"))
        whole = fn.mul(fn.let(f"udiv i64 {columns}, {tiling.lanes}", "i"), tiling.lanes)
        rest = fn.let(f"sub nsw i64 {columns}, {whole}", "i")
        self.apart = fn.mul(fn.mul(word["n"], word["m"]), tiling.sum_nbytes)
        self.count = ceil_div(fn, word["k"], word["block_terms"])
        for row in range(self.height):
            first = fn.add(fn.mul(word["n"], row), column)
            part = fn.gep("i8", self.left, fn.mul(first, tiling.sum_nbytes))
            sums = fn.gep("i8", "%scratch", row * tiling.panel * tiling.sum_nbytes)
            with fn.loop(0, whole, tiling.lanes) as c:
                self._register(part, sums, c.index, None)
            with fn.when(fn.let(f"icmp ne i64 {rest}, 0", "b")):
                self._register(part, sums, whole, lane_mask(fn, tiling.lanes, rest))
        self.finish_block("0", "0", "0", column, word["m"], columns)

    def _register(self, part: str, sums: str, column: str, mask: str | None) -> None:
        """Add one register of columns of all parts."""
        fn, tiling = self.fn, self.tiling
        offset = fn.mul(column, tiling.sum_nbytes)
        begin = load_some(fn, tiling.vector, fn.gep("i8", part, offset), mask, tiling.sum_nbytes)
        with fn.loop(1, self.count, 1, [(tiling.vector, begin)]) as turn:
            at = fn.gep("i8", part, fn.add(fn.mul(turn.index, self.apart), offset))
            more = load_some(fn, tiling.vector, at, mask, tiling.sum_nbytes)
            turn.carried[0].next = fn.let(f"fadd {tiling.vector} {turn.carried[0].now}, {more}")
        fn.store(tiling.vector, turn.carried[0].last, fn.gep("i8", sums, offset), tiling.sum_nbytes)
