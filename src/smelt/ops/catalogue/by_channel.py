"""What normalises each channel of x[n, c, ...] by moments of its own."""

from __future__ import annotations

from smelt.ir import Arg, Value
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
