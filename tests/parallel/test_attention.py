"""Attention that drops weights, on ranks and in stages: heads that share keys, masks that hide all of a row."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt


class Attention(nn.Module):
    """Heads of 4 elements; `shared` of them have one of keys and values."""

    def __init__(self, heads: int, shared: int, kind: str) -> None:
        super().__init__()
        self.heads, self.shared, self.kind = heads, shared, kind
        self.q, self.k, self.v = nn.Linear(8, 4 * heads), nn.Linear(8, 4 * heads // shared), nn.Linear(8, 16 // shared)
        self.out = nn.Linear(4 * heads, 8)
        self.register_buffer("seen", torch.tensor([[True, True, True], [True, False, True], [False, False, False]]))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, 4)).transpose(1, 2) for p in (self.q, self.k, self.v))
        mask = {"bool": self.seen, "added": self.seen.float()[None, None]}.get(self.kind)
        y = F.scaled_dot_product_attention(
            q, k, v, mask, 0.3, is_causal=self.kind == "causal", enable_gqa=self.shared > 1
        )
        return self.out(y.transpose(1, 2).flatten(2)).tanh()


@pytest.mark.parametrize(("shared", "kind"), [(1, "causal"), (2, "bool"), (2, "added")])
def test_attention_with_dropout_on_ranks_and_in_stages(shared: int, kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8)
    ready = smelt.schedules.tensor_parallel(Attention(4, shared, kind), (x,), ranks=2)
    assert ready.applied["tensors"] == 7
    s = ready.schedule
    s.data_parallel("dp")
    assert s.verify(mesh={"tp": 2, "dp": 2}, steps=2).error < 1e-5
    stages = smelt.schedules.pipeline(nn.Sequential(Attention(4, shared, kind), Attention(4, shared, kind)), (x,))
    assert stages.applied == {"stages": 2} and "microbatches" in stages.notes[-1]
    assert stages.schedule.verify(mesh="pp=2", steps=2).error < 1e-5
