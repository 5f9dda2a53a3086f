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


class Encoder(nn.Module):
    """What an embedder does: positions, attention over what a mask lets through, a mean over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 32), nn.Embedding(24, 32)
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        h = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        q, k, v = (part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.qkv(h).chunk(3, -1))
        h = h + F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None].bool()).transpose(1, 2).flatten(2)
        weights = mask[..., None].float()
        return (F.gelu(self.out(h)) * weights).sum(1) / weights.sum(1)


class Prefill(nn.Module):
    """A decoder that reads a prompt: the scores of the next token, and its keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 32), nn.Embedding(16, 32)
        self.first, self.second, self.last = (nn.LayerNorm(32) for _ in range(3))
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, tokens = ids.shape
        h = self.words(ids) + self.places.weight[:tokens]
        q, k, v = (p.view(batch, tokens, 2, 16).transpose(1, 2) for p in self.qkv(self.first(h)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.out(mixed.transpose(1, 2).reshape(batch, tokens, 32))
        h = h + self.down(F.gelu(self.up(self.second(h))))
        return F.linear(self.last(h)[:, -1], self.words.weight), k, v


def shrunk(x: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of each row, halved until all numbers are small, and how often that was."""
    count = torch.zeros((), dtype=torch.int64)
    while x.abs().max() > 1:
        x, count = x * 0.5, count + 1
    return x.sum(-1), count


def stepped(x: Tensor) -> Tensor:
    """A recurrence over as many rows as there are."""
    h = x.new_zeros(x.shape[1])
    for row in x:
        h = torch.tanh(h * 0.5 + row)
    return h


def halves(x: Tensor, y: Tensor) -> Tensor:
    """For an even number of rows."""
    return x.view(x.shape[0] // 2, 2, 4).sum(1) + y[::2]


def sized(x: Tensor) -> tuple[int, Tensor, float, int, float]:
    """Numbers that follow from a size; the last is 0.0 or -0.0."""
    rows = x.shape[0]
    return rows, x.sum(), rows / 4, rows % 3, (rows % 2 - 1) * 0.0


class Views(nn.Module):
    """Views of an argument and of state, whose sizes, strides and offsets follow from a size."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(44, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = x.shape[0]
        return x[1:].t(), x[-1], x[rows // 2, 3], self.table[rows : rows + 3], x.sum(0)


def ranged_programs() -> dict[str, tuple[Callable[[], Any], Calls]]:
    """The same with free sizes; calls are at both bounds, and between them."""
    few, many = [(1, 1), (3, 24), (2, 9), (1, 24), (3, 1)], [(n, 5) for n in (1, 40, 2, 17)]
    batch, tokens, rows = smelt.Dim("batch", max=3), smelt.Dim("tokens", max=24), smelt.Dim("rows", max=40)
    shorter, even = smelt.Dim("length", max=16), smelt.Dim("n", max=12)
    masks = [torch.arange(t).expand(b, t) % 3 != 1 for b, t in few]
    encoded = [(torch.randint(0, 40, mask.shape), mask.long()) for mask in masks]
    made: dict[str, tuple[Any, Any, Calls]] = {
        "encoder": (Encoder().eval(), [{0: batch, 1: tokens}] * 2, [encoded[2], *encoded]),
        "prefill": (
            Prefill().eval(), [{0: batch, 1: shorter}],
            [(torch.randint(0, 30, size),) for size in ((2, 7), (3, 16), (2, 2), (2, 9))],
        ),
        "shrunk": (shrunk, [{0: rows}], [(torch.randn(9, 5),), *((torch.randn(size) * 50,) for size in many)]),
        "stepped": (stepped, [{0: rows}], [(torch.randn(9, 5),), *((torch.randn(size),) for size in many)]),
        "sized": (sized, [{0: rows}], [(torch.randn(n, 4),) for n in (6, 1, 40, 2, 3)]),
        "views": (Views().eval(), [{0: rows}], [(torch.randn(n, 4),) for n in (6, 1, 40, 2, 3)]),
        "halves": (
            halves, [{0: even}] * 2,
            [(torch.randn(n, 4), torch.randn(n, 4)) for n in (6, 12, 4, 10)],
        ),
    }  # fmt: skip
    return {
        name: (lambda p=program, d=dims, c=calls: smelt.trace(p, c[0], dynamic_shapes=d), calls)
        for name, (program, dims, calls) in made.items()
    }


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
