"""Norms over channels, joins and resamplings between convolutions: what they give lies as what they take, channels side
by side, where nobody sees it, and as eager's where somebody does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.inspect.kernels import compiled_units
from smelt.runtime.plan import Copy, Launch
from tests.codegen.harness import assert_same, rms_ratio

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d}


class _Between(nn.Module):
    """Two convolutions of `channels`, and something between them."""

    def __init__(self, ndim: int, channels: int, between: Callable[[Tensor], Tensor], width: int = 0) -> None:
        super().__init__()
        kind = _CONVOLUTIONS[ndim]
        self.first, self.last = kind(3, channels, 3, padding=1), kind(width or channels, 5, 3, padding=1)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


class _Shown(_Between):
    """The same; what is between is a result, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.between(self.first(x))
        return self.last(y), y


def _joined(y: Tensor) -> Tensor:
    half = F.interpolate(y[..., ::2, ::2].relu(), scale_factor=2.0, mode="nearest")
    return torch.cat((half, y.tanh()), dim=1)


def _joined_rows(y: Tensor) -> Tensor:
    return torch.cat((y.tanh(), y.sin()), dim=1)


_KINDS: dict[str, tuple[int, int, Callable[[], Callable[[Tensor], Tensor]], int]] = {
    "group norm, gelu": (2, 64, lambda: nn.Sequential(nn.GroupNorm(8, 64), nn.GELU()), 0),
    "pairs": (2, 48, lambda: nn.Sequential(nn.GroupNorm(24, 48), nn.SiLU()), 0),
    "narrow groups": (2, 40, lambda: nn.Sequential(nn.GroupNorm(4, 40), nn.SiLU()), 0),
    "one group": (2, 20, lambda: nn.Sequential(nn.GroupNorm(1, 20)), 0),
    "each channel": (1, 64, lambda: nn.Sequential(nn.GroupNorm(64, 64), nn.GELU()), 0),
    "each channel, large": (1, 512, lambda: nn.Sequential(nn.GroupNorm(512, 512), nn.GELU()), 0),
    "instance norm": (2, 24, lambda: nn.Sequential(nn.InstanceNorm2d(24, affine=True), nn.ReLU()), 0),
    "instance norm of a row": (1, 24, lambda: nn.Sequential(nn.InstanceNorm1d(24)), 0),
    "upsampled": (2, 16, lambda: nn.Sequential(nn.Upsample(scale_factor=2.0), nn.InstanceNorm2d(16), nn.ReLU()), 0),
    "joined": (2, 16, lambda: _joined, 32),
    "joined rows": (1, 16, lambda: _joined_rows, 32),
}
_LENGTHS = {1: (1601,), 2: (34, 30)}


def _model(kind: str, made: type[_Between] = _Between) -> tuple[_Between, Tensor]:
    torch.manual_seed(0)
    ndim, channels, between, width = _KINDS[kind]
    model = made(ndim, channels, between(), width).eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.3)
    return model, torch.randn(2, 3, *_LENGTHS[ndim])


@torch.no_grad()
@pytest.mark.parametrize("kind", _KINDS)
def test_nothing_is_laid_out_anew_between_convolutions(kind: str) -> None:
    model, x = _model(kind)
    compiled = smelt.compile(model, options={"measure": False})
    found, eager = compiled(x), model(x)
    reference = model.double()(x.double())
    assert rms_ratio(found, eager, reference) <= 1.5
    assert (found - reference).abs().max() <= 3 * (eager - reference).abs().max() + 1e-6 * reference.abs().max()
    (unit,) = compiled_units(compiled)
    assert unit.lowered is not None
    plan = unit.lowered.plan.instructions
    copied = [i for i in plan if isinstance(i, Copy) or (isinstance(i, Launch) and i.label == "layout")]
    assert len(copied) <= 1, copied  # the result, which eager has row by row


@torch.no_grad()
@pytest.mark.parametrize("kind", _KINDS)
def test_a_result_lies_as_in_eager(kind: str) -> None:
    model, x = _model(kind, _Shown)
    compiled = smelt.compile(model, options={"measure": False})
    for _ in range(2):
        found, expected = compiled(x), model(x)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())


@torch.no_grad()
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_what_is_not_finite_spreads_as_in_eager(kind: str, number: float) -> None:
    model, x = _model(kind)
    x[1, 1, ..., 7] = number
    found, expected = smelt.compile(model, options={"measure": False})(x), model(x)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found[0].isfinite(), expected[0].isfinite())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["group norm, gelu", "each channel", "instance norm", "joined"])
def test_sizes_may_be_free(kind: str) -> None:
    model, x = _model(kind)
    compiled = smelt.compile(model, options={"measure": False})
    for batch, cut in ((2, 0), (3, 2), (1, 4), (4, 6)):
        y = torch.randn(batch, *x.shape[1:])[..., cut:].contiguous()
        torch.testing.assert_close(compiled(y), model(y), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["group norm, gelu", "pairs", "instance norm", "joined"])
def test_images_that_lie_so_themselves(kind: str) -> None:
    model, x = _model(kind, _Shown)
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    found, expected = smelt.compile(model, options={"measure": False})(x), model(x)
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert_same([t.shape for t in found], [t.shape for t in expected], exact=True)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=2e-5 * b.abs().max().item())
