"""Bilinear resampling as gathers and a weighted sum: what eager gives, in kernels of our own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from tests.codegen.harness import rms_ratio

_CALLS: tuple[tuple[tuple[int, ...], dict[str, Any]], ...] = (
    ((1, 5, 4, 4), {"size": (9, 32)}),
    ((2, 3, 8, 6), {"scale_factor": 2.0}),
    ((2, 3, 7, 5), {"size": (3, 11), "align_corners": True}),
    ((2, 3, 7, 5), {"scale_factor": 1.7}),
    ((2, 3, 7, 5), {"scale_factor": (0.6, 1.0), "recompute_scale_factor": True}),
    ((1, 2, 6, 6), {"size": (6, 6)}),
    ((1, 2, 1, 5), {"size": (4, 1), "align_corners": True}),
)


@pytest.mark.spread(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("number", range(len(_CALLS)))
def test_resampling_is_eagers(number: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes, how = _CALLS[number]

    def resampled(x: Tensor) -> Tensor:
        return F.interpolate(x, mode="bilinear", **how)

    compiled = smelt.compile(resampled, options={"measure": False})
    x = torch.randn(*sizes, dtype=dtype)
    for special in (None, torch.inf, torch.nan):
        if special is not None:
            x.view(-1)[4] = special
        mine, theirs = compiled(x), resampled(x)
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    assert "dispatcher" not in smelt.explain(compiled).to_text()


def test_channels_last_stays_what_eager_makes_of_it() -> None:
    x = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)

    def resampled(x: Tensor) -> Tensor:
        return F.interpolate(x, size=(7, 9), mode="bilinear")

    mine, theirs = smelt.compile(resampled, options={"measure": False})(x), resampled(x)
    assert mine.stride() == theirs.stride()
    torch.testing.assert_close(mine, theirs)


class _Head(nn.Module):
    """Four images of sizes of their own, joined at the largest one's, a 1x1 convolution, a norm, and another one."""

    def __init__(self, *, with_bias: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.fuse = nn.Conv2d(96 + 32, 40, 1, bias=with_bias)
        self.norm = nn.BatchNorm2d(40)
        self.last = nn.Conv2d(40, 3, 1)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2.0)

    def forward(self, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        size = a.shape[2:]
        larger = [F.interpolate(x, size=size, mode="bilinear", align_corners=False) for x in (d, c, b)]
        return self.last(F.relu(self.norm(self.fuse(torch.cat([*larger, a], 1)))))


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_convolution_of_resampled_images_is_computed_at_their_sizes(with_bias: bool) -> None:
    head = _Head(with_bias=with_bias).eval()
    images = [torch.randn(2, 32, n, n + 1) for n in (16, 8, 4, 2)]
    compiled = smelt.compile(head, options={"measure": False})
    with torch.no_grad():
        mine, theirs = compiled(*images), head(*images)
        assert mine.stride() == theirs.stride()
        exact = copy.deepcopy(head).double()(*[x.double() for x in images])
        assert rms_ratio(mine, theirs, exact) <= 1.5
        # What is not finite reaches the same pixels, each as the same.
        for special in (torch.inf, -torch.inf, torch.nan):
            for image in images:
                spoiled = [x.clone() if x is image else x for x in images]
                for x, given in zip(spoiled, images, strict=True):
                    if given is image:
                        x[0, 3, 1, 1] = special
                torch.testing.assert_close(compiled(*spoiled), head(*spoiled), equal_nan=True)
        head.fuse.weight.mul_(2.0)
        torch.testing.assert_close(compiled(*images), head(*images))
