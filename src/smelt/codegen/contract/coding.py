"""A weight of f32 in 28 bits an element, without loss: what the coding kernel writes, once, before the first run.

The upper byte of a float is its sign and the upper seven bits of its exponent, and the weights of a matrix have few of
them: 99.9% of normally distributed numbers lie within a factor of 2^13 below the greatest. So each panel of `COLUMNS`
columns has a table of sixteen upper bytes, and an element is its three lower bytes and a code of four bits. A row of
the panel that has any other upper byte is exceptional and kept as it is; a panel with many of these is, as a whole.

    table      16 x i32          upper bytes in place, code 0..7 positive, 8..15 the same negative
    segments   i64               how many there are
    plain      i64               where rows kept as they are begin, in bytes from the panel's begin
    ends       2 x i64 each      rows before the first number are coded, then those before the second are plain
    coded      224 bytes a row   64 x u16 lower halves; 64 x u8 third bytes; 32 x u8 codes, of columns c and c + 16
    plain      256 bytes a row

The idea that exponents of weights compress without loss: Zhang et al., "70% Size, 100% Accuracy" (DFloat11, 2025), for
bf16 with a Huffman code; four bits and a table are what a CPU decodes at twice the speed of its memory.
Invariant: decoding gives the bits that were coded, whatever they are; only how many bytes are read depends on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.panels import pack_call, pack_columns, pack_rows
from smelt.codegen.contract.tiling import Tiling, tiling_for
from smelt.codegen.contract.vectors import splat
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record
from smelt.ir import DType

COLUMNS, LANES = 64, 16
"""Columns of a panel, and of a register."""

CODED_NBYTES, PLAIN_NBYTES = COLUMNS * 7 // 2, COLUMNS * 4
"""Bytes of a row."""

THIRDS_AT, CODES_AT = 2 * COLUMNS, 3 * COLUMNS
"""Where a coded row has its third bytes and its codes."""

SEGMENTS_AT, PLAIN_AT, ENDS_AT, END_NBYTES = 64, 72, 80, 16
"""Where a panel has how many segments there are, where its plain rows begin, the segments' ends; bytes of one."""

_ROWS = LANES
"""Rows that are coded at a time; one in so many may be exceptional."""

_WORDS = f"<{LANES} x i32>"
_MAGNITUDES = 8


def coding_tiling(isa: Isa) -> Tiling | None:
    """The tiling of coded products; None where an instruction set cannot look up sixteen words in a register."""
    tiling = tiling_for(isa, DType.F32)
    return replace(tiling, vectors=COLUMNS // LANES) if tiling is not None and isa.name == "avx512" else None


@record
class Coding:
    """The coding of a matrix [k, n]. The kernel's buffers: matrix, coded."""

    tiling: Tiling
    n: int
    k: int

    @property
    def panels(self) -> int:
        """How many panels there are: the kernel's items."""
        return -(-self.n // COLUMNS)

    @property
    def rows_at(self) -> int:
        """Where the rows of a panel begin, in bytes."""
        return -(-(ENDS_AT + (self.k // _ROWS + 1) * END_NBYTES) // 64) * 64

    @property
    def panel_nbytes(self) -> int:
        """Bytes from one panel to the next: enough for one whose rows are plain."""
        return self.rows_at + self.k * PLAIN_NBYTES

    @property
    def nbytes(self) -> int:
        """Bytes of all panels. What lies between the exceptional rows of one and the next is never touched."""
        return self.panels * self.panel_nbytes

    @property
    def read_nbytes(self) -> int:
        """Bytes that a product reads, where no row is exceptional."""
        return self.panels * (self.rows_at + self.k * CODED_NBYTES)

    def words(self, step: int, along_columns: bool) -> tuple[int, ...]:
        """The kernel's words; `step`: elements between rows of the matrix, or between columns if these are along K."""
        return (
            self.n, self.k, step, COLUMNS * (step if along_columns else 1), 1 if along_columns else step,
            self.panel_nbytes, self.rows_at,
        )  # fmt: skip


@lru_cache(maxsize=4)
def coding_source(tiling: Tiling, along_columns: bool) -> KernelSource:
    """The kernel for matrices whose columns (or else rows) have unit stride."""
    pack = (pack_columns if along_columns else pack_rows)(tiling)
    return KernelSource.of(_Coder(along_columns).text(pack))


class _Coder:
    """The kernel's function under construction. Blocks of rows are brought onto the stack in the order of a panel: once
    to find the upper bytes, once more, from the cache, to be coded.
    """

    def __init__(self, along_columns: bool) -> None:
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.along_columns = along_columns
        self.matrix, self.coded = fn.address(0), fn.address(1)
        names = ("n", "k", "step", "panel_step", "row_step", "panel_nbytes", "rows_at")
        self.word = {name: fn.word(2 + i) for i, name in enumerate(names)}
        self.block = fn.alloca("i8", _ROWS * PLAIN_NBYTES)

    def text(self, pack: FunctionText) -> str:
        """The whole module."""
        fn = self.fn
        with fn.loop("%begin", "%end") as panel:
            self._panel(panel.index)
        return module_text(fn, [pack])

    def _panel(self, panel: str) -> None:
        fn, word = self.fn, self.word
        self.source = fn.gep("i8", self.matrix, fn.mul(fn.mul(panel, word["panel_step"]), 4))
        left = fn.let(f"sub nsw i64 {word['n']}, {fn.mul(panel, COLUMNS)}", "i")
        self.columns = minimum(fn, left, str(COLUMNS))
        to = fn.gep("i8", self.coded, fn.mul(panel, word["panel_nbytes"]))
        rows = fn.gep("i8", to, word["rows_at"])
        plain_at = fn.add(word["rows_at"], fn.mul(word["k"], CODED_NBYTES))
        most, has_zero = self._range()
        self._table(to, most, has_zero)
        found = self._code(to, rows, fn.gep("i8", to, plain_at), most, has_zero)
        limit = fn.let(f"udiv i64 {word['k']}, {_ROWS}", "i")
        is_coded = fn.let(f"icmp sle i64 {found}, {limit}", "b")
        # The last segment has no plain rows; that of a plain panel is all there is, and has nothing else.
        segments = fn.let(f"select i1 {is_coded}, i64 {fn.add(found, 1)}, i64 1", "i")
        last = fn.let(f"select i1 {is_coded}, i64 {found}, i64 0", "i")
        ends = fn.gep("i8", to, fn.add(fn.mul(last, END_NBYTES), ENDS_AT))
        fn.store("i64", segments, fn.gep("i8", to, SEGMENTS_AT), 8)
        fn.store("i64", fn.let(f"select i1 {is_coded}, i64 {plain_at}, i64 {word['rows_at']}", "i"),
                 fn.gep("i8", to, PLAIN_AT), 8)  # fmt: skip
        fn.store("i64", fn.let(f"select i1 {is_coded}, i64 {word['k']}, i64 0", "i"), ends, 8)
        fn.store("i64", word["k"], fn.gep("i8", ends, 8), 8)
        with fn.when(fn.let(f"xor i1 {is_coded}, true", "b")), self._blocks() as (k, count):
            at = fn.gep("i8", rows, fn.mul(k, PLAIN_NBYTES))
            with fn.loop(0, fn.mul(count, PLAIN_NBYTES), LANES * 4) as i:
                fn.store(_WORDS, fn.load(_WORDS, fn.gep("i8", self.block, i.index), 4), fn.gep("i8", at, i.index), 4)

    @contextmanager
    def _blocks(self) -> Iterator[tuple[str, str]]:
        """For each block of rows, on the stack: (its first row, how many)."""
        fn, word = self.fn, self.word
        with fn.loop(0, word["k"], _ROWS) as block:
            count = minimum(fn, fn.let(f"sub nsw i64 {word['k']}, {block.index}", "i"), str(_ROWS))
            at = fn.gep("i8", self.source, fn.mul(fn.mul(block.index, word["row_step"]), 4))
            fn.do(pack_call(at, fn.mul(word["step"], 4), count, self.columns, self.block))
            yield block.index, count

    def _registers(self, row: str) -> list[str]:
        """The bits of a row of the block."""
        fn = self.fn
        at = fn.gep("i8", self.block, fn.mul(row, PLAIN_NBYTES))
        return [fn.load(_WORDS, fn.gep("i8", at, i * LANES * 4), 4) for i in range(COLUMNS // LANES)]

    def _exponent(self, bits: str) -> str:
        """The upper seven bits of exponents."""
        fn = self.fn
        return fn.let(f"and {_WORDS} {fn.let(f'lshr {_WORDS} {bits}, {_all(24)}')}, {_all(127)}")

    def _range(self) -> tuple[str, str]:
        """The greatest exponent of the panel and whether any is zero, in all lanes: i32, i1."""
        fn = self.fn
        most, least = fn.alloca(_WORDS), fn.alloca(_WORDS)
        fn.store(_WORDS, "zeroinitializer", most)
        fn.store(_WORDS, _all(127), least)
        fn.declare(f"declare {_WORDS} @llvm.smax.v16i32({_WORDS}, {_WORDS})")
        fn.declare(f"declare {_WORDS} @llvm.smin.v16i32({_WORDS}, {_WORDS})")
        with self._blocks() as (_, count), fn.loop(0, count) as row:
            high, low = fn.load(_WORDS, most), fn.load(_WORDS, least)
            for bits in self._registers(row.index):
                exponent = self._exponent(bits)
                high = fn.let(f"call {_WORDS} @llvm.smax.v16i32({_WORDS} {high}, {_WORDS} {exponent})")
                low = fn.let(f"call {_WORDS} @llvm.smin.v16i32({_WORDS} {low}, {_WORDS} {exponent})")
            fn.store(_WORDS, high, most)
            fn.store(_WORDS, low, least)
        greatest = self._reduced("smax", fn.load(_WORDS, most))
        smallest = self._reduced("smin", fn.load(_WORDS, least))
        return splat(fn, "i32", LANES, greatest), fn.let(f"icmp eq i32 {smallest}, 0", "b")

    def _reduced(self, name: str, value: str) -> str:
        self.fn.declare(f"declare i32 @llvm.vector.reduce.{name}.v16i32({_WORDS})")
        return self.fn.let(f"call i32 @llvm.vector.reduce.{name}.v16i32({_WORDS} {value})")

    def _table(self, to: str, most: str, has_zero: str) -> None:
        """Codes 0..7 stand for the greatest exponent and those below; the last for zero where there is any."""
        fn = self.fn
        below = _vector(i % _MAGNITUDES for i in range(LANES))
        exponent = fn.let(f"sub {_WORDS} {most}, {below}")
        is_low = fn.let(f"icmp slt {_WORDS} {exponent}, zeroinitializer", "m")
        exponent = fn.let(f"select <{LANES} x i1> {is_low}, {_WORDS} zeroinitializer, {_WORDS} {exponent}")
        others = _vector(-(i % _MAGNITUDES != _MAGNITUDES - 1) for i in range(LANES))
        with_zero = fn.let(f"and {_WORDS} {exponent}, {others}")
        exponent = fn.let(f"select i1 {has_zero}, {_WORDS} {with_zero}, {_WORDS} {exponent}")
        signs = _vector(128 * (i // _MAGNITUDES) for i in range(LANES))
        byte = fn.let(f"or {_WORDS} {exponent}, {signs}")
        fn.store(_WORDS, fn.let(f"shl {_WORDS} {byte}, {_all(24)}"), to, 4)

    def _code(self, to: str, rows: str, plain: str, most: str, has_zero: str) -> str:
        """Write all rows, exceptional ones (as far as there is room) also as they are; how many of these there are."""
        fn, word = self.fn, self.word
        found_at = fn.alloca("i64")
        fn.store("i64", "0", found_at)
        nearest = fn.let(f"select i1 {has_zero}, i32 {_MAGNITUDES - 2}, i32 {_MAGNITUDES - 1}", "i")
        lowest = splat(fn, "i32", LANES, nearest)
        limit = fn.let(f"udiv i64 {word['k']}, {_ROWS}", "i")
        mask = f"<{LANES} x i1>"
        with self._blocks() as (k, count), fn.loop(0, count) as row:
            bits = self._registers(row.index)
            at = fn.gep("i8", rows, fn.mul(fn.add(k, row.index), CODED_NBYTES))
            codes, outside = [], "zeroinitializer"
            for i, register in enumerate(bits):
                exponent = self._exponent(register)
                below = fn.let(f"sub {_WORDS} {most}, {exponent}")
                is_zero = fn.let(f"icmp eq {_WORDS} {exponent}, zeroinitializer", "m")
                is_far = fn.let(f"icmp sgt {_WORDS} {below}, {lowest}", "m")
                is_other = fn.let(f"xor {mask} {is_zero}, {_ones()}", "m")
                outside = fn.let(f"or {mask} {outside}, {fn.let(f'and {mask} {is_far}, {is_other}', 'm')}", "m")
                code = fn.let(f"select {mask} {is_zero}, {_WORDS} {_all(_MAGNITUDES - 1)}, {_WORDS} {below}")
                sign = fn.let(f"and {_WORDS} {fn.let(f'lshr {_WORDS} {register}, {_all(28)}')}, {_all(_MAGNITUDES)}")
                codes.append(fn.let(f"or {_WORDS} {sign}, {fn.let(f'and {_WORDS} {code}, {_all(_MAGNITUDES - 1)}')}"))
                self._truncated(register, 16, fn.gep("i8", at, i * LANES * 2))
                third = fn.let(f"lshr {_WORDS} {register}, {_all(16)}")
                self._truncated(third, 8, fn.gep("i8", at, THIRDS_AT + i * LANES))
            for i, (low, high) in enumerate(zip(codes[::2], codes[1::2], strict=True)):
                both = fn.let(f"or {_WORDS} {low}, {fn.let(f'shl {_WORDS} {high}, {_all(4)}')}")
                self._truncated(both, 8, fn.gep("i8", at, CODES_AT + i * LANES))
            fn.declare(f"declare i1 @llvm.vector.reduce.or.v16i1({mask})")
            with fn.when(fn.let(f"call i1 @llvm.vector.reduce.or.v16i1({mask} {outside})", "b")):
                found = fn.load("i64", found_at)
                with fn.when(fn.let(f"icmp slt i64 {found}, {limit}", "b")):
                    number = fn.add(k, row.index)
                    ends = fn.gep("i8", to, fn.add(fn.mul(found, END_NBYTES), ENDS_AT))
                    fn.store("i64", number, ends, 8)
                    fn.store("i64", fn.add(number, 1), fn.gep("i8", ends, 8), 8)
                    there = fn.gep("i8", plain, fn.mul(found, PLAIN_NBYTES))
                    for i, register in enumerate(bits):
                        fn.store(_WORDS, register, fn.gep("i8", there, i * LANES * 4), 4)
                fn.store("i64", fn.add(found, 1), found_at)
        return fn.load("i64", found_at)

    def _truncated(self, value: str, nbits: int, at: str) -> None:
        short = f"<{LANES} x i{nbits}>"
        self.fn.store(short, self.fn.let(f"trunc {_WORDS} {value} to {short}"), at, 1)


def _vector(values: Iterable[int]) -> str:
    return f"<{', '.join(f'i32 {int(v)}' for v in values)}>"


def _all(value: int) -> str:
    return _vector([value] * LANES)


def _ones() -> str:
    return f"<{', '.join(['i1 true'] * LANES)}>"
