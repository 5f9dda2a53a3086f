"""Instructions on vectors of one float type: the words that the vector math is written in.

Invariant: no instruction here becomes a call of a library: where an instruction set lacks one (fused multiply-add and
rounding before AVX2), plain ones stand for it. One lane means a scalar, with the same results bit for bit.
"""

from __future__ import annotations

import struct

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import FunctionText
from smelt.ir import DType

_TYPE_CODE = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


def vector_type(element: str, lanes: int) -> str:
    """`<lanes x element>`, or the element's own type for one lane."""
    return element if lanes == 1 else f"<{lanes} x {element}>"


def type_suffix(element: str, lanes: int) -> str:
    """How an intrinsic's name ends for vectors of an element type: `v16f32`, `i64`."""
    code = _TYPE_CODE.get(element, element)
    return code if lanes == 1 else f"v{lanes}{code}"


def float_literal(value: float, element: str) -> str:
    """A number of `float` or `double` as LLVM spells it, exactly (rounded to the type first)."""
    try:
        rounded = struct.unpack("<f", struct.pack("<f", value))[0] if element == "float" else value
    except OverflowError:
        rounded = float("inf") if value > 0 else float("-inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def register_type(dtype: DType) -> str:
    """The element type that a value has in registers: bool is i1, f16 and bf16 are float holding a rounded number."""
    if dtype in (DType.F32, DType.F16, DType.BF16):
        return "float"
    if dtype is DType.F64:
        return "double"
    return "i1" if dtype is DType.BOOL else f"i{8 * dtype.itemsize}"


def has_fma(isa: Isa) -> bool:
    """Whether fused multiply-add, rounding and half conversion are instructions."""
    return isa.name != "baseline"


class Arith:
    """Instructions on vectors of `lanes` floats (`bits` = 32) or doubles (64), and on integers of the same width."""

    def __init__(self, fn: FunctionText, isa: Isa, lanes: int, bits: int) -> None:
        self.fn, self.isa, self.lanes, self.bits = fn, isa, lanes, bits
        self.element = "float" if bits == 32 else "double"
        self.type = vector_type(self.element, lanes)
        self.int_element = f"i{bits}"
        self.int_type = vector_type(self.int_element, lanes)
        self.mask_type = vector_type("i1", lanes)
        self.mantissa = 23 if bits == 32 else 52
        self.bias = 127 if bits == 32 else 1023

    def other(self, bits: int) -> Arith:
        """The same lanes of the other width."""
        return Arith(self.fn, self.isa, self.lanes, bits)

    # --- constants

    def _splat(self, element: str, literal: str) -> str:
        return literal if self.lanes == 1 else f"splat ({element} {literal})"

    def const(self, value: float) -> str:
        """A float in every lane."""
        return self._splat(self.element, float_literal(value, self.element))

    def iconst(self, value: int) -> str:
        """An integer in every lane."""
        return self._splat(self.int_element, str(value))

    def operand(self, value: str | float) -> str:
        """A value's name as it is, a number as a constant."""
        return value if isinstance(value, str) else self.const(value)

    # --- arithmetic

    def _two(self, instruction: str, a: str | float, b: str | float) -> str:
        return self.fn.let(f"{instruction} {self.type} {self.operand(a)}, {self.operand(b)}")

    def add(self, a: str | float, b: str | float) -> str:
        """a + b."""
        return self._two("fadd", a, b)

    def sub(self, a: str | float, b: str | float) -> str:
        """a - b."""
        return self._two("fsub", a, b)

    def mul(self, a: str | float, b: str | float) -> str:
        """a * b."""
        return self._two("fmul", a, b)

    def div(self, a: str | float, b: str | float) -> str:
        """a / b."""
        return self._two("fdiv", a, b)

    def neg(self, a: str) -> str:
        """-a, the sign of zero and NaN turned too."""
        return self.fn.let(f"fneg {self.type} {a}")

    def fma(self, a: str | float, b: str | float, c: str | float) -> str:
        """a * b + c, rounded once where the instruction set can."""
        if has_fma(self.isa):
            return self.call("fma", a, b, c)
        return self.add(self.mul(a, b), c)

    def call(self, name: str, *args: str | float) -> str:
        """An intrinsic whose operands and result are of this type."""
        suffix = type_suffix(self.element, self.lanes)
        self.fn.declare(f"declare {self.type} @llvm.{name}.{suffix}({', '.join([self.type] * len(args))})")
        inside = ", ".join(f"{self.type} {self.operand(a)}" for a in args)
        return self.fn.let(f"call {self.type} @llvm.{name}.{suffix}({inside})")

    def abs(self, a: str) -> str:
        """The magnitude."""
        return self.call("fabs", a)

    def sqrt(self, a: str) -> str:
        """The square root, correctly rounded."""
        return self.call("sqrt", a)

    def copysign(self, a: str | float, sign: str) -> str:
        """The magnitude of `a` with the sign of `sign`."""
        return self.call("copysign", a, sign)

    def poly(self, x: str, ascending: tuple[float, ...]) -> str:
        """A polynomial by Horner's rule; coefficients from the constant term up."""
        result: str | float = ascending[-1]
        for coefficient in reversed(ascending[:-1]):
            result = self.fma(result, x, coefficient)
        return self.operand(result)

    def poly2(self, x: str, ascending: tuple[float, ...]) -> str:
        """A polynomial as even plus odd part: half of Horner's latency at one multiplication more."""
        if len(ascending) < 4:
            return self.poly(x, ascending)
        square = self.mul(x, x)
        even, odd = self.poly(square, ascending[::2]), self.poly(square, ascending[1::2])
        return self.fma(odd, x, even)

    # --- comparing and choosing

    def cmp(self, condition: str, a: str | float, b: str | float) -> str:
        """A mask: LLVM's float condition (`olt`, `uno`...)."""
        return self.fn.let(f"fcmp {condition} {self.type} {self.operand(a)}, {self.operand(b)}")

    def select(self, mask: str, a: str | float, b: str | float) -> str:
        """a where the mask holds, else b."""
        pair = f"{self.type} {self.operand(a)}, {self.type} {self.operand(b)}"
        return self.fn.let(f"select {self.mask_type} {mask}, {pair}")

    def mask_or(self, a: str, b: str) -> str:
        """Either mask."""
        return self.fn.let(f"or {self.mask_type} {a}, {b}")

    def at_most(self, x: str, high: float) -> str:
        """x, or `high` where x is greater; NaN stays."""
        return self.select(self.cmp("ogt", x, high), high, x)

    def at_least(self, x: str, low: float) -> str:
        """x, or `low` where x is less; NaN stays."""
        return self.select(self.cmp("olt", x, low), low, x)

    # --- bits and integers of the same width

    def to_bits(self, a: str) -> str:
        """The bits as integers."""
        return self.fn.let(f"bitcast {self.type} {a} to {self.int_type}")

    def from_bits(self, a: str) -> str:
        """Integers as floats of those bits."""
        return self.fn.let(f"bitcast {self.int_type} {a} to {self.type}")

    def _int_two(self, instruction: str, a: str | int, b: str | int) -> str:
        first = a if isinstance(a, str) else self.iconst(a)
        second = b if isinstance(b, str) else self.iconst(b)
        return self.fn.let(f"{instruction} {self.int_type} {first}, {second}")

    def iadd(self, a: str | int, b: str | int) -> str:
        """a + b over integers, wrapping."""
        return self._int_two("add", a, b)

    def isub(self, a: str | int, b: str | int) -> str:
        """a - b over integers, wrapping."""
        return self._int_two("sub", a, b)

    def iand(self, a: str | int, b: str | int) -> str:
        """Bits in both."""
        return self._int_two("and", a, b)

    def shl(self, a: str | int, by: int) -> str:
        """Shift left."""
        return self._int_two("shl", a, by)

    def ashr(self, a: str | int, by: int) -> str:
        """Shift right, keeping the sign."""
        return self._int_two("ashr", a, by)

    def icmp(self, condition: str, a: str | int, b: str | int) -> str:
        """A mask: LLVM's integer condition."""
        return self._int_two(f"icmp {condition}", a, b)

    def iselect(self, mask: str, a: str | int, b: str | int) -> str:
        """Integer a where the mask holds, else b."""
        first = a if isinstance(a, str) else self.iconst(a)
        second = b if isinstance(b, str) else self.iconst(b)
        return self.fn.let(f"select {self.mask_type} {mask}, {self.int_type} {first}, {self.int_type} {second}")

    def int_to_float(self, a: str) -> str:
        """Signed integers as floats."""
        return self.fn.let(f"sitofp {self.int_type} {a} to {self.type}")

    # --- rounding

    def nearest(self, x: str) -> tuple[str, str]:
        """The integer next to x (|x| < 2^(mantissa - 2)) as a float, and as an integer.

        Adding 1.5 * 2^mantissa leaves the integer in the low bits: it needs no rounding instruction.
        """
        magic = 1.5 * 2.0**self.mantissa
        shifted = self.add(x, magic)
        return self.sub(shifted, magic), self.isub(self.to_bits(shifted), self.magic_bits)

    @property
    def magic_bits(self) -> int:
        """The bits of 1.5 * 2^mantissa."""
        return ((self.bias + self.mantissa) << self.mantissa) | (1 << (self.mantissa - 1))

    def rounded(self, mode: str, x: str) -> str:
        """`floor`, `ceil`, `trunc` or `roundeven` of x."""
        if has_fma(self.isa):
            return self.call(mode, x)
        limit = 2.0**self.mantissa
        size = self.abs(x)
        near = self.sub(self.add(size, limit), limit)
        if mode == "trunc":
            near = self.sub(near, self.select(self.cmp("ogt", near, size), 1.0, 0.0))
        result = self.copysign(near, x)
        if mode == "floor":
            result = self.sub(result, self.select(self.cmp("ogt", result, x), 1.0, 0.0))
        elif mode == "ceil":
            result = self.add(result, self.select(self.cmp("olt", result, x), 1.0, 0.0))
        return self.select(self.cmp("olt", size, limit), self.copysign(result, x), x)

    def power_of_two(self, n: str) -> str:
        """2^n for an integer n in the normal range."""
        return self.from_bits(self.shl(self.iadd(n, self.bias), self.mantissa))

    @property
    def scales_nan(self) -> bool:
        """Whether `scale` has an instruction of its own, which keeps NaN."""
        return self.isa.name == "avx512" and self.lanes > 1 and self.lanes * self.bits in (128, 256, 512)

    def scale(self, x: str, n_float: str, n: str) -> str:
        """x * 2^n for x in [0.5, 2) and any n that the exponent of a product of two powers holds; rounds once."""
        if self.scales_nan:
            return self._scalef(x, n_float)
        half = 64 if self.bits == 32 else 512
        low = self.icmp("slt", n, 0)
        near = self.iadd(n, self.iselect(low, half, -half))
        bits = self.iadd(self.to_bits(x), self.shl(near, self.mantissa))
        return self.mul(self.from_bits(bits), self.select(low, 2.0**-half, 2.0**half))

    def _scalef(self, x: str, n_float: str) -> str:
        width = self.lanes * self.bits
        kind = "ps" if self.bits == 32 else "pd"
        name = f"@llvm.x86.avx512.mask.scalef.{kind}.{width}"
        mask = f"i{max(self.lanes, 8)}"
        rounding = width == 512
        types = [self.type] * 3 + [mask] + (["i32"] if rounding else [])
        self.fn.declare(f"declare {self.type} {name}({', '.join(types)})")
        args = f"{self.type} {x}, {self.type} {n_float}, {self.type} zeroinitializer, {mask} -1"
        return self.fn.let(f"call {self.type} {name}({args}{', i32 4' if rounding else ''})")

    # --- the other width

    def widened(self, x: str) -> tuple[Arith, str]:
        """Floats as doubles, and their arithmetic."""
        wide = self.other(64)
        return wide, self.fn.let(f"fpext {self.type} {x} to {wide.type}")

    def narrowed(self, x: str) -> str:
        """Doubles (of `other(64)`) rounded to this type."""
        return self.fn.let(f"fptrunc {self.other(64).type} {x} to {self.type}")
