"""Sizes of 1 among others: how often a program is built, and that it stays the program where they are 1."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt


class Encoder(nn.Module):
    """Attention over a batch of token sequences, as BERT has it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, 16), nn.Embedding(64, 16)
        self.norm, self.query, self.key, self.value = nn.LayerNorm(16), *(nn.Linear(16, 16) for _ in range(3))
        self.out, self.pool = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("positions", torch.arange(64).expand(1, -1))

    def forward(self, ids: Any) -> Any:
        batch, length = ids.shape
        x = self.norm(self.words(ids) + self.places(self.positions[:, :length]).expand(batch, length, 16))
        q, k, v = (p(x).view(batch, length, -1, 8).transpose(1, 2) for p in (self.query, self.key, self.value))
        is_causal = length > 1 and self.training
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1).contiguous())
        return x, torch.tanh(self.pool(x[:, 0]))


SIZES = list(itertools.product((1, 2, 5, 8), (1, 2, 7, 33, 64)))
ORDERS = {
    "rows": SIZES,
    "columns": sorted(SIZES, key=lambda s: (s[1], s[0])),
    "backwards": SIZES[::-1],
    "diagonal": sorted(SIZES, key=lambda s: (s[0] == 1, s[1] == 1, s[0] * s[1])),
    "ones last": sorted(SIZES, key=lambda s: 1 in s),
    "ones in turn": [(2, 7), (1, 7), (2, 1), (1, 1), (5, 2), *SIZES],
    "both at once": [(1, 1), (2, 2), *SIZES],
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("order", ORDERS)
def test_three_builds_for_all_sizes(order: str) -> None:
    module = Encoder().eval()
    compiled = smelt.compile(module)
    with torch.no_grad():
        for batch, length in ORDERS[order]:
            ids = torch.randint(0, 50, (batch, length))
            for found, expected in zip(compiled(ids), module(ids), strict=True):
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
                assert found.stride() == expected.stride()
    assert compiled.stats().builds <= 3
    assert compiled.stats().fallbacks == {}


def joined(x: Any) -> Any:
    # A view where one of the sizes is 1, a copy elsewhere.
    return x.t().reshape(-1)


def written(x: Any) -> Any:
    y = x.t().reshape(-1)
    y.add_(1)
    return y * 2


def without(x: Any) -> Any:
    return x.squeeze(1) * 2


def told(x: Any) -> Any:
    if x.shape[0] == 1:
        return x + 10
    return x * x.shape[1]


def told_by_all(x: Any) -> Any:
    # With one row, three columns are told from others.
    if x.shape[0] == 1 and x.shape[1] == 3:
        return x - 1
    return x * 2


def laid_out(x: Any) -> Any:
    return torch.exp(x.t()), x.t().contiguous(), x.contiguous()


def spread(x: Any) -> Any:
    return x.expand(x.shape[0], x.shape[1]).sum(0, keepdim=True) + torch.zeros(1, x.shape[1])


def sized(x: Any) -> Any:
    return x.softmax(0), x.shape[0], x.stride(0)


def normed(x: Any) -> Any:
    return x.std(0, correction=0), x.var(1, correction=0), torch.cat([x, x[:1]])


PROGRAMS = (joined, written, without, told, told_by_all, laid_out, spread, sized, normed)
CALLS: tuple[Sequence[tuple[int, int]], ...] = (
    ((1, 1), (1, 4), (3, 1), (3, 4), (1, 3), (5, 3), (1, 1)),
    ((4, 3), (5, 3), (1, 3), (5, 1), (1, 1), (1, 7), (6, 1)),
    ((3, 3), (1, 5), (7, 1), (1, 1), (2, 6), (1, 3), (2, 3)),
)


@pytest.mark.spread(14)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("calls", CALLS, ids=range(len(CALLS)))
def test_programs_that_treat_ones_apart(program: Any, calls: Any) -> None:
    compiled = smelt.compile(program)
    for rows, columns in (*calls, *calls):
        x, y = (torch.arange(1.0, rows * columns + 1).reshape(rows, columns) for _ in range(2))
        found, expected = compiled(x), program(y)
        torch.testing.assert_close(x, y, rtol=0, atol=0)
        assert type(found) is type(expected)
        pairs = zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]
        for one, two in pairs:
            if not isinstance(two, torch.Tensor):
                assert one == two
                continue
            torch.testing.assert_close(one, two, equal_nan=True)
            assert one.stride() == two.stride()
            assert (one.data_ptr() == x.data_ptr()) == (two.data_ptr() == y.data_ptr())
