"""Bilinear resampling as gathers and a weighted sum: what eager gives, in kernels of our own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import smelt

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
