"""A weight in 4 bits: the kernel that fills the panels of `Int4Form`, once, before the first run.

    for group of K:   squares of b are transposed, so that a register is a term of all columns of a panel
                      step = bf16 of the number of greatest magnitude / -8; eight of round(b / step) become a word

Invariant: the panels are those of `Int4Form.packed`, bit for bit where the weight is finite; what is not becomes NaN.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.narrow.int4_forms import COLUMNS, STEPS, Int4Form
from smelt.codegen.contract.panels import transposed
from smelt.codegen.contract.vectors import masked_load, splat
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText

_FLOATS, _WORDS, _HALVES, _MASK = (f"<{COLUMNS} x {type_}>" for type_ in ("float", "i32", "i16", "i1"))
_MAGNITUDE, _SIGN, _INFINITY, _NAN = 0x7FFFFFFF, -0x80000000, 0x7F800000, 0x7FC0


def is_packed_natively(form: Int4Form) -> bool:
    """Whether there is a kernel for it: one for whole squares."""
    return form.group % COLUMNS == 0


def nibble_words(form: Int4Form, step: int) -> tuple[int, ...]:
    """The kernel's words; step: elements between rows of the weight [n, k], whose columns have unit stride."""
    return form.n, form.k // form.group, step, form.panel_nbytes


@lru_cache(maxsize=4)
def nibble_panels_source(group: int) -> KernelSource:
    """The kernel of `Int4Form` for groups of so many. Its buffers: weight f32, panels; its words: `nibble_words`; an
    item is a panel.
    """
    return KernelSource.of(_PanelsText(group).text())


class _PanelsText:
    """The kernel's function under construction."""

    def __init__(self, group: int) -> None:
        self.fn, self.group = FunctionText("KERNEL", KERNEL_PARAMETERS), group

    def text(self) -> str:
        """The whole module."""
        fn = self.fn
        weight, panels = fn.address(0), fn.address(1)
        n, groups, step, panel_nbytes = (fn.word(2 + i) for i in range(4))
        last = fn.let(f"sub nsw i64 {n}, 1", "i")
        with fn.loop("%begin", "%end") as panel:
            columns = [fn.add(fn.mul(panel.index, COLUMNS), i) for i in range(COLUMNS)]
            lines = [fn.gep("float", weight, fn.mul(minimum(fn, column, last), step)) for column in columns]
            # Beyond the last column there are zeros.
            there = [fn.let(f"icmp slt i64 {column}, {n}", "b") for column in columns]
            exist = "poison"
            for i, one in enumerate(there):
                exist = fn.let(f"insertelement {_MASK} {exist}, i1 {one}, i64 {i}")
            masks = [splat(fn, "i1", COLUMNS, one) for one in there]
            to = fn.gep("i8", panels, fn.mul(panel.index, panel_nbytes))
            with fn.loop(0, groups) as group:
                begin = fn.mul(group.index, self.group)
                terms = []
                for i in range(0, self.group, COLUMNS):
                    at = fn.add(begin, i)
                    rows = [masked_load(fn, _WORDS, fn.gep("float", line, at), mask, 4)
                            for line, mask in zip(lines, masks, strict=True)]  # fmt: skip
                    terms += transposed(fn, _WORDS, COLUMNS, rows)
                self._group(terms, exist, fn.gep("i8", to, fn.mul(group.index, COLUMNS * (self.group // 2 + 2))))
        return module_text(fn, ())

    def _group(self, terms: list[str], exist: str, to: str) -> None:
        """Write the words and the steps of a group."""
        fn = self.fn
        step = self._step(terms)
        fn.store(_HALVES, fn.let(f"select {_MASK} {exist}, {_HALVES} {step}, {_HALVES} zeroinitializer"),
                 fn.gep("i8", to, COLUMNS * self.group // 2), 2)  # fmt: skip
        bits = fn.let(f"shl {_WORDS} {fn.let(f'zext {_HALVES} {step} to {_WORDS}')}, {_all(16)}")
        wide = fn.let(f"bitcast {_WORDS} {bits} to {_FLOATS}")
        is_zero = fn.let(f"fcmp oeq {_FLOATS} {wide}, zeroinitializer", "m")
        ones = splat(fn, "float", COLUMNS, "1.0")
        wide = fn.let(f"select {_MASK} {is_zero}, {_FLOATS} {ones}, {_FLOATS} {wide}")
        for first in range(0, self.group, STEPS):
            word = ""
            for i, term in enumerate(terms[first : first + STEPS]):
                nibble = self._nibble(term, wide)
                if i:
                    nibble = fn.let(f"shl {_WORDS} {nibble}, {_all(4 * i)}")
                word = fn.let(f"or {_WORDS} {word}, {nibble}") if word else nibble
            fn.store(_WORDS, word, fn.gep("i8", to, first // STEPS * COLUMNS * 4), 4)

    def _step(self, terms: list[str]) -> str:
        """What a step of each column stands for, the bits of bf16."""
        fn = self.fn
        # As whole numbers NaN is beyond infinity, and positive ones are beyond negative ones.
        magnitude, most = "", ""
        for term in terms:
            here = fn.let(f"and {_WORDS} {term}, {_all(_MAGNITUDE)}")
            magnitude = self._larger(magnitude, here) if magnitude else here
            most = self._larger(most, term) if most else term
        is_positive = fn.let(f"icmp eq {_WORDS} {most}, {magnitude}", "m")
        sign = fn.let(f"select {_MASK} {is_positive}, {_WORDS} zeroinitializer, {_WORDS} {_all(_SIGN)}")
        largest = fn.let(f"bitcast {_WORDS} {fn.let(f'or {_WORDS} {magnitude}, {sign}')} to {_FLOATS}")
        share = splat(fn, "float", COLUMNS, f"{-1 / STEPS:.3f}")
        bits = fn.let(f"bitcast {_FLOATS} {fn.let(f'fmul {_FLOATS} {largest}, {share}')} to {_WORDS}")
        odd = fn.let(f"and {_WORDS} {fn.let(f'lshr {_WORDS} {bits}, {_all(16)}')}, {_all(1)}")
        up = fn.let(f"add {_WORDS} {fn.let(f'add {_WORDS} {bits}, {_all(0x7FFF)}')}, {odd}")
        short = fn.let(f"trunc {_WORDS} {fn.let(f'lshr {_WORDS} {up}, {_all(16)}')} to {_HALVES}")
        is_nan = fn.let(f"icmp sgt {_WORDS} {magnitude}, {_all(_INFINITY)}", "m")
        nan = f"<{', '.join([f'i16 {_NAN}'] * COLUMNS)}>"
        return fn.let(f"select {_MASK} {is_nan}, {_HALVES} {nan}, {_HALVES} {short}")

    def _larger(self, a: str, b: str) -> str:
        name = f"llvm.smax.v{COLUMNS}i32"
        self.fn.declare(f"declare {_WORDS} @{name}({_WORDS}, {_WORDS})")
        return self.fn.let(f"call {_WORDS} @{name}({_WORDS} {a}, {_WORDS} {b})")

    def _nibble(self, term: str, step: str) -> str:
        """A term of each column in steps, 0..15."""
        fn = self.fn
        rint, whole = f"llvm.rint.v{COLUMNS}f32", f"llvm.fptosi.sat.v{COLUMNS}i32.v{COLUMNS}f32"
        fn.declare(f"declare {_FLOATS} @{rint}({_FLOATS})")
        fn.declare(f"declare {_WORDS} @{whole}({_FLOATS})")
        value = fn.let(f"fdiv {_FLOATS} {fn.let(f'bitcast {_WORDS} {term} to {_FLOATS}')}, {step}")
        value = fn.let(f"call {_FLOATS} @{rint}({_FLOATS} {value})")
        for compare, limit in (("olt", -STEPS), ("ogt", STEPS - 1)):
            limits = splat(fn, "float", COLUMNS, f"{float(limit):.1f}")
            is_beyond = fn.let(f"fcmp {compare} {_FLOATS} {value}, {limits}", "m")
            value = fn.let(f"select {_MASK} {is_beyond}, {_FLOATS} {limits}, {_FLOATS} {value}")
        value = fn.let(f"call {_WORDS} @{whole}({_FLOATS} {value})")
        return fn.let(f"add {_WORDS} {value}, {_all(STEPS)}")


def _all(value: int) -> str:
    return f"<{', '.join([f'i32 {value}'] * COLUMNS)}>"
