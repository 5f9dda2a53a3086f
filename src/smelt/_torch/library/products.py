"""Calls of the libraries' products and of attention's own choice of kernel, for build-time questions; that kernel.

Adapter for `mkldnn::_linear_pointwise`, `mkl::_mkl_linear`, `aten::_fused_sdp_choice` and eager's flash kernel. Where
one is missing the answer is None: nothing is timed, and attention is left to the public operator.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt._torch.library import shim

_FLASH = 1


def _operator(namespace: str, name: str) -> Any:
    if shim.is_hidden(f"torch.ops.{namespace}.{name}"):
        return None
    try:
        return getattr(getattr(torch.ops, namespace), name).default
    except (AttributeError, RuntimeError):
        return None


def onednn_linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor | None:
    """x @ weight^T + bias with a weight packed for oneDNN; f32[m, k] -> f32[m, n]."""
    op = _operator("mkldnn", "_linear_pointwise")
    return None if op is None else op(x, packed, bias, "none", [], "")


def mkl_linear(
    x: torch.Tensor, packed: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """x @ weight^T + bias with a weight packed for MKL and exactly x's rows; f32[m, k] -> f32[m, n]."""
    op = _operator("mkl", "_mkl_linear")
    return None if op is None else op(x, packed, weight, bias, x.shape[0])


def attention_is_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> bool:
    """Whether eager would run its flash kernel for these operands (only their sizes, strides and dtypes matter)."""
    op = _operator("aten", "_fused_sdp_choice")
    if op is None or not all(x.numel() for x in (query, key, value)):
        return False  # eager returns before it comes to the kernel, which divides by the number of heads
    return bool(op(query, key, value, mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa) == _FLASH)


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    *,
    is_causal: bool,
    scale: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager's flash kernel: the result, and what its backward pass wants (nothing where the public operator ran)."""
    op = _operator("aten", "_scaled_dot_product_flash_attention_for_cpu")
    if op is not None:
        found, sums = op(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
        return found, sums
    attention = torch.nn.functional.scaled_dot_product_attention
    found = attention(query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale)
    return found, found.new_empty(0)
