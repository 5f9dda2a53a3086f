"""Rows that no system can be below by much: what the arithmetic alone costs on this machine, measured in the same run.

gemm-library  the model's products alone, each a library call on weights packed beforehand (linear and 2-d convolution
              through oneDNN; batched products and attention's two products through torch.bmm), nothing between them
fma-floor     the operations of those products at the peak rate of fused multiply-adds
read-floor    for programs that read more bytes of weights than they do operations with them (one token at a time): one
              pass over as many bytes
copy-floor    for programs without products: a copy that moves as many bytes as the inputs and outputs together
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from smelt._torch.library import packed_products
from smelt.bench.harvest import Product
from smelt.bench.systems import Ready

GEMM_LIBRARY = "gemm-library"
FMA_FLOOR = "fma-floor"
COPY_FLOOR = "copy-floor"
READ_FLOOR = "read-floor"

_Step = tuple[Callable[..., Any], tuple[Tensor, ...]]


@dataclass
class _Operands:
    """Random operands of one dtype: one packed weight per distinct weight, one activation per distinct shape."""

    dtype: torch.dtype
    activations: dict[tuple[Any, ...], Tensor]
    weights: dict[tuple[Any, ...], Callable[[Tensor], Tensor]]

    def activation(self, shape: tuple[int, ...], *, channels_last: bool = False) -> Tensor:
        key = (shape, channels_last)
        if key not in self.activations:
            x = torch.rand(shape).to(self.dtype)
            self.activations[key] = x.to(memory_format=torch.channels_last) if channels_last else x
        return self.activations[key]

    def weight(self, product: Product, make: Callable[[], Callable[[Tensor], Tensor]]) -> Callable[[Tensor], Tensor]:
        key = (product.weight, product.left, product.stride, product.padding, product.dilation, product.groups)
        if key not in self.weights:
            self.weights[key] = make()
        return self.weights[key]


def _linear_step(product: Product, operands: _Operands) -> _Step:
    k, n = product.right

    def make() -> Callable[[Tensor], Tensor]:
        bias = torch.rand(n).to(operands.dtype) if product.bias else None
        return packed_products.packed_linear(torch.rand(n, k).to(operands.dtype), bias, product.left[0])

    return operands.weight(product, make), (operands.activation(product.left),)


def _convolution_step(product: Product, operands: _Operands) -> _Step:
    def weight_and_bias() -> tuple[Tensor, Tensor | None]:
        bias_size = product.right[1] * product.groups if product.transposed else product.right[0]
        bias = torch.rand(bias_size).to(operands.dtype) if product.bias else None
        return torch.rand(product.right).to(operands.dtype), bias

    def make_packed() -> Callable[[Tensor], Tensor]:
        return packed_products.packed_convolution(
            *weight_and_bias(), stride=product.stride, padding=product.padding, dilation=product.dilation,
            groups=product.groups, input_size=product.left,
        )  # fmt: skip

    def make_plain() -> Callable[[Tensor], Tensor]:
        zeros = [0] * len(product.stride)
        geometry = (product.stride, product.padding, product.dilation, product.transposed, zeros, product.groups)
        parameters = weight_and_bias()
        return lambda x: torch.convolution(x, *parameters, *geometry)

    if product.transposed or len(product.left) != 4:
        return operands.weight(product, make_plain), (operands.activation(product.left),)
    return operands.weight(product, make_packed), (operands.activation(product.left, channels_last=True),)


def _batched_steps(product: Product, operands: _Operands) -> list[_Step]:
    return [(torch.bmm, (operands.activation(product.left), operands.activation(product.right)))]


def _attention_steps(product: Product, operands: _Operands) -> list[_Step]:
    """The scores' product and the mix's, for all heads at once (a library call has no causal form)."""
    b, h, s, d = product.left
    t = product.right[-2]
    query, key = operands.activation((b * h, s, d)), operands.activation((b * h, d, t))
    weights, value = operands.activation((b * h, s, t)), operands.activation((b * h, t, product.value_width))
    return [(torch.bmm, (query, key)), (torch.bmm, (weights, value))]


def _steps(product: Product, operands: _Operands) -> list[_Step]:
    match product.kind:
        case "linear":
            return [_linear_step(product, operands)]
        case "convolution":
            return [_convolution_step(product, operands)]
        case "batched":
            return _batched_steps(product, operands)
        case "attention":
            return _attention_steps(product, operands)


def gemm_library(products: Sequence[Product], dtype: torch.dtype) -> Ready:
    """All products of a run as library calls with packed weights, one after the other."""
    operands = _Operands(dtype, {}, {})
    steps = [step for product in products for step in _steps(product, operands)]

    def run() -> None:
        for call, args in steps:
            call(*args)

    settings = {
        "calls": len(steps),
        "packed_linear": packed_products.LINEAR_AVAILABLE,
        "packed_convolution": packed_products.CONVOLUTION_AVAILABLE,
    }
    return Ready(run, (), settings, outputs=lambda _: ())


def weight_nbytes(products: Sequence[Product], dtype: torch.dtype) -> int:
    """Bytes of the distinct weights of all linears."""
    sizes = {p.weight: math.prod(p.right) for p in products if p.kind == "linear"}
    return sum(sizes.values()) * dtype.itemsize


def read_of_same_bytes(nbytes: int) -> Ready:
    """The largest of as many bytes as f32: one pass of reading, on all of torch's threads."""
    source = torch.rand(max(1, nbytes // 4))
    return Ready(source.amax, (), {"bytes_read": nbytes}, outputs=lambda _: ())


def copy_of_same_bytes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Ready:
    """`out.copy_(x)` where reading x and writing out moves the bytes of all inputs and outputs."""
    nbytes = sum(t.numel() * t.element_size() for t in (*inputs, *outputs))
    source = torch.rand(max(1, math.ceil(nbytes / 8)))
    into = torch.empty_like(source)
    return Ready(into.copy_, (source,), {"bytes_moved": nbytes}, outputs=lambda _: ())
