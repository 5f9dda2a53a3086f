"""Quotients and remainders of polynomials, as Python's `//` and `%` round, in one form for one number where possible.

(8*S + 4) // 4 is 2*S + 1, (4*S) // 8 is S // 2, (B*S + S) // S is B + 1; what is left is an atom.
"""

from __future__ import annotations

from math import gcd
from typing import Literal

from smelt.ir import size_terms as terms
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import INFINITY, Bounds, Division, Trace


def quotient(trace: Trace, p: Poly, q: Poly, value: int) -> Poly:
    """p // q, which is `value` at the sizes at hand."""
    low, high = trace.bounds(q)
    if low <= 0 <= high:
        return _divided(trace, "//", p, q, value)
    if _is_below(trace, p, q):
        return ()
    exact = terms.divide(p, q)
    if exact is not None or not terms.is_constant(q):
        return _divided(trace, "//", p, q, value) if exact is None else exact
    # What divides stands outside, and the rest has no factor in common.
    by = terms.constant_of(q)
    whole = tuple((m, c // by) for m, c in p if (c % by == 0 or not m) and c // by)
    rest = tuple((m, c % by if not m else c) for m, c in p if c % by)
    if terms.is_constant(rest):
        return whole
    shared = gcd(by, *(c for _, c in rest)) * (1 if by > 0 else -1)
    rest, by = tuple((m, c // shared) for m, c in rest), by // shared
    return terms.add(whole, _divided(trace, "//", rest, terms.constant(by), value - trace.at_hand(whole)))


def remainder(trace: Trace, p: Poly, q: Poly, value: int) -> Poly:
    """p % q, which is `value` at the sizes at hand."""
    low, high = trace.bounds(q)
    if low <= 0 <= high:
        return _divided(trace, "%", p, q, value)
    if _is_below(trace, p, q):
        return p
    if not terms.is_constant(q):
        return () if terms.divide(p, q) is not None else _divided(trace, "%", p, q, value)
    by = terms.constant_of(q)
    p = tuple((m, c % abs(by)) for m, c in p if c % by)
    if terms.is_constant(p):
        return terms.constant(terms.constant_of(p) % by)
    shared = gcd(by, *(c for _, c in p))
    p, by = tuple((m, c // shared) for m, c in p), by // shared
    return terms.scale(_divided(trace, "%", p, terms.constant(by), value // shared), shared)


def _is_below(trace: Trace, p: Poly, q: Poly) -> bool:
    """Whether 0 <= p < q at all sizes."""
    return trace.decide("<", p) is False and trace.decide("<", terms.add(p, q, -1)) is True


def _divided(trace: Trace, symbol: Literal["//", "%"], p: Poly, q: Poly, value: int) -> Poly:
    """A quotient or remainder that is an atom of its own."""
    (low, high), (least, most) = trace.bounds(p), trace.bounds(q)
    bounds: Bounds = (-INFINITY, INFINITY)
    if symbol == "%" and least > 0:
        bounds = 0, min(most - 1, high) if low >= 0 else most - 1
    elif symbol == "%" and most < 0:
        bounds = least + 1, 0
    elif symbol == "//" and least > 0:
        bounds = min(_floor(low, least), _floor(low, most)), max(_floor(high, least), _floor(high, most))
    return terms.atom(trace.atom(Division(symbol, p, q), value, bounds))


def _floor(a: float, b: float) -> float:
    if abs(a) == INFINITY:
        return a
    return (0 if a >= 0 else -1) if b == INFINITY else a // b
