"""Norms, pooling, resizing, losses and recurrent layers in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from smelt.ir import DType, TensorType, Value
from smelt.ops.catalogue.onnx.base import (
    Forms,
    cast,
    compared,
    dtype_of,
    operand,
    permute,
    rank_of,
    reduced,
    reshape,
    sizes_of,
    sliced,
    squeeze,
    static_size,
    unsqueeze,
    where,
)
from smelt.ops.convert import dtype_to_torch
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types, tensor_type


def _ones(b: OnnxEmitter, sizes: Sequence[int], dtype: DType) -> OnnxValue:
    return b.constant(torch.ones(tuple(sizes)), dtype)


def _layer_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, dims = b.value(call["input"]), len(call["normalized_shape"])
    weight = call["weight"]
    scale = _ones(b, call["normalized_shape"], x.dtype) if weight is None else operand(b, weight, x.dtype)
    bias = None if call["bias"] is None else operand(b, call["bias"], x.dtype)
    return b.op("LayerNormalization", x, scale, bias, axis=-dims, epsilon=float(call["eps"]))


def _rms_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = b.value(call["input"])
    inner = DType.F32 if x.dtype.is_half else x.dtype
    wide = cast(b, x, inner)
    eps = torch.finfo(dtype_to_torch(x.dtype)).eps if call["eps"] is None else float(call["eps"])
    rank = rank_of(call["input"])
    axes = tuple(range(rank - len(call["normalized_shape"]), rank))
    mean = reduced(b, "ReduceMean", b.op("Mul", wide, wide), axes, True)
    found = b.op("Div", wide, b.op("Sqrt", b.op("Add", mean, b.constant(eps, inner))))
    if call["weight"] is not None:
        found = b.op("Mul", found, operand(b, call["weight"], inner))
    return cast(b, found, x.dtype)


def _batch_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if call["training"] is True and call["running_mean"] is None:
        return _own_batch_norm(b, call)
    if call["training"] is not False or call["running_mean"] is None:
        raise NoOnnxForm("in training it takes means of the batch; put the module in evaluation mode (eval())")
    x, channels = b.value(call["input"]), static_size(call["running_mean"], 0)
    plain = b.constant(torch.ones(channels), x.dtype), b.constant(torch.zeros(channels), x.dtype)
    given = [call["weight"], call["bias"], call["running_mean"], call["running_var"]]
    parts = [operand(b, g, x.dtype) if g is not None else plain[i] for i, g in enumerate(given)]
    return b.op("BatchNormalization", x, *parts, epsilon=float(call["eps"]))


def _own_batch_norm(b: OnnxEmitter, call: Call) -> OnnxValue:
    """By the batch's own mean and variance, of which nothing is kept."""
    x, rank = b.value(call["input"]), rank_of(call["input"])
    axes = tuple(axis for axis in range(rank) if axis != 1)
    apart = b.op("Sub", x, reduced(b, "ReduceMean", x, axes, True))
    spread = reduced(b, "ReduceMean", b.op("Mul", apart, apart), axes, True)
    found = b.op("Div", apart, b.op("Sqrt", b.op("Add", spread, b.constant(float(call["eps"]), x.dtype))))
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        if call[name] is not None:
            found = b.op(kind, found, unsqueeze(b, operand(b, call[name], x.dtype), *range(1, rank - 1)))
    return found


def _instance_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if call["use_input_stats"] is not True or call["running_mean"] is not None:
        raise NoOnnxForm("it keeps running statistics, which ONNX's operator has none of")
    x, channels = b.value(call["input"]), static_size(call["input"], 1)
    plain = b.constant(torch.ones(channels), x.dtype), b.constant(torch.zeros(channels), x.dtype)
    given = (call["weight"], call["bias"])
    parts = [operand(b, g, x.dtype) if g is not None else plain[i] for i, g in enumerate(given)]
    return b.op("InstanceNormalization", x, *parts, epsilon=float(call["eps"]))


def _group_norm(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, rank, sizes = b.value(call["input"]), rank_of(call["input"]), sizes_of(b, call["input"])
    lead = b.op("Concat", sliced(b, sizes, 0, 0, 1), b.constant([int(call["num_groups"]), -1], DType.I64), axis=0)
    groups = b.op("Reshape", x, lead, allowzero=0)
    apart = b.op("Sub", groups, reduced(b, "ReduceMean", groups, (2,), True))
    spread = reduced(b, "ReduceMean", b.op("Mul", apart, apart), (2,), True)
    scale = b.op("Sqrt", b.op("Add", spread, b.constant(float(call["eps"]), x.dtype)))
    found = reshape(b, b.op("Div", apart, scale), sizes)
    for name, kind in (("weight", "Mul"), ("bias", "Add")):
        if call[name] is not None:
            found = b.op(kind, found, unsqueeze(b, operand(b, call[name], x.dtype), *range(1, rank - 1)))
    return found


# --- pooling and resizing


def _numbers(given: Any, n: int) -> list[int]:
    items = [*given] if isinstance(given, tuple) else [given]
    return [int(item) for item in (items * n if len(items) == 1 else items)]


def _pooled(b: OnnxEmitter, call: Call, x: OnnxValue, kind: str, n: int, **how: Any) -> OnnxValue:
    is_batch = rank_of(call["self"]) == n + 2
    kernel, pads = _numbers(call["kernel_size"], n), _numbers(call["padding"], n)
    strides = _numbers(call["stride"], n) if call["stride"] else kernel
    found = b.op(
        kind, x if is_batch else unsqueeze(b, x, 0), kernel_shape=kernel, strides=strides, pads=[*pads, *pads],
        ceil_mode=int(call["ceil_mode"]), **how,
    )  # fmt: skip
    return found if is_batch else squeeze(b, found, 0)


def _max_pool(n: int) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, dilations = b.value(call["self"]), _numbers(call["dilation"], n)
        found = _pooled(b, call, x, "MaxPool", n, dilations=dilations)
        if not x.dtype.is_floating:
            return found
        # Of a window with NaN it is NaN, which runtimes skip.
        marks = cast(b, b.op("IsNaN", x, dtype=DType.BOOL), x.dtype)
        marked = _pooled(b, call, marks, "MaxPool", n, dilations=dilations)
        has_nan = compared(b, "Greater", marked, b.constant(0.0, x.dtype))
        return where(b, has_nan, b.constant(float("nan"), x.dtype), found)

    return form


def _average_pool(n: int) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        if call.get("divisor_override") is not None:
            raise NoOnnxForm("ONNX divides an average by nothing but the number of elements")
        if call["ceil_mode"] and any(_numbers(call["padding"], n)):
            raise NoOnnxForm("ONNX counts padding otherwise where windows reach beyond it (ceil_mode)")
        return _pooled(
            b, call, b.value(call["self"]), "AveragePool", n, count_include_pad=int(call["count_include_pad"])
        )

    return form


def _adaptive_average(n: int) -> OnnxForm:
    """Along each dimension a product with the matrix of shares that each place has in each result."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, rank, wanted = b.value(call["self"]), rank_of(call["self"]), _numbers(call["output_size"], n)
        if all(size == 1 for size in wanted):
            return reduced(b, "ReduceMean", x, tuple(range(rank - n, rank)), True)
        for i, size in enumerate(wanted):
            axis, given = rank - n + i, static_size(call["self"], rank - n + i)
            shares = torch.zeros(given, size, dtype=torch.float64)
            for j in range(size):
                first, last = j * given // size, -(-(j + 1) * given // size)
                shares[first:last, j] = 1.0 / (last - first)
            order = list(range(rank))
            order[axis], order[-1] = order[-1], order[axis]
            x = permute(b, b.op("MatMul", permute(b, x, order), b.constant(shares, x.dtype)), order)
        return x

    return form


def _resized(mode: str, n: int, *, is_vec: bool) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, name = call["input" if is_vec else "self"], "nearest" if mode == "nearest" else mode
        aligned = bool(call.get("align_corners", False))
        how: dict[str, Any] = {"mode": name}
        how["coordinate_transformation_mode"] = "align_corners" if aligned else (
            "asymmetric" if mode == "nearest" else "pytorch_half_pixel" if mode == "linear" else "half_pixel"
        )  # fmt: skip
        if mode == "nearest":
            how["nearest_mode"] = "floor"
        if mode == "cubic":
            how["cubic_coeff_a"] = -0.75
        factors = call.get("scale_factors")
        if factors is not None:
            scales = b.constant([1.0, 1.0, *map(float, factors)], DType.F32)
            return b.op("Resize", x, None, scales, **how)
        kind = results[0]
        if (
            not isinstance(kind, TensorType)
            or kind.shape is None
            or not all(isinstance(s, int) for s in kind.shape[2:])
        ):
            raise NoOnnxForm("the sizes that it resizes to are not known before the run")
        sizes = b.op("Concat", sliced(b, sizes_of(b, x), 0, 0, 2), b.constant(list(kind.shape[2:]), DType.I64), axis=0)
        return b.op("Resize", x, None, None, sizes, **how)

    return form


def _grid_sample(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    modes, paddings = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return b.op(
        "GridSample", call["input"], call["grid"], mode=modes[call["interpolation_mode"]],
        padding_mode=paddings[call["padding_mode"]], align_corners=int(call["align_corners"]),
    )  # fmt: skip


def _columns(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """Each window of an image as a column: its elements are picked by number."""
    x, (kernel, gaps, pads, steps) = call["self"], (
        _numbers(call[name], 2) for name in ("kernel_size", "dilation", "padding", "stride")
    )  # fmt: skip
    if rank_of(x) != 4:
        raise NoOnnxForm("windows of one image alone have no form")
    channels, rows, columns = (static_size(x, i) for i in (1, 2, 3))
    padded = b.op("Pad", x, b.constant([0, 0, *pads, 0, 0, *pads], DType.I64), mode="constant")
    rows, columns = rows + 2 * pads[0], columns + 2 * pads[1]
    places = torch.arange(float(rows * columns)).reshape(1, 1, rows, columns)
    table = torch.nn.functional.unfold(places, kernel, gaps, 0, steps)[0].long()
    lead = b.op("Concat", sliced(b, sizes_of(b, x), 0, 0, 1), b.constant([channels, rows * columns], DType.I64), axis=0)
    found = b.op("Gather", reshape(b, padded, lead), b.constant(table, DType.I64), axis=2)
    count = b.constant([channels * table.shape[0], table.shape[1]], DType.I64)
    return reshape(b, found, b.op("Concat", sliced(b, sizes_of(b, x), 0, 0, 1), count, axis=0))


def _shuffle(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue | None:
    if rank_of(call["self"]) != 4:
        return None
    return b.op("DepthToSpace", call["self"], blocksize=int(call["upscale_factor"]), mode="CRD")


# --- losses


def _cross_entropy(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if tensor_type(call["target"]).dtype.is_floating or call["label_smoothing"] != 0 or rank_of(call["self"]) < 2:
        raise NoOnnxForm("ONNX's loss takes classes of a batch, and smooths no labels")
    scores = operand(b, call["self"], dtype_of(results))
    return _class_loss(b, "SoftmaxCrossEntropyLoss", scores, call)


def _nll(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    if rank_of(call["self"]) < 2:
        raise NoOnnxForm("ONNX's loss takes classes of a batch")
    return _class_loss(b, "NegativeLogLikelihoodLoss", b.value(call["self"]), call)


def _class_loss(b: OnnxEmitter, kind: str, scores: OnnxValue, call: Call) -> OnnxValue:
    weight = None if call["weight"] is None else operand(b, call["weight"], scores.dtype)
    reduction = ("none", "mean", "sum")[call["reduction"]]
    return b.op(kind, scores, call["target"], weight, reduction=reduction, ignore_index=int(call["ignore_index"]))


# --- recurrent layers

_GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Which of torch's gates stands at each place of ONNX's."""


def _recurrent(kind: str, activation: str = "") -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> tuple[OnnxValue, ...]:
        if call["train"] is not False and call["dropout"] != 0:
            raise NoOnnxForm("it draws random numbers, which no runtime of ONNX draws as torch does")
        states = call["hx"] if isinstance(call["hx"], tuple) else (call["hx"],)
        both = 2 if call["bidirectional"] else 1
        weights, each = call["params"], 4 if call["has_biases"] else 2
        if len(weights) != call["num_layers"] * both * each:
            raise NoOnnxForm("ONNX's layers have no projections")
        x = b.value(call["input"])
        x = permute(b, x, [1, 0, 2]) if call["batch_first"] else x
        last: list[list[OnnxValue]] = [[] for _ in states]
        for layer in range(call["num_layers"]):
            first = [sliced(b, b.value(state), 0, layer * both, (layer + 1) * both) for state in states]
            own = weights[layer * both * each : (layer + 1) * both * each]
            x, *ended = _layer(b, kind, activation, x, [own[i * each : (i + 1) * each] for i in range(both)], first)
            for collected, state in zip(last, ended, strict=True):
                collected.append(state)
        x = permute(b, x, [1, 0, 2]) if call["batch_first"] else x
        joined = (found[0] if len(found) == 1 else b.op("Concat", *found, axis=0) for found in last)
        return (x, *joined)

    return form


def _layer(
    b: OnnxEmitter, kind: str, activation: str, x: OnnxValue, weights: Sequence[Sequence[Value]],
    states: Sequence[OnnxValue],
) -> list[OnnxValue]:  # fmt: skip
    """One layer, of one direction or both: its outputs, side by side, and its last states."""
    hidden = static_size(weights[0][1], -1)
    directions = len(weights)

    def stacked(number: int) -> OnnxValue:
        parts = [unsqueeze(b, _by_gates(b, kind, own[number], hidden), 0) for own in weights]
        return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=0)

    bias = b.op("Concat", stacked(2), stacked(3), axis=1) if len(weights[0]) == 4 else None
    how: dict[str, Any] = {"hidden_size": hidden}
    if directions == 2:
        how["direction"] = "bidirectional"
    if kind == "GRU":
        how["linear_before_reset"] = 1
    if activation:
        how["activations"] = [activation] * directions
    dtypes = (x.dtype,) * (len(states) + 1)
    out, *ended = b.ops(kind, dtypes, x, stacked(0), stacked(1), bias, None, *states, **how)
    # (steps, directions, rows, hidden)
    if directions == 1:
        return [squeeze(b, out, 1), *ended]
    sizes = b.op("Shape", out, dtype=DType.I64)
    width = b.constant([directions * hidden], DType.I64)
    picked = b.op("Gather", sizes, b.constant([0, 2], DType.I64), axis=0)
    return [reshape(b, permute(b, out, [0, 2, 1, 3]), b.op("Concat", picked, width, axis=0)), *ended]


def _by_gates(b: OnnxEmitter, kind: str, weight: Value, hidden: int) -> OnnxValue:
    order = _GATES[kind]
    if order == (0,):
        return b.value(weight)
    parts = b.ops("Split", (b.value(weight).dtype,) * len(order), weight, axis=0, num_outputs=len(order))
    return b.op("Concat", *(parts[i] for i in order), axis=0)


_RESIZES = {"nearest1d": ("nearest", 1), "nearest2d": ("nearest", 2), "nearest3d": ("nearest", 3),
            "linear1d": ("linear", 1), "bilinear2d": ("linear", 2), "trilinear3d": ("linear", 3),
            "bicubic2d": ("cubic", 2)}  # fmt: skip
FORMS: Forms = {
    "aten.layer_norm.default": _layer_norm,
    "aten.rms_norm.default": _rms_norm,
    "aten.batch_norm.default": _batch_norm,
    "aten.instance_norm.default": _instance_norm,
    "aten.group_norm.default": _group_norm,
    **{f"aten.max_pool{n}d.default": _max_pool(n) for n in (1, 2, 3)},
    **{f"aten.avg_pool{n}d.default": _average_pool(n) for n in (1, 2, 3)},
    **{f"aten.adaptive_avg_pool{n}d.default": _adaptive_average(n) for n in (1, 2, 3)},
    **{f"aten.upsample_{name}.{form}": _resized(mode, n, is_vec=form == "vec")
       for name, (mode, n) in _RESIZES.items() for form in ("vec", "default")},
    "aten.grid_sampler_2d.default": _grid_sample,
    "aten.im2col.default": _columns,
    "aten.pixel_shuffle.default": _shuffle,
    "aten.cross_entropy_loss.default": _cross_entropy,
    "aten.nll_loss_nd.default": _nll,
    "aten.lstm.input": _recurrent("LSTM"),
    "aten.gru.input": _recurrent("GRU"),
    "aten.rnn_tanh.input": _recurrent("RNN"),
    "aten.rnn_relu.input": _recurrent("RNN", "Relu"),
}  # fmt: skip
