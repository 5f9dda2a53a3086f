"""Convolutions over frames as convolutions of images: eager's results, whatever the options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect.kernels import compiled_units
from tests.codegen.harness import rms_ratio

_OPTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "stride": (1, 2, 2), "padding": 1, "bias": False},
    {"kernel_size": (3, 1, 5), "stride": (2, 1, 1), "padding": (2, 0, 2)},
    {"kernel_size": (2, 3, 3), "dilation": (2, 1, 2)},
    {"kernel_size": (5, 3, 3), "padding": (4, 1, 1), "stride": (3, 1, 2)},
    {"kernel_size": (1, 3, 3), "padding": (0, 1, 1)},
    {"kernel_size": 1},
)


def _ops(compiled: object) -> list[str]:
    return [node.op for unit in compiled_units(compiled) for node in unit.optimized.walk()]


@pytest.mark.parametrize("number", range(len(_OPTIONS)))
def test_options_are_eagers(number: int) -> None:
    torch.manual_seed(number)
    model = nn.Sequential(nn.Conv3d(6, 20, **_OPTIONS[number]), nn.BatchNorm3d(20), nn.ReLU()).eval()
    x = torch.randn(2, 6, 7, 9, 10)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    with torch.no_grad():
        mine, theirs = compiled(x), model(x)
        assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
        assert "aten.conv3d.default" not in _ops(compiled)
        for special in (torch.inf, torch.nan):
            x[1, 2, 3, 4, 5] = special
            torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


def test_a_stack_of_them_and_its_first_convolutions_result() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv3d(3, 8, 3, padding=1), nn.Conv3d(8, 16, 3, stride=2, padding=1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.first(x)
            return y, self.second(y.relu()).mean((2, 3, 4))

    torch.manual_seed(0)
    model, x = Two().eval(), torch.randn(1, 3, 6, 12, 12)
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        for a, b in zip(compiled(x), model(x), strict=True):
            assert a.stride() == b.stride()
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        model.first.weight.mul_(2.0)
        for a, b in zip(compiled(x), model(x), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_weights_that_are_not_finite_and_gradients_are_eagers() -> None:
    torch.manual_seed(0)
    model, x = nn.Conv3d(4, 16, 3, padding=1), torch.randn(1, 4, 5, 8, 8)
    twin = copy.deepcopy(model)
    compiled = smelt.compile(twin, options={"measure": False})
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    compiled(x).square().sum().backward()
    model(x).square().sum().backward()
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)
    with torch.no_grad():
        model.weight[3, 2, 1, 1, 1] = torch.inf
        fresh = smelt.compile(model, options={"measure": False})
        torch.testing.assert_close(fresh(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
