"""Gradients of special functions of one tensor and of two, element by element.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log, nan, pi, sqrt

from smelt.ir import Value
from smelt.ops.catalogue.gradients.terms import Operands, Term, of_call, of_one, where
from smelt.ops.record import Gradient

_Parts = dict[str, Callable[[], Term]]

# --- of one tensor


def _sinc(g: Term, x: Term, y: Term) -> Term:
    turn = x * pi
    square = x * x * pi
    slope = (turn * turn.op("cos.default") - turn.op("sin.default")) / square
    return where(square.equals(0), 0, g * slope)


def _polygamma(g: Term, call: Operands) -> _Parts:
    order, x = call["n"], call["self"]
    return {"self": lambda: g * Term(x.b, x.b.call("aten.polygamma.default", order + 1, x.value))}


def _trigamma(g: Term, x: Term, y: Term) -> Term:
    return g * Term(x.b, x.b.call("aten.polygamma.default", 1, x.value))


def _logit(g: Term, call: Operands) -> _Parts:
    """Beyond 0 and 1 NaN; with bounds 0 beyond these."""

    def of_self() -> Term:
        x, eps = call["self"], call["eps"]
        low, high, beyond = (0, 1, nan) if eps is None else (eps, 1 - eps, 0)
        return where((x < low).either(x > high), beyond, g / (x * (1 - x)))

    return {"self": of_self}


_UNARY: Mapping[str, Callable[[Term, Term, Term], Term]] = {
    "exp2": lambda g, x, y: g * (y * log(2)),
    "deg2rad": lambda g, x, y: g * (pi / 180),
    "rad2deg": lambda g, x, y: g * (180 / pi),
    "sinc": _sinc,
    "lgamma": lambda g, x, y: g * x.op("digamma.default"),
    "digamma": _trigamma,
    "erfinv": lambda g, x, y: g * ((y * y).op("exp.default") * (0.5 * sqrt(pi))),
    "i0": lambda g, x, y: g * x.op("special_i1.default"),
    "special_entr": lambda g, x, y: g * -(x.op("log.default") + 1),
    "special_erfcx": lambda g, x, y: g * (x * y * 2 - 2 / sqrt(pi)),
    "special_ndtri": lambda g, x, y: g * ((y * y / 2).op("exp.default") * sqrt(2 * pi)),
    "special_log_ndtr": lambda g, x, y: g * ((-(y + x * x / 2)).op("exp.default") / sqrt(2 * pi)),
}

# --- of two tensors


def _logaddexp(power: Callable[[Term], Term]) -> Gradient:
    def rule(g: Term, call: Operands) -> _Parts:
        x, y = call["self"], call["other"]
        return {"self": lambda: g / (power(y - x) + 1), "other": lambda: g / (power(x - y) + 1)}

    return of_call(rule)


def _hypot(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g * call["self"] / call.result, "other": lambda: g * call["other"] / call.result}


def _xlogy(op: str, tensor: str, number: str, zero: int) -> Gradient:
    """Of self * log(other - zero), which is 0 where `self` is, whatever the logarithm is. tensor, number: the overloads
    by what `other` is."""

    def rule(g: Term, call: Operands) -> _Parts | None:
        x, y = call["self"], call["other"]
        if isinstance(x, Value) or isinstance(y, Value):
            return None

        def of_self() -> Term:
            if isinstance(y, Term):
                return where(x.equals(0).also(y <= zero), 0, g.op(f"{op}.{tensor}", y))
            found = g.op(f"{op}.{number}", y)
            return found if y > zero else where(x.equals(0), 0, found)

        return {"self": of_self, "other": lambda: g * x / (y - zero)}

    return of_call(rule)


def _copysign(g: Term, call: Operands) -> _Parts:
    """At 0 it is 0."""
    x = call["self"]
    return {"self": lambda: g * where(x.equals(0), 0, call.result / x), "other": lambda: call["other"].zeros()}


def _zeros(g: Term, call: Operands) -> _Parts:
    return {"self": g.zeros}


_XLOGY = _xlogy("xlogy", "Tensor", "Scalar_Other", 0)
_XLOG1PY = _xlogy("special_xlog1py", "default", "other_scalar", -1)

GRADIENTS: Mapping[str, Gradient] = {
    **{f"aten.{name}.default": of_one(rule) for name, rule in _UNARY.items()},
    "aten.polygamma.default": of_call(_polygamma),
    "aten.logit.default": of_call(_logit),
    **{f"aten.{name}": of_call(_zeros, exact=True) for name in ("sgn.default", "angle.default", "round.decimals")},
    "aten.logaddexp.default": _logaddexp(lambda d: d.op("exp.default")),
    "aten.logaddexp2.default": _logaddexp(lambda d: d.op("exp2.default")),
    "aten.hypot.default": of_call(_hypot),
    "aten.copysign.Tensor": of_call(_copysign),
    "aten.copysign.Scalar": of_call(_copysign),
    **{f"aten.xlogy.{form}": _XLOGY for form in ("Tensor", "Scalar_Self", "Scalar_Other")},
    **{f"aten.special_xlog1py.{form}": _XLOG1PY for form in ("default", "self_scalar", "other_scalar")},
}
