"""An index by a byte or a flag without dimensions takes all or nothing; it is no place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def alone(x: Tensor, m: Tensor) -> Any:
    return (x[m],)


def among_others(x: Tensor, m: Tensor) -> Any:
    return x[:, m], x[m, 1], x[1, m], x[None, m, :1]


def written(x: Tensor, m: Tensor) -> Any:
    y = x.clone()
    y[m] = 5
    y[:, m] += 1
    return (y,)


def made(x: Tensor, m: Tensor) -> Any:
    return x[m.sum().to(torch.uint8)], x[m.to(torch.bool)]


def beside_data(x: Tensor, m: Tensor) -> Any:
    n = int(x.sum()) % 3
    return x[n, m], x[m, n:], x[m][..., 0]


@pytest.mark.spread(6)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
@pytest.mark.parametrize("fn", [alone, among_others, written, made, beside_data], ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    compiled = smelt.compile(fn)
    for value in (1, 0, 2, 1, 0, 5, 0):
        mask = torch.tensor(value).to(dtype)
        for found, expected in zip(compiled(x, mask), fn(x, mask), strict=True):
            assert found.shape == expected.shape and torch.equal(found, expected)
    assert compiled.stats().builds == 1
