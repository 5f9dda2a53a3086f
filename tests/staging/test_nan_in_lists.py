"""Python looks for an object in a list by identity first: a NaN that is there is found, another one is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def itself(x: Tensor) -> Any:
    v = x.sum().item()
    return x, v in [v], v not in (1.0, v)


def another(x: Tensor) -> Any:
    v, w = x.sum().item(), x.sum().item()
    return x, v in [w], v in (w, 6.0), v not in [w]


def grown(x: Tensor) -> Any:
    found: list[float] = []
    for row in x:
        v = row.item()
        if v > 0 or v != v:
            found.append(v)
    return x, bool(found) and found[0] in found, bool(found) and found.index(found[0])


def by_branch(x: Tensor) -> Any:
    v = x.sum().item()
    return x + 1 if v in [v] else x - 1


@pytest.mark.spread(3)
@pytest.mark.parametrize("make", [smelt.compile, smelt.script], ids=["compile", "script"])
@pytest.mark.parametrize("program", [itself, another, grown, by_branch], ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[..., Any], make: Callable[[Any], Any]) -> None:
    made = make(program)
    nan = float("nan")
    for values in ([1.0, 3.0, 2.0], [1.0, nan, 2.0], [nan, nan, -1.0], [1.0, 1.0, 5.0], [1.0, nan, 2.0]):
        x = torch.tensor(values)
        assert str(made(x)) == str(program(x))
