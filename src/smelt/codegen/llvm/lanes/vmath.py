"""Vector math of our own: exponentials, logarithms, error functions and the activations made of them.

Invariant: right on nan, infinities, signed zeros, denormals and huge arguments, with the same bits for any number of
lanes. Errors in ulp are in the tests' table. Source: the forms named in `vmath_tables`; TwoSum after Knuth.
"""

from __future__ import annotations

import math

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes import vmath_tables as tables
from smelt.codegen.llvm.lanes.lanes_types import Arith
from smelt.codegen.llvm.text import FunctionText

_INF = math.inf
_LOG2E = 1.4426950408889634
# log(2) as a number with trailing zero bits, so that a product with an exponent is exact, and the rest
_LN2 = {32: (0.693145751953125, 1.4286068203094173e-06), 64: (0.6931471803691238, 1.9082149292705877e-10)}
_EXP_RANGE = {32: (-104.5, 88.72283935546875), 64: (-746.0, 709.782712893384)}


class VectorMath:
    """Elementary functions on vectors of `lanes` numbers of `bits` 32 or 64, emitted into a function."""

    def __init__(self, fn: FunctionText, isa: Isa, lanes: int, bits: int = 32) -> None:
        self.fn, self.bits = fn, bits
        self.m = Arith(fn, isa, lanes, bits)

    def _at(self, bits: int) -> VectorMath:
        return self if bits == self.bits else VectorMath(self.fn, self.m.isa, self.m.lanes, bits)

    def in_double(self, name: str, *args: str) -> str:
        """A function of floats computed in doubles and rounded once."""
        wide = self._at(64)
        return self.m.narrowed(getattr(wide, name)(*(self.m.widened(a)[1] for a in args)))

    # --- exponentials

    def _exp_core(self, x: str, tail: str | None = None) -> tuple[str, str, str]:
        """exp(r) - 1 and n (as float and integer) with x + tail = n log(2) + r, |r| <= log(2) / 2; x within range."""
        m = self.m
        high, low = _LN2[self.bits]
        magic = 1.5 * 2.0**m.mantissa
        shifted = m.fma(x, _LOG2E, magic)
        whole = m.sub(shifted, magic)
        r = m.fma(m.neg(whole), low, m.fma(m.neg(whole), high, x))
        if tail is not None:
            r = m.add(r, tail)
        p = m.poly(r, tables.EXP_F32) if self.bits == 32 else m.poly2(r, tables.EXP_F64)
        return m.fma(m.mul(r, r), p, r), whole, m.isub(m.to_bits(shifted), m.magic_bits)

    def exp(self, x: str, tail: str | None = None) -> str:
        """e^(x + tail), the tail below x's last bit."""
        m = self.m
        low, high = _EXP_RANGE[self.bits]
        if m.scales_nan:  # the scaling gives infinity and zero by itself
            q, whole, n = self._exp_core(m.at_least(m.at_most(x, -2 * low), 2 * low), tail)
            return m.scale(m.add(q, 1.0), whole, n)
        inside = m.at_least(m.at_most(x, high), low)
        q, whole, n = self._exp_core(inside, tail)
        return self._exp_edges(x, high, m.scale(m.add(q, 1.0), whole, n))

    def _exp_edges(self, x: str, high: float, result: str) -> str:
        m = self.m
        if not m.scales_nan:
            result = m.select(m.cmp("uno", x, x), x, result)
        return m.select(m.cmp("ogt", x, high), _INF, result)

    def exp_above_normal(self, x: str) -> str:
        """e^x where what is below the least normal number may be any as small: for sums with greater numbers."""
        m = self.m
        if m.scales_nan:
            return self.exp(x)
        low, high = (-87.0, 89.0) if self.bits == 32 else (-708.0, 710.0)
        q, _, n = self._exp_core(m.at_least(m.at_most(x, high), low))
        # Half of 2^n: the greatest n has no 2^n. NaN is in q.
        return m.mul(m.mul(m.power_of_two(m.isub(n, 1)), m.add(q, 1.0)), 2.0)

    def tanh_parts(self, x: str) -> tuple[str, str]:
        """t and s with tanh(x) = t / s, exact to the last digits near zero, too: t = +-(e^(2 |x|) - 1), s = 2 + |t|."""
        m = self.m
        bounded = m.at_most(m.abs(x), 10.0 if self.bits == 32 else 20.0)
        q, _, n = self._exp_core(m.add(bounded, bounded))
        power = m.power_of_two(n)
        t = m.fma(power, q, m.sub(power, 1.0))
        return m.copysign(t, x), m.add(t, 2.0)

    def exp2(self, x: str) -> str:
        """2^x."""
        if self.bits == 32:
            return self.in_double("exp2", x)
        m = self.m
        inside = m.at_least(m.at_most(x, 1024.0), -1076.0)
        magic = 1.5 * 2.0**m.mantissa
        shifted = m.add(inside, magic)
        whole = m.sub(shifted, magic)
        r = m.mul(m.sub(inside, whole), math.log(2.0))
        q = m.fma(m.mul(r, r), m.poly2(r, tables.EXP_F64), r)
        n = m.isub(m.to_bits(shifted), m.magic_bits)
        return m.select(m.cmp("oge", x, 1024.0), _INF, self._exp_edges(x, 1024.0, m.scale(m.add(q, 1.0), whole, n)))

    def expm1(self, x: str) -> str:
        """e^x - 1 without cancellation."""
        m = self.m
        high = _EXP_RANGE[self.bits][1]
        inside = m.at_least(m.at_most(x, high), -18.0 if self.bits == 32 else -40.0)
        result = self._expm1_core(inside)
        result = m.select(m.cmp("ogt", x, high), _INF, result)
        return m.select(m.cmp("olt", m.abs(x), 2.0**-30 if self.bits == 32 else 2.0**-60), x, result)

    def _expm1_core(self, x: str) -> str:
        """e^x - 1 for x from -40 (-18 for floats) to the last finite result, |x| not tiny."""
        m = self.m
        q, _, n = self._exp_core(x)
        half = m.power_of_two(m.isub(n, 1))  # half of 2^n: the greatest n has no 2^n
        return m.mul(m.fma(half, q, m.sub(half, 0.5)), 2.0)

    # --- logarithms

    def _split(self, x: str) -> tuple[str, str]:
        """The exponent e as a float and f in [sqrt(1/2) - 1, sqrt(2) - 1) with x = 2^e (1 + f), for normal x > 0."""
        m = self.m
        root = 0x3F3504F3 if self.bits == 32 else 0x3FE6A09E667F3BCD
        shifted = m.isub(m.to_bits(x), root)
        exponent = m.int_to_float(m.ashr(shifted, m.mantissa))
        mantissa = m.from_bits(m.iadd(m.iand(shifted, (1 << m.mantissa) - 1), root))
        return exponent, m.sub(mantissa, 1.0)

    def _log_parts(self, f: str) -> str:
        """log(1 + f) - f, for |f| < sqrt(2) - 1."""
        m = self.m
        half = m.mul(m.mul(f, f), 0.5)
        if self.bits == 32:
            square = m.mul(f, f)
            return m.sub(m.mul(m.mul(f, square), m.poly2(f, tables.LOG_F32)), half)
        s = m.div(f, m.add(f, 2.0))
        z = m.mul(s, s)
        r = m.mul(z, m.poly2(z, tables.LOG_F64))
        return m.sub(m.mul(s, m.add(half, r)), half)

    def _normal(self, x: str) -> tuple[str, str]:
        """x scaled out of the denormals, and what that added to its exponent."""
        m = self.m
        by = float(m.mantissa + 1)
        tiny = m.cmp("olt", x, 2.0 ** (1 - m.bias))
        return m.select(tiny, m.mul(x, 2.0**by), x), m.select(tiny, -by, 0.0)

    def _log_edges(self, x: str, result: str) -> str:
        m = self.m
        result = m.select(m.cmp("oeq", x, _INF), _INF, result)
        result = m.select(m.cmp("oeq", x, 0.0), -_INF, result)
        return m.select(m.cmp("ult", x, 0.0), math.nan, result)

    def log(self, x: str) -> str:
        """The natural logarithm."""
        m = self.m
        normal, shift = self._normal(x)
        exponent, f = self._split(normal)
        return self._log_edges(x, self._log_sum(m.add(exponent, shift), f))

    def _log_sum(self, exponent: str, f: str) -> str:
        """exponent * log(2) + log(1 + f)."""
        m = self.m
        high, low = _LN2[self.bits]
        rest = m.fma(exponent, low, self._log_parts(f))
        return m.fma(exponent, high, m.add(f, rest))

    def log_base(self, x: str, base: int) -> str:
        """The logarithm to the base 2 or 10; powers of two give whole numbers to the base 2."""
        if self.bits == 32:
            return self.m.narrowed(self._at(64).log_base(self.m.widened(x)[1], base))
        m = self.m
        normal, shift = self._normal(x)
        exponent, f = self._split(normal)
        exponent = m.add(exponent, shift)
        rest = self._log_parts(f)
        scale, scale_low = _PER_LOG[base]
        tail = m.fma(rest, scale, m.mul(m.add(f, rest), scale_low))
        head = m.mul(f, scale)
        tail = m.add(m.fma(f, scale, m.neg(head)), tail)
        if base == 2:
            return self._log_edges(x, m.add(exponent, m.add(head, tail)))
        tail = m.fma(exponent, _LOG10_2[1], tail)
        whole = m.mul(exponent, _LOG10_2[0])
        return self._log_edges(x, m.add(whole, m.add(head, tail)))

    def log2(self, x: str) -> str:
        """The logarithm to the base 2."""
        return self.log_base(x, 2)

    def log10(self, x: str) -> str:
        """The logarithm to the base 10."""
        return self.log_base(x, 10)

    def log1p(self, x: str) -> str:
        """log(1 + x) without cancellation."""
        m = self.m
        u = m.add(x, 1.0)
        back = m.sub(u, 1.0)
        lost = m.add(m.sub(1.0, m.sub(u, back)), m.sub(x, back))
        exponent, f = self._split(u)
        near = m.cmp("olt", m.abs(exponent), 60.0)
        down = m.power_of_two(m.fn.let(f"fptosi {m.type} {m.select(near, m.neg(exponent), 0.0)} to {m.int_type}"))
        f = m.add(f, m.mul(m.select(near, lost, 0.0), down))
        result = self._log_edges(u, self._log_sum(exponent, f))
        return m.select(m.cmp("olt", m.abs(x), 2.0**-30 if self.bits == 32 else 2.0**-60), x, result)

    # --- error function

    def erf(self, x: str) -> str:
        """The error function."""
        m = self.m
        size = m.abs(x)
        z = m.mul(x, x)
        if self.bits == 64:
            small = m.mul(x, m.poly2(z, tables.ERF_F64))
            large = m.copysign(m.sub(1.0, self._erfc_positive(m.at_most(size, 6.5))), x)
            return m.select(m.cmp("olt", size, 1.0), small, large)
        small = m.fma(x, m.poly(z, tables.ERF_SMALL_F32), x)
        bounded = m.at_most(size, 4.0)
        exponent = m.mul(m.neg(bounded), m.poly(bounded, tables.ERF_LARGE_F32))
        q, _, n = self._exp_core(exponent)
        power = m.power_of_two(n)
        large = m.sub(m.sub(1.0, power), m.mul(power, q))
        return m.select(m.cmp("olt", size, 1.0), small, m.copysign(large, x))

    def erfc(self, x: str) -> str:
        """1 - erf(x) without cancellation."""
        if self.bits == 32:
            return self.in_double("erfc", x)
        m = self.m
        size = m.abs(x)
        tail = self._erfc_positive(m.at_most(size, 28.0))
        tail = m.select(m.cmp("olt", x, 0.0), m.sub(2.0, tail), tail)
        near = m.sub(1.0, m.mul(x, m.poly2(m.mul(x, x), tables.ERF_F64)))
        return m.select(m.cmp("olt", size, 0.5), near, tail)

    def _erfc_positive(self, x: str) -> str:
        """erfc of doubles from 0.46 to 28."""
        m = self.m
        t = m.div(m.sub(x, 3.75), m.add(x, 3.75))
        shape = m.div(m.poly2(t, tables.ERFC_F64), m.fma(x, 2.0, 1.0))
        # exp(-x^2) with x^2 as the exact square of x's upper half and the rest.
        upper = m.from_bits(m.iand(m.to_bits(x), -(1 << 27)))
        rest = m.mul(m.sub(x, upper), m.add(x, upper))
        return m.mul(m.mul(self.exp(m.neg(m.mul(upper, upper))), self.exp(m.neg(rest))), shape)

    # --- hyperbolic

    def tanh(self, x: str) -> str:
        """The hyperbolic tangent: 1 - 2 t / (1 + t) with t = exp(-2 |x|); near zero without the difference."""
        m = self.m
        size = m.abs(x)
        bounded = m.at_most(size, 10.0 if self.bits == 32 else 20.0)
        q, _, n = self._exp_core(m.mul(bounded, -2.0))
        power = m.power_of_two(n)
        t = m.fma(power, q, power)
        large = m.sub(1.0, m.div(m.mul(t, 2.0), m.add(t, 1.0)))
        if self.bits == 32:
            z = m.mul(x, x)
            small = m.fma(m.mul(x, z), m.poly(z, tables.TANH_F32), x)
            return m.copysign(m.select(m.cmp("olt", size, tables.TANH_REACH), small, large), x)
        e = m.fma(power, q, m.sub(power, 1.0))
        result = m.copysign(m.select(m.cmp("olt", size, 0.55), m.div(e, m.add(e, 2.0)), large), x)
        return m.select(m.cmp("olt", size, 2.0**-30), x, result)

    # --- activations, each from its own formula

    def sigmoid(self, x: str) -> str:
        """1 / (1 + e^-x)."""
        m = self.m
        return m.div(1.0, m.add(self.exp_above_normal(m.neg(x)), 1.0))

    def silu(self, x: str) -> str:
        """x / (1 + e^-x)."""
        m = self.m
        return m.div(x, m.add(self.exp_above_normal(m.neg(x)), 1.0))

    def gelu(self, x: str) -> str:
        """x / 2 * (1 + erf(x / sqrt(2))).

        As in eager's vectors, f32 overflows where x * 2 does on processors with AVX-512 (oneDNN), and nowhere else."""
        m = self.m
        if self.bits == 64:
            return m.mul(m.mul(x, 0.5), m.add(self.erf(m.mul(x, math.sqrt(0.5))), 1.0))
        reach = tables.GELU_REACH
        bounded = m.at_least(m.at_most(x, reach), -reach)
        z = m.mul(bounded, bounded)
        top, bottom = m.poly(z, tables.GELU_TOP_F32), m.poly(z, tables.GELU_BOTTOM_F32)
        e = m.div(m.mul(bounded, top), bottom)
        e = m.select(m.cmp("oge", m.abs(x), reach), m.copysign(1.0, x), e)
        if m.isa.name == "avx512":
            return m.mul(m.mul(x, m.add(e, 1.0)), 0.5)
        return m.mul(m.mul(x, 0.5), m.add(e, 1.0))

    def gelu_tanh(self, x: str) -> str:
        """x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x * sigmoid of twice the argument."""
        m = self.m
        cube = m.mul(m.mul(x, x), x)
        inner = m.mul(m.fma(cube, 0.044715, x), 2.0 * math.sqrt(2.0 / math.pi))
        return m.div(x, m.add(self.exp_above_normal(m.neg(inner)), 1.0))

    def softplus(self, x: str) -> str:
        """log(1 + e^x), x itself above 20."""
        m = self.m
        return m.select(m.cmp("ogt", x, 20.0), x, self.log1p(self.exp(x)))

    def mish(self, x: str) -> str:
        """x * tanh(log(1 + e^x)) = x * n / (n + 2) with n = e^x (e^x + 2)."""
        m = self.m
        e = self.exp(m.at_most(x, 30.0))
        n = m.mul(e, m.add(e, 2.0))
        return m.mul(x, m.div(n, m.add(n, 2.0)))

    def rsqrt(self, x: str) -> str:
        """1 / sqrt(x)."""
        return self.m.div(1.0, self.m.sqrt(x))


_PER_LOG = {2: (1.4426950408889634, 2.0355273740931033e-17), 10: (0.4342944819032518, 1.098319650216765e-17)}
_LOG10_2 = (0.3010299955494702, 1.1451100898021838e-10)
