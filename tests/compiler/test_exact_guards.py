"""Right after a compile every guard holds when it is asked by itself, so the reason of a later miss is the true one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler.object.compiled import dispatcher_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.inner.forward(x)) + self.inner(x)


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) * 2 + y


@pytest.mark.parametrize("target", [Block().eval(), scaled], ids=["module", "function"])
def test_all_guards_hold_one_by_one(target) -> None:  # type: ignore[no-untyped-def]
    compiled = smelt.compile(target, options={"measure": False})
    args = (torch.ones(2, 4),) if isinstance(target, nn.Module) else (torch.ones(2, 4), torch.ones(4))
    with torch.no_grad():
        compiled(*args)
        (row,) = dispatcher_of(compiled).stats().rows
        failed = row.guards.first_failed(args, {})
        assert failed is None, row.guards.explain(failed, args, {})


def test_a_replaced_parameter_is_named() -> None:
    model = Block().eval()
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        compiled(torch.ones(2, 4))
        model.norm.weight = nn.Parameter(torch.zeros(4))
        assert torch.equal(compiled(torch.ones(2, 4)), model(torch.ones(2, 4)))
    (text,) = compiled.stats().guard_failures
    assert "norm" in text or "_parameters" in text, text
