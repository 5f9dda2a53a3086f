"""Gradients of operators that compute element by element. At ties, bounds and zeros they are those of torch.

Source of the formulas: the derivatives that torch's own package names (`torchgen/packaged/autograd/derivatives.yaml`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, log, nan, pi, sqrt
from typing import Any

from smelt.ir import Value
from smelt.ops.catalogue.gradients.kinks import by_order, slopes
from smelt.ops.catalogue.gradients.terms import Operands, Term, of_call, of_one, where
from smelt.ops.record import Gradient

_Parts = dict[str, Callable[[], Term]]


def _is_run_number(arg: Any) -> bool:
    return isinstance(arg, Value)


def _scaled(g: Term, factor: Any) -> Term:
    return g if type(factor) in (int, float) and factor == 1 else g * factor


# --- sums, products, quotients


def _add(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g, "other": lambda: _scaled(g, call.get("alpha", 1))}


def _sub(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g, "other": lambda: _scaled(-g, call.get("alpha", 1))}


def _rsub(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: _scaled(-g, call.get("alpha", 1)), "other": lambda: g}


def _mul(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g * call["other"], "other": lambda: g * call["self"]}


def _div(g: Term, call: Operands) -> _Parts:
    if call.get("rounding_mode") is not None:
        return {"self": g.zeros, "other": g.zeros}
    return {
        "self": lambda: g / call["other"],
        "other": lambda: -g * ((call["self"] / call["other"]) / call["other"]),
    }


def _remains(mode: str) -> Callable[[Term, Operands], _Parts]:
    """Of what a division leaves, whose rounded quotient is constant."""

    def rule(g: Term, call: Operands) -> _Parts:
        def other() -> Term:
            quotient: Term = call["self"].op("div.Tensor_mode", call["other"], rounding_mode=mode)
            return -g * quotient

        return {"self": lambda: g, "other": other}

    return rule


def _lerp(g: Term, call: Operands) -> _Parts:
    weight = call["weight"]
    return {
        "self": lambda: g - g * weight if _is_run_number(weight) else g * (1 - weight),
        "end": lambda: g * weight,
        "weight": lambda: g * (call["end"] - call["self"]),
    }


def _addcmul(g: Term, call: Operands) -> _Parts:
    return {
        "self": lambda: g,
        "tensor1": lambda: g * _scaled(call["tensor2"], call["value"]),
        "tensor2": lambda: g * _scaled(call["tensor1"], call["value"]),
    }


def _addcdiv(g: Term, call: Operands) -> _Parts:
    def tensor2() -> Term:
        x, y = call["tensor1"], call["tensor2"]
        return -_scaled(g, call["value"]) * (x / (y * y))

    return {"self": lambda: g, "tensor1": lambda: _scaled(g, call["value"]) / call["tensor2"], "tensor2": tensor2}


# --- powers and angles


def _pow(g: Term, call: Operands) -> _Parts | None:
    """A power by 0 is constant, also that of 0; 0 to a power that is not negative is constant in its exponent."""
    base, exponent = call["self"], call["exponent"]
    if _is_run_number(base) or _is_run_number(exponent):
        return None

    def of_base() -> Term:
        if isinstance(exponent, Term):
            return where(exponent.equals(0), 0, g * (exponent * base ** (exponent - 1)))
        if exponent in (0, 1):
            return g if exponent else g.zeros()
        power = base if exponent == 2 else base ** (exponent - 1)
        return g * (power * exponent)

    def of_exponent() -> Term:
        y = call.result
        if isinstance(base, Term):
            stays = base.equals(0).also(exponent >= 0)
            return g * where(stays, 0, y * base.op("log.default"))
        slope = y * (log(base) if base > 0 else nan if base < 0 else -inf)
        return g * (where(exponent >= 0, 0, slope) if base == 0 else slope)

    return {"self": of_base, "exponent": of_exponent}


def _atan2(g: Term, call: Operands) -> _Parts:
    """At the origin 0."""
    y, x = call["self"], call["other"]

    def scale() -> Term:
        squared = y * y + x * x
        return where(squared.equals(0), 0, squared.op("reciprocal.default"))

    return {"self": lambda: g * x * scale(), "other": lambda: g * -y * scale()}


# --- extremes, bounds, choices


def _extreme(op: str) -> Gradient:
    def rule(g: Term, call: Operands) -> _Parts:
        x, y = call.raw("self"), call.raw("other")
        first, second = slopes(op)
        return {"self": lambda: by_order(g, x, y, first), "other": lambda: by_order(g, x, y, second)}

    return of_call(rule, exact=True)


def _clamp(op: str, positions: Mapping[str, int]) -> Gradient:
    """Of what is held between bounds, numbers or tensors, either of which may be None."""

    def rule(g: Term, call: Operands) -> _Parts | None:
        x = call.raw("self")
        bounds = {name: call.raw(name) for name in positions if call.call[name] is not None}
        by_bound = {
            name: slopes(op, positions[name], number=not isinstance(bound, Term)) for name, bound in bounds.items()
        }

        def of_self() -> Term:
            found = g
            for name, bound in bounds.items():
                found = by_order(found, x, bound, by_bound[name][0])
            return found

        if not any(isinstance(bound, Term) for bound in bounds.values()):
            return {"self": of_self}
        if len(bounds) == 1:
            ((name, bound),) = bounds.items()
            return {"self": of_self, name: lambda: by_order(g, x, bound, by_bound[name][1])}
        if any(own.equal != 1 for own, _ in by_bound.values()):
            return None  # how the two share is not this: torch 2.14 and later
        low, high = bounds["min"], bounds["max"]
        return {
            "self": of_self,
            "min": lambda: g.where((x < low).also(low < high)),
            "max": lambda: g.where((x > high).either(high < low)),
        }

    return of_call(rule, exact=True)


def _where(g: Term, call: Operands) -> _Parts:
    condition = call.raw("condition")
    return {"self": lambda: g.where(condition), "other": lambda: where(condition, 0, g)}


def _masked_fill(g: Term, call: Operands) -> _Parts:
    mask = call.raw("mask")
    return {"self": lambda: where(mask, 0, g), "value": lambda: g.where(mask)}


# --- activations

# Of NaN the kernels of elu, hardtanh and hardswish give one number in their vectors and another in the elements that
# are left over: here it is the vectors'.


def _gelu(g: Term, call: Operands) -> _Parts:
    def exact(x: Term) -> Term:
        below = ((x * sqrt(0.5)).op("erf.default") + 1) * 0.5
        density = (x * x * -0.5).op("exp.default") * (1 / sqrt(2 * pi))
        return below + x * density

    def by_tanh(x: Term) -> Term:
        scale, cubic = sqrt(2 / pi), 0.044715
        square = x * x
        t = (x * (square * cubic + 1) * scale).op("tanh.default")
        inner = square * (3 * cubic * scale) + scale
        return (t + 1) * 0.5 + x * (1 - t * t) * inner * 0.5

    slope = by_tanh if call["approximate"] == "tanh" else exact
    return {"self": lambda: g * slope(call["self"])}


def _silu(g: Term, x: Term, y: Term) -> Term:
    s = x.op("sigmoid.default")
    return g * (s * (x * (1 - s) + 1))


def _mish(g: Term, x: Term, y: Term) -> Term:
    t = x.op("softplus.default").op("tanh.default")
    return g * (t + x * x.op("sigmoid.default") * (1 - t * t))


def _softplus(g: Term, call: Operands) -> _Parts:
    """At the threshold itself its second gradient is the curve's, where torch's is 0."""

    def of_self() -> Term:
        scaled = _scaled(call["self"], call["beta"])
        return where(scaled > call["threshold"], g, g * scaled.op("sigmoid.default"))

    return {"self": of_self}


def _elu(alpha: float | None = None, scale: float | None = None) -> Gradient:
    """alpha, scale: those of the call where it names them."""

    def rule(g: Term, call: Operands) -> _Parts | None:
        a, s, inner = call.get("alpha", alpha), call.get("scale", scale), call.get("input_scale", 1)
        if any(map(_is_run_number, (a, s, inner))):
            return None

        def of_self() -> Term:
            x = call["self"]
            power = _scaled(where(x >= 0, 0, x), inner).op("exp.default")  # nothing overflows above 0
            return g * where(x > 0, s, _scaled(power, a * s * inner))

        return {"self": of_self}

    return of_call(rule)


def _hardtanh(g: Term, call: Operands) -> _Parts:
    x = call["self"]
    return {"self": lambda: g.where((x > call["min_val"]).also(x < call["max_val"]))}


def _hardswish(g: Term, x: Term, y: Term) -> Term:
    return g * where(x >= 3, 1, where(x <= -3, 0, x / 3 + 0.5))


def _leaky_relu(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: where(call["self"] > 0, g, g * call["negative_slope"])}


def _celu(g: Term, call: Operands) -> _Parts | None:
    alpha = call["alpha"]
    if _is_run_number(alpha) or not alpha:
        return None

    def of_self() -> Term:
        x = call["self"]
        return where(x > 0, g, g * (where(x >= 0, 0, x) / alpha).op("exp.default"))

    return {"self": of_self}


def _threshold(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: where(call["self"] <= call["threshold"], 0, g)}


def _shrink(g: Term, call: Operands) -> _Parts:
    x, bound = call["self"], call["lambd"]
    return {"self": lambda: where((x >= -bound).also(x <= bound), 0, g)}


def _prelu(g: Term, call: Operands) -> _Parts:
    x, weight = call["self"], call["weight"]
    return {"self": lambda: where(x > 0, g, g * weight), "weight": lambda: where(x > 0, 0, g * x)}


def _glu(g: Term, call: Operands) -> _Parts | None:
    x, dim = call["self"], call["dim"]
    half = g.type.shape[dim] if g.type.shape is not None else None
    if not isinstance(half, int):
        return None

    def of_self() -> Term:
        value, gate = (x.op("slice.Tensor", dim, start, start + half, 1) for start in (0, half))
        open_ = gate.op("sigmoid.default")
        halves = (g * open_, g * value * (open_ * (1 - open_)))
        return Term(x.b, x.b.call("aten.cat.default", tuple(h.value for h in halves), dim))

    return {"self": of_self}


def _zeros(g: Term, call: Operands) -> _Parts:
    return {"self": g.zeros}


def _passes(g: Term, call: Operands) -> _Parts:
    return {"self": lambda: g}


_UNARY: Mapping[str, Callable[[Term, Term, Term], Term]] = {
    "abs": lambda g, x, y: g * x.op("sign.default"),
    "neg": lambda g, x, y: -g,
    "exp": lambda g, x, y: g * y,
    "expm1": lambda g, x, y: g * (y + 1),
    "log": lambda g, x, y: g / x,
    "log2": lambda g, x, y: g / (x * log(2)),
    "log10": lambda g, x, y: g / (x * log(10)),
    "log1p": lambda g, x, y: g / (x + 1),
    "sqrt": lambda g, x, y: g / (y * 2),
    "rsqrt": lambda g, x, y: g * (y * y * y) * -0.5,
    "reciprocal": lambda g, x, y: -g * (y * y),
    "sin": lambda g, x, y: g * x.op("cos.default"),
    "cos": lambda g, x, y: g * -x.op("sin.default"),
    "tan": lambda g, x, y: g * (y * y + 1),
    "asin": lambda g, x, y: g * (1 - x * x).op("rsqrt.default"),
    "acos": lambda g, x, y: g * -(1 - x * x).op("rsqrt.default"),
    "atan": lambda g, x, y: g / (x * x + 1),
    "sinh": lambda g, x, y: g * x.op("cosh.default"),
    "cosh": lambda g, x, y: g * x.op("sinh.default"),
    "tanh": lambda g, x, y: g * (1 - y * y),
    "asinh": lambda g, x, y: g * (x * x + 1).op("rsqrt.default"),
    "acosh": lambda g, x, y: g * (x * x - 1).op("rsqrt.default"),
    "atanh": lambda g, x, y: g / (1 - x * x),
    "sigmoid": lambda g, x, y: g * (1 - y) * y,
    "erf": lambda g, x, y: g * ((-(x * x)).op("exp.default") * (2 / sqrt(pi))),
    "erfc": lambda g, x, y: g * ((-(x * x)).op("exp.default") * (-2 / sqrt(pi))),
    "nan_to_num": lambda g, x, y: g * x.op("isfinite.default"),
    "relu": lambda g, x, y: where(y <= 0, 0, g),  # of NaN it is g
    "silu": _silu,
    "mish": _mish,
    "log_sigmoid": lambda g, x, y: g * (-x).op("sigmoid.default"),
    "hardswish": _hardswish,
    "hardsigmoid": lambda g, x, y: (g / 6).where((x > -3).also(x < 3)),
}
_SELU = _elu(alpha=1.6732632423543772, scale=1.0507009873554805)

GRADIENTS: Mapping[str, Gradient] = {
    **{f"aten.{name}.default": of_one(rule) for name, rule in _UNARY.items()},
    **{f"aten.{n}.default": of_call(_zeros, exact=True) for n in ("sign", "ceil", "floor", "round", "trunc")},
    "aten.frac.default": of_call(_passes, exact=True),
    "aten.gelu.default": of_call(_gelu),
    "aten.softplus.default": of_call(_softplus),
    "aten.elu.default": _elu(),
    "aten.selu.default": _SELU,
    "aten.hardtanh.default": of_call(_hardtanh),
    "aten.leaky_relu.default": of_call(_leaky_relu),
    "aten.celu.default": of_call(_celu),
    "aten.threshold.default": of_call(_threshold),
    "aten.hardshrink.default": of_call(_shrink),
    "aten.softshrink.default": of_call(_shrink),
    "aten._prelu_kernel.default": of_call(_prelu),
    "aten.glu.default": of_call(_glu),
    "aten.add.Tensor": of_call(_add, exact=True),
    "aten.sub.Tensor": of_call(_sub, exact=True),
    "aten.rsub.Tensor": of_call(_rsub, exact=True),
    "aten.rsub.Scalar": of_call(_rsub, exact=True),
    "aten.mul.Tensor": of_call(_mul),
    "aten.div.Tensor": of_call(_div),
    "aten.div.Tensor_mode": of_call(_div),
    "aten.remainder.Tensor": of_call(_remains("floor")),
    "aten.remainder.Scalar": of_call(_passes, exact=True),
    "aten.fmod.Tensor": of_call(_remains("trunc")),
    "aten.lerp.Scalar": of_call(_lerp),
    "aten.lerp.Tensor": of_call(_lerp),
    "aten.addcmul.default": of_call(_addcmul),
    "aten.addcdiv.default": of_call(_addcdiv),
    "aten.pow.Tensor_Tensor": of_call(_pow),
    "aten.pow.Tensor_Scalar": of_call(_pow),
    "aten.pow.Scalar": of_call(_pow),
    "aten.atan2.default": of_call(_atan2),
    **{f"aten.{n}.default": _extreme(f"aten.{n}.default") for n in ("maximum", "minimum", "fmax", "fmin")},
    **{
        f"aten.{name}": _clamp(f"aten.{name}", positions)
        for name, positions in (
            ("clamp.default", {"min": 1, "max": 2}),
            ("clamp.Tensor", {"min": 1, "max": 2}),
            ("clamp_min.default", {"min": 1}),
            ("clamp_max.default", {"max": 1}),
            ("clamp_min.Tensor", {"min": 1}),
            ("clamp_max.Tensor", {"max": 1}),
        )
    },
    **{f"aten.where.{form}": of_call(_where, exact=True) for form in ("self", "ScalarSelf", "ScalarOther")},
    **{f"aten.masked_fill.{form}": of_call(_masked_fill, exact=True) for form in ("Scalar", "Tensor")},
}
