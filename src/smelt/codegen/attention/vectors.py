"""Vectors of f32 or f64 in a kernel's text: loads and stores of any floating dtype, reductions, exp, transposition.

Invariant: every operation is legal on each instruction set that `Lanes` is made for; nothing calls an external symbol.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import FunctionText
from smelt.diag.records import record
from smelt.ir import DType

# 2**f = 1 + f * q(f) for f in [-0.5, 0.5]: interpolation at Chebyshev points; error 9e-9 and 2e-17.
_EXP2 = {
    "float": (
        0.6931471824645996, 0.24022650718688965, 0.055503569543361664, 0.009618083015084267, 0.0013390863314270973,
        0.00015453163359779865,
    ),
    "double": (
        0.6931471805599453, 0.24022650695910097, 0.0555041086648216, 0.009618129107606888, 0.0013333558146416936,
        0.0001540353044173605, 1.525273382983612e-05, 1.321544258792169e-06, 1.0178062445845774e-07,
        7.072585949269223e-09, 4.4549605981865186e-10,
    ),
}  # fmt: skip
_LOG2_E = {"float": 1.4426950216293335, "double": 1.4426950408889634}
# Below these the result is less than the smallest normal number and becomes 0.
_EXP_LEAST = {"float": -87.328125, "double": -708.375}
# Adding 1.5 * 2**(mantissa bits) rounds to an integer and leaves it in the low bits.
_ROUND = {"float": 12582912.0, "double": 6755399441055744.0}
_MANTISSA = {"float": 23, "double": 52}
_BIAS = {"float": 127, "double": 1023}
_ONE = {kind: _BIAS[kind] << _MANTISSA[kind] for kind in _BIAS}
_ELEMENTS = {DType.F32: "float", DType.F64: "double", DType.BF16: "i16", DType.F16: "half", DType.BOOL: "i8"}


def number(value: float) -> str:
    """A floating-point constant in LLVM text (an f32 must be exact in f32)."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def least(fn: FunctionText, a: str | int, b: str | int) -> str:
    """min(a, b) over i64."""
    return fn.let(f"select i1 {fn.let(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}", "i")


def most(fn: FunctionText, a: str | int, b: str | int) -> str:
    """max(a, b) over i64."""
    return fn.let(f"select i1 {fn.let(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}", "i")


def down(fn: FunctionText, a: str, power_of_two: int) -> str:
    """a rounded down to a multiple."""
    return fn.let(f"and i64 {a}, {-power_of_two}", "i")


def up(fn: FunctionText, a: str, power_of_two: int) -> str:
    """a rounded up to a multiple."""
    return down(fn, fn.add(a, power_of_two - 1), power_of_two)


def lanes_of(isa: Isa, compute: DType) -> int:
    """How many numbers a register holds."""
    return isa.f32_lanes * 4 // compute.itemsize


@record
class Lanes:
    """Vector operations of one function on `count` lanes of `kind` ("float" or "double").

    has_fma: without it a multiply-add rounds twice, since the library call that LLVM would make is not there.
    """

    fn: FunctionText
    kind: str
    count: int
    has_fma: bool

    @staticmethod
    def of(fn: FunctionText, isa: Isa, compute: DType, count: int = 0) -> Lanes:
        """Vectors of the f32 or f64 that is computed in, as long as a register unless `count` says otherwise."""
        kind = "double" if compute is DType.F64 else "float"
        return Lanes(fn, kind, count or lanes_of(isa, compute), isa.name != "baseline")

    @property
    def type(self) -> str:
        """The vector type."""
        return f"<{self.count} x {self.kind}>"

    @property
    def nbytes(self) -> int:
        """Bytes of one lane."""
        return 8 if self.kind == "double" else 4

    @property
    def bits(self) -> str:
        """The integer type as wide as a lane."""
        return f"i{8 * self.nbytes}"

    # --- values

    def constant(self, value: float) -> str:
        """The same number in all lanes."""
        return f"splat ({self.kind} {number(value)})"

    def splat(self, scalar: str) -> str:
        """A scalar in all lanes."""
        one = self.fn.let(f"insertelement {self.type} poison, {self.kind} {scalar}, i64 0")
        zeros = f"<{self.count} x i32> zeroinitializer"
        return self.fn.let(f"shufflevector {self.type} {one}, {self.type} poison, {zeros}")

    def op(self, name: str, *args: str) -> str:
        """An LLVM instruction on vectors."""
        return self.fn.let(f"{name} {self.type} {', '.join(args)}")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c."""
        return self._fma(self.type, f"v{self.count}", a, b, c)

    def fma_one(self, a: str, b: str, c: str) -> str:
        """a * b + c of scalars."""
        return self._fma(self.kind, "", a, b, c)

    def _fma(self, type_: str, prefix: str, a: str, b: str, c: str) -> str:
        if not self.has_fma:
            return self.fn.let(f"fadd {type_} {self.fn.let(f'fmul {type_} {a}, {b}')}, {c}")
        name = f"@llvm.fma.{prefix}f{8 * self.nbytes}"
        self.fn.declare(f"declare {type_} {name}({type_}, {type_}, {type_})")
        return self.fn.let(f"call {type_} {name}({type_} {a}, {type_} {b}, {type_} {c})")

    def larger(self, a: str, b: str) -> str:
        """a where a > b, else b: a NaN in a is passed over."""
        return self._larger(self.type, f"<{self.count} x i1>", a, b)

    def larger_one(self, a: str, b: str) -> str:
        """`larger` of scalars."""
        return self._larger(self.kind, "i1", a, b)

    def _larger(self, type_: str, mask: str, a: str, b: str) -> str:
        is_larger = self.fn.let(f"fcmp ogt {type_} {a}, {b}")
        return self.fn.let(f"select {mask} {is_larger}, {type_} {a}, {type_} {b}")

    def select(self, mask: str, a: str, b: str) -> str:
        """a where the mask is set, else b."""
        return self.fn.let(f"select <{self.count} x i1> {mask}, {self.type} {a}, {self.type} {b}")

    def before(self, limit: str) -> str:
        """The mask of the lanes below an i64 limit."""
        lanes = f"<{self.count} x i32>"
        one = self.fn.let(f"insertelement {lanes} poison, i32 {self.fn.let(f'trunc i64 {limit} to i32')}, i64 0")
        all_ = self.fn.let(f"shufflevector {lanes} {one}, {lanes} poison, {lanes} zeroinitializer")
        counts = ", ".join(f"i32 {i}" for i in range(self.count))
        return self.fn.let(f"icmp slt {lanes} <{counts}>, {all_}")

    # --- across lanes

    def _halves(self, value: str, width: int) -> str:
        """Lane i of the result is lane i + width."""
        picks = ", ".join(f"i32 {i + width}" if i < width else "i32 poison" for i in range(self.count))
        return self.fn.let(f"shufflevector {self.type} {value}, {self.type} poison, <{self.count} x i32> <{picks}>")

    def sum(self, value: str) -> str:
        """The sum of all lanes, pairwise."""
        width = self.count // 2
        while width:
            value = self.op("fadd", value, self._halves(value, width))
            width //= 2
        return self.fn.let(f"extractelement {self.type} {value}, i64 0")

    def largest(self, value: str) -> str:
        """The largest lane."""
        width = self.count // 2
        while width:
            value = self.larger(value, self._halves(value, width))
            width //= 2
        return self.fn.let(f"extractelement {self.type} {value}, i64 0")

    def _exchanged(self, a: str, b: str, width: int) -> tuple[str, str]:
        """Blocks of `width` lanes: the even ones of a, each followed by b's; then the odd ones likewise."""
        found = []
        for skip in (0, width):
            picks = []
            for lane in range(self.count):
                start, k = lane // (2 * width) * 2 * width, lane % (2 * width)
                picks.append(start + skip + (k if k < width else self.count + k - width))
            text = ", ".join(f"i32 {p}" for p in picks)
            shuffled = f"shufflevector {self.type} {a}, {self.type} {b}, <{self.count} x i32> <{text}>"
            found.append(self.fn.let(shuffled))
        return found[0], found[1]

    def transposed(self, rows: Sequence[str]) -> list[str]:
        """The columns of a square of vectors."""
        now, width = list(rows), 1
        while width < self.count:
            for i in range(self.count):
                if not i & width:
                    now[i], now[i + width] = self._exchanged(now[i], now[i + width], width)
            width *= 2
        return now

    def row_sums(self, rows: Sequence[str]) -> str:
        """One vector whose lane i is the sum of the lanes of row i."""
        now, width = list(rows), 1
        while len(now) > 1:
            now = [self.op("fadd", *self._exchanged(now[i], now[i + 1], width)) for i in range(0, len(now), 2)]
            width *= 2
        return now[0]

    # --- memory

    def load(self, at: str) -> str:
        """A vector of the kind computed in."""
        return self.fn.load(self.type, at, self.nbytes)

    def store(self, value: str, at: str) -> None:
        """Write a vector of the kind computed in."""
        self.fn.store(self.type, value, at, self.nbytes)

    def read(self, dtype: DType, at: str) -> str:
        """A vector of elements of any dtype, as numbers of the kind computed in."""
        element = _ELEMENTS[dtype]
        size = dtype.itemsize
        raw = self.fn.load(f"<{self.count} x {element}>", at, size)
        return self._widened(dtype, raw, f"<{self.count} x ", ">")

    def read_one(self, dtype: DType, at: str) -> str:
        """An element of any dtype, as a number of the kind computed in."""
        return self._widened(dtype, self.fn.load(_ELEMENTS[dtype], at), "", "")

    def _widened(self, dtype: DType, raw: str, begin: str, end: str) -> str:
        def of(kind: str) -> str:
            return f"{begin}{kind}{end}"

        def same(value: float) -> str:
            return self.constant(value) if begin else number(value)

        match dtype:
            case DType.BF16:
                wide = self.fn.let(f"zext {of('i16')} {raw} to {of('i32')}")
                shift = "splat (i32 16)" if begin else "16"
                moved = self.fn.let(f"shl {of('i32')} {wide}, {shift}")
                return self.fn.let(f"bitcast {of('i32')} {moved} to {of('float')}")
            case DType.F16:
                return self.fn.let(f"fpext {of('half')} {raw} to {of('float')}")
            case DType.BOOL:
                # True lets a score be, False takes it out.
                zero = "zeroinitializer" if begin else "0"
                is_set = self.fn.let(f"icmp ne {of('i8')} {raw}, {zero}")
                return self.fn.let(
                    f"select {of('i1')} {is_set}, {of(self.kind)} {same(0.0)}, {of(self.kind)} {same(float('-inf'))}"
                )
            case DType.F32 if self.kind == "double":
                return self.fn.let(f"fpext {of('float')} {raw} to {of('double')}")
        return raw

    def write(self, dtype: DType, value: str, at: str) -> None:
        """Round to a dtype and write a vector."""
        element = _ELEMENTS[dtype]
        rounded = self._narrowed(dtype, value, f"<{self.count} x ", ">")
        self.fn.store(f"<{self.count} x {element}>", rounded, at, dtype.itemsize)

    def write_one(self, dtype: DType, value: str, at: str) -> None:
        """Round to a dtype and write one element."""
        self.fn.store(_ELEMENTS[dtype], self._narrowed(dtype, value, "", ""), at)

    def _narrowed(self, dtype: DType, value: str, begin: str, end: str) -> str:
        def of(kind: str) -> str:
            return f"{begin}{kind}{end}"

        def same(bits: int, type_: str = "i32") -> str:
            return f"splat ({type_} {bits})" if begin else str(bits)

        if dtype is DType.F16:
            return self.fn.let(f"fptrunc {of('float')} {value} to {of('half')}")
        if dtype is not DType.BF16:
            return value
        # To nearest, ties to even, in integers: the instruction for it would make denormals zero.
        let, wide = self.fn.let, of("i32")
        bits = let(f"bitcast {of('float')} {value} to {wide}")
        odd = let(f"and {wide} {let(f'lshr {wide} {bits}, {same(16)}')}, {same(1)}")
        moved = let(f"add {wide} {let(f'add {wide} {bits}, {odd}')}, {same(0x7FFF)}")
        high = let(f"trunc {wide} {let(f'lshr {wide} {moved}, {same(16)}')} to {of('i16')}")
        is_nan = let(f"fcmp uno {of('float')} {value}, {value}")
        return let(f"select {of('i1')} {is_nan}, {of('i16')} {same(0x7FC0, 'i16')}, {of('i16')} {high}")

    # --- exp

    def exp(self, x: str) -> str:
        """exp of numbers that are at most 80, -inf or NaN; what would be below the normal numbers is 0."""
        let, kind, ints = self.fn.let, self.kind, f"<{self.count} x {self.bits}>"
        log2_e = self.constant(_LOG2_E[kind])
        shifted = self.fma(x, log2_e, self.constant(_ROUND[kind]))
        whole = self.op("fsub", shifted, self.constant(_ROUND[kind]))
        part = self.fma(x, log2_e, self.op("fneg", whole)) if self.has_fma else self._part(x, whole)
        *rest, top = _EXP2[kind]
        q = self.constant(top)
        for factor in reversed(rest):
            q = self.fma(q, part, self.constant(factor))
        power = self.fma(q, part, self.constant(1.0))
        raised = let(
            f"shl {ints} {let(f'bitcast {self.type} {shifted} to {ints}')}, splat ({self.bits} {_MANTISSA[kind]})"
        )
        biased = let(f"add {ints} {raised}, splat ({self.bits} {_BIAS[kind] << _MANTISSA[kind]})")
        scaled = self.op("fmul", power, let(f"bitcast {ints} {biased} to {self.type}"))
        is_least = let(f"fcmp olt {self.type} {x}, {self.constant(_EXP_LEAST[kind])}")
        return self.select(is_least, "zeroinitializer", scaled)

    def log(self, x: str) -> str:
        """log of numbers from 1 on (others give anything), by the inverse of `exp`.

        Source: Halley's method, which triples the digits: from 0.06 to 2e-5 to 5e-16.
        """
        let, kind, ints = self.fn.let, self.kind, f"<{self.count} x {self.bits}>"
        # The bits of a number, as an integer, are its logarithm to base 2 with straight lines between the powers.
        bits = let(f"sub {ints} {let(f'bitcast {self.type} {x} to {ints}')}, splat ({self.bits} {_ONE[kind]})")
        unit = _single(0.6931471805599453 / 2.0 ** _MANTISSA[kind], kind)
        found = self.op("fmul", let(f"sitofp {ints} {bits} to {self.type}"), self.constant(unit))
        for _ in range(2 if kind == "float" else 3):
            power = self.exp(found)
            miss = self.op("fdiv", self.op("fsub", x, power), self.op("fadd", x, power))
            found = self.fma(miss, self.constant(2.0), found)
        return found

    def _part(self, x: str, whole: str) -> str:
        """x * log2(e) - whole where products are rounded: ln(2) in two parts, the first exact times a small integer."""
        high, low = (
            (0.693359375, -2.12194440e-4) if self.kind == "float" else (0.6931471803691238, 1.9082149292705877e-10)
        )
        rest = self.op("fsub", x, self.op("fmul", whole, self.constant(_single(high, self.kind))))
        rest = self.op("fsub", rest, self.op("fmul", whole, self.constant(_single(low, self.kind))))
        return self.op("fmul", rest, self.constant(_LOG2_E[self.kind]))


def _single(value: float, kind: str) -> float:
    """A constant rounded to the kind."""
    return value if kind == "double" else float(struct.unpack("<f", struct.pack("<f", value))[0])
