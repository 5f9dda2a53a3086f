"""The gradient of a tensor, whichever it is: others than leaves have none, and warn or raise where they are asked."""

from __future__ import annotations

from typing import Any

import torch


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


def gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    """The gradient that a leaf has, else None."""
    return tensor.grad if is_leaf(tensor) else None
