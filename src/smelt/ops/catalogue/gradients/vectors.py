"""Gradients of what is added to products of vectors, of cross products, and of distances between rows.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from smelt.ops.catalogue.gradients.terms import Operands, Term, of_call, where
from smelt.ops.record import Gradient

_Parts = dict[str, Callable[[], Term]]


def _scaled(x: Term, factor: Any) -> Term:
    return x if type(factor) in (int, float) and factor == 1 else x * factor


def _turned(x: Term) -> Term:
    return x.op("transpose.int", -2, -1)


def _addmv(g: Term, call: Operands) -> _Parts:
    matrix, vector, alpha = call.raw("mat"), call.raw("vec"), call["alpha"]
    return {
        "self": lambda: _scaled(g, call["beta"]),
        "mat": lambda: _scaled(g.op("outer.default", vector), alpha),
        "vec": lambda: _scaled(_turned(matrix).op("mv.default", g), alpha),
    }


def _addr(g: Term, call: Operands) -> _Parts:
    left, right, alpha = call.raw("vec1"), call.raw("vec2"), call["alpha"]
    return {
        "self": lambda: _scaled(g, call["beta"]),
        "vec1": lambda: _scaled(g.op("mv.default", right), alpha),
        "vec2": lambda: _scaled(_turned(g).op("mv.default", left), alpha),
    }


def _addbmm(g: Term, call: Operands) -> _Parts | None:
    left, right, alpha = call.raw("batch1"), call.raw("batch2"), call["alpha"]
    if not (left.type.is_static and right.type.is_static):
        return None
    sizes = (left.type.sizes[0], left.type.sizes[1], right.type.sizes[2])
    each = cache(lambda: g.op("expand.default", sizes))
    return {
        "self": lambda: _scaled(g, call["beta"]),
        "batch1": lambda: _scaled(each().op("bmm.default", _turned(right)), alpha),
        "batch2": lambda: _scaled(_turned(left).op("bmm.default", each()), alpha),
    }


def _vdot(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g * call.raw("other"), "other": lambda: g * call.raw("self")}


def _cross(g: Term, call: Operands) -> _Parts:
    def cross(x: Term, y: Term) -> Term:
        return x.op("linalg_cross.default", y, dim=call["dim"])

    # It must have the sizes of both to be a vector beside each of the gradient's.
    return {"self": lambda: cross(call.raw("other"), g), "other": lambda: cross(g, call.raw("self"))}


# --- distances between rows


def _euclidean(g: Term, call: Operands) -> _Parts:
    """Of the square root of a product, at 0 nothing."""
    x, y = call.raw("x1"), call.raw("x2")

    @cache
    def ratio() -> Term:
        distance = Term(call.b, call.results[0])
        return where(distance.equals(0), 0, g / distance)

    def of(one: Term, other: Term, ratio: Callable[[], Term]) -> Callable[[], Term]:
        return lambda: one * ratio().sum((-1,), True) - ratio().op("matmul.default", other)

    return {"x1": of(x, y, ratio), "x2": of(y, x, lambda: _turned(ratio()))}


def _distances(g: Term, call: Operands) -> _Parts:
    """By torch's kernel, of which torch has no gradient."""
    x, y, distance = call.raw("x1"), call.raw("x2"), Term(call.b, call.results[0])

    def of(g: Term, one: Term, other: Term, distance: Term) -> Term:
        solid = (t.op("contiguous.default") for t in (one, other))
        return g.op("contiguous.default").op(
            "_cdist_backward.default", *solid, call["p"], distance.op("contiguous.default")
        )

    return {"x1": lambda: of(g, x, y, distance), "x2": lambda: of(_turned(g), y, x, _turned(distance))}


GRADIENTS: Mapping[str, Gradient] = {
    "aten.addmv.default": of_call(_addmv, exact=True),
    "aten.addr.default": of_call(_addr, exact=True),
    "aten.addbmm.default": of_call(_addbmm, exact=True),
    "aten.vdot.default": of_call(_vdot, exact=True),
    "aten.linalg_cross.default": of_call(_cross, exact=True),
    "aten._euclidean_dist.default": of_call(_euclidean, exact=True),
    "aten._cdist_forward.default": of_call(_distances, exact=True),
}
