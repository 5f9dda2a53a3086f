"""Programs that the tests save: of each kind of program that an ingot can hold, one or two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt

Case = tuple[Callable[[], Any], tuple[Any, ...], dict[str, Any]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 5)

    def forward(self, x: Tensor) -> Tensor:
        return F.softmax(self.down(F.gelu(self.up(x))), -1)


class Tied(nn.Module):
    """An embedding whose weight is the output's, too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.norm(self.embedding(ids)))


class Convolved(nn.Module):
    """Batch norm that is folded into a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


class Filters(nn.Module):
    """A convolution of each form that kernels read weights in, each with a norm that is folded into it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64)
        self.square, self.norm2 = nn.Conv2d(64, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64)
        self.apart, self.norm3 = nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.BatchNorm2d(64)
        self.grouped = nn.Conv2d(64, 64, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm2(self.square(F.relu(self.norm1(self.first(x))))))
        return self.grouped(self.norm3(self.apart(x)))


class Counter(nn.Module):
    """State that each call writes to: a cache of rows, and where the next one goes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 4))
        self.register_buffer("at", torch.zeros(1, dtype=torch.int64))
        self.proj = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.rows.index_copy_(0, self.at, self.proj(x))
        self.at.add_(1)
        return self.rows.sum(0)


class Attention(nn.Module):
    """Three products of one input, which are merged, and attention in between."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (layer(x).view(2, 6, 4, 8).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out(mixed.transpose(1, 2).reshape(2, 6, 32))


class Pair(NamedTuple):
    total: Tensor
    parts: list[Tensor]


def collatz(n: Tensor) -> Tensor:
    steps = torch.zeros((), dtype=torch.int64)
    while n != 1:
        n = torch.where(n % 2 == 0, n // 2, 3 * n + 1)
        steps = steps + 1
    return steps


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        y = x.relu() * 2
    elif x.mean() < -1:
        y = x - 1
    else:
        y = x.exp()
    for row in y:
        if row[0] > 1:
            y = y + row
    return y


def structured(x: dict[str, Any], *, scale: float = 1.0) -> Any:
    y = x["a"] * scale
    return Pair(y + x["b"][0], [y, x["b"][1]]), {"same": x["a"].sort(-1), "n": 3}


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def looked_up(table: Tensor, ids: Tensor) -> Tensor:
    return table[ids].sum(-1)


def accumulate(total: Tensor, x: Tensor) -> Tensor:
    total.add_(x * 2)
    return total.sum()


def viewed(x: Tensor) -> Tensor:
    return x.t()[1:]


def closed_over() -> Callable[[Tensor], Tensor]:
    weight = torch.randn(4, 4)
    return lambda x: x @ weight + torch.arange(40.0).view(10, 4)[:4]


def traced(make: Callable[[], Any], *args: Any, **kwargs: Any) -> Case:
    return lambda: smelt.trace(make(), args, kwargs or None), args, kwargs


def scripted(fn: Callable[..., Any], *args: Any) -> Case:
    return lambda: smelt.script(fn, example_inputs=[args]), args, {}


def cases() -> Mapping[str, Case]:
    """By name, how the program is captured, and what to call it with."""
    torch.manual_seed(7)
    x = torch.randn(4, 4)
    return {
        "mlp": traced(lambda: Mlp().eval(), torch.randn(3, 16)),
        "tied": traced(lambda: Tied().eval(), torch.randint(20, (2, 5))),
        "convolved": traced(lambda: Convolved().eval(), torch.randn(1, 3, 8, 8)),
        "filters": traced(lambda: Filters().eval(), torch.randn(1, 3, 28, 28)),
        "attention": traced(lambda: Attention().eval(), torch.randn(2, 6, 32)),
        "half": traced(lambda: Mlp().eval().bfloat16(), torch.randn(3, 16, dtype=torch.bfloat16)),
        "double": traced(lambda: Mlp().eval().double(), torch.randn(3, 16, dtype=torch.float64)),
        "while": traced(lambda: collatz, torch.tensor(27)),
        "branches": traced(lambda: branches, x.abs()),
        "structured": traced(lambda: structured, {"a": x, "b": (x + 1, x - 1)}, scale=2.5),
        "noisy": traced(lambda: noisy, x),
        "looked up": traced(lambda: looked_up, torch.randn(9, 3), torch.tensor([1, 8, -2])),
        "viewed": traced(lambda: viewed, x),
        "closed over": traced(closed_over, x),
        "no elements": traced(lambda: lambda x: x[:0].sum() + x.t(), x),
        "sorted": traced(lambda: lambda x: torch.sort(x, -1), x),
        "complex": traced(lambda: lambda x: torch.fft.rfft(x).abs(), x),
        "many threads": traced(lambda: lambda x: torch.tanh(x).cumsum(0) @ x, torch.randn(300, 300)),
    }
