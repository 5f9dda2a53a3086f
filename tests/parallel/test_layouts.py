"""Tensors that lie otherwise in memory on a rank than in the program: native code and random numbers follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt

_KINDS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout of a transposed sum": lambda h: F.dropout(torch.relu(h.transpose(1, 2)), 0.5).transpose(1, 2),
    "dropout of a first dimension that is not the slowest": lambda h: F.dropout(h.transpose(0, 1), 0.5).transpose(0, 1),
    "dropout of a copy": lambda h: F.dropout(torch.relu(h).transpose(1, 2).contiguous().transpose(1, 2), 0.5),
    "an operator that all ranks do": lambda h: F.dropout(
        torch.fft.rfft(h.transpose(0, 2)).real, 0.5
    ).transpose(0, 2)[..., :8].repeat(1, 1, 2),
    "a half of a transposed tensor, a stage behind": lambda h: torch.relu(h.transpose(1, 2).chunk(2, 1)[0]).repeat(
        1, 2, 1
    ).transpose(1, 2),
}  # fmt: skip


class Kind(nn.Module):
    """Two products, and one of these between them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.second, self.name = nn.Linear(8, 16), nn.Linear(16, 8), name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(_KINDS[self.name](self.first(x)))


@pytest.mark.parametrize("name", _KINDS)
def test_layouts_and_the_numbers_drawn_in_their_order(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 8)
    columns, batch = smelt.schedule(Kind(name), (x,)), smelt.schedule(Kind(name), (x,))
    columns["first"].shard("weight", 0, "tp")
    batch.data_parallel("dp")
    assert columns.verify(mesh="tp=2", steps=1).error < 1e-5
    assert batch.verify(mesh="dp=2", steps=1).error < 1e-5
    if "all ranks" not in name:
        batch["first"].cut()
        batch.pipeline(2, "pp", microbatches=2)
        assert batch.verify(mesh="dp=2,pp=2", steps=1).error < 1e-5


def test_a_stage_reads_what_another_one_sent_as_it_arrived() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 32), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = self.first(x).transpose(1, 2).chunk(2, 1)
            return self.second((a.tanh() * torch.sigmoid(b)).transpose(1, 2))

    torch.manual_seed(0)
    s = smelt.schedule(Halves(), (torch.randn(4, 6, 8),))
    s["first"].cut()
    s.pipeline(2, "pp", microbatches=2)
    assert s.verify(mesh="pp=2", steps=1).error < 1e-5
    t = smelt.schedule(Halves(), (torch.randn(6, 4, 8).transpose(0, 1),))
    t.data_parallel("dp")
    assert t.verify(mesh="dp=2", steps=1).error < 1e-5


def test_loops_on_what_ranks_bring_together() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
            h = self.first(x).transpose(1, 2)
            for _ in range(int(n)):
                h = torch.cumsum(h, 1) * 0.5
            return self.second(h.transpose(1, 2))

    torch.manual_seed(0)
    s = smelt.schedule(Loop(), (torch.randn(4, 6, 8), torch.tensor(3)))
    s["first"].shard("weight", 0, "tp")
    assert s.verify(mesh="tp=2", steps=1).error < 1e-5
