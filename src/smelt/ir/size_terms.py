"""Polynomials with integer coefficients over numbered atoms, in one normal form.

An atom is a symbol, a quotient, a remainder or the result of a late function; what it means stands in the trace
(`size_trace`). A polynomial is a sorted tuple of (monomial, coefficient), a monomial a sorted tuple of atoms: equal
polynomials are equal tuples.

    2*B*S + 1   is   (((), 1), ((0, 1), 2))        where B is atom 0 and S is atom 1
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import TypeAlias

Monomial: TypeAlias = tuple[int, ...]
Poly: TypeAlias = tuple[tuple[Monomial, int], ...]


def constant(number: int) -> Poly:
    """A number as a polynomial."""
    return (((), number),) if number else ()


def atom(index: int) -> Poly:
    """An atom as a polynomial."""
    return (((index,), 1),)


def is_constant(p: Poly) -> bool:
    """Whether no atom is left."""
    return not p or (len(p) == 1 and not p[0][0])


def constant_of(p: Poly) -> int:
    """The constant summand."""
    return p[0][1] if p and not p[0][0] else 0


def add(p: Poly, q: Poly, sign: int = 1) -> Poly:
    """p + q, or p - q where the sign is -1."""
    if not q:
        return p
    terms = dict(p)
    for monomial, coefficient in q:
        total = terms.get(monomial, 0) + sign * coefficient
        if total:
            terms[monomial] = total
        else:
            del terms[monomial]
    return tuple(sorted(terms.items()))


def scale(p: Poly, factor: int) -> Poly:
    """p * factor."""
    return tuple((m, c * factor) for m, c in p) if factor else ()


@lru_cache(maxsize=4096)
def multiply(p: Poly, q: Poly) -> Poly:
    """p * q."""
    if len(q) == 1 and not q[0][0]:
        return scale(p, q[0][1])
    terms: dict[Monomial, int] = {}
    for m, c in p:
        for n, d in q:
            both = tuple(sorted(m + n))
            terms[both] = terms.get(both, 0) + c * d
    return tuple(sorted((m, c) for m, c in terms.items() if c))


def divide(p: Poly, q: Poly) -> Poly | None:
    """The r with p == q * r, None where there is none with integer coefficients."""
    lead, coefficient = max(q, key=_order)
    quotient: Poly = ()
    while p:
        m, c = max(p, key=_order)
        rest = _without(m, lead)
        if rest is None or c % coefficient:
            return None
        term = ((rest, c // coefficient),)
        quotient = add(quotient, term)
        p = add(p, multiply(q, term), -1)
    return quotient


def content(p: Poly) -> int:
    """The greatest common divisor of the coefficients of all that is not constant."""
    return gcd(*(c for m, c in p if m))


@lru_cache(maxsize=4096)
def primitive(p: Poly) -> tuple[Poly, int, int]:
    """(q, g, c) with p == g * q + c: q has no constant, no common factor, and a positive first coefficient."""
    g = content(p)
    rest = [(m, c) for m, c in p if m]
    if rest[0][1] < 0:
        g = -g
    return tuple((m, c // g) for m, c in rest), g, constant_of(p)


def atoms_of(p: Poly) -> set[int]:
    """The atoms that stand in a polynomial."""
    return {index for m, _ in p for index in m}


def _order(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    # A monomial order must be kept by multiplication: by degree, then by the exponents of the lowest atoms, which for
    # sorted tuples of one length is their order as tuples, reversed.
    return len(term[0]), tuple(-index for index in term[0])


def _without(m: Monomial, divisor: Monomial) -> Monomial | None:
    rest = list(m)
    for index in divisor:
        if index not in rest:
            return None
        rest.remove(index)
    return tuple(rest)
