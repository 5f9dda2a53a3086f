"""Remainders and integer quotients of floats, exact whatever the quotient's size.

Invariant: with a fused multiply-add, `r - q * d` is exact when q is r / d rounded, either way, to the type's
precision and to a whole number, so the remainder comes out exact after as many steps as the quotient has words.
Source: Muller et al., Handbook of Floating-Point Arithmetic, on the exact remainder of a division.
"""

from __future__ import annotations

from smelt.codegen.llvm.lanes.lanes_types import Arith, vector_type

_JUMP = {32: 2.0**110, 64: 2.0**1000}


class LaneModulo:
    """Remainders on vectors of floats; the instruction set must have fused multiply-add."""

    def __init__(self, m: Arith) -> None:
        self.m = m

    def idiv(self, a: str, b: str) -> str:
        """a / b rounded towards zero."""
        return self.m.rounded("trunc", self.m.div(a, b))

    def fmod(self, a: str, b: str) -> str:
        """The remainder with a's sign."""
        m = self.m
        fn = m.fn
        d = m.abs(b)
        # Multiples of d, so that no quotient overflows.
        huge = m.mul(d, _JUMP[m.bits])
        vast = m.mul(huge, _JUMP[m.bits])
        start = m.abs(a)
        head, body, done = fn.fresh("head"), fn.fresh("body"), fn.fresh("done")
        r, following = f"%{fn.fresh('r')}", f"%{fn.fresh('r')}"
        before = fn.block
        fn.do(f"br label %{head}")
        fn.label(head)
        at = len(fn.lines)
        more = m.cmp("oge", r, d)
        fn.do(f"br i1 {any_lane(m, more)}, label %{body}, label %{done}")
        fn.label(body)
        step = m.select(m.cmp("oge", r, vast), vast, m.select(m.cmp("oge", r, huge), huge, d))
        q = m.rounded("trunc", m.div(r, step))
        rest = m.fma(m.neg(q), step, r)
        # A quotient that was rounded up: take the one before it.
        below = m.rounded("trunc", m.from_bits(m.isub(m.to_bits(q), 1)))
        rest = m.select(m.cmp("olt", rest, 0.0), m.fma(m.neg(below), step, r), rest)
        fn.do(f"{following} = select {m.mask_type} {more}, {m.type} {rest}, {m.type} {r}")
        fn.do(f"br label %{head}")
        fn.lines.insert(at, f"  {r} = phi {m.type} [{start}, %{before}], [{following}, %{fn.block}]")
        fn.label(done)
        result = m.copysign(r, a)
        # Nothing was to be done for a zero divisor or an infinite dividend only if a comparison with NaN hid it.
        wrong = m.mask_or(m.cmp("ueq", d, 0.0), m.cmp("ueq", start, float("inf")))
        return m.select(wrong, float("nan"), result)

    def rem(self, a: str, b: str) -> str:
        """The remainder with b's sign (torch.remainder)."""
        m = self.m
        rest = self.fmod(a, b)
        return m.select(self._turned(rest, b), m.add(rest, b), rest)

    def _turned(self, rest: str, b: str) -> str:
        m = self.m
        differ = m.fn.let(f"xor {m.mask_type} {m.cmp('olt', b, 0.0)}, {m.cmp('olt', rest, 0.0)}")
        return m.fn.let(f"and {m.mask_type} {m.cmp('une', rest, 0.0)}, {differ}")

    def floordiv(self, a: str, b: str) -> str:
        """a / b rounded down, by the remainder so that a quotient that rounds up does not count one too many."""
        m = self.m
        rest = self.fmod(a, b)
        quotient = m.div(m.sub(a, rest), b)
        quotient = m.sub(quotient, m.select(self._turned(rest, b), 1.0, 0.0))
        down = m.rounded("floor", quotient)
        down = m.add(down, m.select(m.cmp("ogt", m.sub(quotient, down), 0.5), 1.0, 0.0))
        plain = m.div(a, b)
        result = m.select(m.cmp("une", quotient, 0.0), down, m.copysign(0.0, plain))
        return m.select(m.cmp("oeq", b, 0.0), plain, result)


def any_lane(m: Arith, mask: str) -> str:
    """Whether any lane of a mask is set."""
    if m.lanes == 1:
        return mask
    name = f"@llvm.vector.reduce.or.v{m.lanes}i1"
    m.fn.declare(f"declare i1 {name}({vector_type('i1', m.lanes)})")
    return m.fn.let(f"call i1 {name}({m.mask_type} {mask})")
