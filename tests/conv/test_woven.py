"""Transposed convolutions in parts, woven or written where they lie: eager's results, whatever the options."""

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
_BY_PARTS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((9, 10), {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}),
    ((7, 8), {"kernel_size": 2, "stride": 3, "output_padding": (2, 0)}),
    ((2, 4), {"kernel_size": (5, 4), "stride": (2, 1), "padding": (0, 3)}),
    ((6, 6), {"kernel_size": 1, "stride": 2}),
    ((12,), {"kernel_size": 7, "stride": 3, "padding": 4, "output_padding": 2}),
)
"""With 20 channels also those that no weaving has."""


def _ops(compiled: object) -> list[str]:
    return [node.op for unit in compiled_units(compiled) for node in unit.optimized.walk()]


def _launches(compiled: object) -> list[str]:
    (unit,) = compiled_units(compiled)
    assert unit.lowered is not None
    return [i.label for i in unit.lowered.plan.instructions if isinstance(i, Launch)]


def _model(number: int, outputs: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(number)
    sizes, options = (*_IMAGES, *_BY_PARTS)[number]
    kind = nn.ConvTranspose1d if len(sizes) == 1 else nn.ConvTranspose2d
    norm = nn.BatchNorm1d if len(sizes) == 1 else nn.BatchNorm2d
    layers = kind(6, outputs, **options), norm(outputs), nn.ReLU()
    return nn.Sequential(*layers).eval().requires_grad_(False), torch.randn(2, 6, *sizes)


@torch.no_grad()
def test_results_whose_channels_lie_side_by_side() -> None:
    torch.manual_seed(0)
    for options in (
        {"kernel_size": (3, 4), "padding": (1, 4)},
        {"kernel_size": (4, 3), "stride": (1, 3), "padding": 3},
    ):
        model, x = nn.ConvTranspose2d(20, 24, **options).eval(), torch.randn(2, 20, 7, 9)
        x = x.to(memory_format=torch.channels_last)
        compiled = smelt.compile(model, options={"measure": False})
        for _ in range(2):
            found, expected = compiled(x), model(x)
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _is_eagers(model: nn.Module, x: torch.Tensor) -> object:
    compiled = smelt.compile(model, options={"measure": False})
    exact = copy.deepcopy(model).double()(x.double())
    mine, theirs = compiled(x), model(x)
    assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    for special in (torch.inf, torch.nan):
        given = x.clone()
        given.view(-1)[-1] = special
        torch.testing.assert_close(compiled(given), model(given), equal_nan=True)
    return compiled


@pytest.mark.parametrize("number", range(len(_IMAGES)))
def test_woven_options_are_eagers(number: int) -> None:
    compiled = _is_eagers(*_model(number, 5))
    assert not any("conv_transpose" in op for op in _ops(compiled))


@pytest.mark.parametrize("number", range(len(_IMAGES) + len(_BY_PARTS)))
def test_options_in_parts_are_eagers(number: int) -> None:
    model, x = _model(number, 20)
    compiled = _is_eagers(model, x)
    is_woven = x[0, 0].numel() == 1 or max(model[0].stride) == 1
    assert any("conv_transpose" in op for op in _ops(compiled)) != is_woven
    assert is_woven or any(label.startswith("transposed convolution") for label in _launches(compiled))


@torch.no_grad()
def test_paths_beside_parts_and_images_that_lie_otherwise() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose2d(24, 36, 4, 2, 1)

        def forward(self, x: torch.Tensor, beside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.up(x)
            return (y + beside).tanh(), y.mean((2, 3))

    torch.manual_seed(0)
    model, beside = Around().eval(), torch.randn(2, 36, 10, 14)
    compiled = smelt.compile(model, options={"measure": False})
    for x in (torch.randn(2, 24, 5, 7), torch.randn(2, 5, 7, 24).permute(0, 3, 1, 2), torch.randn(2, 24, 7, 5).mT):
        for found, expected in zip(compiled(x, beside), model(x, beside), strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    model.up.weight[3, 2, 1, 1] = torch.inf
    fresh = smelt.compile(model, options={"measure": False})
    for found, expected in zip(fresh(x, beside), model(x, beside), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, equal_nan=True)


@torch.no_grad()
def test_weights_that_a_call_brings() -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 8, 9, 9), torch.randn(8, 20, 4, 3), torch.randn(20)

    def run(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.conv_transpose2d(x, weight, bias, [2, 2], [1, 0]).relu()

    compiled = smelt.compile(run, options={"measure": False})
    for scale in (1.0, -2.0, torch.inf):
        given = weight * torch.where(weight == weight.max(), scale, 1.0)
        torch.testing.assert_close(compiled(x, given, bias), run(x, given, bias), rtol=1e-4, atol=1e-4, equal_nan=True)


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


@pytest.mark.parametrize("outputs", [5, 20])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("number", [0, 3, 4])
def test_a_result_has_eagers_memory_layout(number: int, batch: int, outputs: int) -> None:
    """Where the result is the program's own, and images are stored channels last or column by column."""
    torch.manual_seed(number)
    sizes, options = _IMAGES[number]
    model = nn.ConvTranspose2d(6, outputs, **options).eval().requires_grad_(False)
    x = torch.randn(batch, 6, *sizes)
    for given in (x, x.to(memory_format=torch.channels_last), x.mT.contiguous().mT):
        compiled, want = smelt.compile(model, options={"measure": False}), model(given)
        for _ in range(3):
            got = compiled(given)
            assert got.stride() == want.stride()
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
