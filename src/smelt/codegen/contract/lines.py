"""Products of one or two rows with a matrix whose rows lie along N: its lines are read once, as they lie in memory.

    for item in (batch, block of columns, part of K):
      for block of the part:                                   # tiling.BLOCK terms
        part = 0
        for 8 lines of the matrix:
          part[m][block] += sum over the 8 of left[m][k] * right[k][block]      # a chain of its own from zero
        sums[m][block] += part[m][block]
      out[part][:, block] = epilogue(sums)

Sums stay in the first-level cache, so a block may be as wide as it takes to read memory in long pieces. A matrix that
comes from memory is cut along K where its lines can be whole: each core then reads one piece of memory from end to end,
and `parts.Joined` adds what the parts gave.
Invariant: as for `gemm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import BLOCK, Tiling
from smelt.codegen.contract.vectors import lane_mask, load_some, prefetch, splat
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource

MAX_COLUMNS = 4096
"""Columns of an item at most: what is added to in the inner loop takes half of the first-level cache."""

HEIGHTS = (1, 2)
"""Row counts with a kernel."""

_LINES = 8


@dataclass(frozen=True, slots=True)
class Lines:
    """A kernel for `height` rows. Its buffers and words are those of `gemm.Gemm`, with "rows" for the right matrix;
    `block_rows` is the number of columns of an item, at most `MAX_COLUMNS`, `block_terms` that of the terms of a part,
    and `direct` says whether the lines of an item lie one behind the other. The rows of a part are stored behind those
    of the part before.
    """

    tiling: Tiling
    height: int
    epilogue: Epilogue

    @property
    def scratch_nbytes(self) -> int:
        """Sums of one item, and those of a block of K."""
        return 2 * self.height * MAX_COLUMNS * self.tiling.sum_nbytes


@lru_cache(maxsize=256)
def lines_source(lines: Lines, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(_LinesDriver(lines, isa).text())


class _LinesDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, lines: Lines, isa: Isa) -> None:
        # What the rows of sums lie apart is known to the epilogue as the panel's width.
        super().__init__(replace(lines.tiling, vectors=MAX_COLUMNS // lines.tiling.lanes), lines.epilogue, isa)
        self.height = lines.height
        self.row_nbytes = MAX_COLUMNS * self.tiling.sum_nbytes

    def text(self) -> str:
        """The whole module."""
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return module_text(self.fn, ())

    def _item(self, item: str) -> None:
        fn, word = self.fn, self.word
        # No terms at all are one part of zeros.
        none = fn.let(f"icmp eq i64 {word['k']}, 0", "b")
        some = fn.let(f"select i1 {none}, i64 1, i64 {word['k']}", "i")
        block, part = self.split(item, some, word["block_terms"])
        batch, number = self.split(block, word["n"], word["block_rows"])
        outer, inner = self.div_rem(batch, word["inner"])
        column = fn.mul(number, word["block_rows"])
        columns = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['n']}, {column}", "i"))
        left = self.start("left", outer, inner)
        right = fn.gep("i8", self.start("right", outer, inner), self.nbytes(column))
        self.columns = columns
        self.part = fn.gep("i8", "%scratch", self.height * self.row_nbytes)
        self._place_prefetches()
        self._fill("%scratch")
        first = fn.mul(part, word["block_terms"])
        last = minimum(fn, fn.add(first, word["block_terms"]), word["k"])
        with fn.loop(first, last, BLOCK) as terms:
            self._block(terms.index, last, left, right)
        self.finish_block(outer, inner, fn.mul(part, word["m"]), column, word["m"], columns)

    def _place_prefetches(self) -> None:
        """What is asked for beside each register: the next lines where they lie, or, where all of them are one piece of
        memory, that piece from its begin to its end. In one stream the hardware's own prefetching helps.
        """
        fn, tiling = self.fn, self.tiling
        step = self.nbytes(self.word["right_step"])
        whole = fn.let(f"icmp ne i64 {self.word['direct']}, 0", "b")
        element, register = tiling.element_nbytes, tiling.lanes * tiling.element_nbytes
        self.ahead = fn.mul(step, _LINES)
        self.ahead_line = fn.let(f"select i1 {whole}, i64 {register}, i64 {step}", "i")
        self.ahead_column = fn.let(f"select i1 {whole}, i64 {_LINES * element}, i64 {element}", "i")

    def _fill(self, at: str) -> None:
        """Zeros for all sums that begin at an address."""
        fn, tiling = self.fn, self.tiling
        with fn.loop(0, self.columns, tiling.lanes) as c:
            for i in range(self.height):
                fn.store(tiling.vector, "zeroinitializer", self._sums(at, i, c.index), tiling.sum_nbytes)

    def _sums(self, base: str, row: int, column: str) -> str:
        return self.fn.gep("i8", base, self.fn.add(self.fn.mul(column, self.tiling.sum_nbytes), row * self.row_nbytes))

    def _block(self, k: str, last: str, left: str, right: str) -> None:
        fn, tiling = self.fn, self.tiling
        end = minimum(fn, fn.add(k, BLOCK), last)
        whole = fn.let(f"and i64 {fn.let(f'sub nsw i64 {end}, {k}', 'i')}, {-_LINES}", "i")
        middle = fn.add(k, whole)
        self._fill(self.part)
        for first, last, count in ((k, middle, _LINES), (middle, end, 1)):
            with fn.loop(first, last, count) as line:
                self._lines(line.index, count, left, right)
        with fn.loop(0, self.columns, tiling.lanes) as c:
            for i in range(self.height):
                to = self._sums("%scratch", i, c.index)
                before = fn.load(tiling.vector, to, tiling.sum_nbytes)
                part = fn.load(tiling.vector, self._sums(self.part, i, c.index), tiling.sum_nbytes)
                fn.store(tiling.vector, fn.let(f"fadd {tiling.vector} {before}, {part}"), to, tiling.sum_nbytes)

    def _lines(self, k: str, count: int, left: str, right: str) -> None:
        """Add `count` lines, each times an element of each row of the left matrix."""
        fn, tiling, word = self.fn, self.tiling, self.word
        factors: list[list[str]] = []
        step = self.nbytes(word["right_step"])
        lines = [fn.gep("i8", right, fn.mul(fn.add(k, i), step)) for i in range(count)]
        for i in range(self.height):
            row = fn.gep("i8", left, self.nbytes(fn.mul(word["left_row"], i)))
            at = [fn.gep("i8", row, self.nbytes(fn.mul(fn.add(k, j), word["left_k"]))) for j in range(count)]
            loaded = [fn.load(tiling.sum_type, a, tiling.element_nbytes) for a in at]
            factors.append([splat(fn, tiling.sum_type, tiling.lanes, a) for a in loaded])
        lanes = fn.let(f"udiv i64 {self.columns}, {tiling.lanes}", "i")
        whole = fn.mul(lanes, tiling.lanes)
        ahead = [fn.gep("i8", lines[0], fn.add(self.ahead, fn.mul(self.ahead_line, i))) for i in range(count)]
        with fn.loop(0, whole, tiling.lanes) as c:
            self._column(c.index, lines, factors, None, ahead if count > 1 else ())
        rest = fn.let(f"sub nsw i64 {self.columns}, {whole}", "i")
        with fn.when(fn.let(f"icmp ne i64 {rest}, 0", "b")):
            self._column(whole, lines, factors, lane_mask(fn, tiling.lanes, rest), ())

    def _column(
        self, column: str, lines: list[str], factors: list[list[str]], mask: str | None, ahead: Sequence[str]
    ) -> None:
        """One register of columns of some lines; `ahead`: where what is asked for in advance begins, if it is."""
        fn, tiling = self.fn, self.tiling
        offset = self.nbytes(column)
        there = fn.mul(column, self.ahead_column)
        for at in ahead:
            # Lines lie further apart than the hardware's own prefetching looks.
            prefetch(fn, fn.gep("i8", at, there))
        right = [
            load_some(fn, tiling.vector, fn.gep("i8", line, offset), mask, tiling.element_nbytes) for line in lines
        ]
        for i, row in enumerate(factors):
            to = self._sums(self.part, i, column)
            total = fn.load(tiling.vector, to, tiling.sum_nbytes)
            # Two chains: a multiply-add waits for the one before.
            chains = ["zeroinitializer", "zeroinitializer"][: len(lines)]
            for j, (factor, element) in enumerate(zip(row, right, strict=True)):
                at_chain = j % len(chains)
                chains[at_chain] = multiply_add(fn, tiling, factor, element, chains[at_chain])
            for chain in chains:
                total = fn.let(f"fadd {tiling.vector} {total}, {chain}")
            fn.store(tiling.vector, total, to, tiling.sum_nbytes)
