"""A weight in bytes: the kernel that fills the panels of `Int8Form`, once, before the first run.

    for columns of a register:   scale = greatest magnitude / 127
                                 squares of round(b / scale), several k side by side, are transposed in registers

Invariant: scales, bytes and sums are those of `Int8Form.packed`, bit for bit; NaN divided by whatever is byte 0.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.narrow.int8_forms import Int8Form, padded
from smelt.codegen.contract.panels import transposed
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import lane_mask, masked_load, shuffled, splat
from smelt.codegen.kernels.element_types import rounded
from smelt.codegen.llvm.lanes.lanes_types import float_literal
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.ir import DType
from smelt.ops.own.narrow_linear import TINY

_MAGNITUDE = 0x7FFFFFFF
_MOST = 127
_TERMS = padded(1)  # terms of a column are a multiple of these


def byte_words(form: Int8Form, step: int) -> tuple[int, ...]:
    """The kernel's words; step: elements between rows of the weight [n, k], whose columns have unit stride."""
    return form.n, form.k, step, padded(form.k), form.panel_nbytes


@lru_cache(maxsize=4)
def byte_panels_source(tiling: Tiling) -> KernelSource:
    """The kernel of `Int8Form` for a tiling. Its buffers: weight f32, panels; its words: `byte_words`; an item is a
    panel.
    """
    return KernelSource.of(_PanelsText(tiling).text())


class _PanelsText:
    """The kernel's function under construction."""

    def __init__(self, tiling: Tiling) -> None:
        self.fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.lanes, self.group, self.columns = tiling.lanes, tiling.group, tiling.packed_columns
        self.floats, self.words = f"<{self.lanes} x float>", f"<{self.lanes} x i32>"
        self.mask = f"<{self.lanes} x i1>"

    def text(self) -> str:
        """The whole module."""
        fn = self.fn
        self.weight, panels = fn.address(0), fn.address(1)
        self.n, self.k, self.step, self.terms, panel_nbytes = (fn.word(2 + i) for i in range(5))
        self.last = fn.let(f"sub nsw i64 {self.n}, 1", "i")
        # Of the columns at hand: the step, the line, and how many terms are there.
        self.scales = fn.alloca("float", self.lanes)
        with fn.loop("%begin", "%end") as panel:
            to = fn.gep("i8", panels, fn.mul(panel.index, panel_nbytes))
            tail = fn.gep("i8", to, fn.mul(self.terms, self.columns))
            with fn.loop(0, self.columns, self.lanes) as part:
                first = fn.add(fn.mul(panel.index, self.columns), part.index)
                self._scales(first, fn.gep("float", tail, part.index))
                sums = self._bytes(first, fn.gep("i8", to, fn.mul(part.index, self.group)))
                fn.store(self.words, sums, fn.gep("i32", tail, fn.add(part.index, self.columns)), 4)
        return module_text(fn, ())

    def _line(self, column: str) -> tuple[str, str]:
        """Where a column is, and its terms: none beyond the last."""
        fn = self.fn
        line = fn.gep("float", self.weight, fn.mul(minimum(fn, column, self.last), self.step))
        is_there = fn.let(f"icmp slt i64 {column}, {self.n}", "b")
        return line, fn.let(f"select i1 {is_there}, i64 {self.k}, i64 0", "i")

    def _scales(self, first: str, to: str) -> None:
        """What a step of each column is, onto the stack and behind the bytes."""
        fn, tiny = self.fn, float_literal(rounded(TINY, DType.F32), "float")
        fn.declare(f"declare {self.words} @llvm.smax.v{self.lanes}i32({self.words}, {self.words})")
        fn.declare(f"declare i32 @llvm.vector.reduce.smax.v{self.lanes}i32({self.words})")
        with fn.loop(0, self.lanes) as i:
            line, terms = self._line(fn.add(first, i.index))
            with fn.loop(0, terms, self.lanes, [(self.words, "zeroinitializer")]) as at:
                mask = lane_mask(fn, self.lanes, fn.let(f"sub nsw i64 {terms}, {at.index}", "i"))
                bits = masked_load(fn, self.words, fn.gep("float", line, at.index), mask, 4)
                bits = fn.let(f"and {self.words} {bits}, {self._all(_MAGNITUDE)}")
                (most,) = at.carried
                # As whole numbers NaN is beyond infinity.
                most.next = fn.let(
                    f"call {self.words} @llvm.smax.v{self.lanes}i32({self.words} {most.now}, {self.words} {bits})"
                )
            found = fn.let(f"call i32 @llvm.vector.reduce.smax.v{self.lanes}i32({self.words} {most.last})")
            step = fn.let(f"fdiv float {fn.let(f'bitcast i32 {found} to float')}, {float(_MOST):.1f}")
            is_less = fn.let(f"fcmp olt float {step}, {tiny}", "b")
            step = fn.let(f"select i1 {is_less}, float {tiny}, float {step}")
            fn.store("float", step, fn.gep("float", self.scales, i.index), 4)
            is_there = fn.let(f"icmp sgt i64 {terms}, 0", "b")
            fn.store("float", fn.let(f"select i1 {is_there}, float {step}, float 0.0"), fn.gep("float", to, i.index), 4)

    def _bytes(self, first: str, to: str) -> str:
        """Write the bytes of some columns; the sum of each."""
        fn, lanes, group = self.fn, self.lanes, self.group
        lines = [self._line(fn.add(first, i)) for i in range(lanes)]
        steps = [splat(fn, "float", lanes, fn.load("float", fn.gep("float", self.scales, i), 4)) for i in range(lanes)]
        element = f"<{lanes} x i{8 * group}>"
        with fn.loop(0, self.terms, lanes * group, [(self.words, "zeroinitializer")]) as k:
            rows = []
            for (line, terms), step in zip(lines, steps, strict=True):
                whole = self._bytes_of(line, terms, step, k.index)
                rows.append(fn.let(f"bitcast <{lanes * group} x i8> {whole} to {element}"))
            squares = transposed(fn, element, lanes, rows)
            (sums,) = k.carried
            sums.next = sums.now
            for square in squares:
                sums.next = self._summed(sums.next, square)
            at = fn.gep("i8", to, fn.mul(k.index, self.columns))
            # A column has whole chunks of terms, of which a square may have more than there are.
            chunk = _TERMS // group
            for begin in range(0, lanes, chunk):
                is_there = fn.let(f"icmp slt i64 {fn.add(k.index, begin * group)}, {self.terms}", "b")
                with fn.when(is_there):
                    for i, square in enumerate(squares[begin : begin + chunk], begin):
                        fn.store(element, square, fn.gep("i8", at, i * self.columns * group), group)
        return sums.last

    def _bytes_of(self, line: str, terms: str, step: str, k: str) -> str:
        """Neighbouring terms of a column as bytes, a register of floats after the other."""
        fn, lanes, vector = self.fn, self.lanes, self.floats
        rint, whole = f"llvm.rint.v{lanes}f32", f"llvm.fptosi.sat.v{lanes}i32.v{lanes}f32"
        fn.declare(f"declare {vector} @{rint}({vector})")
        fn.declare(f"declare {self.words} @{whole}({vector})")
        found = []
        for i in range(0, lanes * self.group, lanes):
            at = fn.add(k, i)
            mask = lane_mask(fn, lanes, fn.let(f"sub nsw i64 {terms}, {at}", "i"))
            value = masked_load(fn, vector, fn.gep("float", line, at), mask, 4)
            value = fn.let(f"call {vector} @{rint}({vector} {fn.let(f'fdiv {vector} {value}, {step}')})")
            for compare, limit in (("olt", -_MOST), ("ogt", _MOST)):
                limits = splat(fn, "float", lanes, f"{float(limit):.1f}")
                is_beyond = fn.let(f"fcmp {compare} {vector} {value}, {limits}", "m")
                value = fn.let(f"select {self.mask} {is_beyond}, {vector} {limits}, {vector} {value}")
            value = fn.let(f"call {self.words} @{whole}({vector} {value})")
            found.append(fn.let(f"trunc {self.words} {value} to <{lanes} x i8>"))
        width = lanes
        while len(found) > 1:
            pairs = zip(found[::2], found[1::2], strict=True)
            found = [shuffled(fn, f"<{width} x i8>", a, b, range(2 * width)) for a, b in pairs]
            width *= 2
        return found[0]

    def _summed(self, sums: str, square: str) -> str:
        """The sums with the bytes of one more group of terms."""
        fn = self.fn
        if self.group < 4:
            square = fn.let(f"zext <{self.lanes} x i{8 * self.group}> {square} to {self.words}")
        for i in range(self.group):
            high = fn.let(f"shl {self.words} {square}, {self._all(24 - 8 * i)}")
            byte = fn.let(f"ashr {self.words} {high}, {self._all(24)}")
            sums = fn.let(f"add {self.words} {sums}, {byte}")
        return sums

    def _all(self, value: int) -> str:
        return f"<{', '.join([f'i32 {value}'] * self.lanes)}>"
