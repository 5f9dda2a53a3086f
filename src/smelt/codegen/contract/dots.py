"""Products of few rows with a matrix whose rows lie along K: dot products at the speed of memory, nothing packed.

    for item in (batch, block of columns):
      sums_of(left, right + block):
        for up to 8 columns (rows of the matrix) of the block:
          sums[m][column] = sum over k of left[m][k] * right[column][k]    # a few registers of partial sums for each
      out[:, block] = epilogue(sums)

The sums are a function of their own, which is the same for every epilogue and compiled once for all.

The columns at once of a matrix that comes from memory lie a share of the block apart: each share is a stream, and
streams read in step hide the page walks and the latency that bind one.

Invariant: as for `gemm`; a chain of a lane has k / lanes terms, which rounds less than any blocked sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from smelt.codegen.contract.driver import Driver, Part
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import ceil_div, minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import AHEAD_NBYTES, lane_mask, load_some, masked_load, prefetch, shuffled
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import Carried, FunctionText
from smelt.diag.records import record

HEIGHTS = (1, 2, 4, 8)
"""Row counts with a kernel of their own; a kernel serves fewer rows, too."""

_SHAPES = {1: (8, 2), 2: (4, 2), 4: (4, 1), 8: (3, 1)}
_FEW_REGISTERS = {1: (4, 2), 2: (2, 2), 4: (2, 1), 8: (1, 1)}
# A stream is asked for further ahead where fewer are read at once, and more is done with each line.
_AHEAD_NBYTES = {1: AHEAD_NBYTES, 2: AHEAD_NBYTES, 4: 2 * AHEAD_NBYTES, 8: 4 * AHEAD_NBYTES}
_LINE_NBYTES = 64


@record
class Dots:
    """A kernel for up to `height` rows. Its buffers and words are those of `gemm.Gemm`, with "columns" for the right
    matrix; `block_rows` is the number of columns of an item, at most `tiling.panel`; `reading`: whether the
    matrix is asked for ahead of its use.
    """

    tiling: Tiling
    height: int
    epilogue: Epilogue

    @property
    def scratch_nbytes(self) -> int:
        """Sums of one item."""
        return self.height * self.tiling.panel * self.tiling.sum_nbytes


@lru_cache(maxsize=256)
def dots_source(dots: Dots, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(module_text(DotsDriver(dots, isa).function(), ()))


class DotsDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, dots: Dots, isa: Isa, part: Part | None = None) -> None:
        super().__init__(dots.tiling, dots.epilogue, isa, part)
        self._sums = _Sums(dots, isa)

    def function(self) -> FunctionText:
        """The function but for its `ret`."""
        self.fn.private(self._sums.function(), "")
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return self.fn

    def _item(self, item: str) -> None:
        fn, word = self.fn, self.word
        batch, number = self.split(item, word["n"], word["block_rows"])
        outer, inner = self.div_rem(batch, word["inner"])
        column = fn.mul(number, word["block_rows"])
        columns = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['n']}, {column}", "i"))
        left = self.start("left", outer, inner)
        right = fn.gep("i8", self.start("right", outer, inner), self.nbytes(fn.mul(column, word["right_step"])))
        fn.do(
            f"call void @{self._sums.name}(ptr {left}, i64 {self.nbytes(word['left_row'])}, i64 {word['m']}, "
            f"ptr {right}, i64 {self.nbytes(word['right_step'])}, i64 {columns}, i64 {word['k']}, "
            f"i64 {word['reading']}, ptr %scratch)"
        )
        self.finish_block(outer, inner, "0", column, word["m"], columns)


_PARAMETERS = (
    "ptr %left, i64 %left.row, i64 %m, ptr %right, i64 %right.row, i64 %columns, i64 %k, i64 %reading, "
    "ptr noalias %sums"
)


class _Sums:
    """The private function that computes the sums of one item, under construction."""

    def __init__(self, dots: Dots, isa: Isa) -> None:
        self.tiling, self.height = dots.tiling, dots.height
        self.name = f"sums.{dots.height}"
        self.fn = FunctionText(self.name, _PARAMETERS, result="internal void")
        # Lines at once, and registers of sums for each with each row: enough to hide the latency of a multiply-add, few
        # enough to stay in registers. Many lines share loads of the left matrix and the work of summing up lanes.
        lines, self.chains = (_SHAPES if isa.vector_registers >= 32 else _FEW_REGISTERS)[dots.height]
        if dots.tiling.lanes < 8:
            # Chains of short registers are long: twice as many keep the error low.
            lines, self.chains = max(1, lines // 2), 2 * self.chains
        self.lines = min(lines, dots.tiling.lanes)

    def function(self) -> FunctionText:
        """The function but for its `ret`."""
        fn = self.fn
        rows = [fn.gep("i8", "%left", fn.mul(self._clamped(i, "%m"), "%left.row")) for i in range(self.height)]
        last = fn.let("sub nsw i64 %columns, 1", "i")
        turns = ceil_div(fn, "%columns", str(self.lines))
        self.far = fn.let("icmp ne i64 %reading, 0", "b")
        # A line for each turn, each turn a line of every stream; near ones as they lie.
        self.apart = fn.let(f"select i1 {self.far}, i64 {turns}, i64 1", "i")
        each = fn.let(f"select i1 {self.far}, i64 1, i64 {self.lines}", "i")
        with fn.loop(0, turns) as turn:
            first = fn.mul(turn.index, each)
            # Lines beyond the last are the last again; their sums lie behind what is stored.
            at = [minimum(fn, fn.add(first, fn.mul(self.apart, i)), last) for i in range(self.lines)]
            lines = [fn.gep("i8", "%right", fn.mul(i, "%right.row")) for i in at]
            for i, totals in enumerate(self._dots(rows, lines)):
                to = fn.gep("i8", "%sums", fn.mul(fn.add(first, i * self.tiling.panel), self.tiling.sum_nbytes))
                self._store(self._folded(totals), to)
        return fn

    def _clamped(self, number: int, count: str) -> str:
        """`number`, or the last of `count`."""
        if number == 0:
            return "0"
        fn = self.fn
        inside = fn.let(f"icmp slt i64 {number}, {count}", "b")
        return fn.let(f"select i1 {inside}, i64 {number}, i64 {fn.let(f'sub nsw i64 {count}, 1', 'i')}", "i")

    def _dots(self, rows: list[str], lines: list[str]) -> list[list[str]]:
        """For each row and each line of the right matrix a register of partial sums."""
        fn, tiling, k = self.fn, self.tiling, "%k"
        step = tiling.lanes * tiling.group
        stride = step * self.chains
        whole = fn.mul(fn.let(f"udiv i64 {k}, {stride}", "i"), stride)
        places = [(i, j) for i in range(len(rows)) for j in range(len(lines))]
        zeros = [(tiling.vector, "zeroinitializer")] * (len(places) * self.chains)
        with fn.loop(0, whole, stride, zeros) as loop:
            at = fn.mul(loop.index, tiling.element_nbytes)
            for chain in range(self.chains):
                there = fn.add(at, chain * step * tiling.element_nbytes)
                self._prefetch(lines, there)
                self._multiply(rows, lines, there, None, loop.carried[chain :: self.chains])
        firsts = []
        for i in range(len(places)):
            first, *others = (c.last for c in loop.carried[i * self.chains : (i + 1) * self.chains])
            for other in others:
                first = fn.let(f"fadd {tiling.vector} {first}, {other}")
            firsts.append(first)
        with fn.loop(whole, k, step, [(tiling.vector, first) for first in firsts]) as tail:
            mask = lane_mask(fn, step, fn.let(f"sub nsw i64 {k}, {tail.index}", "i"))
            self._multiply(rows, lines, fn.mul(tail.index, tiling.element_nbytes), mask, tail.carried)
        sums = [c.last for c in tail.carried]
        return [sums[i * len(lines) : (i + 1) * len(lines)] for i in range(len(rows))]

    def _multiply(
        self, rows: list[str], lines: list[str], offset: str, mask: str | None, sums: Sequence[Carried]
    ) -> None:
        """Add one register of products of each row with each line."""
        left = [self._load(row, offset, mask) for row in rows]
        right = [self._load(line, offset, mask) for line in lines]
        for n, carried in enumerate(sums):
            row, line = divmod(n, len(lines))
            carried.next = multiply_add(self.fn, self.tiling, left[row], right[line], carried.now)

    def _prefetch(self, lines: list[str], at: str) -> None:
        """Ask for what comes next in the stream of each line, if it is far: the hardware's own stops at pages."""
        fn, tiling = self.fn, self.tiling
        with fn.when(self.far):
            for line in lines:
                for offset in range(0, tiling.lanes * tiling.group * tiling.element_nbytes, _LINE_NBYTES):
                    prefetch(fn, fn.gep("i8", line, fn.add(at, _AHEAD_NBYTES[self.height] + offset)))

    def _load(self, line: str, offset: str, mask: str | None) -> str:
        fn, tiling = self.fn, self.tiling
        at = fn.gep("i8", line, offset)
        if tiling.kind != "bf16":
            return load_some(fn, tiling.vector, at, mask, tiling.element_nbytes)
        many = 2 * tiling.lanes
        if mask is None:
            return fn.load(f"<{many} x bfloat>", at, 2)
        value = masked_load(fn, f"<{many} x i16>", at, mask, 2)
        return fn.let(f"bitcast <{many} x i16> {value} to <{many} x bfloat>")

    def _store(self, total: str, at: str) -> None:
        """Write the first lanes of a register, one for each line."""
        fn, tiling = self.fn, self.tiling
        if self.lines == 1:
            fn.store(tiling.sum_type, fn.let(f"extractelement {tiling.vector} {total}, i64 0"), at)
            return
        with fn.when(self.far):
            for i in range(self.lines):
                to = fn.gep("i8", at, fn.mul(self.apart, i * tiling.sum_nbytes))
                fn.store(tiling.sum_type, fn.let(f"extractelement {tiling.vector} {total}, i64 {i}"), to)
        with fn.when(fn.let(f"xor i1 {self.far}, true", "b")):
            some = f"<{self.lines} x {tiling.sum_type}>"
            fn.store(some, shuffled(fn, tiling.vector, total, total, range(self.lines)), at, tiling.sum_nbytes)

    def _folded(self, totals: list[str]) -> str:
        """A register whose first lanes are the sums of the lanes of each of `totals`.

        Two registers are added by halves into one as long as there are two, so that each addition serves all lanes; of
        an odd number the last one is added twice, and its second sum is in a lane that means nothing.
        """
        width = self.tiling.lanes
        while width > 1:
            width //= 2
            if len(totals) > 1 and len(totals) % 2:
                totals = [*totals, totals[-1]]
            others = totals[1::2] or totals
            totals = [self._halved(a, b, width) for a, b in zip(totals[::2], others, strict=True)]
        return totals[0]

    def _halved(self, a: str, b: str, width: int) -> str:
        """Sums of both halves of each run of 2 * width lanes: those of `a`, then those of `b`."""
        fn, vector, lanes = self.fn, self.tiling.vector, self.tiling.lanes
        low = [i for i in range(2 * lanes) if i % (2 * width) < width]
        high = [i + width for i in low]
        return fn.let(f"fadd {vector} {shuffled(fn, vector, a, b, low)}, {shuffled(fn, vector, a, b, high)}")
