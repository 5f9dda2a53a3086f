"""Sums, extremes, norms, orders along dimensions in ONNX."""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir import DType
from smelt.ops.catalogue.onnx.base import (
    LAST,
    Forms,
    arithmetic,
    axes_of,
    axis_of,
    cast,
    compared,
    computed_in,
    dtype_of,
    infinite,
    operand,
    rank_of,
    reduced,
    reshape,
    size_of,
    sizes_of,
    sliced,
    squeeze,
    static_size,
    unsqueeze,
    where,
)
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types


def _along(call: Call) -> tuple[int, ...]:
    return axes_of(call.get("dim"), rank_of(call["self"]))


def _reduce(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        return reduced(b, kind, x, _along(call), bool(call.get("keepdim", False)))

    return form


def extreme_of(b: OnnxEmitter, kind: str, x: OnnxValue, axes: tuple[int, ...], keep: bool) -> OnnxValue:
    """The greatest or the smallest along axes; NaN where there is one, which runtimes skip."""
    found = reduced(b, f"Reduce{kind}", x, axes, keep)
    if not x.dtype.is_floating or not axes:
        return found
    count = reduced(b, "ReduceSum", cast(b, b.op("IsNaN", x, dtype=DType.BOOL), DType.I32), axes, keep)
    has_nan = compared(b, "Greater", count, b.constant(0, DType.I32))
    return where(b, has_nan, b.constant(float("nan"), x.dtype), found)


def _extreme(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], dtype_of(results))
        return extreme_of(b, kind, x, _along(call), bool(call.get("keepdim", False)))

    return form


def _any_or_all(is_all: bool) -> OnnxForm:
    """By counting, which is right of no elements, too."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x = operand(b, call["self"], DType.BOOL)
        counted = cast(b, b.op("Not", x) if is_all else x, DType.I32)
        count = reduced(b, "ReduceSum", counted, _along(call), bool(call.get("keepdim", False)))
        found = compared(b, "Equal" if is_all else "Greater", count, b.constant(0, DType.I32))
        return cast(b, found, dtype_of(results))

    return form


def _extreme_along(kind: str) -> OnnxForm:
    """Values and the places of the first of them."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
        x, keep = b.value(call["self"]), bool(call["keepdim"])
        if rank_of(call["self"]) == 0:
            return x, b.constant(0, DType.I64)
        axis = axis_of(call["dim"], rank_of(call["self"]))
        return extreme_of(b, kind, x, (axis,), keep), _place(b, kind, x, axis, keep)

    return form


def _place(b: OnnxEmitter, kind: str, x: OnnxValue, axis: int, keep: bool) -> OnnxValue:
    """The first place of an extreme, which for NaN is that of the first NaN."""
    inner = DType.F32 if x.dtype in (DType.F16, DType.BF16) else computed_in(x.dtype)
    x = cast(b, x, inner)
    if inner is DType.I64:
        _, places = b.ops(
            "TopK", (x.dtype, DType.I64), x, b.constant([1], DType.I64), axis=axis, largest=int(kind == "Max")
        )
        return places if keep else squeeze(b, places, axis)
    if x.dtype.is_floating:
        x = where(b, b.op("IsNaN", x, dtype=DType.BOOL), infinite(b, x.dtype, 1 if kind == "Max" else -1), x)
    return b.op(f"Arg{kind}", x, dtype=DType.I64, axis=axis, keepdims=int(keep), select_last_index=0)


def _place_of_all(kind: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, rank, keep = b.value(call["self"]), rank_of(call["self"]), bool(call["keepdim"])
        if call["dim"] is not None and rank:
            return _place(b, kind, x, axis_of(call["dim"], rank), keep)
        found = _place(b, kind, reshape(b, x, [-1]), 0, False)
        return reshape(b, found, [1] * rank) if keep else found

    return form


def _mean(b: OnnxEmitter, x: OnnxValue, axes: tuple[int, ...], keep: bool) -> OnnxValue:
    return reduced(b, "ReduceMean", x, axes, keep)


def _variance(is_root: bool) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, axes = operand(b, call["self"], dtype_of(results)), _along(call)
        correction = 1 if call["correction"] is None else call["correction"]
        apart = b.op("Sub", x, _mean(b, x, axes, True))
        total = reduced(b, "ReduceSum", b.op("Mul", apart, apart), axes, bool(call["keepdim"]))
        count = b.op("ReduceProd", _sizes_along(b, call, axes), keepdims=0)
        freedom = b.op("Sub", cast(b, count, x.dtype), b.constant(float(correction), x.dtype))
        found = b.op("Div", total, b.op("Max", freedom, b.constant(0.0, x.dtype)))
        return b.op("Sqrt", found) if is_root else found

    return form


def _sizes_along(b: OnnxEmitter, call: Call, axes: tuple[int, ...]) -> OnnxValue:
    return b.op("Gather", sizes_of(b, call["self"]), b.constant(list(axes), DType.I64))


def _logsumexp(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, axes, keep = operand(b, call["self"], dtype_of(results)), _along(call), bool(call["keepdim"])
    most = reduced(b, "ReduceMax", x, axes, True)
    most = where(b, b.op("IsInf", most, dtype=DType.BOOL), b.constant(0.0, x.dtype), most)
    total = b.op("Log", reduced(b, "ReduceSum", b.op("Exp", b.op("Sub", x, most)), axes, keep))
    return b.op("Add", total, most if keep or not axes else squeeze(b, most, *axes))


def _norm(order: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, axes, keep = operand(b, call["self"], dtype_of(results)), _along(call), bool(call.get("keepdim", False))
        p = 2 if call[order] is None else call[order]
        if p in (1, 2):
            return reduced(b, f"ReduceL{int(p)}", x, axes, keep)
        size = b.op("Abs", x)
        if p in (float("inf"), -float("inf")):
            return extreme_of(b, "Max" if p > 0 else "Min", size, axes, keep)
        if p == 0:
            return reduced(b, "ReduceSum", b.op("Abs", b.op("Sign", x)), axes, keep)
        total = reduced(b, "ReduceSum", b.op("Pow", size, b.constant(float(p), x.dtype)), axes, keep)
        return b.op("Pow", total, b.constant(1.0 / float(p), x.dtype))

    return form


def _cumsum(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    x = operand(b, call["self"], computed_in(dtype))
    if not rank_of(call["self"]):
        return cast(b, x, dtype)
    axis = b.constant(axis_of(call["dim"], rank_of(call["self"])), DType.I64)
    return cast(b, b.op("CumSum", x, axis), dtype)


# --- orders


def _ordered(b: OnnxEmitter, call: Call, dim: Any, count: OnnxValue, largest: bool) -> tuple[OnnxValue, OnnxValue]:
    x = b.value(call["self"])
    values, places = b.ops(
        "TopK", (computed_in(x.dtype), DType.I64), cast(b, x, computed_in(x.dtype)), count,
        axis=int(dim), largest=int(largest), sorted=1,
    )  # fmt: skip
    return cast(b, values, x.dtype), places


def _sorted(b: OnnxEmitter, call: Call) -> tuple[OnnxValue, OnnxValue]:
    if not rank_of(call["self"]):
        return b.value(call["self"]), b.constant(0, DType.I64)
    dim = axis_of(call["dim"], rank_of(call["self"]))
    return _ordered(b, call, dim, size_of(b, call["self"], dim), bool(call["descending"]))


def _sort(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    return _sorted(b, call)


def _argsort(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return _sorted(b, call)[1]


def _topk(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
    k = call["k"]
    count = b.constant([k], DType.I64) if isinstance(k, int) else reshape(b, operand(b, k, DType.I64), [1])
    return _ordered(b, call, axis_of(call["dim"], rank_of(call["self"])), count, bool(call["largest"]))


# --- of neighbours


def _diff(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if call["n"] < 1:
        raise NoOnnxForm("differences of order 0 have no form")
    axis = axis_of(call["dim"], rank_of(call["self"]))
    parts = [b.value(call[name]) for name in ("prepend", "self", "append") if call[name] is not None]
    x = parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=axis)
    for _ in range(call["n"]):
        later, before = sliced(b, x, axis, 1, LAST), sliced(b, x, axis, 0, -1)
        x = b.op("Xor", later, before) if x.dtype is DType.BOOL else arithmetic(b, "Sub", later, before)
    return x


def _histogram(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """How many elements each of some equal ranges has, all elements compared with all ranges."""
    low, high, bins = call["min"], call["max"], call["bins"]
    if not all(isinstance(n, (int, float)) for n in (low, high, bins)) or low >= high:
        raise NoOnnxForm("its range follows from the data")
    x = reshape(b, call["self"], [-1])
    first, last = b.constant(float(low), x.dtype), b.constant(float(high), x.dtype)
    scaled = b.op("Mul", b.op("Sub", x, first), b.constant(bins / (high - low), x.dtype))
    number = b.op("Min", b.op("Floor", scaled), b.constant(float(bins - 1), x.dtype))
    inside = b.op("And", compared(b, "GreaterOrEqual", x, first), compared(b, "LessOrEqual", x, last))
    number = where(b, inside, number, b.constant(-1.0, x.dtype))
    ranges = b.constant(torch.arange(float(bins)), x.dtype)
    met = b.op("Cast", compared(b, "Equal", unsqueeze(b, number, 1), ranges), dtype=x.dtype, to=x.dtype)
    return reduced(b, "ReduceSum", met, (0,), False)


def _weight_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    v, rank = b.value(call["v"]), rank_of(call["v"])
    axes = tuple(axis for axis in range(rank) if axis != axis_of(call["dim"], rank))
    return b.op("Mul", v, b.op("Div", call["g"], reduced(b, "ReduceL2", v, axes, True)))


def _glu(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    axis = axis_of(call["dim"], rank_of(call["self"]))
    half = static_size(call["self"], axis) // 2
    one, other = sliced(b, call["self"], axis, 0, half), sliced(b, call["self"], axis, half, LAST)
    return b.op("Mul", one, b.op("Sigmoid", other))


_SUMS = {"sum": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd"}
FORMS: Forms = {
    **{f"aten.{name}.default": _reduce(kind) for name, kind in _SUMS.items()},
    "aten.sum.dim_IntList": _reduce("ReduceSum"),
    "aten.mean.dim": _reduce("ReduceMean"),
    "aten.prod.dim_int": _reduce("ReduceProd"),
    **{f"aten.{name}.default": _extreme(name[-3:].capitalize()) for name in ("amax", "amin", "max", "min")},
    **{f"aten.{name}.dim": _extreme_along(name.capitalize()) for name in ("max", "min")},
    **{f"aten.arg{name}.default": _place_of_all(name.capitalize()) for name in ("max", "min")},
    **{f"aten.any.{form}": _any_or_all(False) for form in ("default", "dim", "dims")},
    **{f"aten.all.{form}": _any_or_all(True) for form in ("default", "dim", "dims")},
    "aten.var.correction": _variance(False),
    "aten.std.correction": _variance(True),
    "aten.logsumexp.default": _logsumexp,
    "aten.linalg_vector_norm.default": _norm("ord"),
    "aten.norm.ScalarOpt_dim": _norm("p"),
    "aten.cumsum.default": _cumsum,
    **{f"aten.sort.{form}": _sort for form in ("default", "stable")},
    **{f"aten.argsort.{form}": _argsort for form in ("default", "stable")},
    "aten.topk.default": _topk,
    "aten.diff.default": _diff,
    "aten.histc.default": _histogram,
    "aten._weight_norm.default": _weight_norm,
    "aten.glu.default": _glu,
}
