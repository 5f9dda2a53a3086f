"""Modules whose parameters get their sizes in the first call."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import smelt


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyBatchNorm1d(), nn.LazyLinear(2)).eval()


def test_a_lazy_model() -> None:
    eager, other = model(), model()
    compiled = smelt.compile(other)
    with torch.no_grad():
        for n in (2, 3, 2):
            x = torch.ones(n, 3)
            torch.manual_seed(1)
            expected = eager(x)
            torch.manual_seed(1)
            torch.testing.assert_close(compiled(x), expected)
    assert compiled.stats().builds == 2
    assert compiled.stats().fallbacks == {"parameters get their sizes in this call": 1}


def test_a_function_around_one() -> None:
    inner = model()

    def program(x: Tensor) -> Tensor:
        return inner(x) * 2

    compiled = smelt.compile(program)
    with torch.no_grad():
        for n in (2, 3, 2):
            x = torch.ones(n, 3)
            found = compiled(x)
            torch.testing.assert_close(found, program(x))


def test_a_trace_asks_for_a_call_before() -> None:
    lazy = model()
    with pytest.raises(smelt.CaptureError, match="parameters without sizes"):
        smelt.trace(lazy, (torch.ones(2, 3),))
    with torch.no_grad():
        lazy(torch.ones(2, 3))
        traced = smelt.trace(copy.deepcopy(lazy), (torch.ones(2, 3),))
        torch.testing.assert_close(traced(torch.ones(2, 3)), lazy(torch.ones(2, 3)))
