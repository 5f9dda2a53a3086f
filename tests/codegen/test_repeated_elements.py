"""Tensors that are one element many times (strides of 0), where a copy of them is made: torch writes into none such."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def given_to_python(y: Tensor) -> Any:
    rows = torch.ones([3], dtype=torch.int64).to(torch.float32).unsqueeze(1).expand(3, 4)
    if torch.equal(y, rows.select(0, y.nan_to_num().argmax().item() % 3)):
        return y + 1, 1
    return y - 1, 2


def given_back(y: Tensor) -> Any:
    return (y * 2).view(4, 1).expand(4, 4).select(0, int(y.argmax()))


def negated(y: Tensor) -> Any:
    return torch._neg_view(y.expand(3, 4)) + 1


def negated_when_made(y: Tensor) -> Any:
    return torch._neg_view((y * 2).expand(3, 4)).abs()


def in_a_list(y: Tensor) -> Any:
    rows = []
    for i in range(int(y.max())):
        rows.append((y * 2).view(4, 1).expand(4, 4)[i])
    return rows


@pytest.mark.spread(6)
@pytest.mark.parametrize("own_kernels", [True, False], ids=["own", "library"])
@pytest.mark.parametrize(
    "f", [given_to_python, given_back, negated, negated_when_made, in_a_list], ids=lambda f: f.__name__
)
def test_a_copy_holds_the_element_once(f: Callable[[Tensor], Any], own_kernels: bool) -> None:
    compiled = smelt.compile(f, options={"measure": False, "own_kernels": own_kernels})
    for data in ([0.0, 1, 2, 3], [1.0, 1, 1, 1], [2.0, 1, 1, 1], [1.0, 1, 1, 1], [0.0, 0, 1, 0]):
        y = torch.tensor(data)
        assert _told(compiled(y)) == _told(f(y))
    assert compiled.stats().fallbacks == {}


def _told(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.stride(), result.tolist()
    return [_told(part) for part in result] if isinstance(result, (list, tuple)) else result
