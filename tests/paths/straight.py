"""Programs of random steps with conversions, in a module of their own: what they reach by name is looked through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

# Values are small integers in float64: no rounding, so that each conversion has one right answer.
STEPS: dict[str, Callable[[Any, Tensor, Tensor, int], Tensor]] = {
    "add": lambda m, x, y, k: y + x * k,
    "turn": lambda m, x, y, k: y.flip(0) - k,
    "clamp": lambda m, x, y, k: y.clamp(-9, 9) + k,
    "draw": lambda m, x, y, k: y + torch.randint(0, 3, (4,)),
    "write": lambda m, x, y, k: x.add_(k) + y,
    "write view": lambda m, x, y, k: (x[1:3].mul_(-1), y + x)[1],
    "count": lambda m, x, y, k: (m.total.add_(k), y + m.total)[1],
    "if": lambda m, x, y, k: y + 1 if y.sum() > k else y - x,
    "if not": lambda m, x, y, k: y if not (x == k).any() else y * 2,
    "item": lambda m, x, y, k: y + x[k].item(),
    "int": lambda m, x, y, k: y + (int(y[k]) % 3),
    "list": lambda m, x, y, k: y + sum(v for v in x.tolist() if v > k),
    "numpy": lambda m, x, y, k: y + float(x.numpy()[k]),
    "count mask": lambda m, x, y, k: y + len(y[y > k]),
    "unique": lambda m, x, y, k: y * x.unique().numel(),
    "equal": lambda m, x, y, k: y + 1 if torch.equal(x, y) else y,
    "take": lambda m, x, y, k: y + x[(y[k] % 4).long()],
    "loop": lambda m, x, y, k: _loop(y, k),
    "early": lambda m, x, y, k: y.neg() if y.max() < k else y,
    "in": lambda m, x, y, k: y + 3 if k in y else y,
}


def _loop(y: Tensor, k: int) -> Tensor:
    for _ in range(int(y.abs().max() % 3)):
        y = y + k
    return y


class Straight(nn.Module):
    """Runs its steps one after the other."""

    def __init__(self, steps: list[tuple[str, int]], stop: int) -> None:
        super().__init__()
        self.steps, self.stop = tuple(steps), stop
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        for n, (name, k) in enumerate(self.steps):
            y = STEPS[name](self, x, y, k)
            if n == self.stop:
                if y.min() < -12:
                    raise ValueError("too small")
                if y.sum() > 30:
                    return y * 0
        return y.clamp(-50, 50)
