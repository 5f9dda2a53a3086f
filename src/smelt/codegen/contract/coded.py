"""Products of few rows with a coded weight (`coding`): 28 bits an element are read, and decoded in registers.

    for panel:                                               # an item
      for segment:                                           # coded rows, then rows kept as they are
        for block of _CHAIN rows:
          part = 0
          for k of the block:  part[m] += left[m][k] * (row k of the panel)
          sums[m] += part[m]
      out[:, panel] = epilogue(sums)

A register of sixteen elements is decoded by three loads, two shifts, one look-up in a register and two ways of joining,
a third of the time that one core's memory takes for the bytes. Invariant: as for `gemm`; what is multiplied are the
weight's own bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from smelt.codegen.contract.coding import (
    CODED_NBYTES,
    CODES_AT,
    COLUMNS,
    END_NBYTES,
    ENDS_AT,
    LANES,
    PLAIN_AT,
    PLAIN_NBYTES,
    SEGMENTS_AT,
    THIRDS_AT,
)
from smelt.codegen.contract.driver import Driver
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import multiply_add
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import prefetch, splat
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record

HEIGHTS = (1, 2, 4)
"""Row counts with a kernel of their own; a kernel serves fewer rows, too."""

_CHAIN = 32
_LINE_NBYTES = 64
_AHEAD_NBYTES = 4096
"""How far ahead rows are asked for: while it decodes, a core has too few instructions in flight to find the next page
in time."""
_WORDS = f"<{LANES} x i32>"
_REGISTERS = COLUMNS // LANES


@record
class Coded:
    """A kernel for up to `height` rows. Its buffers and words are those of `gemm.Gemm`, with the coded weight for the
    right matrix; `right_panel` is the distance of panels in units of four bytes, `right_step` where in a panel its rows
    begin, in bytes.
    """

    tiling: Tiling
    height: int
    epilogue: Epilogue

    @property
    def scratch_nbytes(self) -> int:
        """Sums of one item."""
        return self.height * COLUMNS * self.tiling.sum_nbytes


@lru_cache(maxsize=256)
def coded_source(coded: Coded, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(_CodedDriver(coded, isa).text())


class _CodedDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, coded: Coded, isa: Isa) -> None:
        super().__init__(coded.tiling, coded.epilogue, isa)
        self.height = coded.height

    def text(self) -> str:
        """The whole module."""
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return module_text(self.fn, ())

    def _item(self, item: str) -> None:
        fn, word = self.fn, self.word
        panel = fn.gep("i8", self.right, self.nbytes(fn.mul(item, word["right_panel"])))
        self.table = fn.load(_WORDS, panel, 4)
        self.rows = [fn.gep("i8", self.left, self.nbytes(fn.mul(self._clamped(i), word["left_row"])))
                     for i in range(self.height)]  # fmt: skip
        coded = fn.gep("i8", panel, word["right_step"])
        for sums in range(self.height * _REGISTERS):
            fn.store(self.tiling.vector, "zeroinitializer", self._sums(sums), 4)
        segments = fn.load("i64", fn.gep("i8", panel, SEGMENTS_AT), 8)
        plain = fn.gep("i8", panel, fn.load("i64", fn.gep("i8", panel, PLAIN_AT), 8))
        with fn.loop(0, segments, 1, [("i64", "0"), ("ptr", plain)]) as segment:
            first, at = segment.carried
            ends = fn.gep("i8", panel, fn.add(fn.mul(segment.index, END_NBYTES), ENDS_AT))
            middle, last = fn.load("i64", ends, 8), fn.load("i64", fn.gep("i8", ends, 8), 8)
            self._add(first.now, middle, lambda k: fn.gep("i8", coded, fn.mul(k, CODED_NBYTES)), self._decoded)
            # Where row `middle` is, counted from row 0.
            base = fn.gep("i8", at.now, fn.mul(middle, -PLAIN_NBYTES))
            self._add(middle, last, lambda k: fn.gep("i8", base, fn.mul(k, PLAIN_NBYTES)), self._plain)
            first.next, at.next = last, fn.gep("i8", base, fn.mul(last, PLAIN_NBYTES))
        column = fn.mul(item, COLUMNS)
        columns = minimum(fn, fn.let(f"sub nsw i64 {word['n']}, {column}", "i"), str(COLUMNS))
        self.finish_block("0", "0", "0", column, word["m"], columns)

    def _clamped(self, row: int) -> str:
        """A row of the left matrix, or its last."""
        fn, m = self.fn, self.word["m"]
        return str(row) if row == 0 else minimum(fn, str(row), fn.let(f"sub nsw i64 {m}, 1", "i"))

    def _sums(self, number: int) -> str:
        return self.fn.gep("i8", "%scratch", number * LANES * 4)

    def _add(self, first: str, last: str, where: Callable[[str], str], load: Callable[[str], list[str]]) -> None:
        """Add rows, each at `where` and read by `load`, to the sums, a chain at a time."""
        fn, tiling = self.fn, self.tiling
        zeros = [(tiling.vector, "zeroinitializer")] * (self.height * _REGISTERS)
        with fn.loop(first, last, _CHAIN) as chain:
            end = minimum(fn, fn.add(chain.index, _CHAIN), last)
            with fn.loop(chain.index, end, 1, zeros) as k:
                weights = load(where(k.index))
                for i, row in enumerate(self.rows):
                    at = fn.gep("i8", row, self.nbytes(fn.mul(k.index, self.word["left_k"])))
                    factor = splat(fn, tiling.sum_type, LANES, fn.load(tiling.sum_type, at, 4))
                    for j, weight in enumerate(weights):
                        total = k.carried[i * _REGISTERS + j]
                        total.next = multiply_add(fn, tiling, factor, weight, total.now)
            for number, part in enumerate(k.carried):
                at = self._sums(number)
                total_now = fn.load(tiling.vector, at, 4)
                fn.store(tiling.vector, fn.let(f"fadd {tiling.vector} {total_now}, {part.last}"), at, 4)

    def _plain(self, at: str) -> list[str]:
        return [self.fn.load(self.tiling.vector, self.fn.gep("i8", at, i * LANES * 4), 4) for i in range(_REGISTERS)]

    def _decoded(self, at: str) -> list[str]:
        fn = self.fn
        for line in range(0, CODED_NBYTES, _LINE_NBYTES):
            prefetch(fn, fn.gep("i8", at, _AHEAD_NBYTES + line))
        codes: list[str] = []
        for i in range(_REGISTERS // 2):
            both = self._wide(8, fn.gep("i8", at, CODES_AT + i * LANES))
            codes += [both, fn.let(f"lshr {_WORDS} {both}, {_all(4)}")]
        return [self._joined(at, i, code) for i, code in enumerate(codes)]

    def _joined(self, at: str, i: int, code: str) -> str:
        """Register `i` of a row: lower halves, third bytes, and what the codes (in the lower four bits) stand for."""
        fn = self.fn
        low = self._wide(16, fn.gep("i8", at, i * LANES * 2))
        third = fn.let(f"shl {_WORDS} {self._wide(8, fn.gep('i8', at, THIRDS_AT + i * LANES))}, {_all(16)}")
        name = "llvm.x86.avx512.permvar.si.512"
        fn.declare(f"declare {_WORDS} @{name}({_WORDS}, {_WORDS})")
        high = fn.let(f"call {_WORDS} @{name}({_WORDS} {self.table}, {_WORDS} {code})")
        bits = fn.let(f"or {_WORDS} {fn.let(f'or {_WORDS} {low}, {third}')}, {high}")
        return fn.let(f"bitcast {_WORDS} {bits} to {self.tiling.vector}")

    def _wide(self, nbits: int, at: str) -> str:
        short = f"<{LANES} x i{nbits}>"
        return self.fn.let(f"zext {short} {self.fn.load(short, at, 1)} to {_WORDS}")


def _all(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * LANES)}>"
