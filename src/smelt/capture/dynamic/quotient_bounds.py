"""Quotients, minima and maxima inside of polynomials: bounds that follow from what they are made of.

S // 2 <= S    since 2 * (S // 2) <= S
"""

from __future__ import annotations

from math import inf
from typing import Any, cast

from smelt.diag.records import record
from smelt.ir import size_terms as terms
from smelt.ir.size_terms import Poly
from smelt.ir.size_trace import Division

Expr = Any
"""A polynomial, or a tree of floats; told apart by `are_float` beside it."""
_DEPTH = 4


@record
class Computed:
    """The result of one of Python's operators on numbers, which no polynomial says."""

    op: str
    operands: tuple[Expr, ...]
    are_float: tuple[bool, ...]
    literals: tuple[object, ...] = ()


@record
class Example:
    """A size that data decide, in one of the worlds of a staged run."""

    number: int


def decided_by_parts(trace: Any, operator: str, p: Poly) -> bool | None:
    """How a polynomial compares to 0 at all sizes in range; None where that is not found."""
    if not any(_has_parts(trace.atoms[index]) for index in terms.atoms_of(p)):
        return None
    high = _most(trace, p, _DEPTH)
    low = -_most(trace, terms.scale(p, -1), _DEPTH)
    if operator == "<":
        return True if high < 0 else False if low >= 0 else None
    if operator == "<=":
        return True if high <= 0 else False if low > 0 else None
    return False if low > 0 or high < 0 else None


def _has_parts(atom: object) -> bool:
    if isinstance(atom, Division):
        return atom.operator == "//" and terms.is_constant(atom.right) and terms.constant_of(atom.right) > 0
    return isinstance(atom, Computed) and atom.op in ("py.min", "py.max") and not any(atom.are_float)


def _most(trace: Any, p: Poly, depth: int) -> float:
    """A bound from above, as small as is found; its sign alone is right where quotients were taken apart."""
    found = float(trace.bounds(p)[1])
    if depth == 0:
        return found
    for monomial, coefficient in p:
        atom = cast(Any, trace.atoms[monomial[0]]) if len(monomial) == 1 else None
        if atom is None or not _has_parts(atom) or _times_in(p, monomial[0]) != 1:
            continue
        rest = tuple(t for t in p if t[0] != monomial)
        if isinstance(atom, Division):
            by = terms.constant_of(atom.right)
            # by * q is between left - by + 1 and left.
            left = atom.left if coefficient > 0 else terms.add(atom.left, terms.constant(1 - by))
            whole = terms.add(terms.scale(rest, by), terms.scale(left, coefficient))
            bound = _most(trace, whole, depth - 1) / by
        else:
            bounds = [_most(trace, terms.add(rest, terms.scale(q, coefficient)), depth - 1) for q in atom.operands]
            bound = max(bounds) if (atom.op == "py.max") is (coefficient > 0) else min(bounds)
        found = min(found, bound)
    return found if found != -inf else -inf


def _times_in(p: Poly, index: int) -> int:
    return sum(monomial.count(index) for monomial, _ in p)
