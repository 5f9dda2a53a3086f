"""Transposed convolutions as convolutions whose results are woven: eager's results, whatever the options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect.kernels import compiled_units
from tests.codegen.harness import rms_ratio

_IMAGES: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((9, 10), {"kernel_size": 4, "stride": 2, "padding": 1}),
    ((9, 10), {"kernel_size": 4, "stride": 2, "bias": False}),
    ((7, 8), {"kernel_size": (6, 4), "stride": (3, 2), "padding": (4, 3), "output_padding": (1, 1)}),
    ((7, 8), {"kernel_size": 2, "stride": 2}),
    ((7, 8), {"kernel_size": 3, "padding": 2}),
    ((8, 5), {"kernel_size": (4, 1), "stride": (4, 1)}),
    ((1, 1), {"kernel_size": 4}),
    ((1, 1), {"kernel_size": 4, "stride": 2, "bias": False}),
    ((12,), {"kernel_size": 8, "stride": 4, "padding": 2}),
    ((12,), {"kernel_size": 5, "padding": 1}),
)


def _ops(compiled: object) -> list[str]:
    return [node.op for unit in compiled_units(compiled) for node in unit.optimized.walk()]


def _model(number: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(number)
    sizes, options = _IMAGES[number]
    kind = nn.ConvTranspose1d if len(sizes) == 1 else nn.ConvTranspose2d
    norm = nn.BatchNorm1d if len(sizes) == 1 else nn.BatchNorm2d
    return nn.Sequential(kind(6, 20, **options), norm(20), nn.ReLU()).eval(), torch.randn(2, 6, *sizes)


@pytest.mark.parametrize("number", range(len(_IMAGES)))
def test_options_are_eagers(number: int) -> None:
    model, x = _model(number)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    with torch.no_grad():
        mine, theirs = compiled(x), model(x)
        assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
        assert not any("conv_transpose" in op for op in _ops(compiled))
        for special in (torch.inf, torch.nan):
            x.view(-1)[-1] = special
            torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


def test_what_leaves_the_program_and_a_second_one_behind_it() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.ConvTranspose2d(3, 8, 4, 2, 1), nn.ConvTranspose2d(8, 5, 2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.first(x)
            return y, self.second(y.relu()).tanh()

    torch.manual_seed(0)
    model, x = Two().eval(), torch.randn(1, 3, 6, 7)
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        for scale in (1.0, 2.0):
            model.first.weight.mul_(scale)
            for given in (x, x.to(memory_format=torch.channels_last)):
                for a, b in zip(compiled(given), model(given), strict=True):
                    assert a.stride() == b.stride()
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_gradients_are_eagers() -> None:
    torch.manual_seed(0)
    model, x = nn.ConvTranspose2d(4, 16, 4, 2, 1), torch.randn(2, 4, 5, 8)
    twin = copy.deepcopy(model)
    compiled = smelt.compile(twin, options={"measure": False})
    compiled(x).square().sum().backward()
    model(x).square().sum().backward()
    for a, b in zip(twin.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-3)
