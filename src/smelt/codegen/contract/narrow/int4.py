"""Products with a weight in 4 bits: few rows at the speed of memory, many through panels of floats made on the fly.

    for panel, for group of K:      part = -1.5 * sum of x[group]
                                    for k of the group:  part += x[k] * (1 + bits / 16)
                                    sums += part * 16 * step

The 4 bits are moved into the highest ones of a float's fraction, which with the exponent of 1 is 1 + bits / 16 without
any conversion; the 1.5 that stands for a step of 0 is taken off once for all terms of a group. Many rows share what is
decoded: a block of K by a panel becomes floats in scratch memory, which tiles multiply as any other matrix.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.gemm import Gemm, GemmDriver
from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.narrow.int4_forms import COLUMNS, STEPS
from smelt.codegen.contract.panels import PACK, PARAMETERS, pack_call
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import prefetch, shuffled, splat
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import FunctionText
from smelt.diag.records import record

HEIGHTS = (1, 2, 4)
"""Row counts with a kernel of their own; a kernel serves fewer rows, too."""

_CHAINS = {1: 2, 2: 2, 4: 1}
_AHEAD_NBYTES, _LINE_NBYTES = 4096, 64
_FRACTION_AT, _FRACTION, _ONE = 19, 0x780000, 0x3F800000
_MIDDLE = "0x3FF8000000000000"  # 1.5
_SIXTEEN = "0x4030000000000000"


@record
class Int4:
    """A kernel for up to `height` rows. Its buffers: left, panels (`int4_forms`), those of the epilogue, out; its words
    are those of `gemm.Gemm`; `right_panel` is the distance of panels in units of four bytes.
    """

    tiling: Tiling
    height: int
    group: int
    epilogue: Epilogue

    def scratch_nbytes(self, k: int) -> int:
        """Sums of one item, and for each row what its groups begin with."""
        return self.height * 4 * (COLUMNS + k // self.group)


@lru_cache(maxsize=256)
def int4_source(kernel: Int4, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(_FewDriver(kernel, isa).text())


class _Bits:
    """Loads of words, steps and what they stand for, a register at a time."""

    def __init__(self, fn: FunctionText, lanes: int) -> None:
        self.fn, self.lanes = fn, lanes
        self.registers = COLUMNS // lanes
        self.words, self.floats = f"<{lanes} x i32>", f"<{lanes} x float>"

    def all(self, value: int) -> str:
        """A number in each lane."""
        return f"<{', '.join([f'i32 {value}'] * self.lanes)}>"

    def word(self, at: str, register: int) -> str:
        """Eight k of some columns."""
        return self.fn.load(self.words, self.fn.gep("i8", at, 4 * register * self.lanes), 4)

    def number(self, word: str, i: int) -> str:
        """1 + bits / 16 of the k numbered i of a word."""
        fn, shift = self.fn, _FRACTION_AT - 4 * i
        if shift:
            word = fn.let(f"{'shl' if shift > 0 else 'lshr'} {self.words} {word}, {self.all(abs(shift))}")
        bits = fn.let(f"and {self.words} {word}, {self.all(_FRACTION)}")
        return fn.let(f"bitcast {self.words} {fn.let(f'or {self.words} {bits}, {self.all(_ONE)}')} to {self.floats}")

    def steps(self, at: str, register: int) -> str:
        """16 times what a step stands for."""
        fn, short = self.fn, f"<{self.lanes} x i16>"
        half = fn.load(short, fn.gep("i8", at, 2 * register * self.lanes), 2)
        bits = fn.let(f"shl {self.words} {fn.let(f'zext {short} {half} to {self.words}')}, {self.all(16)}")
        step = fn.let(f"bitcast {self.words} {bits} to {self.floats}")
        return fn.let(f"fmul {self.floats} {step}, {splat(fn, 'float', self.lanes, _SIXTEEN)}")


class _FewDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, kernel: Int4, isa: Isa) -> None:
        tiling = replace(kernel.tiling, vectors=COLUMNS // kernel.tiling.lanes)
        super().__init__(tiling, kernel.epilogue, isa)
        self.height, self.group = kernel.height, kernel.group
        self.bits = _Bits(self.fn, tiling.lanes)
        self.chains = _CHAINS[kernel.height]

    def text(self) -> str:
        """The whole module."""
        fn, word = self.fn, self.word
        last = fn.let(f"sub nsw i64 {word['m']}, 1", "i")
        self.rows = [fn.gep("i8", self.left, self.nbytes(fn.mul(minimum(fn, str(i), last), word["left_row"])))
                     for i in range(self.height)]  # fmt: skip
        self.groups = fn.let(f"udiv i64 {word['k']}, {self.group}", "i")
        for i in range(self.height):
            self._begin(i)
        with fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return module_text(fn, ())

    def _first(self, row: int, group: str) -> str:
        """Where the number is that a row's part for a group begins with."""
        at = self.fn.add(self.fn.mul(self.groups, row), group)
        return self.fn.gep("i8", "%scratch", self.fn.mul(self.fn.add(at, self.height * COLUMNS), 4))

    def _begin(self, row: int) -> None:
        """-1.5 times the sum of each group of a row."""
        fn, floats, lanes = self.fn, self.bits.floats, self.tiling.lanes
        with fn.loop(0, self.groups) as group:
            at = fn.gep("i8", self.rows[row], fn.mul(group.index, 4 * self.group))
            total = fn.load(floats, at, 4)
            for i in range(lanes, self.group, lanes):
                total = fn.let(f"fadd {floats} {total}, {fn.load(floats, fn.gep('i8', at, 4 * i), 4)}")
            width = lanes
            while width > 1:
                width //= 2
                other = shuffled(fn, floats, total, total, [(i + width) % lanes for i in range(lanes)])
                total = fn.let(f"fadd {floats} {total}, {other}")
            one = fn.let(f"extractelement {floats} {total}, i64 0")
            fn.store("float", fn.let(f"fmul float {one}, {_MIDDLE.replace('3FF', 'BFF')}"),
                     self._first(row, group.index), 4)  # fmt: skip

    def _item(self, item: str) -> None:
        fn, word, floats = self.fn, self.word, self.bits.floats
        panel = fn.gep("i8", self.right, self.nbytes(fn.mul(item, word["right_panel"])))
        nbytes, count = COLUMNS * (self.group // 2 + 2), self.height * self.bits.registers
        with fn.loop(0, self.groups, 1, [(floats, "zeroinitializer")] * count) as group:
            at = fn.gep("i8", panel, fn.mul(group.index, nbytes))
            for line in range(0, nbytes, _LINE_NBYTES):
                prefetch(fn, fn.gep("i8", at, _AHEAD_NBYTES + line))
            parts = self._part(at, group.index)
            for j in range(self.bits.registers):
                step = self.bits.steps(fn.gep("i8", at, COLUMNS * self.group // 2), j)
                for row in range(self.height):
                    total = group.carried[row * self.bits.registers + j]
                    total.next = multiply_add(fn, self.tiling, parts[row][j], step, total.now)
        for number, total in enumerate(group.carried):
            fn.store(floats, total.last, fn.gep("i8", "%scratch", number * self.tiling.lanes * 4), 4)
        column = fn.mul(item, COLUMNS)
        columns = minimum(fn, fn.let(f"sub nsw i64 {word['n']}, {column}", "i"), str(COLUMNS))
        self.finish_block("0", "0", "0", column, word["m"], columns)

    def _part(self, at: str, group: str) -> list[list[str]]:
        """The sums of one group for each row and register."""
        fn, floats, lanes, registers = self.fn, self.bits.floats, self.tiling.lanes, self.bits.registers
        begun: list[tuple[str, str]] = []
        for row in range(self.height):
            first = splat(fn, "float", lanes, fn.load("float", self._first(row, group), 4))
            begun += [(floats, first)] * registers + [(floats, "zeroinitializer")] * registers * (self.chains - 1)
        with fn.loop(0, self.group // STEPS, 1, begun) as turn:
            now = [one.now for one in turn.carried]
            words = [self.bits.word(fn.gep("i8", at, fn.mul(turn.index, 4 * COLUMNS)), j) for j in range(registers)]
            k = fn.add(fn.mul(group, self.group), fn.mul(turn.index, STEPS))
            places = [fn.gep("i8", row, fn.mul(k, 4)) for row in self.rows]
            for i in range(STEPS):
                numbers = [self.bits.number(word, i) for word in words]
                for row, place in enumerate(places):
                    factor = splat(fn, "float", lanes, fn.load("float", fn.gep("i8", place, 4 * i), 4))
                    for j, number in enumerate(numbers):
                        one = (row * self.chains + i % self.chains) * registers + j
                        now[one] = multiply_add(fn, self.tiling, factor, number, now[one])
            for part, value in zip(turn.carried, now, strict=True):
                part.next = value
        last = [part.last for part in turn.carried]
        parts: list[list[str]] = []
        for row in range(self.height):
            chains = [last[(row * self.chains + i) * registers :][:registers] for i in range(self.chains)]
            sums = chains[0]
            for other in chains[1:]:
                sums = [fn.let(f"fadd {floats} {a}, {b}") for a, b in zip(sums, other, strict=True)]
            parts.append(sums)
        return parts


# --- many rows


@lru_cache(maxsize=256)
def int4_gemm_source(gemm: Gemm, group: int, isa: Isa) -> KernelSource:
    """The text of a kernel for many rows; `right_panel` as above, for the tiling's panels; `right_step`: bytes from one
    panel of 4 bits to the next. Blocks of K are whole groups.
    """
    return KernelSource.of(module_text(*_ManyDriver(gemm, group, isa).functions()))


class _ManyDriver(GemmDriver):
    """The kernel's function under construction."""

    def __init__(self, gemm: Gemm, group: int, isa: Isa) -> None:
        super().__init__(gemm, isa)
        self.group = group

    def packings(self) -> list[FunctionText]:
        """What makes floats of a block."""
        return [_decoding(self.tiling, self.group)]

    def _panel_block(self, k: str, count: str, right: str, columns: str) -> tuple[str, str]:
        fn = self.fn
        block = fn.gep("i8", "%scratch", self.block_at)
        group = fn.let(f"udiv i64 {k}, {self.group}", "i")
        at = fn.gep("i8", right, fn.mul(group, COLUMNS * (self.group // 2 + 2)))
        fn.do(pack_call(at, self.word["right_step"], count, columns, block))
        return block, str(self.panel.row_nbytes)


def _decoding(tiling: Tiling, group: int) -> FunctionText:
    """Floats of %k rows of a panel, whole groups. %stride: bytes from one panel of 4 bits to the next."""
    fn = FunctionText(PACK, PARAMETERS, result="internal void")
    bits = _Bits(fn, tiling.lanes)
    middle = splat(fn, "float", tiling.lanes, _MIDDLE)
    with fn.loop(0, "%columns", COLUMNS) as column, fn.loop(0, fn.let(f"udiv i64 %k, {group}", "i")) as number:
        panel = fn.gep("i8", "%b", fn.mul(fn.let(f"udiv i64 {column.index}, {COLUMNS}", "i"), "%stride"))
        at = fn.gep("i8", panel, fn.mul(number.index, COLUMNS * (group // 2 + 2)))
        steps = [bits.steps(fn.gep("i8", at, COLUMNS * group // 2), j) for j in range(bits.registers)]
        to = fn.gep("i8", "%block", fn.mul(column.index, 4))
        to = fn.gep("i8", to, fn.mul(fn.mul(number.index, group), tiling.row_nbytes))
        with fn.loop(0, group // STEPS) as turn:
            line = fn.gep("i8", at, fn.mul(turn.index, 4 * COLUMNS))
            rows = fn.gep("i8", to, fn.mul(turn.index, STEPS * tiling.row_nbytes))
            for j, step in enumerate(steps):
                word = bits.word(line, j)
                for i in range(STEPS):
                    value = fn.let(f"fsub {bits.floats} {bits.number(word, i)}, {middle}")
                    value = fn.let(f"fmul {bits.floats} {value}, {step}")
                    fn.store(bits.floats, value, fn.gep("i8", rows, i * tiling.row_nbytes + 4 * j * tiling.lanes), 4)
    return fn
