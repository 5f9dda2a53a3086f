"""Optimizers with `fused=True` over f16 and bf16: they compute in f32 and round once, and so does a compiled step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Step:
    """A step over a model's parameters."""

    def __init__(self, model: nn.Module, kind: Any, **options: Any) -> None:
        self.model, self.optimizer = model, kind(model.parameters(), fused=True, **options)

    def __call__(self, x: Tensor) -> Tensor:
        loss = self.model(x).float().square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"lr": 1e-2}),
        (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.1, "amsgrad": True}),
        (torch.optim.Adam, {"lr": 1e-2, "maximize": True}),
    ],
    ids=["adamw", "amsgrad", "maximize"],
)
def test_a_step_has_eagers_bits(dtype: torch.dtype, kind: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    ours = nn.Linear(16, 24).to(dtype)
    eager = copy.deepcopy(ours)
    step, plain = Step(ours, kind, **options), Step(eager, kind, **options)
    program = smelt.compile(step)
    for seed in range(6):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)).to(dtype)
        program(x), plain(x)
        for a, b in zip(ours.parameters(), eager.parameters(), strict=True):
            assert torch.isfinite(a).all() and torch.equal(a, b)
    assert program.stats().builds >= 1
