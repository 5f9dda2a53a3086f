"""Convolutions over frames as convolutions of images: eager's results, whatever the options."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect.kernels import compiled_units
from smelt.runtime.plan import Launch
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


def _launches(compiled: object) -> list[str]:
    (unit,) = compiled_units(compiled)
    assert unit.lowered is not None
    return [i.label for i in unit.lowered.plan.instructions if isinstance(i, Launch)]


@torch.no_grad()
@pytest.mark.parametrize("inputs", [1, 6, 9])
@pytest.mark.parametrize("number", range(len(_OPTIONS)))
def test_options_are_eagers(number: int, inputs: int) -> None:
    torch.manual_seed(number)
    model = nn.Sequential(nn.Conv3d(inputs, 20, **_OPTIONS[number]), nn.BatchNorm3d(20), nn.ReLU()).eval()
    x = torch.randn(2, inputs, 7, 9, 10)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    mine, theirs = compiled(x), model(x)
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    stays = inputs < 8 and _OPTIONS[number]["kernel_size"] != 1
    assert ("aten.conv3d.default" in _ops(compiled)) == stays
    if stays:
        first, *rest = _launches(compiled)
        assert first.startswith("convolution first") and not any(label.startswith("convolution") for label in rest)
    for special in (torch.inf, torch.nan):
        x[1, inputs // 3, 3, 4, 5] = special
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True)


@torch.no_grad()
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("frames", "before", "gap", "step"), [(1, 1, 1, 1), (4, 3, 1, 1), (5, 4, 2, 3), (9, 0, 3, 2)])
def test_few_channels_of_frames_that_few_taps_reach(
    frames: int, before: int, gap: int, step: int, channels_last: bool
) -> None:
    torch.manual_seed(frames)
    options = {"stride": (step, 2, 1), "padding": (before, 1, 2), "dilation": (gap, 1, 1)}
    model, x = nn.Conv3d(3, 40, (3, 3, 5), **options), torch.randn(2, 3, frames, 11, 13)
    x = x.to(memory_format=torch.channels_last_3d) if channels_last else x
    compiled = smelt.compile(model, options={"measure": False})
    found, expected = compiled(x), model(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(compiled(x[:1] * 3), model(x[:1] * 3), rtol=1e-4, atol=1e-5)


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


_IN_PLACE: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (16, 24, {"kernel_size": 3, "padding": 1}),
    (16, 32, {"kernel_size": 3, "stride": (1, 2, 2), "padding": 1, "bias": False}),
    (32, 64, {"kernel_size": (3, 1, 5), "stride": (2, 1, 1), "padding": (2, 0, 2)}),
    (17, 20, {"kernel_size": (2, 3, 3), "dilation": (2, 1, 2)}),
    (40, 16, {"kernel_size": (5, 3, 3), "padding": (4, 1, 1), "stride": (3, 1, 2)}),
    (64, 7, {"kernel_size": (4, 1, 1), "padding": (2, 0, 0)}),
    (160, 48, {"kernel_size": (2, 2, 2), "stride": 2}),
)


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, 2, 9])
@pytest.mark.parametrize("number", range(len(_IN_PLACE)))
def test_frames_of_many_channels_are_read_where_they_lie(number: int, samples: int) -> None:
    inputs, outputs, options = _IN_PLACE[number]
    torch.manual_seed(number)
    model = nn.Sequential(nn.Conv3d(inputs, outputs, **options), nn.BatchNorm3d(outputs), nn.ReLU()).eval()
    x = torch.randn(samples, inputs, 7, 9, 10)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    mine, theirs = compiled(x), model(x)
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    assert (mine - exact).abs().max() <= 3 * (theirs - exact).abs().max() + 1e-6 * exact.abs().max()
    assert {label.split()[0] for label in _launches(compiled)} <= {"convolution", "layout"}
    for special in (torch.inf, torch.nan):
        x[-1, 2, 3, 4, 5] = special
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_frames_that_lie_otherwise_and_weights_that_change() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(32, 16, 3, padding=1), nn.GELU(), nn.Conv3d(16, 48, 3, stride=2)).eval()
    compiled = smelt.compile(model, options={"measure": False})
    for x in (
        torch.randn(2, 32, 6, 8, 8).to(memory_format=torch.channels_last_3d),
        torch.randn(2, 32, 6, 8, 8).transpose(3, 4),
        torch.randn(2, 32, 6, 16, 8)[..., ::2, :],
    ):
        found, expected = compiled(x), model(x)
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    model[0].weight.mul_(2.0)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    model[2].weight[3, 2, 1, 1, 1] = torch.inf
    fresh = smelt.compile(model, options={"measure": False})
    torch.testing.assert_close(fresh(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)


@torch.no_grad()
def test_a_path_around_frames() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv3d(24, 24, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.conv(x).relu()
            return (self.conv(y) + y).tanh()

    torch.manual_seed(0)
    model, x = Around().eval(), torch.randn(2, 24, 5, 8, 9)
    compiled = smelt.compile(model, options={"measure": False})
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


_PAIRS: tuple[tuple[int, int, int, dict[str, Any]], ...] = (
    (32, 32, 8, {"kernel_size": 3, "padding": 1}),
    (32, 64, 9, {"kernel_size": 3, "padding": 1, "stride": (1, 2, 2), "bias": False}),
    (64, 96, 8, {"kernel_size": (3, 1, 1)}),
    (64, 32, 12, {"kernel_size": (3, 2, 5), "padding": (2, 0, 2), "dilation": (2, 2, 1)}),
    (32, 64, 9, {"kernel_size": (4, 3, 3), "padding": (0, 1, 0), "dilation": (2, 1, 1)}),
    (32, 32, 6, {"kernel_size": (2, 3, 3), "stride": (2, 1, 1), "padding": (0, 1, 1)}),
    (96, 64, 12, {"kernel_size": (3, 1, 3), "padding": (3, 0, 1), "dilation": (3, 1, 1)}),
)


@torch.no_grad()
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("number", range(len(_PAIRS)))
def test_fewer_products_over_frames(number: int, samples: int) -> None:
    inputs, outputs, frames, options = _PAIRS[number]
    torch.manual_seed(number)
    model = nn.Sequential(nn.Conv3d(inputs, outputs, **options), nn.BatchNorm3d(outputs), nn.SiLU()).eval()
    x = torch.randn(samples, inputs, frames, 9, 10)
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    mine, theirs = compiled(x), model(x)
    assert any(label.startswith("convolution winograd") for label in _launches(compiled))
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    assert (mine - exact).abs().max() <= 3 * (theirs - exact).abs().max() + 1e-6 * exact.abs().max()
    for special in (torch.inf, -torch.inf, torch.nan):
        x[-1, 2, -1, 4, 5] = special
        torch.testing.assert_close(compiled(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-5)
    x[-1, 2, -1, 4, 5] = 1e38
    torch.testing.assert_close(compiled(x), model(x), equal_nan=True, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_taps_in_time_that_differ_alone() -> None:
    for channels in (3, 20, 32):
        torch.manual_seed(channels)
        layers = [
            nn.Conv3d(channels, channels, 3, padding=(gap, 1, 1), dilation=(gap, 1, 1), bias=False) for gap in (1, 2, 3)
        ]
        layers[2].weight.set_(layers[0].weight)
        model, x = nn.Sequential(*layers).eval(), torch.randn(1, channels, 7, 6, 8)
        compiled = smelt.compile(model, options={"measure": False})
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
