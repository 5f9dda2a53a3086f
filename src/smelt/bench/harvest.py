"""The matrix products and convolutions that one run of a model does: shapes, operations, which share a weight.

Invariant: `flops` counts one multiply and one add per term of each product, and under a causal mask only the terms
that the mask keeps, so that no faster-than-possible kernel can hide behind a too large count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from smelt._torch.seen import dispatch_mode
from smelt.bench.models import Target
from smelt.diag import SmeltError
from smelt.diag.records import record

Kind = Literal["linear", "batched", "convolution", "attention"]


@record
class Product:
    """One product of a run.

    linear: `left [m, k]`, `right [k, n]`; batched: `left [b, m, k]`, `right [b, k, n]`;
    attention: `left` the query `[b, h, s, d]`, `right` the key `[b, h', t, d]`;
    convolution: `left` the input, `right` the weight, with `stride`, `padding`, `dilation`, `groups`.
    `weight` names the memory of `right`: products with the same one share a weight.
    """

    kind: Kind
    left: tuple[int, ...]
    right: tuple[int, ...]
    flops: int
    bias: bool = False
    weight: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    causal: bool = False
    transposed: bool = False
    value_width: int = 0


def _memory(tensor: Tensor) -> tuple[int, ...]:
    return (tensor.data_ptr(), *tensor.shape)


def _linear(left: Tensor, right: Tensor, bias: bool) -> Product:
    m, k = left.shape
    n = right.shape[1]
    return Product("linear", tuple(left.shape), tuple(right.shape), 2 * m * k * n, bias, _memory(right))


def _batched(left: Tensor, right: Tensor) -> Product:
    b, m, k = left.shape
    return Product("batched", tuple(left.shape), tuple(right.shape), 2 * b * m * k * right.shape[2])


def _spatial(values: Sequence[int], ndim: int) -> tuple[int, ...]:
    """ATen lets a length-1 list stand for all spatial dimensions."""
    return tuple(values) * ndim if len(values) == 1 else tuple(values)


def _convolution(args: Sequence[Any], result: Tensor) -> Product:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    terms = x.numel() * math.prod(weight.shape[1:]) if transposed else result.numel() * math.prod(weight.shape[1:])
    nd = x.ndim - 2
    return Product(
        "convolution", tuple(x.shape), tuple(weight.shape), 2 * terms, bias is not None, _memory(weight),
        _spatial(stride, nd), _spatial(padding, nd), _spatial(dilation, nd), groups, transposed=transposed,
    )  # fmt: skip


def _attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Product:
    b, h, s, d = query.shape
    t, width = key.shape[-2], value.shape[-1]
    pairs = sum(min(i + 1, t) for i in range(s)) if causal else s * t
    flops = 2 * b * h * pairs * (d + width)
    return Product("attention", tuple(query.shape), tuple(key.shape), flops, causal=causal, value_width=width)


def _argument(schema_position: int, name: str, default: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """An argument given by position or by name."""
    return args[schema_position] if len(args) > schema_position else kwargs.get(name, default)


def _of_backward(product: Product, mask: Sequence[bool]) -> tuple[Product, ...]:
    """The products of a gradient: as many operations as forward for each of the two operands that has one.

    They are described by forward's own shapes.
    """
    return (product,) * sum(mask[:2])


def _convolution_backward(args: Sequence[Any]) -> tuple[Product, ...]:
    grad, x, weight, bias_sizes, *geometry, mask = args
    return _of_backward(_convolution((x, weight, bias_sizes, *geometry), grad), mask)


def _attention_backward(args: Sequence[Any]) -> tuple[Product, ...]:
    """Four of its five products: the scores might have been kept."""
    return _of_backward(_attention(args[1], args[2], args[3], bool(args[7])), (True, True))


_Reader = Callable[[Sequence[Any], dict[str, Any], Any], Product | tuple[Product, ...]]

_READERS: dict[str, _Reader] = {
    "aten::mm": lambda a, k, r: _linear(a[0], a[1], False),
    "aten::addmm": lambda a, k, r: _linear(a[1], a[2], True),
    "aten::bmm": lambda a, k, r: _batched(a[0], a[1]),
    "aten::baddbmm": lambda a, k, r: _batched(a[1], a[2]),
    "aten::convolution": lambda a, k, r: _convolution(a, r),
    "aten::_scaled_dot_product_flash_attention_for_cpu": lambda a, k, r: _attention(
        a[0], a[1], a[2], bool(_argument(4, "is_causal", False, a, k))
    ),
    "aten::convolution_backward": lambda a, k, r: _convolution_backward(a),
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": lambda a, k, r: _attention_backward(a),
    "aten::_scaled_dot_product_fused_attention_overrideable": lambda a, k, r: _attention(
        a[0], a[1], a[2], bool(_argument(5, "is_causal", False, a, k))
    ),
}


def harvest(target: Target, args: tuple[Tensor, ...]) -> tuple[Product, ...]:
    """Every product of one run of `target(*args)`, in order.

    Raises: SmeltError (S0303) where this torch offers no way to watch its operators.
    """
    if not dispatch_mode.AVAILABLE:
        raise SmeltError(
            "the products of the model cannot be counted",
            why="this torch has no TorchDispatchMode",
            fix="use a supported torch (see README)",
            code="S0303",
        )
    found: list[Product] = []

    def watch(func: Any, call_args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*call_args, **kwargs)
        reader = _READERS.get(func.name().split(".")[0])
        if reader is not None:
            products = reader(call_args, kwargs, result)
            found.extend(products if isinstance(products, tuple) else (products,))
        return result

    with torch.no_grad(), dispatch_mode.intercepting(watch):
        target(*args)
    return tuple(found)


def total_flops(products: Sequence[Product]) -> int:
    """Multiplies and adds of all products."""
    return sum(p.flops for p in products)
