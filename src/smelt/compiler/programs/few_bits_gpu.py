"""Linear layers over few bits on a GPU: the weight alone, made of operators that a program does once.

    %y = linear %x, %w, %b    ==>    %q, %s of %w, once; %v = narrow.bytes %q, %s; %y = linear of %x, %v, %b in bf16

The weight is widened where the product reads it, so a call reads a quarter, or an eighth, of its bytes. Invariant: what
stands before `narrow.bytes` and `narrow.nibbles` depends on the weight alone, and these two are not done once.
"""

from __future__ import annotations

from typing import Any

from smelt.ir import Arg, DType, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.own.narrow_linear import BYTES, GROUP, NIBBLES, STEPS_OF_FEW

_MOST, _TINY = 127.0, 1e-32


def is_on_gpu(value: Any) -> bool:
    """Whether a value is a tensor on a GPU."""
    return isinstance(value, Value) and isinstance(value.type, TensorType) and value.type.device.startswith("cuda")


def weight_only(emit: GraphEmitter, dtype: str, x: Value, weight: Value, bias: Arg) -> Value:
    """The layer's result in f32, of a product of bf16 with a weight of 8 or 4 bits. Sizes are known."""
    wide = _nibbles(emit, weight) if dtype == "int4" else _bytes(emit, weight)
    narrow = _cast(emit, x, DType.BF16)
    added = _cast(emit, bias, DType.BF16) if isinstance(bias, Value) else None
    made = emit.call("aten.linear.default", narrow, wide, added)
    return _cast(emit, made, DType.F32)


def _cast(emit: GraphEmitter, value: Value, dtype: DType) -> Value:
    return emit.call("aten.to.dtype", value, dtype)


def _bytes(emit: GraphEmitter, weight: Value) -> Value:
    largest = emit.call("aten.amax.default", emit.call("aten.abs.default", weight), (1,), True)
    scale = emit.call("aten.clamp_min.default", emit.call("aten.div.Scalar", largest, _MOST), _TINY)
    steps = emit.call("aten.round.default", emit.call("aten.div.Tensor", weight, scale))
    steps = emit.call("aten.clamp.default", steps, -_MOST, _MOST)
    return emit.call(BYTES, _cast(emit, steps, DType.I8), scale)


def _nibbles(emit: GraphEmitter, weight: Value) -> Value:
    """As `nibble_weight`: of a group the number of greatest magnitude is -8 steps."""
    assert isinstance(weight.type, TensorType)
    n, k = weight.type.sizes
    groups = emit.call("aten.reshape.default", weight, (n, k // GROUP, GROUP))
    low = emit.call("aten.amin.default", groups, (2,), True)
    high = emit.call("aten.amax.default", groups, (2,), True)
    is_high = emit.call("aten.lt.Tensor", high, emit.call("aten.neg.default", low))
    largest = emit.call("aten.where.self", is_high, low, high)
    step = _cast(emit, emit.call("aten.div.Scalar", largest, -float(STEPS_OF_FEW)), DType.BF16)
    wide = _cast(emit, step, DType.F32)
    none = emit.call("aten.eq.Scalar", wide, 0.0)
    divisor = emit.call("aten.where.ScalarSelf", none, 1.0, wide)
    steps = emit.call("aten.round.default", emit.call("aten.div.Tensor", groups, divisor))
    steps = emit.call("aten.clamp.default", steps, -float(STEPS_OF_FEW), float(STEPS_OF_FEW - 1))
    bits = _cast(emit, emit.call("aten.add.Scalar", steps, float(STEPS_OF_FEW)), DType.F32)
    pairs = emit.call("aten.reshape.default", bits, (n, k // 2, 2))
    even = emit.call("aten.select.int", pairs, 2, 0)
    odd = emit.call("aten.select.int", pairs, 2, 1)
    packed = emit.call("aten.add.Tensor", even, emit.call("aten.mul.Scalar", odd, 16.0))
    of_groups = emit.call("aten.reshape.default", step, (n, k // GROUP))
    return emit.call(NIBBLES, _cast(emit, packed, DType.U8), of_groups, GROUP)
