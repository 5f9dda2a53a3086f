"""`x.normal_()` and its kin run in the native graph, and draw what eager draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import smelt

NATIVE: dict[str, Any] = {
    "normal_": lambda x: (x * 2).normal_(1.0, 2.0) + x,
    "normal_few": lambda x: x[0, :5].clone().normal_() + x[0, :5],
    "uniform_": lambda x: torch.empty_like(x).uniform_(-1, 1) * x,
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.3) * x + torch.empty_like(x).bernoulli_(),
    "bernoulli_of": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()) * x,
    "exponential_": lambda x: x.clone().exponential_(2.0).log() + x,
    "random_": lambda x: x.clone().random_(0, 10) + x,
    "row_of_it": lambda x: _row_drawn(x * 2) + x,
    "in_order": lambda x: x.clone().normal_() + torch.rand_like(x) * torch.empty_like(x).uniform_(),
    "unused": lambda x: _unused(x) + torch.rand_like(x),
    "argument": lambda x: x.normal_() * 2,
    "dropout_": lambda x: F.dropout(x * 2, 0.3, True, inplace=True) + x,
    "dropout_ of an argument": lambda x: F.dropout(x, 0.3, True, inplace=True).sin(),
    "dropout_ that draws nothing": lambda x: F.dropout(x * 2, 0.0, True, inplace=True) + x,
    "feature_dropout_": lambda x: F.dropout1d(x * 2, 0.3, True, inplace=True) + x,
    "alpha_dropout_": lambda x: F.alpha_dropout(x * 2, 0.3, True, inplace=True) + x,
}


def _row_drawn(y: torch.Tensor) -> torch.Tensor:
    y[1].uniform_()
    return y


def _unused(x: torch.Tensor) -> torch.Tensor:
    x.clone().normal_()
    return x


def turned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).t().normal_() + x.t()


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("name", [*NATIVE, "turned"])
def test_draws_in_place_are_those_of_eager(name: str) -> None:
    program = NATIVE.get(name, turned)
    compiled = smelt.compile(program)
    for seed in range(3):
        x = torch.randn(4, 32)
        y = x.clone()
        torch.manual_seed(seed)
        want, after = program(x), torch.get_rng_state()
        torch.manual_seed(seed)
        got = compiled(y)
        torch.testing.assert_close(got, want)
        assert torch.equal(x, y) and torch.equal(after, torch.get_rng_state())
    (row,) = compiled.stats().rows
    if name in NATIVE:
        assert row.entry is not None and not compiled.stats().fallbacks
