"""Products of one or two rows with a matrix whose rows lie along N: its lines are read once, as they lie in memory.

    for item in (batch, block of columns, part of K):
      for block of the part:                                   # tiling.BLOCK terms
        block_sum = 0
        for 8 lines of the matrix, an eighth of the part apart:
          block_sum[m][columns] += sum over the 8 of left[m][k] * right[k][columns]      # two chains from zero
        sums[m][columns] += block_sum[m][columns]
      out[part][:, columns] = epilogue(sums)

The lines of an eighth are a stream of its own: eight streams read in step hide the page walks and the latency that bind
one. Sums stay in the first-level cache, so a block may be as wide as it takes to read memory in long pieces. A matrix
that comes from memory is cut along K where its lines can be whole, and `parts.Joined` adds what the parts gave.
Invariant: as for `gemm`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import BLOCK, Tiling
from smelt.codegen.contract.vectors import AHEAD_NBYTES, lane_mask, load_some, prefetch, splat
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record

MAX_COLUMNS = 4096
"""Columns of an item at most: what is added to in the inner loop takes half of the first-level cache."""

HEIGHTS = (1, 2)
"""Row counts with a kernel."""

_LINES = 8


@record
class Lines:
    """A kernel for `height` rows. Its buffers and words are those of `gemm.Gemm`, with "rows" for the right matrix;
    `block_rows` is the number of columns of an item, at most `MAX_COLUMNS`, `block_terms` that of the terms of a part,
    and `reading` says whether the lines of an item lie one behind the other. The rows of a part are stored behind those
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
        self._place_prefetch()
        self._fill("%scratch")
        first = fn.mul(part, word["block_terms"])
        last = minimum(fn, fn.add(first, word["block_terms"]), word["k"])
        step = fn.let(f"sdiv i64 {fn.let(f'sub nsw i64 {last}, {first}', 'i')}, {_LINES}", "i")
        with fn.loop(0, step, BLOCK // _LINES) as turns:
            end = minimum(fn, fn.add(turns.index, BLOCK // _LINES), step)
            with self._block(), fn.loop(turns.index, end) as turn:
                k = fn.add(first, turn.index)
                self._lines([fn.add(k, fn.mul(step, i)) for i in range(_LINES)], left, right)
        middle = fn.add(first, fn.mul(step, _LINES))
        with fn.when(fn.let(f"icmp slt i64 {middle}, {last}", "b")), self._block(), fn.loop(middle, last) as rest:
            self._lines([rest.index], left, right)
        self.finish_block(outer, inner, fn.mul(part, word["m"]), column, word["m"], columns)

    def _place_prefetch(self) -> None:
        """How far behind a register lies what is asked for beside it, in the same stream: a little where the lines of a
        stream are one piece of memory, else the stream's next line.
        """
        fn = self.fn
        whole = fn.let(f"icmp ne i64 {self.word['reading']}, 0", "b")
        self.ahead = fn.let(f"select i1 {whole}, i64 {AHEAD_NBYTES}, i64 {self.nbytes(self.word['right_step'])}", "i")

    def _fill(self, at: str) -> None:
        """Zeros for all sums that begin at an address."""
        fn, tiling = self.fn, self.tiling
        with fn.loop(0, self.columns, tiling.lanes) as c:
            for i in range(self.height):
                fn.store(tiling.vector, "zeroinitializer", self._sums(at, i, c.index), tiling.sum_nbytes)

    def _sums(self, base: str, row: int, column: str) -> str:
        return self.fn.gep("i8", base, self.fn.add(self.fn.mul(column, self.tiling.sum_nbytes), row * self.row_nbytes))

    @contextmanager
    def _block(self) -> Iterator[None]:
        """Add what is summed inside to the sums."""
        fn, tiling = self.fn, self.tiling
        self._fill(self.part)
        yield
        with fn.loop(0, self.columns, tiling.lanes) as c:
            for i in range(self.height):
                to = self._sums("%scratch", i, c.index)
                before = fn.load(tiling.vector, to, tiling.sum_nbytes)
                part = fn.load(tiling.vector, self._sums(self.part, i, c.index), tiling.sum_nbytes)
                fn.store(tiling.vector, fn.let(f"fadd {tiling.vector} {before}, {part}"), to, tiling.sum_nbytes)

    def _lines(self, terms: Sequence[str], left: str, right: str) -> None:
        """Add a line for each term, times an element of each row of the left matrix."""
        fn, tiling, word = self.fn, self.tiling, self.word
        factors: list[list[str]] = []
        step = self.nbytes(word["right_step"])
        lines = [fn.gep("i8", right, fn.mul(k, step)) for k in terms]
        for i in range(self.height):
            row = fn.gep("i8", left, self.nbytes(fn.mul(word["left_row"], i)))
            at = [fn.gep("i8", row, self.nbytes(fn.mul(k, word["left_k"]))) for k in terms]
            loaded = [fn.load(tiling.sum_type, a, tiling.element_nbytes) for a in at]
            factors.append([splat(fn, tiling.sum_type, tiling.lanes, a) for a in loaded])
        lanes = fn.let(f"udiv i64 {self.columns}, {tiling.lanes}", "i")
        whole = fn.mul(lanes, tiling.lanes)
        with fn.loop(0, whole, tiling.lanes) as c:
            self._column(c.index, lines, factors, None)
        rest = fn.let(f"sub nsw i64 {self.columns}, {whole}", "i")
        with fn.when(fn.let(f"icmp ne i64 {rest}, 0", "b")):
            self._column(whole, lines, factors, lane_mask(fn, tiling.lanes, rest))

    def _column(self, column: str, lines: list[str], factors: list[list[str]], mask: str | None) -> None:
        """One register of columns of some lines."""
        fn, tiling = self.fn, self.tiling
        offset = self.nbytes(column)
        places = [fn.gep("i8", line, offset) for line in lines]
        if mask is None and len(lines) > 1:
            for place in places:
                prefetch(fn, fn.gep("i8", place, self.ahead))
        right = [load_some(fn, tiling.vector, place, mask, tiling.element_nbytes) for place in places]
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
