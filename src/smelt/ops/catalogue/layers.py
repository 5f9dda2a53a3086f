"""Whole layers of transformers: the operators that `torch.nn` calls in evaluation mode in place of its own spelling.

Their lowerings are what the operators compute step by step: queries are scaled before their products, and a mask of
numbers counts as a mask of bools (anything but 0 hides a score).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt

import torch

from smelt.ir import Arg, DType, Value
from smelt.ops.record import Call, Emitter, OpRecord, Sample, Trait, sample, tensor_type
from smelt.ops.samples import bools, floats

_FLOATS = (DType.F32, DType.F64, DType.BF16)
# What a mask's sizes stand for, by the number that comes with it: queries x keys, batch x keys, or all scores.
_QUERIES_BY_KEYS, _BATCH_BY_KEYS, _SCORES = 0, 1, 2


def _lower_attention(b: Emitter, call: Call) -> tuple[Arg, ...] | None:
    found = _attention(b, (call["query"], call["key"], call["value"]), call["num_head"], call)
    if found is None:
        return None
    made, probabilities = found
    if not call["need_weights"]:
        return made, None
    if call["average_attn_weights"]:
        total = b.call("aten.sum.dim_IntList", probabilities, (1,))
        probabilities = b.call("aten.div.Tensor", total, call["num_head"])
    return made, probabilities


def _attention(b: Emitter, sources: tuple[Value, Value, Value], heads: int, call: Call) -> tuple[Value, Value] | None:
    """Three of f[batch, length, dim] -> the same, and the probabilities f[batch, heads, length, length]."""
    kind = tensor_type(sources[0])
    if kind.rank != 3 or not kind.is_static or kind.numel == 0 or kind.dtype not in _FLOATS:
        return None
    batch, length, dim = kind.sizes
    mask = call["mask"]
    hides = None if mask is None else _hides(b, mask, call["mask_type"], (batch, heads, length, length))
    if (mask is not None and hides is None) or any(tensor_type(s).shape != kind.shape for s in sources):
        return None
    q, k, v = (
        b.call("aten.transpose.int", b.call("aten.view.default", part, (batch, length, heads, dim // heads)), 1, 2)
        for part in _projected(b, sources, dim, call["qkv_weight"], call["qkv_bias"])
    )
    q = b.call("aten.mul.Tensor", q, 1 / sqrt(dim // heads))
    scores = b.call("aten.matmul.default", q, b.call("aten.transpose.int", k, -2, -1))
    if hides is not None:
        scores = b.call("aten.masked_fill.Scalar", scores, hides, -inf)
    probabilities = b.call("aten.softmax.int", scores, -1)
    context = b.call("aten.transpose.int", b.call("aten.matmul.default", probabilities, v), 1, 2)
    joined = b.call("aten.reshape.default", context, (batch, length, dim))
    return b.call("aten.linear.default", joined, call["proj_weight"], call["proj_bias"]), probabilities


def _projected(
    b: Emitter, sources: tuple[Value, Value, Value], dim: int, weight: Value, bias: Value
) -> tuple[Value, ...]:
    """Queries, keys and values: one product where all come from the same tensor."""
    if sources[0] is sources[1] is sources[2]:
        return b.calls("aten.split.Tensor", b.call("aten.linear.default", sources[0], weight, bias), dim, -1)
    weights, biases = b.calls("aten.split.Tensor", weight, dim), b.calls("aten.split.Tensor", bias, dim)
    return tuple(b.call("aten.linear.default", *parts) for parts in zip(sources, weights, biases, strict=True))


def _hides(b: Emitter, mask: Value, mask_type: int | None, scores: tuple[int, ...]) -> Value | None:
    """bool, broadcasting to the scores [batch, heads, queries, keys]; None for a mask of other sizes."""
    batch, _, queries, keys = scores
    sizes, wide = {
        _QUERIES_BY_KEYS: ((queries, keys), (1, 1, queries, keys)),
        _BATCH_BY_KEYS: ((batch, keys), (batch, 1, 1, keys)),
        _SCORES: (scores, scores),
    }.get(-1 if mask_type is None else mask_type, (None, ()))
    kind = tensor_type(mask)
    if not kind.is_static or kind.sizes != sizes:
        return None
    hides = mask if kind.dtype is DType.BOOL else b.call("aten.ne.Scalar", mask, 0)
    return hides if sizes == wide else b.call("aten.reshape.default", hides, wide)


def _lower_encoder_layer(b: Emitter, call: Call) -> Arg | None:
    src, is_norm_first = call["src"], call["norm_first"]

    def norm(x: Value, which: int) -> Value:
        weight, bias = call[f"norm_weight_{which}"], call[f"norm_bias_{which}"]
        return b.call("aten.layer_norm.default", x, (call["embed_dim"],), weight, bias, call["eps"])

    start = norm(src, 1) if is_norm_first else src
    attended = _attention(b, (start, start, start), call["num_heads"], call)
    if attended is None:
        return None
    x = b.call("aten.add.Tensor", attended[0], src)
    if not is_norm_first:
        x = norm(x, 1)
    hidden = norm(x, 2) if is_norm_first else x
    hidden = b.call("aten.linear.default", hidden, call["ffn_weight_1"], call["ffn_bias_1"])
    hidden = b.call("aten.gelu.default" if call["use_gelu"] else "aten.relu.default", hidden)
    hidden = b.call("aten.linear.default", hidden, call["ffn_weight_2"], call["ffn_bias_2"])
    x = b.call("aten.add.Tensor", hidden, x)
    return x if is_norm_first else norm(x, 2)


_BATCH, _LENGTH, _DIM, _HEADS = 2, 5, 8, 2


def _masks() -> Iterator[tuple[torch.Tensor | None, int | None]]:
    yield None, None
    yield torch.full((_LENGTH, _LENGTH), -inf).triu(1), _QUERIES_BY_KEYS
    yield torch.arange(_LENGTH).expand(_BATCH, _LENGTH) > 2, _BATCH_BY_KEYS
    yield bools(_BATCH, _HEADS, _LENGTH, _LENGTH), _SCORES
    yield torch.ones(_BATCH, _LENGTH, dtype=torch.bool), _BATCH_BY_KEYS


def _weights(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    sizes = ((3 * _DIM, _DIM), (3 * _DIM,), (_DIM, _DIM), (_DIM,))
    return tuple(floats(*size, seed=i, dtype=dtype) for i, size in enumerate(sizes))


def _attentions() -> Iterator[Sample]:
    for dtype in (torch.float32, torch.float64):
        x = floats(_BATCH, _LENGTH, _DIM, dtype=dtype)
        for mask, kind in _masks():
            yield sample(x, x, x, _DIM, _HEADS, *_weights(dtype), mask, True, True, kind)
    x = floats(_BATCH, _LENGTH, _DIM)
    yield sample(x, x, x, _DIM, _HEADS, *_weights(), None, True, False)
    other = floats(_BATCH, _LENGTH, _DIM, seed=5)
    yield sample(x, other, other, _DIM, _HEADS, *_weights())


def _encoder_layers() -> Iterator[Sample]:
    x, hidden = floats(_BATCH, _LENGTH, _DIM), 12
    norms = tuple(floats(_DIM, seed=10 + i) for i in range(4))
    ffn = (floats(hidden, _DIM, seed=14), floats(hidden, seed=15), floats(_DIM, hidden, seed=16), floats(_DIM, seed=17))
    for mask, kind in _masks():
        for use_gelu, norm_first in ((True, False), (False, True), (False, False)):
            yield sample(x, _DIM, _HEADS, *_weights(), use_gelu, norm_first, 1e-5, *norms, *ffn, mask, kind)


LAYERS: tuple[OpRecord, ...] = (
    OpRecord(
        "aten._native_multi_head_attention.default",
        "torch._native_multi_head_attention",
        _attentions,
        lower=_lower_attention,
        source="arXiv:1706.03762",
    ),
    OpRecord(
        "aten._transformer_encoder_layer_fwd.default",
        "torch._transformer_encoder_layer_fwd",
        _encoder_layers,
        lower=_lower_encoder_layer,
        source="arXiv:1706.03762",
        traits=Trait.SHRINKS,
    ),
)
