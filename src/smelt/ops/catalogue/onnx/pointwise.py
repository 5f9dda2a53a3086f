"""Element by element in ONNX: arithmetic, comparisons, activations, selection. NaN and promotion are torch's."""

from __future__ import annotations

import math
from typing import Any

import torch

from smelt.ir import Arg, DType, Value
from smelt.ops.catalogue.onnx.base import (
    Forms,
    Operand,
    arithmetic,
    cast,
    compared,
    computed_in,
    dtype_of,
    operand,
    promoted,
    reduced,
    sizes_of,
    where,
)
from smelt.ops.convert import dtype_to_torch
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types, tensor_type


def _same(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """The operand, in the element type of the result."""
    return operand(b, call["self"], dtype_of(results))


def _dropout(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if call["train"] is not False and call["p"] != 0:
        raise NoOnnxForm("it draws random numbers, which no runtime of ONNX draws as torch does")
    return operand(b, call["input"], dtype_of(results))


def _unary(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        return cast(b, b.op(kind, operand(b, call["self"], computed_in(dtype))), dtype)

    return form


def _of_floats(kind: str) -> OnnxForm:
    """What rounds, which changes no integer."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        return b.op(kind, x) if x.dtype.is_floating else x

    return form


def _chain(*kinds: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        for kind in kinds:
            x = b.op(kind, x)
        return x

    return form


def _scaled_log(base: float) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        return b.op("Div", b.op("Log", operand(b, call["self"], dtype)), b.constant(math.log(base), dtype))

    return form


def _trunc(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = operand(b, call["self"], dtype_of(results))
    return b.op("Mul", b.op("Sign", x), b.op("Floor", b.op("Abs", x))) if x.dtype.is_floating else x


def _frac(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Sub", call["self"], _trunc(b, call, results))


def _near_zero(b: OnnxEmitter, x: OnnxValue, near: OnnxValue, far: OnnxValue) -> OnnxValue:
    return where(b, compared(b, "Less", b.op("Abs", x), b.constant(0.5, x.dtype)), near, far)


def _expm1(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """2 t / (1 - t) with t = tanh(x / 2), where exp(x) - 1 would lose digits."""
    dtype = dtype_of(results)
    x, one = operand(b, call["self"], dtype), b.constant(1.0, dtype)
    t = b.op("Tanh", b.op("Mul", x, b.constant(0.5, dtype)))
    return _near_zero(
        b, x, b.op("Div", b.op("Add", t, t), b.op("Sub", one, t)), b.op("Sub", b.op("Exp", x), one)
    )  # fmt: skip


def _log1p(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """log(u) x / (u - 1) with u = 1 + x, where log(1 + x) would lose digits."""
    dtype = dtype_of(results)
    x, one = operand(b, call["self"], dtype), b.constant(1.0, dtype)
    u = b.op("Add", x, one)
    log, over = b.op("Log", u), b.op("Sub", u, one)
    is_lost = compared(b, "Equal", over, b.constant(0.0, dtype))
    near = where(b, is_lost, x, b.op("Mul", log, b.op("Div", x, where(b, is_lost, one, over))))
    return _near_zero(b, x, near, log)


def _erfc(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = operand(b, call["self"], dtype_of(results))
    return b.op("Sub", b.constant(1.0, x.dtype), b.op("Erf", x))


def _is(*kinds: str, negated: bool = False) -> OnnxForm:
    """A test of floating-point numbers, which no integer meets."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = b.value(call["self"])
        if not x.dtype.is_floating:
            return b.op("Expand", b.constant(negated, DType.BOOL), sizes_of(b, call["self"]))
        found = [b.op(kind, x, dtype=DType.BOOL) for kind in kinds]
        met = found[0] if len(found) == 1 else b.op("Or", *found)
        return b.op("Not", met) if negated else met

    return form


def _nan_to_num(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = b.value(call["self"])
    if not x.dtype.is_floating:
        return x
    limits = torch.finfo(dtype_to_torch(x.dtype))
    for name, default, test in (("posinf", limits.max, (0, 1)), ("neginf", limits.min, (1, 0))):
        number = default if call[name] is None else call[name]
        met = b.op("IsInf", b.value(call["self"]), dtype=DType.BOOL, detect_negative=test[0], detect_positive=test[1])
        x = where(b, met, b.constant(float(number), x.dtype), x)
    nan = 0.0 if call["nan"] is None else float(call["nan"])
    return where(b, b.op("IsNaN", call["self"], dtype=DType.BOOL), b.constant(nan, x.dtype), x)


# --- arithmetic


def _two(b: OnnxEmitter, call: Call, dtype: DType) -> tuple[OnnxValue, OnnxValue]:
    return operand(b, call["self"], dtype), operand(b, call["other"], dtype)


def _binary(kind: str, *, swapped: bool = False) -> OnnxForm:
    """alpha multiplies the second operand."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        first, second = _two(b, call, computed_in(dtype))
        if swapped:
            first, second = second, first
        alpha = call.get("alpha", 1)
        if not (type(alpha) in (int, float) and alpha == 1):
            second = b.op("Mul", second, operand(b, alpha, second.dtype))
        return cast(b, b.op(kind, first, second), dtype)

    return form


def _is_zero_possible(other: Operand) -> bool:
    return not (isinstance(other, (bool, int, float)) and other != 0)


def _safe(b: OnnxEmitter, y: OnnxValue, other: Operand) -> OnnxValue:
    """A divisor of integers: where it is zero torch raises, and so does the run."""
    if y.dtype.is_floating or not _is_zero_possible(other):
        return y
    is_zero = compared(b, "Equal", y, b.constant(0, y.dtype))
    count = b.op("ReduceSum", b.op("Cast", is_zero, dtype=DType.I64, to=DType.I64), keepdims=0)
    b.require(compared(b, "Equal", count, b.constant(0, DType.I64)), "no division by zero")
    return where(b, is_zero, b.constant(1, y.dtype), y)


def _quotient(b: OnnxEmitter, x: OnnxValue, y: OnnxValue, mode: Any, other: Operand) -> OnnxValue:
    if mode is None:
        return b.op("Div", x, y)
    y = _safe(b, y, other)
    if mode == "trunc":
        found = b.op("Div", x, y)
        if not x.dtype.is_floating:
            return found
        return b.op("Mul", b.op("Sign", found), b.op("Floor", b.op("Abs", found)))
    if not x.dtype.is_floating:
        return b.op("Div", b.op("Sub", x, b.op("Mod", x, y)), y)
    # As Python divides: by what the remainder leaves, so that no rounding leads to the next number.
    zero, one = b.constant(0.0, x.dtype), b.constant(1.0, x.dtype)
    rest = b.op("Mod", x, y, fmod=1)
    found = b.op("Div", b.op("Sub", x, rest), y)
    differs = b.op("Xor", compared(b, "Less", rest, zero), compared(b, "Less", y, zero))
    is_below = b.op("And", differs, b.op("Not", compared(b, "Equal", rest, zero)))
    found = where(b, is_below, b.op("Sub", found, one), found)
    floor = b.op("Floor", found)
    half = b.constant(0.5, x.dtype)
    floor = where(b, compared(b, "Greater", b.op("Sub", found, floor), half), b.op("Add", floor, one), floor)
    return where(b, compared(b, "Equal", y, zero), b.op("Div", x, y), floor)


def _div(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x, y = _two(b, call, computed_in(dtype))
    return cast(b, _quotient(b, x, y, call.get("rounding_mode"), call["other"]), dtype)


def _floor_divide(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x, y = _two(b, call, computed_in(dtype))
    return cast(b, _quotient(b, x, y, "floor", call["other"]), dtype)


def _remainder(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x, y = _two(b, call, computed_in(dtype))
    if not dtype.is_floating:
        return cast(b, b.op("Mod", x, _safe(b, y, call["other"])), dtype)
    return float_remainder(b, x, y)


def float_remainder(b: OnnxEmitter, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """What is left of a division, with the divisor's sign."""
    zero = b.constant(0.0, x.dtype)
    rest = b.op("Mod", x, y, fmod=1)
    differs = b.op("Xor", compared(b, "Less", rest, zero), compared(b, "Less", y, zero))
    is_other = b.op("And", differs, b.op("Not", compared(b, "Equal", rest, zero)))
    return where(b, is_other, b.op("Add", rest, y), rest)


def _fmod(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x, y = _two(b, call, computed_in(dtype))
    return cast(b, b.op("Mod", x, _safe(b, y, call["other"]), fmod=1), dtype)


_POWERS = {0.5: ("Sqrt",), -1: ("Reciprocal",), -0.5: ("Sqrt", "Reciprocal")}


def _pow(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype, exponent = dtype_of(results), call["exponent"]
    x = operand(b, call["self"], computed_in(dtype))
    if isinstance(exponent, (bool, int, float)) and exponent in (1, 2, 3):
        found = x
        for _ in range(int(exponent) - 1):
            found = b.op("Mul", found, x)
        return cast(b, found, dtype)
    if isinstance(exponent, (int, float)) and exponent in _POWERS and dtype.is_floating:
        for kind in _POWERS[exponent]:
            x = b.op(kind, x)
        return x
    return cast(b, b.op("Pow", x, operand(b, exponent, computed_in(dtype))), dtype)


def _atan2(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    y, x = _two(b, call, dtype_of(results))
    zero, pi = b.constant(0.0, x.dtype), b.constant(math.pi, x.dtype)
    is_zero = compared(b, "Equal", x, zero)
    at_origin = b.op("And", is_zero, compared(b, "Equal", y, zero))
    # Of either zero: the sign of -0.0 would turn the quotient around.
    angle = where(b, at_origin, y, b.op("Atan", b.op("Div", y, where(b, is_zero, zero, x))))
    turned = where(b, _is_negative(b, y), b.op("Sub", angle, pi), b.op("Add", angle, pi))
    is_left = b.op("And", _is_negative(b, x), b.op("Or", at_origin, b.op("Not", is_zero)))
    return where(b, is_left, turned, angle)


def _is_negative(b: OnnxEmitter, x: OnnxValue) -> OnnxValue:
    """Of -0.0, too."""
    zero = b.constant(0.0, x.dtype)
    return b.op("Or", compared(b, "Less", x, zero), compared(b, "Less", b.op("Reciprocal", x), zero))


def extreme(b: OnnxEmitter, kind: str, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """The greater ("Max") or the smaller ("Min") of two."""
    if x.dtype is DType.BOOL:
        return b.op("Or" if kind == "Max" else "And", x, y)
    return arithmetic(b, kind, x, y)


def _extreme(kind: str, *, skips_nan: bool = False) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, y = _two(b, call, dtype_of(results))
        found = extreme(b, kind, x, y)
        if skips_nan and x.dtype.is_floating:
            found = where(b, b.op("IsNaN", x, dtype=DType.BOOL), y, found)
            found = where(b, b.op("IsNaN", y, dtype=DType.BOOL), x, found)
        return found

    return form


def _clamp(low: str, high: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        for name, kind in ((low, "Max"), (high, "Min")):
            if name and call[name] is not None:
                x = extreme(b, kind, x, operand(b, call[name], x.dtype))
        return x

    return form


def _compare(kind: str, *, negated: bool = False) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        found = compared(b, kind, *_two(b, call, _compared_in(call["self"], call["other"])))
        return b.op("Not", found) if negated else found

    return form


def _compared_in(x: Arg, y: Arg) -> DType:
    """A number of Python is compared as the tensor's type has it, unless that would round it."""
    dtype = promoted(x, y)
    is_beyond = isinstance(y, int) and dtype.is_integral and not -(1 << 31) <= y < 1 << 31
    return DType.I64 if is_beyond else dtype


def _equal(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """Whether two tensors are one in sizes and elements."""
    first, second = (tensor_type(call[name]) for name in ("self", "other"))
    if not (first.is_static and second.is_static):
        raise NoOnnxForm("sizes that it compares are not known before the run")
    if first.shape != second.shape:
        return b.constant(False, DType.BOOL)
    differs = b.op("Not", compared(b, "Equal", *_two(b, call, promoted(call["self"], call["other"]))))
    count = reduced(b, "ReduceSum", cast(b, differs, DType.I32), None, False)
    return compared(b, "Equal", count, b.constant(0, DType.I32))


def _logical(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        return b.op(kind, *_two(b, call, DType.BOOL))

    return form


def _not(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Not", operand(b, call["self"], DType.BOOL))


def _bitwise_not(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = b.value(call["self"])
    return b.op("Not" if x.dtype is DType.BOOL else "BitwiseNot", x)


def _bitwise(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        return b.op(kind if dtype is DType.BOOL else f"Bitwise{kind}", *_two(b, call, dtype))

    return form


def _shift(is_left: bool) -> OnnxForm:
    """ONNX shifts unsigned integers only; by a number, a shift is a product or a quotient of a power of two."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype, count = dtype_of(results), call["other"]
        if not isinstance(count, int) or not 0 <= count < min(dtype.itemsize * 8, 63) - 1:
            raise NoOnnxForm("ONNX shifts signed integers by no number that a run computes")
        x, by = operand(b, call["self"], computed_in(dtype)), b.constant(1 << count, computed_in(dtype))
        return cast(b, b.op("Mul", x, by) if is_left else _quotient(b, x, by, "floor", 1 << count), dtype)

    return form


# --- activations and selection


def _relu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = b.value(call["self"])
    return b.op("Relu", x) if x.dtype.is_floating else extreme(b, "Max", x, b.constant(0, x.dtype))


def _gelu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Gelu", call["self"], approximate=call["approximate"])


def _elu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, alpha, scale = b.value(call["self"]), float(call["alpha"]), call["input_scale"]
    if scale == 1 and x.dtype is not DType.F64:
        found = b.op("Elu", x, alpha=alpha)
    else:
        scaled = x if scale == 1 else b.op("Mul", x, b.constant(float(scale), x.dtype))
        below = b.op("Sub", b.op("Exp", scaled), b.constant(1.0, x.dtype))
        positive = compared(b, "Greater", x, b.constant(0.0, x.dtype))
        found = where(b, positive, x, b.op("Mul", below, b.constant(alpha, x.dtype)))
    return found if call["scale"] == 1 else b.op("Mul", found, b.constant(float(call["scale"]), found.dtype))


def _leaky_relu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue | None:
    if dtype_of(results) is DType.F64:  # of which runtimes have no kernel
        return None
    return b.op("LeakyRelu", call["self"], alpha=float(call["negative_slope"]))


def _softplus(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue | None:
    if dtype_of(results) is DType.F64:
        return None
    x, beta = b.value(call["self"]), call["beta"]
    scaled = x if beta == 1 else b.op("Mul", x, b.constant(float(beta), x.dtype))
    soft = b.op("Softplus", scaled)
    soft = soft if beta == 1 else b.op("Div", soft, b.constant(float(beta), x.dtype))
    return where(b, compared(b, "Greater", scaled, b.constant(float(call["threshold"]), x.dtype)), x, soft)


def _prelu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, weight = b.value(call["self"]), b.value(call["weight"])
    return where(b, compared(b, "Greater", x, b.constant(0.0, x.dtype)), x, b.op("Mul", x, weight))


def _where(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x, y = _two(b, call, dtype)
    return where(b, operand(b, call["condition"], DType.BOOL), x, y)


def _masked_fill(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    return where(
        b, operand(b, call["mask"], DType.BOOL), operand(b, call["value"], dtype), operand(b, call["self"], dtype)
    )  # fmt: skip


def _fill(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Expand", operand(b, call["value"], dtype_of(results)), sizes_of(b, call["self"]))


def _copy(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    src, dtype = call["src"], dtype_of(results)
    found = operand(b, src, dtype)
    alike = isinstance(src, Value) and tensor_type(src).shape == tensor_type(call["self"]).shape
    return found if alike else b.op("Expand", found, sizes_of(b, call["self"]))


def softmax(b: OnnxEmitter, x: OnnxValue, axis: int) -> OnnxValue:
    """Shares that sum to one along an axis."""
    return b.op("Softmax", x, axis=axis)


def _softmax(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        if tensor_type(call["self"]).rank == 0:
            return b.op("Sub", x, x) if kind == "LogSoftmax" else b.op("Exp", b.op("Sub", x, x))
        return b.op(kind, x, axis=int(call["dim"]))

    return form


def _squared_difference(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue | None:
    if call["reduction"] != 0:
        return None
    dtype = dtype_of(results)
    apart = b.op("Sub", operand(b, call["self"], dtype), operand(b, call["target"], dtype))
    return b.op("Mul", apart, apart)


def _sign(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """Of NaN it is zero."""
    x = operand(b, call["self"], computed_in(dtype_of(results)))
    zero = b.constant(0, x.dtype) if not x.dtype.is_floating else b.constant(0.0, x.dtype)
    signs = [cast(b, compared(b, kind, x, zero), x.dtype) for kind in ("Greater", "Less")]
    return cast(b, b.op("Sub", *signs), dtype_of(results))


_COPIES = ("alias", "detach", "clone", "contiguous", "lift_fresh", "_to_copy", "resolve_conj", "resolve_neg")
_COMPARISONS = {
    "eq": _compare("Equal"), "ne": _compare("Equal", negated=True), "lt": _compare("Less"), "gt": _compare("Greater"),
    "le": _compare("LessOrEqual"), "ge": _compare("GreaterOrEqual"),
}  # fmt: skip
_SAME_NAME = {
    "abs": "Abs", "neg": "Neg", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "reciprocal": "Reciprocal", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "asin": "Asin", "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "asinh": "Asinh", "acosh": "Acosh", "atanh": "Atanh", "sigmoid": "Sigmoid", "erf": "Erf",
    "selu": "Selu",
}  # fmt: skip
_BITS = {"and": _bitwise("And"), "or": _bitwise("Or"), "xor": _bitwise("Xor")}

FORMS: Forms = {
    **{f"aten.{name}.default": _same for name in _COPIES},
    **{f"aten.to.{name}": _same for name in ("dtype", "dtype_layout", "device", "other")},
    "aten.type_as.default": _same,
    **{f"aten.{name}dropout.default": _dropout for name in ("", "feature_", "alpha_")},
    **{f"aten.{name}.default": _unary(kind) for name, kind in _SAME_NAME.items()},
    **{f"aten.{name}.default": _of_floats(name.capitalize()) for name in ("ceil", "floor", "round")},
    "aten.sign.default": _sign,
    "aten.trunc.default": _trunc,
    "aten.frac.default": _frac,
    "aten.rsqrt.default": _chain("Sqrt", "Reciprocal"),
    "aten.expm1.default": _expm1,
    "aten.log1p.default": _log1p,
    "aten.log2.default": _scaled_log(2.0),
    "aten.log10.default": _scaled_log(10.0),
    "aten.erfc.default": _erfc,
    "aten.isnan.default": _is("IsNaN"),
    "aten.isinf.default": _is("IsInf"),
    "aten.isfinite.default": _is("IsNaN", "IsInf", negated=True),
    "aten.nan_to_num.default": _nan_to_num,
    "aten.logical_not.default": _not,
    "aten.bitwise_not.default": _bitwise_not,
    **{f"aten.{name}.{form}": _binary(name.capitalize())
       for name in ("add", "sub", "mul") for form in ("Tensor", "Scalar")},
    **{f"aten.rsub.{form}": _binary("Sub", swapped=True) for form in ("Tensor", "Scalar")},
    **{f"aten.div.{form}": _div for form in ("Tensor", "Scalar", "Tensor_mode", "Scalar_mode")},
    **{f"aten.floor_divide.{form}": _floor_divide for form in ("default", "Scalar")},
    **{f"aten.remainder.{form}": _remainder for form in ("Tensor", "Scalar", "Scalar_Tensor")},
    **{f"aten.fmod.{form}": _fmod for form in ("Tensor", "Scalar")},
    **{f"aten.pow.{form}": _pow for form in ("Tensor_Tensor", "Tensor_Scalar", "Scalar")},
    "aten.atan2.default": _atan2,
    "aten.maximum.default": _extreme("Max"),
    "aten.minimum.default": _extreme("Min"),
    "aten.max.other": _extreme("Max"),
    "aten.min.other": _extreme("Min"),
    "aten.fmax.default": _extreme("Max", skips_nan=True),
    "aten.fmin.default": _extreme("Min", skips_nan=True),
    **{f"aten.clamp.{form}": _clamp("min", "max") for form in ("default", "Tensor")},
    "aten.clamp_min.default": _clamp("min", ""),
    "aten.clamp_max.default": _clamp("", "max"),
    "aten.hardtanh.default": _clamp("min_val", "max_val"),
    **{f"aten.{name}.{form}": made for name, made in _COMPARISONS.items() for form in ("Tensor", "Scalar")},
    "aten.equal.default": _equal,
    **{f"aten.logical_{name}.default": _logical(name.capitalize()) for name in _BITS},
    **{f"aten.bitwise_{name}.{form}": made for name, made in _BITS.items() for form in ("Tensor", "Scalar")},
    **{f"aten.__{name}__.{form}": made for name, made in _BITS.items() for form in ("Tensor", "Scalar")},
    **{f"aten.{name}.{form}": _shift(name[2] == "l" or "left" in name)
       for name in ("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
       for form in ("Scalar", "Tensor", "Tensor_Scalar")},
    "aten.relu.default": _relu,
    "aten.gelu.default": _gelu,
    "aten.elu.default": _elu,
    "aten.leaky_relu.default": _leaky_relu,
    "aten.softplus.default": _softplus,
    "aten._prelu_kernel.default": _prelu,
    **{f"aten.where.{form}": _where for form in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"aten.masked_fill.{form}": _masked_fill for form in ("Scalar", "Tensor")},
    **{f"aten.fill.{form}": _fill for form in ("Scalar", "Tensor")},
    "aten.copy.default": _copy,
    "aten.softmax.int": _softmax("Softmax"),
    "aten._softmax.default": _softmax("Softmax"),
    "aten.log_softmax.int": _softmax("LogSoftmax"),
    "aten.mse_loss.default": _squared_difference,
}  # fmt: skip
