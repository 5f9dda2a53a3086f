"""Products of few rows with a matrix whose rows lie along K: dot products at the speed of memory, nothing packed.

    for item in (batch, block of columns):
      for column (a row of the matrix, so that memory is read as it lies):
        sums[m][column] = sum over k of left[m][k] * right[column][k]      # a few registers of partial sums for each m
      out[:, block] = epilogue(sums)

Invariant: as for `gemm`; a chain of a lane has k / lanes terms, which rounds less than any blocked sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import lane_mask, masked_load, shuffled
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource

HEIGHTS = (1, 2, 4, 8)
"""Row counts with a kernel of their own; a kernel serves fewer rows, too."""

_AHEAD_NBYTES = 4096
_LINE_NBYTES = 64


@dataclass(frozen=True, slots=True)
class Dots:
    """A kernel for up to `height` rows. Its buffers and words are those of `gemm.Gemm`, with "columns" for the right
    matrix; `block_rows` is the number of columns of an item, at most `tiling.panel`.
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
    return KernelSource.of(_DotsDriver(dots, isa).text())


class _DotsDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, dots: Dots, isa: Isa) -> None:
        super().__init__(dots.tiling, dots.epilogue, isa)
        self.height = dots.height
        # Registers of sums: enough to hide the latency of a multiply-add, few enough to stay in registers.
        self.chains = 2 if dots.height == max(HEIGHTS) else 4
        if dots.height * self.chains > isa.vector_registers // 2:
            self.chains = 1

    def text(self) -> str:
        """The whole module."""
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return module_text(self.fn, ())

    def _item(self, item: str) -> None:
        fn, word = self.fn, self.word
        batch, number = self.split(item, word["n"], word["block_rows"])
        outer, inner = self.div_rem(batch, word["inner"])
        column = fn.mul(number, word["block_rows"])
        columns = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['n']}, {column}", "i"))
        left = self.start("left", outer, inner)
        right = fn.gep("i8", self.start("right", outer, inner), self.nbytes(fn.mul(column, word["right_step"])))
        rows = [fn.gep("i8", left, self.nbytes(fn.mul(self._clamped(i, word["m"]), word["left_row"])))
                for i in range(self.height)]  # fmt: skip
        with fn.loop(0, columns) as c:
            line = fn.gep("i8", right, self.nbytes(fn.mul(c.index, word["right_step"])))
            for i, total in enumerate(self._dots(rows, line)):
                at = fn.gep("i8", "%scratch", fn.mul(fn.add(c.index, i * self.tiling.panel), self.tiling.sum_nbytes))
                fn.store(self.tiling.sum_type, self._folded(total), at)
        self.finish_block(outer, inner, "0", column, word["m"], columns)

    def _clamped(self, number: int, count: str) -> str:
        """`number`, or the last of `count`."""
        if number == 0:
            return "0"
        fn = self.fn
        inside = fn.let(f"icmp slt i64 {number}, {count}", "b")
        return fn.let(f"select i1 {inside}, i64 {number}, i64 {fn.let(f'sub nsw i64 {count}, 1', 'i')}", "i")

    def _dots(self, rows: list[str], line: str) -> list[str]:
        """For each row a register of partial sums with a row of the right matrix."""
        fn, tiling, k = self.fn, self.tiling, self.word["k"]
        step = tiling.lanes * tiling.group
        stride = step * self.chains
        whole = fn.mul(fn.let(f"udiv i64 {k}, {stride}", "i"), stride)
        zeros = [(tiling.vector, "zeroinitializer")] * (len(rows) * self.chains)
        with fn.loop(0, whole, stride, zeros) as loop:
            at = fn.mul(loop.index, tiling.element_nbytes)
            self._prefetch(line, at)
            for chain in range(self.chains):
                there = fn.add(at, chain * step * tiling.element_nbytes)
                right = self._load(line, there, None)
                for row, carried in zip(rows, loop.carried[chain :: self.chains], strict=True):
                    carried.next = multiply_add(fn, tiling, self._load(row, there, None), right, carried.now)
        firsts = []
        for i in range(len(rows)):
            first, *others = (c.last for c in loop.carried[i * self.chains : (i + 1) * self.chains])
            for other in others:
                first = fn.let(f"fadd {tiling.vector} {first}, {other}")
            firsts.append(first)
        with fn.loop(whole, k, step, [(tiling.vector, first) for first in firsts]) as tail:
            mask = lane_mask(fn, step, fn.let(f"sub nsw i64 {k}, {tail.index}", "i"))
            at = fn.mul(tail.index, tiling.element_nbytes)
            right = self._load(line, at, mask)
            for row, carried in zip(rows, tail.carried, strict=True):
                carried.next = multiply_add(fn, tiling, self._load(row, at, mask), right, carried.now)
        return [c.last for c in tail.carried]

    def _prefetch(self, line: str, at: str) -> None:
        """Ask for memory further ahead than the hardware's own prefetching, which stops at pages, looks."""
        fn, tiling = self.fn, self.tiling
        fn.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        taken = self.chains * tiling.lanes * tiling.group * tiling.element_nbytes
        for offset in range(0, taken, _LINE_NBYTES):
            ahead = fn.gep("i8", line, fn.add(at, _AHEAD_NBYTES + offset))
            fn.do(f"call void @llvm.prefetch.p0(ptr {ahead}, i32 0, i32 2, i32 1)")

    def _load(self, line: str, offset: str, mask: str | None) -> str:
        fn, tiling = self.fn, self.tiling
        at = fn.gep("i8", line, offset)
        if tiling.kind != "bf16":
            if mask is None:
                return fn.load(tiling.vector, at, tiling.element_nbytes)
            return masked_load(fn, tiling.vector, at, mask, tiling.element_nbytes)
        many = 2 * tiling.lanes
        if mask is None:
            return fn.load(f"<{many} x bfloat>", at, 2)
        value = masked_load(fn, f"<{many} x i16>", at, mask, 2)
        return fn.let(f"bitcast <{many} x i16> {value} to <{many} x bfloat>")

    def _folded(self, total: str) -> str:
        """The sum of a register's lanes, by halves."""
        fn, tiling = self.fn, self.tiling
        width = tiling.lanes
        while width > 1:
            width //= 2
            lanes = [i % width + width * (i < width) for i in range(tiling.lanes)]
            total = fn.let(f"fadd {tiling.vector} {total}, {shuffled(fn, tiling.vector, total, total, lanes)}")
        return fn.let(f"extractelement {tiling.vector} {total}, i64 0")
