"""`torch.amp.GradScaler` inside a compiled step: one graph, whether gradients overflow or not, with eager's answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


class Step:
    """A step under autocast, whose scale grows every second step. steps: how many ran in Python."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: str,
        options: dict[str, Any],
        low: torch.dtype | None,
        device: str,
        clip: float,
    ) -> None:
        self.model, self.device, self.low, self.clip = model, device, low, clip
        self.optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **options)
        self.scaler = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=2, growth_factor=1.7)

    def __call__(self, x: Tensor) -> Tensor:
        with torch.autocast(self.device, self.low, enabled=self.low is not None):
            loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach()


CASES = [
    ("AdamW", {"eps": 0.1}, torch.bfloat16, 0.0),
    ("AdamW", {"eps": 0.1, "fused": True}, torch.bfloat16, 0.0),
    ("Adam", {"eps": 0.1, "fused": True, "amsgrad": True, "weight_decay": 0.1}, None, 0.5),
    ("SGD", {"momentum": 0.9}, None, 0.0),
    ("SGD", {"momentum": 0.9, "fused": True, "nesterov": True}, None, 0.0),
]


def run_beside_eager(
    optimizer: str, options: dict[str, Any], low: torch.dtype | None, clip: float, device: str = "cpu"
) -> Any:
    """Steps of which the fourth overflows; the compiled program. Fails where something differs from eager."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    ours, eager = (Step(copy.deepcopy(model), optimizer, options, low, device, clip) for _ in range(2))
    program = smelt.compile(ours)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if low is not None else {"rtol": 1e-5, "atol": 1e-6}
    for seed in range(7):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed)).to(device)
        if seed == 4:
            x = x * torch.inf
        before = program.stats().builds
        found, want = program(x), eager(x)
        torch.testing.assert_close(found.cpu(), want.cpu(), equal_nan=True, **tolerance)
        for mine, theirs in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
            torch.testing.assert_close(mine.detach().cpu(), theirs.detach().cpu(), **tolerance)
            for name, value in eager.optimizer.state[theirs].items():
                if isinstance(value, Tensor):
                    state = ours.optimizer.state[mine][name]
                    torch.testing.assert_close(state.cpu(), value.cpu(), **tolerance)
        assert ours.scaler.state_dict() == eager.scaler.state_dict()
    stats = program.stats()
    # Nothing of an overflow, a scale or a count of steps is compiled in.
    assert stats.builds == before and len(stats.rows) == 1 and stats.rows[0].hits >= 3, stats
    return program


@pytest.mark.parametrize(("optimizer", "options", "low", "clip"), CASES)
def test_scaling_is_inside_the_step(
    optimizer: str, options: dict[str, Any], low: torch.dtype | None, clip: float
) -> None:
    run_beside_eager(optimizer, options, low, clip)


def test_weights_that_change_behind_a_region_keep_one_cast_inside_of_it() -> None:
    model = nn.Linear(3, 3)
    eager = copy.deepcopy(model)

    @torch.no_grad()
    def step(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model(model(x))
        if y.sum() > 0:
            for p in model.parameters():
                p.mul_(0.5)
        else:
            for p in model.parameters():
                p.neg_()
        return y

    program = smelt.compile(step)
    for seed in range(6):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(program(model, x), step(eager, x))
        torch.testing.assert_close(tuple(model.parameters()), tuple(eager.parameters()))
