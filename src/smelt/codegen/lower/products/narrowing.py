"""Is an f32 product faster in bf16, casts included?

Products with a weight are by rule where the CPU multiplies bf16: they gain about twofold there, and a rule answers
alike in every process. Products of two activations and attention, where torch's own bf16 kernels may be slower than its
f32 ones, are measured once per shape and process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import TypeAlias

import torch
import torch.nn.functional as F

from smelt._torch.library import mkldnn
from smelt._torch.library.precision import multiplies_bf16
from smelt.codegen.lower.static.measure import CHOICES, Timing, time_candidates
from smelt.diag import Options
from smelt.ir import Node, TensorType
from smelt.ir.sizes import chosen

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
Sizes: TypeAlias = tuple[tuple[int, ...], ...]


def narrowing_pays(node: Node, options: Options) -> bool:
    """Whether an f32 product (linear, batched product, attention, convolution) runs faster in bf16, casts included.

    Of sizes that are known at run time only, those at hand say.
    """
    sizes, result = _sizes(node), node.result.type
    assert isinstance(result, TensorType)
    if result.device.startswith("cuda"):
        # Tensor cores, and casts that are computed where operands are read.
        return sizes is not None
    return sizes is not None and _pays(node.op.split(".")[1], sizes, result.numel, options)


@chosen
def _pays(kind: str, sizes: Sizes, results: int, options: Options) -> bool:
    work = _work(kind, sizes, results)
    if work < MIN_WORK or not multiplies_bf16():
        return False
    # The gain is more than a cast of the input and one of the result.
    outweighs_casts = work * _GAIN_NS > (prod(sizes[0]) + results) * _CAST_NS + _CALLS_NS
    match kind:
        case "linear":
            return mkldnn.has_linear() and sizes[1][-1] >= MIN_TERMS and outweighs_casts
        case "conv2d":
            return mkldnn.has_convolution() and prod(sizes[1][1:]) >= MIN_TERMS and outweighs_casts
    if options.deterministic or not options.measure or options.numerics == "eager-library":
        return False
    key = ("narrow", kind, sizes, torch.get_num_threads())
    best = {t.name: t.latency_us for t in CHOICES.timings(key, lambda: _time(kind, sizes))}
    return bool(best) and best["bf16"] < _MARGIN * best["f32"]


def _sizes(node: Node) -> Sizes | None:
    """The sizes of the tensor operands (bias and mask included, in order)."""
    types = [v.type for v in node.operands()]
    found = [t.sizes for t in types if isinstance(t, TensorType) and t.is_static]
    return tuple(found) if len(found) == len(types) and len(found) >= 2 else None


def _work(kind: str, sizes: Sizes, results: int) -> int:
    """Multiply-adds of the product."""
    match kind:
        case "conv2d":
            return results * prod(sizes[1][1:])
        case "scaled_dot_product_attention":
            return 2 * prod(sizes[0]) * sizes[1][-2]
    return results * sizes[0][-1]


def _time(kind: str, sizes: Sizes) -> tuple[Timing, ...]:
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
