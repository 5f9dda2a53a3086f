"""Linear and convolution with weights packed once for oneDNN.

Adapter for the private operators `mkldnn::_linear_pointwise`, `mkldnn::_convolution_pointwise` and the two that pack
their weights. Where one is missing, or oneDNN is not built in, the public operator of the same meaning takes its
place: the same answer at the speed of eager.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F


def _overload(name: str) -> Any:
    """The default overload of a private oneDNN operator, or None."""
    try:
        return getattr(torch.ops.mkldnn, name).default
    except (AttributeError, RuntimeError):
        return None


_HAS_ONEDNN = torch.backends.mkldnn.is_available()
_LINEAR = _overload("_linear_pointwise")
_PACK_LINEAR = _overload("_reorder_linear_weight")
_CONVOLUTION = _overload("_convolution_pointwise")
_PACK_CONVOLUTION = _overload("_reorder_convolution_weight")

LINEAR_AVAILABLE = bool(_HAS_ONEDNN and _LINEAR and _PACK_LINEAR)
CONVOLUTION_AVAILABLE = bool(_HAS_ONEDNN and _CONVOLUTION and _PACK_CONVOLUTION)

Product = Callable[[torch.Tensor], torch.Tensor]


def packed_linear(weight: torch.Tensor, bias: torch.Tensor | None, rows: int) -> Product:
    """`[rows, k] -> [rows, n]` for a weight `[n, k]`, packed for about `rows` rows (other counts work too)."""
    if not LINEAR_AVAILABLE:
        return lambda x: F.linear(x, weight, bias)
    packed = _PACK_LINEAR(weight.contiguous(), rows)
    return lambda x: _LINEAR(x, packed, bias, "none", [], "")


def packed_convolution(
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    input_size: Sequence[int],
) -> Product:
    """A 2-d convolution `[n, c, h, w] -> [n, k, h', w']`, its weight packed for inputs of `input_size`."""
    stride, padding, dilation = list(stride), list(padding), list(dilation)
    if not CONVOLUTION_AVAILABLE:
        return lambda x: F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    packed = _PACK_CONVOLUTION(weight, padding, stride, dilation, groups, list(input_size))
    return lambda x: _CONVOLUTION(x, packed, bias, padding, stride, dilation, groups, "none", [], "")
