"""Products of bytes: rows become bytes in one launch, a second one multiplies them by the weight's.

    for row:      lo, hi = range(x[row], 0);  q[row] = round(x[row] / scale) from the zero point;  scale, zero
    for item:     sums[rows][panel] = sum over k of q[row][k] * bytes[k][column]          # exact, in 32 bits
                  out = epilogue((sums - zero * column's sum) * scale[row] * scale[column])

Invariant: sums are whole numbers and those of `smelt.ops.own.narrow_linear`, so results depend on no instruction
set: where there are dot products of four bytes, and where there are dot products of pairs of words, which are exact,
too, as those of unsigned bytes by signed ones in 16 bits are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from smelt.codegen.contract.driver import Part
from smelt.codegen.contract.epilogue import Block, Epilogue, emit_epilogue
from smelt.codegen.contract.gemm import Gemm, GemmDriver
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.narrow.int8_forms import TAIL_NBYTES, padded
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import lane_mask, masked_load, splat
from smelt.codegen.kernels.element_types import rounded
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes_types import float_literal
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, Carried, FunctionText
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ops.own.narrow_linear import TINY

BLOCK_TERMS = 1024
"""Terms that are summed between two visits of the sums in memory."""


@record
class Int8:
    """A kernel. Its buffers: rows, panels (`int8_forms`), those of the epilogue, out; words and `lines`: `Gemm`'s."""

    tiling: Tiling
    epilogue: Epilogue
    lines: int = 1

    @property
    def gemm(self) -> Gemm:
        """How its tiles are walked."""
        return Gemm(self.tiling, "packed", self.epilogue, unit=True, lines=self.lines)


@lru_cache(maxsize=256)
def int8_source(kernel: Int8, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(module_text(*_Int8Driver(kernel.gemm, isa).functions()))


class _Int8Driver(GemmDriver):
    """The kernel's function under construction."""

    def __init__(self, gemm: Gemm, isa: Isa, part: Part | None = None) -> None:
        super().__init__(gemm, isa, part)
        self.floats = replace(gemm.tiling, kind="f32")

    def finish_block(self, outer: str, inner: str, row: str, column: str, rows: str, columns: str) -> None:
        """Make numbers of the sums, where they are, then apply the epilogue."""
        fn, word = self.fn, self.word
        self._scale(row, column, rows)
        out = self.out_at(outer, inner, row, column)
        block = Block("%scratch", rows, columns, out, word["out_row"], (outer, inner, row, column))
        first = self._first_epilogue_word
        emit_epilogue(fn, self.isa, self.floats, self.epilogue, block, self.extra, first)

    def _scale(self, row: str, column: str, rows: str) -> None:
        fn, word, tiling, floats = self.fn, self.word, self.tiling, self.floats
        lanes, columns = tiling.lanes, self.panel.panel
        row_nbytes = self.nbytes(word["left_row"])
        tails = fn.gep("i8", self.left, fn.add(fn.mul(row, row_nbytes), fn.let(f"sub i64 {row_nbytes}, {TAIL_NBYTES}")))
        panel = fn.gep("i8", self.right, fn.mul(fn.let(f"udiv i64 {column}, {columns}", "i"), self._panel_nbytes()))
        scales, sums = [], []
        # Registers beyond the last panel are of no column: they are not read.
        used = fn.let(f"sub nsw i64 {word['n']}, {column}", "i")
        for j in range(tiling.vectors):
            number, inside = divmod(j * lanes, columns)
            exists = fn.let(f"icmp slt i64 {number * columns}, {used}", "b")
            offset = fn.let(f"select i1 {exists}, i64 {fn.mul(self._panel_nbytes(), number)}, i64 0", "i")
            at = fn.gep("i8", fn.gep("i8", panel, offset), fn.mul(word["k"], columns))
            scales.append(fn.load(floats.vector, fn.gep("i8", at, 4 * inside), 4))
            if tiling.kind == "quads":
                sums.append(fn.load(tiling.vector, fn.gep("i8", at, 4 * (columns + inside)), 4))
        with fn.loop(0, rows) as i:
            tail = fn.gep("i8", tails, fn.mul(i.index, row_nbytes))
            scale = splat(fn, "float", lanes, fn.load("float", tail, 1))
            line = fn.gep("i8", "%scratch", fn.mul(i.index, tiling.panel * 4))
            if sums:
                zero = splat(fn, "i32", lanes, fn.load("i32", fn.gep("i8", tail, 4), 1))
            for j, of_columns in enumerate(scales):
                to = fn.gep("i8", line, j * lanes * 4)
                total = fn.load(tiling.vector, to, 4)
                if sums:
                    total = fn.let(f"sub {tiling.vector} {total}, {fn.let(f'mul {tiling.vector} {zero}, {sums[j]}')}")
                value = fn.let(f"sitofp {tiling.vector} {total} to {floats.vector}")
                value = fn.let(f"fmul {floats.vector} {value}, {scale}")
                fn.store(floats.vector, fn.let(f"fmul {floats.vector} {value}, {of_columns}"), to, 4)

    def _panel_nbytes(self) -> str:
        return self.nbytes(self.word["right_panel"])


# --- rows


@lru_cache(maxsize=4)
def byte_rows_source(tiling: Tiling) -> KernelSource:
    """The kernel that makes bytes of rows. Its buffers: x, rows; its words: K, elements between rows of x, terms with
    those that are 0 behind, bytes between rows. An item is a row.
    """
    return KernelSource.of(_RowsText(tiling).text())


class _RowsText:
    """The kernel's function under construction."""

    def __init__(self, tiling: Tiling) -> None:
        self.fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.tiling, self.lanes = tiling, tiling.lanes
        self.floats = f"<{tiling.lanes} x float>"
        self.mask = f"<{tiling.lanes} x i1>"

    def text(self) -> str:
        """The whole module."""
        fn, lanes = self.fn, self.lanes
        x, out = fn.address(0), fn.address(1)
        k, step, terms, row_nbytes = (fn.word(2 + i) for i in range(4))
        self.whole = fn.mul(fn.let(f"udiv i64 {k}, {lanes}", "i"), lanes)
        self.rest = lane_mask(fn, lanes, fn.let(f"sub nsw i64 {k}, {self.whole}", "i"))
        with fn.loop("%begin", "%end") as item:
            row = fn.gep("float", x, fn.mul(item.index, step))
            to = fn.gep("i8", out, fn.mul(item.index, row_nbytes))
            low, high, spoilt = self._range(row)
            scale, zero = self._scale(low, high)
            inverse = fn.let(f"fdiv float 1.0, {scale}")
            self._bytes(row, to, inverse, zero, terms)
            tail = fn.gep("i8", to, fn.let(f"sub i64 {row_nbytes}, {TAIL_NBYTES}", "i"))
            fn.store("float", fn.let(f"fadd float {scale}, {spoilt}"), tail, 1)
            whole_zero = fn.let(f"fptosi float {zero} to i32") if self.tiling.kind == "quads" else "0"
            fn.store("i32", whole_zero, fn.gep("i8", tail, 4), 1)
        return module_text(fn, ())

    def _range(self, row: str) -> tuple[str, str, str]:
        """The least and the greatest of a row and 0; NaN where the row holds any that is not finite, else 0."""
        fn, vector = self.fn, self.floats
        state = [(vector, "zeroinitializer")] * 3
        with fn.loop(0, self.whole, self.lanes, state) as loop:
            self._seen(loop.carried, fn.load(vector, fn.gep("float", row, loop.index), 4))
        with fn.loop(self.whole, fn.add(self.whole, 1), 1, [(vector, c.last) for c in loop.carried]) as once:
            self._seen(once.carried, masked_load(fn, vector, fn.gep("float", row, self.whole), self.rest, 4))
        low, high, spoilt = (c.last for c in once.carried)
        return self._folded(low, "olt"), self._folded(high, "ogt"), self._folded(spoilt, "uno")

    def _seen(self, carried: Sequence[Carried], value: str) -> None:
        fn, vector = self.fn, self.floats
        for one, compare in zip(carried[:2], ("olt", "ogt"), strict=True):
            better = fn.let(f"fcmp {compare} {vector} {value}, {one.now}", "m")
            one.next = fn.let(f"select {self.mask} {better}, {vector} {value}, {vector} {one.now}")
        nothing = fn.let(f"fmul {vector} {value}, zeroinitializer")
        carried[2].next = fn.let(f"fadd {vector} {carried[2].now}, {nothing}")

    def _folded(self, register: str, compare: str) -> str:
        """One of all lanes."""
        fn, vector, width = self.fn, self.floats, self.lanes
        while width > 1:
            width //= 2
            indices = ", ".join(f"i32 {(i + width) % self.lanes}" for i in range(self.lanes))
            other = fn.let(f"shufflevector {vector} {register}, {vector} poison, <{self.lanes} x i32> <{indices}>")
            if compare == "uno":
                register = fn.let(f"fadd {vector} {register}, {other}")
            else:
                better = fn.let(f"fcmp {compare} {vector} {other}, {register}", "m")
                register = fn.let(f"select {self.mask} {better}, {vector} {other}, {vector} {register}")
        return fn.let(f"extractelement {vector} {register}, i64 0")

    def _scale(self, low: str, high: str) -> tuple[str, str]:
        """A row's step and its zero point."""
        fn, share, tiny = self.fn, float_literal(_SHARE, "float"), float_literal(_TINY, "float")
        of_high, of_low = fn.let(f"fmul float {high}, {share}"), fn.let(f"fmul float {low}, {share}")
        step = fn.let(f"fsub float {of_high}, {of_low}")
        is_some = fn.let(f"fcmp ogt float {step}, {tiny}", "b")
        step = fn.let(f"select i1 {is_some}, float {step}, float {tiny}")
        inverse = fn.let(f"fdiv float 1.0, {step}")
        fn.declare("declare float @llvm.rint.f32(float)")
        lowest = fn.let(f"fneg float {low}")
        zero = fn.let(f"call float @llvm.rint.f32(float {fn.let(f'fmul float {lowest}, {inverse}')})")
        for compare, limit in (("ogt", "0.0"), ("olt", "255.0")):
            fits = fn.let(f"fcmp {compare} float {zero}, {limit}", "b")
            zero = fn.let(f"select i1 {fits}, float {zero}, float {limit}")
        return step, zero

    def _bytes(self, row: str, to: str, inverse: str, zero: str, terms: str) -> None:
        fn, vector, lanes = self.fn, self.floats, self.lanes
        self.inverse = splat(fn, "float", lanes, inverse)
        least = fn.let(f"fneg float {zero}")
        most = fn.let(f"fsub float 255.0, {zero}")
        self.limits = [("ogt", splat(fn, "float", lanes, least)), ("olt", splat(fn, "float", lanes, most))]
        self.zero = splat(fn, "float", lanes, zero)
        with fn.loop(0, self.whole, lanes) as i:
            self._store(fn.load(vector, fn.gep("float", row, i.index), 4), to, i.index)
        behind = fn.add(self.whole, lanes)
        with fn.loop(self.whole, fn.let(f"select i1 {self._has_rest()}, i64 {behind}, i64 {self.whole}", "i"), lanes):
            self._store(masked_load(fn, vector, fn.gep("float", row, self.whole), self.rest, 4), to, self.whole)
        first = fn.let(f"select i1 {self._has_rest()}, i64 {behind}, i64 {self.whole}", "i")
        with fn.loop(first, terms, lanes) as i:
            self._store("zeroinitializer", to, i.index)

    def _has_rest(self) -> str:
        fn = self.fn
        return fn.let(f"extractelement {self.mask} {self.rest}, i64 0", "b")

    def _store(self, value: str, to: str, at: str) -> None:
        fn, vector, lanes, tiling = self.fn, self.floats, self.lanes, self.tiling
        name = f"llvm.rint.v{lanes}f32"
        fn.declare(f"declare {vector} @{name}({vector})")
        steps = fn.let(f"call {vector} @{name}({vector} {fn.let(f'fmul {vector} {value}, {self.inverse}')})")
        for compare, limit in self.limits:
            fits = fn.let(f"fcmp {compare} {vector} {steps}, {limit}", "m")
            steps = fn.let(f"select {self.mask} {fits}, {vector} {steps}, {vector} {limit}")
        if tiling.kind == "quads":
            steps = fn.let(f"fadd {vector} {steps}, {self.zero}")
        wide, short = f"<{lanes} x i32>", f"<{lanes} x i{8 * tiling.element_nbytes}>"
        whole = fn.let(f"fptosi {vector} {steps} to {wide}")
        place = fn.gep("i8", to, fn.mul(at, tiling.element_nbytes))
        fn.store(short, fn.let(f"trunc {wide} {whole} to {short}"), place, 1)


_SHARE, _TINY = rounded(1.0 / 255.0, DType.F32), rounded(TINY, DType.F32)


def row_words(k: int, step: int, row_nbytes: int) -> tuple[int, ...]:
    """The words of `byte_rows_source`."""
    return k, step, padded(k), row_nbytes
