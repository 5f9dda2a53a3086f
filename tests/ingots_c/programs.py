"""Programs that the tests export, all as entry points of one ingot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from tests.ingots.programs import Attention, Convolved, Mlp, Tied, branches, collatz, looked_up

Calls = list[tuple[Tensor, ...]]


class Lstm(nn.Module):
    """A cell in a loop over the steps of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(6, 8)

    def forward(self, xs: Tensor) -> Tensor:
        h, c = xs.new_zeros(2, 8), xs.new_zeros(2, 8)
        for x in xs:
            h, c = self.cell(x, (h, c))
        return h


class Counter(nn.Module):
    """State that each call writes to: a cache of rows, and where the next one goes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))
        self.register_buffer("at", torch.zeros((), dtype=torch.int64))
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        here = (torch.arange(8) == self.at)[:, None]
        self.rows.copy_(torch.where(here, self.proj(x), self.rows))
        self.at.add_(1)
        return self.rows.sum(0), self.rows[1:3]


class Block(nn.Module):
    """A layer of a transformer: attention that looks back, norms, a wide middle."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (part.view(2, 8, 4, 8).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 8, 32)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x)))), k


def wide(x: Tensor) -> Tensor:
    """Enough work for several threads."""
    return torch.tanh(x).cumsum(0) @ x


def numbers(x: Tensor) -> tuple[int, float, float]:
    """Numbers of Python: sums that may leave 64 bits, divisions, powers."""
    a, b = int(x[0]), int(x[1])
    return a * b, a / b, float(a) ** float(b)


def endless(x: Tensor) -> Tensor:
    while x.sum() > 0:
        x = x * 1.0
    return x


def programs() -> dict[str, tuple[Callable[[], Any], Calls]]:
    """By name: what makes the program, and calls of it, of which the first is what it is captured with."""
    x = torch.randn(3, 16)
    few = [(torch.randn(1, 4),) for _ in range(3)]
    made: dict[str, tuple[Any, Calls]] = {
        "mlp": (Mlp().eval(), [(x,), (x * 2,)]),
        "tied": (Tied().eval(), [(torch.randint(0, 20, (2, 5)),), (torch.randint(0, 20, (2, 5)),)]),
        "convolved": (Convolved().eval(), [(torch.randn(1, 3, 8, 8),)]),
        "attention": (Attention().eval(), [(torch.randn(2, 6, 32),)]),
        "block": (Block().eval(), [(torch.randn(2, 8, 32),)]),
        "lstm": (Lstm().eval(), [(torch.randn(5, 2, 6),)]),
        "collatz": (collatz, [(torch.tensor(3),), (torch.tensor(1),), (torch.tensor(97),)]),
        "branches": (branches, [(torch.randn(3, 3).abs(),), (torch.randn(3, 3) - 5,), (-torch.rand(3, 3) / 9,)]),
        "looked_up": (looked_up, [(torch.randn(9, 3), torch.tensor([1, 8, -2]))]),
        "wide": (wide, [(torch.randn(300, 300),)]),
        "endless": (endless, [(-torch.ones(2),), (torch.zeros(2),)]),
        "numbers": (numbers, [(torch.tensor([7, 3]),), (torch.tensor([2**60 + 1, 3]),)]),
        "counter": (Counter().eval(), few),
    }
    return {name: (lambda p=program, c=calls: smelt.trace(p, c[0]), calls) for name, (program, calls) in made.items()}
