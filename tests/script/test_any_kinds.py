"""Values of which only a run knows whether they are numbers or tensors, where two ways meet."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from tests.script.checking import agrees


def an_item_or_a_tensor(x: smelt.f32[3], i: int, flag: bool) -> Any:
    v = [1, x][i] if flag else x * 2
    return v + 1


def carried_on(x: smelt.f32[3], i: int, flag: bool) -> Any:
    v = x * 2
    for _ in range(i):
        if flag:
            v = [2.0, x][i - 1]
        v = v + 1
    return v


def changed_in_place(x: smelt.f32[3], i: int, flag: bool) -> Any:
    v = [1, x][i] if flag else x
    y = x * 2
    if i == 1:
        v.add_(1)
    return y, x + 1, v


@pytest.mark.parametrize("fn", [an_item_or_a_tensor, carried_on, changed_in_place], ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Any) -> None:
    agrees(fn, *((torch.arange(3.0), i, flag) for i in (0, 1) for flag in (True, False)))
