"""Attention that is differentiated: the library's kernel where eager takes it, else the products that eager takes.

The kernel keeps the logarithms of its sums, with which its backward needs no matrix of all scores. That backward has no
gradient in torch; here it is differentiated as the products that it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, sqrt

from smelt.ir import Arg, DType, Value
from smelt.ops.catalogue.gradients.parts import has_sizes, rank_of, sizes_of, turned, zeros
from smelt.ops.catalogue.products import takes_flash_attention
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type
from smelt.ops.registry import overload

_FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
_FLASH_BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
_NARROW = (DType.BF16, DType.F16)


def attention_form(b: Emitter, call: Call) -> Arg | None:
    """The kernel that eager takes for a call, or the products."""
    p = call["dropout_p"]
    if not has_sizes(call) or not isinstance(p, int | float) or tensor_type(call["query"]).device != "cpu":
        return None
    if p == 0 and overload(_FLASH) is not None and takes_flash_attention(call):
        mask = _mask(b, call, causal=False)
        operands = (call["query"], call["key"], call["value"])
        return b.calls(_FLASH, *operands, 0.0, call["is_causal"], attn_mask=mask, scale=call["scale"])[0]
    return products(b, call, lambda weights: b.call("aten.dropout.default", weights, p, True))


def _mask(b: Emitter, call: Call, causal: bool) -> Value | None:
    """What is added to scores; none is added where they are hidden by a bool alone."""
    query, mask = tensor_type(call["query"]), call["attn_mask"]
    if causal and call["is_causal"]:
        sizes = (query.sizes[-2], sizes_of(call["key"])[-2])
        mask = b.call("aten.tril.default", b.call("aten.ones.default", sizes, dtype=DType.BOOL))
    if mask is None or tensor_type(mask).dtype is not DType.BOOL:
        return mask
    hidden = b.call("aten.logical_not.default", mask)
    return b.call("aten.masked_fill.Scalar", zeros(b, tensor_type(mask), query.dtype), hidden, -inf)


def _scale(call: Call) -> float:
    given, width = call["scale"], sizes_of(call["query"])[-1]
    return (1 / sqrt(width) if width else 1.0) if given is None else given


def _groups(b: Emitter, call: Call) -> tuple[Value, Value]:
    """Keys and values of each head of the queries."""
    heads = sizes_of(call["query"])[-3] if rank_of(call["query"]) >= 3 else 1

    def of_each_head(x: Value) -> Value:
        own = sizes_of(x)[-3] if rank_of(x) >= 3 else 1
        if not call["enable_gqa"] or own == heads:
            return x
        return b.call("aten.repeat_interleave.self_int", x, heads // own, -3)

    return of_each_head(call["key"]), of_each_head(call["value"])


def _softmax(b: Emitter, scores: Value) -> Value:
    """Over the last dimension; nothing, with no gradient, where all scores are minus infinity."""
    is_hidden = b.call("aten.all.dim", b.call("aten.eq.Scalar", scores, -inf), -1, True)
    found = b.call("aten.softmax.int", b.call("aten.masked_fill.Scalar", scores, is_hidden, 0), -1)
    return b.call("aten.masked_fill.Scalar", found, is_hidden, 0)


def products(b: Emitter, call: Call, drop: Callable[[Value], Value]) -> Value:
    """Step by step as eager: queries and keys are scaled by half, each. drop: what dropout makes of the weights."""
    dtype, p = tensor_type(call["query"]).dtype, call["dropout_p"]
    wide = (
        {n: b.call("aten._to_copy.default", call[n], dtype=DType.F32) for n in ("query", "key", "value")}
        if (dtype in _NARROW)
        else {}
    )
    mask = _mask(b, call, causal=True)
    if wide and mask is not None:
        mask = b.call("aten._to_copy.default", mask, dtype=DType.F32)
    call = {**call, **wide}
    scale = _scale(call)
    half = sqrt(abs(scale))
    key, value = _groups(b, call)
    query = b.call("aten.mul.Tensor", call["query"], -half if scale < 0 else half)
    scores = b.call("aten.matmul.default", query, b.call("aten.mul.Tensor", turned(b, key), half))
    if mask is not None:
        scores = b.call("aten.add.Tensor", scores, mask)
    weights = _softmax(b, scores)
    if p > 0:
        weights = drop(weights)
    found = b.call("aten.matmul.default", weights, value)
    return b.call("aten._to_copy.default", found, dtype=dtype) if wide else found


def _gradients(b: Emitter, call: Call, grad: Value) -> Mapping[str, Callable[[], Value]]:
    """Of the three operands, and of a mask that is added to the scores. call: of the kernel, forward or backward."""
    scale = _scale(call)
    key, value = _groups(b, {**call, "enable_gqa": True})
    scores = b.call("aten.mul.Tensor", b.call("aten.matmul.default", call["query"], turned(b, key)), scale)
    mask = _mask(b, call, causal=True)
    weights = _softmax(b, scores if mask is None else b.call("aten.add.Tensor", scores, mask))
    of_weights = b.call("aten.mul.Tensor", b.call("aten.matmul.default", grad, turned(b, value)), weights)
    total = b.call("aten.sum.dim_IntList", of_weights, (-1,), True)
    of_scores = b.call("aten.sub.Tensor", of_weights, b.call("aten.mul.Tensor", weights, total))

    def summed(x: Value, like: Value) -> Value:
        """Over the heads that share one."""
        sizes, own = sizes_of(x), sizes_of(like)
        if sizes == own:
            return x
        apart = b.call("aten.view.default", x, (*sizes[:-3], own[-3], sizes[-3] // own[-3], *sizes[-2:]))
        return b.call("aten.sum.dim_IntList", apart, (-3,))

    def product(left: Value, right: Value, factor: float = 1.0) -> Value:
        made = b.call("aten.matmul.default", left, right)
        return made if factor == 1 else b.call("aten.mul.Tensor", made, factor)

    return {
        "query": lambda: product(of_scores, key, scale),
        "key": lambda: summed(product(turned(b, of_scores), call["query"], scale), call["key"]),
        "value": lambda: summed(product(turned(b, weights), grad), call["value"]),
        "attn_mask": lambda: of_scores,
    }


def _of_flash(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    grad, of_sums = grads
    if grad is None or of_sums is not None or not has_sizes(call, grad) or call["dropout_p"] != 0:
        return None
    made: list[tuple[Value, ...]] = []

    def part(which: int) -> Value:
        if not made:
            operands = (grad, call["query"], call["key"], call["value"], *results)
            how = {"attn_mask": call["attn_mask"], "scale": call["scale"]}
            made.append(b.calls(_FLASH_BACKWARD, *operands, 0.0, call["is_causal"], **how))
        return made[0][which]

    return {
        "query": lambda: part(0),
        "key": lambda: part(1),
        "value": lambda: part(2),
        "attn_mask": lambda: _gradients(b, call, grad)["attn_mask"](),
    }


def flash_backward_form(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    """The three gradients by products, which can be differentiated."""
    if not has_sizes(call) or call["dropout_p"] != 0:
        return None
    found = _gradients(b, call, call["grad_out"])
    return tuple(found[name]() for name in ("query", "key", "value"))


GRADIENTS: Mapping[str, Gradient] = {_FLASH: _of_flash}
"""Gradients of attention."""
