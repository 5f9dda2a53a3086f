"""The gradient of a tensor, whichever it is: others than leaves have none, and warn or raise where they are asked."""

from __future__ import annotations

from typing import Any

import torch

_BASE: Any = getattr(torch._C, "TensorBase", torch.Tensor)
GRAD_SLOT: Any = _BASE.grad
"""The descriptor of `tensor.grad`, which a recording may replace for a while."""
_SHAPE, _STRIDE, _REQUIRES_GRAD = _BASE.shape, _BASE.stride, _BASE.requires_grad

_REQUIRES: Any = getattr(torch._C, "TensorBase", torch.Tensor).requires_grad


def requires_gradient(tensor: torch.Tensor) -> bool:
    """`tensor.requires_grad`, which a recording that replaces it is not told of."""
    return bool(_REQUIRES.__get__(tensor, type(tensor)))


def is_leaf(tensor: torch.Tensor) -> bool:
    """`tensor.is_leaf`; False where torch forbids to ask: of a view that was made without gradients, after its base was
    written."""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


def history(tensor: torch.Tensor) -> Any:
    """The node of autograd that a tensor follows from; None for leaves, and where torch forbids to ask."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
"""What a tensor has under these names are the hooks that autograd calls for it; None where there never was one."""


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether autograd calls somebody's functions when it has a gradient of this tensor."""
    return any(getattr(tensor, name, None) for name in HOOKS)


def unseen_layout(tensor: torch.Tensor) -> tuple[torch.Size, tuple[int, ...], bool]:
    """Sizes, strides and whether gradients are required, past what a recording puts in place of these attributes."""
    return _SHAPE.__get__(tensor), _STRIDE(tensor), _REQUIRES_GRAD.__get__(tensor)


def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that a leaf has, else None."""
    return tensor.grad if is_leaf(tensor) else None
