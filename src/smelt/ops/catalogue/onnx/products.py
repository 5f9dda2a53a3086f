"""Matrix products, convolutions and attention in ONNX."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from smelt.ir import DType, Value
from smelt.ops.catalogue.onnx.base import (
    Forms,
    cast,
    compared,
    computed_in,
    dtype_of,
    infinite,
    operand,
    permute,
    rank_of,
    reduced,
    reshape,
    size_of,
    sizes_of,
    squeeze,
    static_size,
    unsqueeze,
    where,
)
from smelt.ops.catalogue.onnx.pointwise import softmax
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types, tensor_type


def turned(b: OnnxEmitter, x: Value | OnnxValue, rank: int) -> OnnxValue:
    """The last two dimensions exchanged."""
    return permute(b, x, [*range(rank - 2), rank - 1, rank - 2])


def _product(left: str, right: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        inner = computed_in(dtype)
        return cast(b, b.op("MatMul", operand(b, call[left], inner), operand(b, call[right], inner)), dtype)

    return form


def _linear(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x, weight, bias = call["input"], call["weight"], call["bias"]
    if rank_of(x) == 2 and rank_of(weight) == 2:
        return b.op("Gemm", x, weight, bias, transB=1)
    weight = turned(b, weight, 2) if rank_of(weight) == 2 else weight
    found = b.op("MatMul", x, weight)
    return found if bias is None else b.op("Add", found, bias)


def _added_product(left: str, right: str) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        dtype = dtype_of(results)
        found = b.op("MatMul", operand(b, call[left], dtype), operand(b, call[right], dtype))
        if call["alpha"] != 1:
            found = b.op("Mul", found, operand(b, call["alpha"], dtype))
        if call["beta"] == 0:
            return found
        added = operand(b, call["self"], dtype)
        return b.op("Add", found, added if call["beta"] == 1 else b.op("Mul", added, operand(b, call["beta"], dtype)))

    return form


def _outer(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    dtype = dtype_of(results)
    return b.op("Mul", unsqueeze(b, operand(b, call["self"], dtype), 1), operand(b, call["vec2"], dtype))


def _einsum(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue | None:
    if "." in str(call["equation"]):  # ONNX wants as many dimensions for the dots of all operands
        return None
    items = b.items(call["tensors"])
    if isinstance(items, OnnxValue):
        raise NoOnnxForm("how many operands it has is not known before the run")
    dtype = dtype_of(results)
    return b.op("Einsum", *(operand(b, item, dtype) for item in items), equation=str(call["equation"]).replace(" ", ""))


def _grouped_product(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    """Rows by groups: each group's matrix times all rows, of which those of others are zero."""
    left, right, ends = call["self"], call["mat2"], call["offs"]
    if ends is None:
        return b.op("MatMul", left, right)
    if (rank_of(left), rank_of(right)) != (2, 3):
        raise NoOnnxForm("ONNX has no product by groups of columns")
    x = b.value(left)
    rows = b.op("Range", b.constant(0, DType.I64), reshape(b, size_of(b, left, 0), []), b.constant(1, DType.I64))
    after = operand(b, ends, DType.I64)
    before = b.op("Concat", b.constant([0], DType.I64), after, axis=0)
    groups = static_size(right, 0)
    first = b.op("Slice", before, b.constant([0], DType.I64), b.constant([groups], DType.I64))
    inside = b.op(
        "And", compared(b, "GreaterOrEqual", rows, unsqueeze(b, first, 1)),
        compared(b, "Less", rows, unsqueeze(b, after, 1)),
    )  # fmt: skip
    parts = where(b, unsqueeze(b, inside, 2), x, b.constant(0.0, x.dtype))
    return reduced(b, "ReduceSum", b.op("MatMul", parts, right), (0,), False)


# --- convolutions


def _per_axis(given: Any, n: int) -> list[int]:
    items = given if isinstance(given, tuple) else (given,)
    if not all(isinstance(item, int) for item in items):
        raise NoOnnxForm("a stride, padding or dilation is not known before the run")
    return [*items] * n if len(items) == 1 else [*items]


def _convolution(n: int, *, is_transposed: bool = False) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        x, padding = b.value(call["input"]), _per_axis(call["padding"], n)
        is_batch = rank_of(call["input"]) == n + 2
        how: dict[str, Any] = {
            "strides": _per_axis(call["stride"], n), "dilations": _per_axis(call["dilation"], n),
            "pads": [*padding, *padding], "group": int(call["groups"]),
        }  # fmt: skip
        if is_transposed and any(_per_axis(call["output_padding"], n)):
            how["output_padding"] = _per_axis(call["output_padding"], n)
        kind = "ConvTranspose" if is_transposed else "Conv"
        found = b.op(kind, x if is_batch else unsqueeze(b, x, 0), call["weight"], call["bias"], **how)
        return found if is_batch else squeeze(b, found, 0)

    return form


# --- attention


def _attention(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    query, key, value, mask = (call[name] for name in ("query", "key", "value", "attn_mask"))
    if call["dropout_p"] != 0:
        raise NoOnnxForm("it draws random numbers, which no runtime of ONNX draws as torch does")
    q, rank = b.value(query), rank_of(query)
    k, v = _for_all_heads(b, query, key, call), _for_all_heads(b, query, value, call)
    scale = call["scale"] if call["scale"] is not None else 1.0 / math.sqrt(static_size(query, -1))
    scores = b.op("MatMul", b.op("Mul", q, operand(b, scale, q.dtype)), turned(b, k, rank))
    if call["is_causal"]:
        size = b.op("Concat", size_of(b, query, -2), size_of(b, key, -2), axis=0)
        ones = b.op("Expand", b.constant(True, DType.BOOL), size)
        scores = where(b, b.op("Trilu", ones, upper=0), scores, infinite(b, q.dtype, -1))
    elif mask is not None and tensor_type(mask).dtype is DType.BOOL:
        scores = where(b, b.value(mask), scores, infinite(b, q.dtype, -1))
    elif mask is not None:
        scores = b.op("Add", scores, operand(b, mask, q.dtype))
    shares = softmax(b, scores, -1)
    if mask is not None:  # a row that sees nothing gives zeros
        most = reduced(b, "ReduceMax", scores, (rank - 1,), True)
        sees_none = compared(b, "Equal", most, infinite(b, q.dtype, -1))
        shares = where(b, sees_none, b.constant(0.0, q.dtype), shares)
    return b.op("MatMul", shares, v)


def _for_all_heads(b: OnnxEmitter, query: Value, x: Value, call: Call) -> OnnxValue:
    """Keys or values, repeated where several heads of the query share one."""
    found = b.value(x)
    if not call["enable_gqa"]:
        return found
    times, rank = static_size(query, -3) // static_size(x, -3), rank_of(x)
    if times == 1:
        return found
    repeats = b.constant([1] * (rank - 2) + [times, 1, 1], DType.I64)
    spread = b.op("Tile", unsqueeze(b, found, rank - 2), repeats)
    sizes = sizes_of(b, x)
    wide = b.op("Mul", sizes, b.constant([1] * (rank - 3) + [times, 1, 1], DType.I64))
    return reshape(b, spread, wide)


def _convolutions() -> Sequence[tuple[str, OnnxForm]]:
    found = []
    for n in (1, 2, 3):
        found.append((f"aten.conv{n}d.default", _convolution(n)))
        found.append(
            (f"aten.conv_transpose{n}d.{'default' if n == 1 else 'input'}", _convolution(n, is_transposed=True))
        )
    return found


FORMS: Forms = {
    "aten.linear.default": _linear,
    "aten.matmul.default": _product("self", "other"),
    **{f"aten.{name}.default": _product("self", "mat2") for name in ("mm", "bmm")},
    "aten.mv.default": _product("self", "vec"),
    "aten.dot.default": _product("self", "tensor"),
    "aten.addmm.default": _added_product("mat1", "mat2"),
    "aten.baddbmm.default": _added_product("batch1", "batch2"),
    "aten.outer.default": _outer,
    "aten.einsum.default": _einsum,
    "aten._grouped_mm.default": _grouped_product,
    **dict(_convolutions()),
    "aten.scaled_dot_product_attention.default": _attention,
}
