"""What normalises each channel of x[n, c, ...] by moments of its own."""

from __future__ import annotations

import math

from smelt.ir import Arg, DType, Value
from smelt.ops.record import Call, Emitter, tensor_type


def channels_of(b: Emitter, given: Arg, x: Arg) -> Value:
    """One number for each channel, as it broadcasts to x."""
    rank = tensor_type(x).rank
    assert rank is not None
    return b.call("aten.reshape.default", given, (-1, *(1,) * (rank - 2)))


def normalised_by_channel(b: Emitter, call: Call, centre: Arg, scale: Arg) -> Value:
    """(input - centre) * scale * weight + bias, of a call that has input, weight and bias."""
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if weight is not None:
        scale = b.call("aten.mul.Tensor", scale, weight)
    y = b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", x, channels_of(b, centre, x)), channels_of(b, scale, x))
    return y if bias is None else b.call("aten.add.Tensor", y, channels_of(b, bias, x))


BATCH_NORM = "aten._native_batch_norm_legit_functional.default"
"""Batch norm that gives what it would write. No record: torch's kernels for types crash at sizes that do not fit."""


def lower_batch_norm(b: Emitter, call: Call) -> tuple[Arg, ...] | None:
    """By the moments of the batch: what it gives, mean, 1 / deviation, and what is to be kept of both from now on."""
    x, mean, var = call["input"], call["running_mean"], call["running_var"]
    kind, others = tensor_type(x), (mean, var, call["weight"], call["bias"])
    if call["training"] is not True or not kind.is_static or kind.dtype not in (DType.F32, DType.F64):
        return None
    if any(o is not None and tensor_type(o).dtype is not kind.dtype for o in others):
        return None
    dims = (0, *range(2, len(kind.sizes)))
    count = math.prod(kind.sizes[d] for d in dims)
    if count < 2 or not kind.numel:
        return None
    # As of all norms: what a mean in one precision is off by is the mean of the differences from it.
    near = b.call("aten.mean.dim", x, dims)
    centred = b.call("aten.sub.Tensor", x, channels_of(b, near, x))
    off = b.call("aten.mean.dim", centred, dims)
    squares = b.call("aten.mean.dim", b.call("aten.mul.Tensor", centred, centred), dims)
    centre = b.call("aten.add.Tensor", near, off)
    part = b.call("aten.mul.Tensor", off, off)
    smaller = b.call("aten.sub.Tensor", squares, part)
    variance = b.call("aten.where.self", b.call("aten.lt.Tensor", part, squares), smaller, squares)
    scale = b.call("aten.rsqrt.default", b.call("aten.add.Tensor", variance, call["eps"]))

    def moved(old: Arg, new: Value, by: float) -> Arg:
        part = b.call("aten.mul.Tensor", new, call["momentum"] * by)
        return b.call("aten.add.Tensor", b.call("aten.mul.Tensor", old, 1 - call["momentum"]), part)

    kept = moved(mean, centre, 1), moved(var, variance, count / (count - 1))
    return normalised_by_channel(b, call, centre, scale), centre, scale, *kept
