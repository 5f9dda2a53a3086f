"""Is an f32 product faster in bf16, casts included?

Products with a weight are by rule where the CPU multiplies bf16: they gain about twofold there, and a rule answers
alike in every process. Products of two activations and attention, where torch's own bf16 kernels may be slower than its
f32 ones, are measured once per shape and process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

import torch
import torch.nn.functional as F

from smelt._torch import mkldnn
from smelt._torch.precision import multiplies_bf16
from smelt.codegen.lower.measure import CHOICES, Timing, time_candidates
from smelt.diag import Options
from smelt.ir import Node, TensorType

# Below this many multiply-adds the fixed cost of a library call outweighs any gain.
MIN_WORK = 1 << 20
# What one core gains on a multiply-add, and what casts cost: for each element in and out, and for each call.
_GAIN_NS, _CAST_NS, _CALLS_NS = 0.008, 0.11, 10_000.0
# Below this many terms a sum (depthwise convolutions, the first layer) there is little to gain.
MIN_TERMS = 64
# Timed products are cut down to this many batches.
_TIMED_BATCHES = 16
# A rounding is lost for nothing where the gain is not clear.
_MARGIN = 0.95

Run = Callable[[], object]


def narrowing_pays(node: Node, options: Options) -> bool:
    """Whether an f32 product (linear, batched product, attention, convolution) runs faster in bf16, casts included."""
    sizes = _sizes(node)
    if sizes is None or _work(node, sizes) < MIN_WORK or not multiplies_bf16():
        return False
    match _kind(node):
        case "linear":
            return mkldnn.has_linear() and sizes[1][-1] >= MIN_TERMS and _outweighs_casts(node, sizes)
        case "conv2d":
            return mkldnn.has_convolution() and prod(sizes[1][1:]) >= MIN_TERMS and _outweighs_casts(node, sizes)
    if options.deterministic or not options.measure or options.numerics == "eager-library":
        return False
    key = ("narrow", _kind(node), sizes, torch.get_num_threads())
    best = {t.name: t.latency_us for t in CHOICES.timings(key, lambda: _time(_kind(node), sizes))}
    return bool(best) and best["bf16"] < _MARGIN * best["f32"]


def _outweighs_casts(node: Node, sizes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the gain is more than a cast of the input and one of the result."""
    assert isinstance(node.result.type, TensorType)
    elements = prod(sizes[0]) + node.result.type.numel
    return _work(node, sizes) * _GAIN_NS > elements * _CAST_NS + _CALLS_NS


def _kind(node: Node) -> str:
    return node.op.split(".")[1]


def _sizes(node: Node) -> tuple[tuple[int, ...], ...] | None:
    """The sizes of the tensor operands (bias and mask included, in order)."""
    types = [v.type for v in node.operands()]
    found = [t.sizes for t in types if isinstance(t, TensorType) and t.is_static]
    return tuple(found) if len(found) == len(types) and len(found) >= 2 else None


def _work(node: Node, sizes: tuple[tuple[int, ...], ...]) -> int:
    """Multiply-adds of the product."""
    result = node.result.type
    assert isinstance(result, TensorType)
    match _kind(node):
        case "conv2d":
            return result.numel * prod(sizes[1][1:])
        case "scaled_dot_product_attention":
            return 2 * prod(sizes[0]) * sizes[1][-2]
    return result.numel * sizes[0][-1]


def _time(kind: str, sizes: tuple[tuple[int, ...], ...]) -> tuple[Timing, ...]:
    with torch.no_grad():
        if kind == "scaled_dot_product_attention":
            is_shared = sizes[0][-3:-2] != sizes[1][-3:-2]
            attention = partial(F.scaled_dot_product_attention, enable_gqa=is_shared)
            return _both(attention, *(torch.full(s, 0.5) for s in sizes[:3]))
        return _both(torch.matmul, *(torch.full(_cut(s), 0.5) for s in sizes[:2]))


def _cut(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Fewer batches of the same product."""
    return sizes if len(sizes) < 3 else (min(prod(sizes[:-2]), _TIMED_BATCHES), *sizes[-2:])


def _both(product: Callable[..., torch.Tensor], *operands: torch.Tensor) -> tuple[Timing, ...]:
    return time_candidates(
        {
            "f32": lambda: product(*operands),
            "bf16": lambda: product(*(t.to(torch.bfloat16) for t in operands)).to(torch.float32),
        }
    )
