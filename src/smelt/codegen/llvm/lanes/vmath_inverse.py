"""Inverse circular and hyperbolic functions, hypot and pow: computed in doubles, rounded once for floats.

Source: Muller, Elementary Functions, chapters 6 and 11; double-double sums and products after Dekker and Knuth.
"""

from __future__ import annotations

import math

from smelt.codegen.llvm.lanes import vmath_tables as tables
from smelt.codegen.llvm.lanes.lanes_types import Arith
from smelt.codegen.llvm.lanes.vmath import VectorMath

_INF = math.inf
_HALF_PI, _HALF_PI_LOW = tables.HALF_PI
_EXP_LIMIT = {32: 88.72283172607422, 64: 709.782712893384}  # the last number of the type whose exponential is finite


class InverseMath:
    """Functions of vectors of floats or doubles."""

    def __init__(self, math_: VectorMath) -> None:
        outer = math_.m
        self.narrow: Arith | None = outer if outer.bits == 32 else None
        self.math = math_ if outer.bits == 64 else VectorMath(outer.fn, outer.isa, outer.lanes, 64)
        self.m = self.math.m
        self._limit = _EXP_LIMIT[outer.bits]

    def _wide(self, x: str) -> str:
        return x if self.narrow is None else self.narrow.widened(x)[1]

    def _back(self, x: str) -> str:
        return x if self.narrow is None else self.narrow.narrowed(x)

    def _both_signs(self, x: str, positive: str, tiny: float) -> str:
        """An odd function from its value at |x|; near zero the function is x."""
        m = self.m
        return m.select(m.cmp("olt", m.abs(x), tiny), x, m.copysign(positive, x))

    # --- circular

    def _atan_positive(self, a: str) -> str:
        m = self.m
        high, middle = m.cmp("ogt", a, 2.414213562373095), m.cmp("ogt", a, 0.41421356237309503)
        top = m.select(high, -1.0, m.select(middle, m.sub(a, 1.0), a))
        bottom = m.select(high, a, m.select(middle, m.add(a, 1.0), 1.0))
        base = m.select(high, _HALF_PI, m.select(middle, _HALF_PI / 2, 0.0))
        low = m.select(high, _HALF_PI_LOW, m.select(middle, _HALF_PI_LOW / 2, 0.0))
        t = m.div(top, bottom)
        z = m.mul(t, t)
        return m.add(base, m.add(m.fma(m.mul(t, z), m.poly2(z, tables.ATAN_F64), low), t))

    def atan(self, x: str) -> str:
        """The inverse tangent."""
        x = self._wide(x)
        return self._back(self._both_signs(x, self._atan_positive(self.m.abs(x)), 2.0**-28))

    def atan2(self, y: str, x: str) -> str:
        """The angle of (x, y), in all four quadrants and on the axes as C's."""
        m = self.m
        y, x = self._wide(y), self._wide(x)
        up, along = m.abs(y), m.abs(x)
        steep = m.cmp("ogt", up, along)
        small, large = m.select(steep, along, up), m.select(steep, up, along)
        ratio = m.select(m.cmp("oeq", large, 0.0), 0.0, m.div(small, large))
        ratio = m.select(m.cmp("oeq", small, large), m.select(m.cmp("oeq", large, 0.0), 0.0, 1.0), ratio)
        angle = self._atan_positive(ratio)
        angle = m.select(steep, m.add(m.sub(_HALF_PI, angle), _HALF_PI_LOW), angle)
        left = m.icmp("slt", m.to_bits(x), 0)
        angle = m.select(left, m.add(m.sub(2 * _HALF_PI, angle), 2 * _HALF_PI_LOW), angle)
        return self._back(m.select(m.cmp("uno", x, y), math.nan, m.copysign(angle, y)))

    def _asin_small(self, s: str, z: str) -> str:
        """asin(s) from z = s^2, |s| <= 1/2."""
        return self.m.fma(self.m.mul(s, z), self.m.poly2(z, tables.ASIN_F64), s)

    def _asin_parts(self, x: str) -> tuple[str, str, str]:
        m = self.m
        a = m.abs(x)
        big = m.cmp("ogt", a, 0.5)
        z = m.select(big, m.mul(m.sub(1.0, a), 0.5), m.mul(a, a))
        s = m.select(big, m.sqrt(z), a)
        return big, a, self._asin_small(s, z)

    def asin(self, x: str) -> str:
        """The inverse sine."""
        m = self.m
        x = self._wide(x)
        big, _, part = self._asin_parts(x)
        beyond = m.add(m.sub(_HALF_PI, m.mul(part, 2.0)), _HALF_PI_LOW)
        return self._back(self._both_signs(x, m.select(big, beyond, part), 2.0**-28))

    def acos(self, x: str) -> str:
        """The inverse cosine."""
        m = self.m
        x = self._wide(x)
        big, _, part = self._asin_parts(x)
        left = m.icmp("slt", m.to_bits(x), 0)
        twice = m.mul(part, 2.0)
        outer = m.select(left, m.add(m.sub(2 * _HALF_PI, twice), 2 * _HALF_PI_LOW), twice)
        signed = m.copysign(part, x)
        inner = m.sub(_HALF_PI, m.sub(signed, _HALF_PI_LOW))
        return self._back(m.select(big, outer, inner))

    # --- hyperbolic

    def _overflowing(self, a: str, result: str) -> str:
        """Infinity where e^a is, as in eager's vectors, though half of it is not."""
        return self.m.select(self.m.cmp("ogt", a, self._limit), math.inf, result)

    def sinh(self, x: str) -> str:
        """The hyperbolic sine."""
        m = self.m
        x = self._wide(x)
        a = m.abs(x)
        e = self.math.expm1(m.at_most(a, self._limit))
        result = m.mul(m.add(e, m.div(e, m.add(e, 1.0))), 0.5)
        return self._back(self._both_signs(x, self._overflowing(a, result), 2.0**-28))

    def cosh(self, x: str) -> str:
        """The hyperbolic cosine."""
        m = self.m
        a = m.abs(self._wide(x))
        e = self.math.exp(m.at_most(a, self._limit))
        return self._back(self._overflowing(a, m.fma(e, 0.5, m.div(0.5, e))))

    def asinh(self, x: str) -> str:
        """The inverse hyperbolic sine."""
        m = self.m
        x = self._wide(x)
        a = m.abs(x)
        near = m.at_most(a, 2.0**28)
        square = m.mul(near, near)
        root = m.sqrt(m.add(square, 1.0))
        inner = self.math.log1p(m.add(near, m.div(square, m.add(root, 1.0))))
        outer = m.add(self.math.log(a), math.log(2.0))
        return self._back(self._both_signs(x, m.select(m.cmp("ogt", a, 2.0**28), outer, inner), 2.0**-28))

    def acosh(self, x: str) -> str:
        """The inverse hyperbolic cosine; NaN below 1."""
        m = self.m
        x = self._wide(x)
        t = m.sub(m.at_most(x, 2.0**28), 1.0)
        inner = self.math.log1p(m.add(t, m.sqrt(m.mul(t, m.add(t, 2.0)))))
        outer = m.add(self.math.log(x), math.log(2.0))
        result = m.select(m.cmp("ogt", x, 2.0**28), outer, inner)
        return self._back(m.select(m.cmp("ult", x, 1.0), math.nan, result))

    def atanh(self, x: str) -> str:
        """The inverse hyperbolic tangent."""
        m = self.m
        x = self._wide(x)
        a = m.abs(x)
        ratio = m.div(m.mul(a, 2.0), m.sub(1.0, a))
        return self._back(self._both_signs(x, m.mul(self.math.log1p(ratio), 0.5), 2.0**-28))

    # --- of two

    def hypot(self, x: str, y: str) -> str:
        """sqrt(x^2 + y^2) without overflow; infinite if either is, NaN or not."""
        m = self.m
        a, b = m.abs(self._wide(x)), m.abs(self._wide(y))
        if self.narrow is None:
            large = m.select(m.cmp("ogt", a, b), a, b)
            scale = m.select(m.cmp("ogt", large, 2.0**500), 2.0**-600, 1.0)
            scale = m.select(m.cmp("olt", large, 2.0**-500), 2.0**600, scale)
            back = m.select(m.cmp("ogt", large, 2.0**500), 2.0**600, 1.0)
            back = m.select(m.cmp("olt", large, 2.0**-500), 2.0**-600, back)
            length = m.mul(self._length(m.mul(a, scale), m.mul(b, scale)), back)
        else:
            length = self._length(a, b)
        infinite = m.mask_or(m.cmp("oeq", a, _INF), m.cmp("oeq", b, _INF))
        return self._back(m.select(infinite, _INF, length))

    def _length(self, a: str, b: str) -> str:
        m = self.m
        return m.sqrt(m.fma(a, a, m.mul(b, b)))

    def pow(self, x: str, y: str) -> str:
        """x^y, on special values as C's pow."""
        m = self.m
        x, y = self._wide(x), self._wide(y)
        size = m.abs(x)
        if self.narrow is None:
            power = self._pow_exact(size, y)
        else:
            power = self.math.exp(m.mul(y, self.math.log(size)))
        whole = m.cmp("oeq", m.rounded("trunc", y), y)
        half = m.mul(y, 0.5)
        odd = m.fn.let(f"and {m.mask_type} {whole}, {m.cmp('one', m.rounded('trunc', half), half)}")
        negative = m.icmp("slt", m.to_bits(x), 0)
        turned = m.fn.let(f"and {m.mask_type} {negative}, {odd}")
        result = m.select(turned, m.neg(power), power)
        # A negative number to a fraction; minus infinity and -0.0 are no such numbers.
        fraction = m.fn.let(f"xor {m.mask_type} {whole}, {'true' if m.lanes == 1 else 'splat (i1 true)'}")
        inside = m.fn.let(f"and {m.mask_type} {m.cmp('olt', x, 0.0)}, {m.cmp('ogt', x, -_INF)}")
        result = m.select(m.fn.let(f"and {m.mask_type} {inside}, {fraction}"), math.nan, result)
        result = m.select(m.cmp("uno", x, y), math.nan, result)
        # 1 to anything, anything to 0, and -1 to an infinity are 1.
        unit = m.fn.let(f"and {m.mask_type} {m.cmp('oeq', size, 1.0)}, {m.cmp('oeq', m.abs(y), _INF)}")
        one = m.mask_or(m.mask_or(m.cmp("oeq", y, 0.0), m.cmp("oeq", x, 1.0)), unit)
        return self._back(m.select(one, 1.0, result))

    def _pow_exact(self, size: str, y: str) -> str:
        """|x|^y with the logarithm to twice the precision."""
        m = self.m
        high, low = self._log_pair(size)
        product = m.mul(y, high)
        error = m.fma(y, low, m.fma(y, high, m.neg(product)))
        finite = m.cmp("olt", m.abs(product), 1000.0)
        return self.math.exp(product, m.select(finite, error, 0.0))

    def _log_pair(self, x: str) -> tuple[str, str]:
        """log(x) as an unevaluated sum of two doubles; the second is 0 at the edges."""
        m = self.m
        normal, shift = self.math._normal(x)
        exponent, f = self.math._split(normal)
        exponent = m.add(exponent, shift)
        below = m.add(f, 2.0)
        s = m.div(f, below)
        below_rest = m.sub(f, m.sub(below, 2.0))
        s_low = m.div(m.fma(m.neg(s), below_rest, m.fma(m.neg(s), below, f)), below)
        z = m.mul(s, s)
        z_low = m.fma(s, m.mul(s_low, 2.0), m.fma(s, s, m.neg(z)))
        small = m.mul(z, m.poly2(z, tables.POW_F64))
        c, c_low = self._two_sum(m.const(tables.TWO_THIRDS[0]), small)
        c_low = m.add(c_low, tables.TWO_THIRDS[1])
        cube, cube_low = self._times(s, s_low, z, z_low)
        term, term_low = self._times(cube, cube_low, c, c_low)
        twice, rest = self._two_sum(m.mul(s, 2.0), term)
        rest = m.add(m.add(rest, term_low), m.mul(s_low, 2.0))
        high, low = self._two_sum(m.mul(exponent, tables.LN2_PARTS[0]), twice)
        part = m.mul(exponent, tables.LN2_PARTS[1])
        part_low = m.fma(exponent, tables.LN2_PARTS[2], m.fma(exponent, tables.LN2_PARTS[1], m.neg(part)))
        high, more = self._two_sum(high, part)
        low = m.add(m.add(m.add(low, more), part_low), rest)
        total, low = self._two_sum(high, low)
        edge = m.mask_or(m.cmp("oeq", x, 0.0), m.cmp("ueq", x, _INF))
        return self.math._log_edges(x, total), m.select(edge, 0.0, low)

    def _two_sum(self, a: str, b: str) -> tuple[str, str]:
        m = self.m
        total = m.add(a, b)
        back = m.sub(total, a)
        return total, m.add(m.sub(a, m.sub(total, back)), m.sub(b, back))

    def _times(self, a: str, a_low: str, b: str, b_low: str) -> tuple[str, str]:
        m = self.m
        product = m.mul(a, b)
        error = m.fma(a, b, m.neg(product))
        return product, m.add(error, m.fma(a, b_low, m.mul(a_low, b)))
