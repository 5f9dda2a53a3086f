"""Pools whose windows are larger than the image: the kernel's loop walks the image's places, not the window's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import smelt

_POOLS: tuple[tuple[nn.Module, tuple[int, ...]], ...] = (
    (nn.AvgPool2d(64, ceil_mode=True), (1, 5, 7, 7)),
    (nn.AvgPool2d(30, 1, padding=15), (1, 3, 2, 5)),
    (nn.AvgPool2d(9, 2, padding=3, count_include_pad=False), (2, 3, 5, 7)),
    (nn.AvgPool2d(20, 3, 10, divisor_override=7), (2, 3, 12, 15)),
    (nn.MaxPool2d(64, ceil_mode=True, padding=3), (1, 5, 7, 7)),
    (nn.MaxPool2d((9, 2), 1, padding=(4, 1)), (1, 4, 3, 7)),
    (nn.AvgPool1d(20, 3, 10), (2, 3, 12)),
)


@pytest.mark.spread(3)
@pytest.mark.parametrize("number", range(len(_POOLS)))
def test_a_pool_is_eagers(number: int) -> None:
    pool, sizes = _POOLS[number]
    compiled = smelt.compile(pool, options={"measure": False})
    x = torch.randn(*sizes)
    with torch.no_grad():
        for special in (None, torch.nan, torch.inf):
            if special is not None:
                x.view(-1)[3] = special
            torch.testing.assert_close(compiled(x), pool(x), equal_nan=True)
    assert "dispatcher" not in smelt.explain(compiled).to_text()


def test_a_window_without_end_is_walked_by_the_image() -> None:
    pool = nn.AvgPool2d(10**6, ceil_mode=True)  # by the window's places it would take hours
    x = torch.randn(1, 3, 7, 7)
    compiled = smelt.compile(pool, options={"measure": False})
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), pool(x))
        torch.testing.assert_close(compiled(x), pool(x))
