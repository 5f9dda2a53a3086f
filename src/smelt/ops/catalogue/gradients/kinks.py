"""Gradients where a function of two numbers has a kink or NaN: what the torch that runs gives.

torch 2.14 changed some of these, and 2.15 others, so torch is asked, once for each operator.
"""

from __future__ import annotations

from functools import cache
from math import nan
from typing import NamedTuple

import torch

from smelt._torch.library.schemas import find_overload
from smelt.ir import Value
from smelt.ops.catalogue.gradients.terms import Number, Term, times, where

_CASES = ((0.0, 1.0), (1.0, 1.0), (2.0, 1.0), (nan, 1.0), (1.0, nan))


class Slopes(NamedTuple):
    """An operand's gradient, of a result's that is 1, by how two numbers compare."""

    less: float
    equal: float
    greater: float
    first_nan: float
    second_nan: float  # also where both are


@cache
def slopes(op: str, second: int = 1, *, number: bool = False) -> tuple[Slopes, ...]:
    """What an operator's two operands get; the second is its argument of this position. number: it is no tensor."""
    found = find_overload(op)
    assert found is not None
    cases = []
    with torch.inference_mode(False), torch.enable_grad():
        for case in _CASES:
            x, y = (torch.tensor(n, dtype=torch.float64, requires_grad=True) for n in case)
            leaves = (x,) if number else (x, y)
            result = found(x, *[None] * (second - 1), case[1] if number else y)
            grads = torch.autograd.grad(result, leaves, allow_unused=True)
            cases.append([0.0 if g is None else float(g) for g in grads])
    return tuple(Slopes(*column) for column in zip(*cases, strict=True))


_COMPARED = {
    frozenset(("lt",)): "lt",
    frozenset(("eq",)): "eq",
    frozenset(("gt",)): "gt",
    frozenset(("lt", "eq")): "le",
    frozenset(("eq", "gt")): "ge",
}


def by_order(g: Term, x: Term, y: Term | Number | Value, slope: Slopes) -> Term:
    """The gradient times the slope of each element. y: a number or a tensor."""
    rest = slope.first_nan
    found: Term | Number = times(g, rest)
    cases = {"lt": slope.less, "eq": slope.equal, "gt": slope.greater}
    for factor in sorted({*cases.values(), slope.second_nan} - {rest}):
        names = frozenset(name for name, one in cases.items() if one == factor)
        mask = x.compared(_COMPARED[names], y) if names else None
        if slope.second_nan == factor and isinstance(y, Term):
            is_nan = y.op("isnan.default")
            mask = is_nan if mask is None else mask.either(is_nan)
        if mask is not None:
            found = where(mask, times(g, factor), found)
    return found if isinstance(found, Term) else g.zeros()
