"""Weights in the libraries' own layouts: oneDNN for linear and convolution, MKL for linear.

Invariant: every function answers None where this build, this CPU or this weight has no packed form; the caller then
uses the plain operator. A packed weight is an ordinary Python tensor that must be kept alive while its handle is
used; it can be shared by threads. Packing for many rows is at least as fast at few rows, so one packed copy serves
every batch size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from smelt._torch.library import shim
from smelt.diag.records import record

LINEAR = "aoti_torch_cpu__linear_pointwise"
LINEAR_BINARY = "aoti_torch_cpu__linear_pointwise_binary"
CONVOLUTION = "aoti_torch_cpu_mkldnn__convolution_pointwise"
CONVOLUTION_BINARY = "aoti_torch_cpu_mkldnn__convolution_pointwise_binary"
MKL_LINEAR = "aoti_torch_cpu__mkl_linear"


@record
class PostOp:
    """What oneDNN fuses behind a product: its name there, the operator, and the same in eager's own."""

    name: str
    op: str
    eager: Callable[..., torch.Tensor]


POST_OPS = (
    PostOp("none", "", lambda x: x),
    PostOp("relu", "aten.relu.default", torch.relu),
    PostOp("sigmoid", "aten.sigmoid.default", torch.sigmoid),
    PostOp("tanh", "aten.tanh.default", torch.tanh),
    PostOp("swish", "aten.silu.default", F.silu),
    PostOp("hardswish", "aten.hardswish.default", F.hardswish),
    PostOp("gelu", "aten.gelu.default", F.gelu),
    PostOp("leaky_relu", "aten.leaky_relu.default", F.leaky_relu),
    PostOp("hardtanh", "aten.hardtanh.default", F.hardtanh),
)


def _operator(namespace: str, name: str) -> Any:
    """An operator by name, or None where this build does not define it."""
    if shim.is_hidden(f"torch.ops.{namespace}.{name}"):
        return None
    try:
        return getattr(getattr(torch.ops, namespace), name)
    except (AttributeError, RuntimeError):
        return None


def _packs(weight: torch.Tensor) -> bool:
    return (
        torch.backends.mkldnn.is_available()
        and torch.backends.mkldnn.enabled
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.layout == torch.strided
        and weight.device.type == "cpu"
        and weight.numel() > 0
    )


def has_linear() -> bool:
    """Whether oneDNN linears with packed weights can be used: both the packing and the call are there."""
    return shim.has(LINEAR) and _operator("mkldnn", "_reorder_linear_weight") is not None


def has_convolution() -> bool:
    """Whether oneDNN convolutions with packed weights can be used."""
    return shim.has(CONVOLUTION) and _operator("mkldnn", "_reorder_convolution_weight") is not None


def has_mkl_linear() -> bool:
    """Whether MKL linears with packed weights can be used."""
    return (
        bool(torch.backends.mkl.is_available())
        and shim.has(MKL_LINEAR)
        and _operator("mkl", "_mkl_reorder_linear_weight") is not None
    )


def pack_linear(weight: torch.Tensor, rows: int = 128) -> torch.Tensor | None:
    """oneDNN's form of a linear weight f32[out, in] (or bf16), tuned for about `rows` rows of input; None if it has
    none.

    Raises: nothing; a refusal of the library is None.
    """
    reorder = _operator("mkldnn", "_reorder_linear_weight")
    if reorder is None or not shim.has(LINEAR) or not _packs(weight) or weight.dim() != 2:
        return None
    with torch.inference_mode(False), torch.no_grad():
        try:
            return reorder(weight.detach().contiguous(), rows)
        except RuntimeError:
            return None


def pack_convolution(
    weight: torch.Tensor,
    *,
    padding: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int],
) -> torch.Tensor | None:
    """oneDNN's form of a convolution weight f32[out, in/groups, *k] (or bf16) for inputs of `input_size`; None if none.

    Raises: nothing; a refusal of the library is None.
    """
    reorder = _operator("mkldnn", "_reorder_convolution_weight")
    if reorder is None or not shim.has(CONVOLUTION) or not _packs(weight) or weight.dim() not in (4, 5):
        return None
    with torch.inference_mode(False), torch.no_grad():
        try:
            return reorder(
                weight.detach().contiguous(), list(padding), list(stride), list(dilation), groups, list(input_size)
            )
        except RuntimeError:
            return None


def pack_mkl_linear(weight: torch.Tensor, rows: int) -> torch.Tensor | None:
    """MKL's form of a linear weight f32[out, in] for exactly `rows` rows of input; None if it has none."""
    reorder = _operator("mkl", "_mkl_reorder_linear_weight")
    if reorder is None or not has_mkl_linear() or not _packs(weight) or weight.dtype != torch.float32:
        return None
    with torch.inference_mode(False), torch.no_grad():
        try:
            return reorder(weight.detach().contiguous(), rows)
        except RuntimeError:
            return None
