"""Sine, cosine and tangent with exact reduction of any argument.

Up to half a million the multiple of pi / 2 is taken away in three parts (Cody and Waite); beyond, a private scalar
function of the module multiplies by the bits of 2 / pi that matter (Payne and Hanek, SIGNUM 1983), lane by lane.
"""

from __future__ import annotations

import math

from smelt.codegen.llvm.lanes import vmath_tables as tables
from smelt.codegen.llvm.lanes.lanes_modulo import any_lane
from smelt.codegen.llvm.lanes.lanes_types import Arith

_LIMIT = 5e5


class Trigonometry:
    """Circular functions of vectors of floats (reduced in doubles) or doubles."""

    def __init__(self, m: Arith) -> None:
        self.m = m
        self.wide = m if m.bits == 64 else m.other(64)

    def sin(self, x: str) -> str:
        """The sine; -0.0 and tiny arguments are their own."""
        m = self.m
        r, quadrant = self._reduced(x)
        return m.select(m.cmp("olt", m.abs(x), 2.0**-13 if m.bits == 32 else 2.0**-27), x, self._turned(r, quadrant))

    def cos(self, x: str) -> str:
        """The cosine."""
        r, quadrant = self._reduced(x)
        return self._turned(r, self.m.iadd(quadrant, 1))

    def tan(self, x: str) -> str:
        """The tangent, for floats computed in doubles."""
        m = self.m
        if m.bits == 32:
            return m.narrowed(Trigonometry(self.wide).tan(m.widened(x)[1]))
        r, quadrant = self._reduced(x)
        sine, cosine = self._both(r)
        odd = m.icmp("ne", m.iand(quadrant, 1), 0)
        top, bottom = m.select(odd, m.neg(cosine), sine), m.select(odd, sine, cosine)
        return m.select(m.cmp("olt", m.abs(x), 2.0**-27), x, m.div(top, bottom))

    def _both(self, r: str) -> tuple[str, str]:
        """sin(r) and cos(r), |r| <= pi / 4."""
        m = self.m
        sines, cosines = (tables.SIN_F64, tables.COS_F64) if m.bits == 64 else (tables.SIN_F32, tables.COS_F32)
        z = m.mul(r, r)
        sine = m.fma(m.mul(r, z), m.poly(z, sines), r)
        half = m.mul(z, 0.5)
        first = m.sub(1.0, half)
        # What 1 - z / 2 lost goes back in with the small terms.
        lost = m.sub(m.sub(1.0, first), half)
        return sine, m.add(first, m.fma(m.mul(z, z), m.poly(z, cosines), lost))

    def _turned(self, r: str, quadrant: str) -> str:
        """sin(r + quadrant * pi / 2)."""
        m = self.m
        sine, cosine = self._both(r)
        value = m.select(m.icmp("ne", m.iand(quadrant, 1), 0), cosine, sine)
        sign = m.shl(m.iand(quadrant, 2), m.bits - 2)
        return m.from_bits(m.fn.let(f"xor {m.int_type} {m.to_bits(value)}, {sign}"))

    # --- reduction

    def _reduced(self, x: str) -> tuple[str, str]:
        """r in [-pi / 4, pi / 4] and an integer n with x = n pi / 2 + r."""
        m, w = self.m, self.wide
        if m.bits == 32:
            x = m.widened(x)[1]
        near = w.select(w.cmp("olt", w.abs(x), _LIMIT), x, 0.0)
        whole, n = w.nearest(w.mul(near, 2.0 / math.pi))
        minus = w.neg(whole)
        r = near
        for part in tables.HALF_PI_PARTS:
            r = w.fma(minus, part, r)
        r, n = self._huge(x, r, n)
        if m.bits == 32:
            return m.narrowed(r), m.fn.let(f"trunc {w.int_type} {n} to {m.int_type}")
        return r, n

    def _huge(self, x: str, r: str, n: str) -> tuple[str, str]:
        """The reduction of the lanes beyond the limit put in; they are rare, so a branch passes over them."""
        w, fn = self.wide, self.m.fn
        far = w.cmp("uge", w.abs(x), _LIMIT)
        fn.helper(_HUGE_TEXT)
        for intrinsic in _HUGE_CALLS:
            fn.declare(intrinsic)
        slow, done, before = fn.fresh("slow"), fn.fresh("done"), fn.block
        spill_r, spill_n = fn.alloca("double", w.lanes), fn.alloca("i64", w.lanes)
        fn.do(f"br i1 {any_lane(w, far)}, label %{slow}, label %{done}")
        fn.label(slow)
        fn.store(w.type, x, spill_r, 64 if w.lanes > 1 else 8)
        with fn.loop(0, w.lanes) as lane:
            at = fn.gep("double", spill_r, lane.index)
            fn.store(
                "double",
                fn.let(
                    f"call double @reduce_huge(double {fn.load('double', at)}, ptr "
                    f"{fn.gep('i64', spill_n, lane.index)})"
                ),
                at,
            )
        far_r = fn.load(w.type, spill_r, 64 if w.lanes > 1 else 8)
        far_n = fn.load(w.int_type, spill_n, 64 if w.lanes > 1 else 8)
        mixed_r, mixed_n = w.select(far, far_r, r), w.iselect(far, far_n, n)
        last = fn.block
        fn.do(f"br label %{done}")
        fn.label(done)
        r = fn.let(f"phi {w.type} [{r}, %{before}], [{mixed_r}, %{last}]")
        return r, fn.let(f"phi {w.int_type} [{n}, %{before}], [{mixed_n}, %{last}]")


_HUGE_CALLS = (
    "declare i64 @llvm.fshl.i64(i64, i64, i64)",
    "declare i128 @llvm.abs.i128(i128, i1)",
    "declare i128 @llvm.ctlz.i128(i128, i1)",
    "declare double @llvm.copysign.f64(double, double)",
)


def _huge_text() -> str:
    """`double reduce_huge(x, *n)`: x = M 2^e; the 192 bits of 2 / pi from weight 2^(2 - e) down times M, modulo 4."""
    words = ", ".join(f"i64 {w - (1 << 64) if w >> 63 else w}" for w in tables.TWO_OVER_PI)
    count = len(tables.TWO_OVER_PI)
    loads = "\n".join(
        f"  %at{i} = getelementptr i64, ptr @two_over_pi, i64 %word{i}\n  %w{i} = load i64, ptr %at{i}"
        for i in range(4)
    )
    shifts = "\n".join(f"  %s{i} = call i64 @llvm.fshl.i64(i64 %w{i}, i64 %w{i + 1}, i64 %shift)" for i in range(3))
    half_pi = f"0x{_bits(tables.HALF_PI[0]):016X}"
    return f"""@two_over_pi = private unnamed_addr constant [{count} x i64] [{words}], align 8
define internal double @reduce_huge(double %x, ptr %n) noinline nounwind {{
  %bits = bitcast double %x to i64
  %high = lshr i64 %bits, 52
  %exponent = and i64 %high, 2047
  %fraction = and i64 %bits, {(1 << 52) - 1}
  %special = icmp eq i64 %exponent, 2047
  %small = icmp ult i64 %exponent, 1030
  %either = or i1 %special, %small
  br i1 %either, label %plain, label %reduce
plain:
  store i64 0, ptr %n
  %nan = select i1 %special, double 0x7FF8000000000000, double 0.0
  ret double %nan
reduce:
  %mantissa = or i64 %fraction, {1 << 52}
  ; the first bit that counts, in a table that begins with 64 zero bits: e - 2 + 64, e = exponent - 1075
  %bit = sub i64 %exponent, {1075 - 62}
  %word0 = lshr i64 %bit, 6
  %word1 = add i64 %word0, 1
  %word2 = add i64 %word0, 2
  %word3 = add i64 %word0, 3
  %shift = and i64 %bit, 63
{loads}
{shifts}
  %m = zext i64 %mantissa to i128
  %l2 = zext i64 %s2 to i128
  %l1 = zext i64 %s1 to i128
  %low = mul i128 %l2, %m
  %low.up = lshr i128 %low, 64
  %middle.part = mul i128 %l1, %m
  %middle = add i128 %middle.part, %low.up
  %middle.up = lshr i128 %middle, 64
  %carry = trunc i128 %middle.up to i64
  %top.part = mul i64 %s0, %mantissa
  %top = add i64 %top.part, %carry
  %low64 = trunc i128 %low to i64
  %middle64 = trunc i128 %middle to i64
  %quadrant = lshr i64 %top, 62
  %f1 = call i64 @llvm.fshl.i64(i64 %top, i64 %middle64, i64 2)
  %f0 = call i64 @llvm.fshl.i64(i64 %middle64, i64 %low64, i64 2)
  %up = lshr i64 %f1, 63
  %counted = add i64 %quadrant, %up
  %negative = icmp slt i64 %bits, 0
  %minus = sub i64 0, %counted
  %signed.n = select i1 %negative, i64 %minus, i64 %counted
  store i64 %signed.n, ptr %n
  %g1 = zext i64 %f1 to i128
  %g1.up = shl i128 %g1, 64
  %g0 = zext i64 %f0 to i128
  %part = or i128 %g1.up, %g0
  %size = call i128 @llvm.abs.i128(i128 %part, i1 false)
  %zeros = call i128 @llvm.ctlz.i128(i128 %size, i1 false)
  %normal = shl i128 %size, %zeros
  %normal.up = lshr i128 %normal, 64
  %digits = trunc i128 %normal.up to i64
  %digits.half = lshr i64 %digits, 1
  %value = sitofp i64 %digits.half to double
  ; value * 2^(1 - 64 - zeros) * pi / 2
  %zeros64 = trunc i128 %zeros to i64
  %scale.exponent = sub i64 {1023 - 63}, %zeros64
  %scale.bits = shl i64 %scale.exponent, 52
  %scale = bitcast i64 %scale.bits to double
  %scaled = fmul double %value, %scale
  %angle = fmul double %scaled, {half_pi}
  %xor = xor i64 %f1, %bits
  %sign = bitcast i64 %xor to double
  %result = call double @llvm.copysign.f64(double %angle, double %sign)
  ret double %result
}}"""


def _bits(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    return ((exponent + 1022) << 52) | (int(mantissa * 2**53) & ((1 << 52) - 1))


_HUGE_TEXT = _huge_text()
