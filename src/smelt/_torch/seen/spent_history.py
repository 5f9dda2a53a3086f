"""A tensor with a history that nobody can go back through any more, as `loss` has after `loss.backward()`."""

from __future__ import annotations

from typing import Any

import torch

_LEAF = torch.zeros((), requires_grad=True)


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # gives this very tensor the history
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.enable_grad():
            square = _LEAF * _LEAF
        for _ in range(2):  # the second raises torch's own error
            torch.autograd.grad(square, _LEAF)


def with_spent_history(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, which requires gradients from now on: to go back from it is torch's own error."""
    found: torch.Tensor = _Spent.apply(_LEAF, tensor)
    return found
