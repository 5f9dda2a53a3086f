"""Tensors that a program holds where no name leads to them are read at their places again by each call of a trace."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def _scaled(x: Tensor, *more: Tensor, weight: Tensor) -> Tensor:
    return sum(more, x @ weight)


def _held(kind: str) -> tuple[Callable[[Tensor], Any], Tensor]:
    held = torch.randn(3, 3)
    members, keys = {held}, {held: 2}
    programs: dict[str, Callable[[Tensor], Any]] = {
        "by keyword": functools.partial(_scaled, weight=held),
        "by place": functools.partial(torch.add, held),
        "of both kinds": functools.partial(functools.partial(_scaled, weight=held), torch.ones(3)),
        "in a set": lambda x: [x + item for item in members],
        "as a key": lambda x: [x + key * value for key, value in keys.items()],
    }
    return programs[kind], held


@pytest.mark.parametrize("kind", ["by keyword", "by place", "of both kinds", "in a set", "as a key"])
def test_state_without_a_name(kind: str) -> None:
    program, held = _held(kind)
    traced = smelt.trace(program, (torch.randn(3, 3),))
    for _ in range(2):
        x = torch.randn(3, 3)
        torch.testing.assert_close(traced(x), program(x))
        held.mul_(2)


def test_a_keyword_that_is_given_anew() -> None:
    program = functools.partial(_scaled, weight=torch.randn(3, 3))
    traced = smelt.trace(program, (torch.randn(3, 3),))
    program.keywords["weight"] = torch.randn(3, 3)
    x = torch.randn(3, 3)
    torch.testing.assert_close(traced(x), program(x))


def test_a_parameter_that_is_gone() -> None:
    model = torch.nn.Linear(3, 3)
    traced = smelt.trace(model, (torch.randn(2, 3),))
    model.bias = None
    with torch.no_grad(), pytest.raises(smelt.CaptureError, match=r"S0107.*bias holds no tensor"):
        traced(torch.randn(2, 3))
