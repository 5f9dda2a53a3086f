"""Writes to memory that is read at other places at once: eager's loops see what they have written already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

READING_BACK: list[Callable[[Tensor], Any]] = [
    lambda x: x[:, 1:].add_(x[:, :-1]),
    lambda x: x[:, 1:].copy_(x[:, :-1]),
    lambda x: x[1:, 1:].add_(x[:-1, :-1]),
    lambda x: x.add_(x[:, :1]),
    lambda x: x.div_(x[:, 1:2].abs() + 1).sub_(x[:, 1:2]),
    lambda x: x.t().add_(x[:3, 1].expand(x.shape[1], 3)),
    lambda x: x[:, 2:].copy_(x[:, 1:-1]).mul_(x[:, :-2]),
]
READING_AHEAD: list[Callable[[Tensor], Any]] = [
    lambda x: x[:, :-1].add_(x[:, 1:]),
    lambda x: x[:, :-2].copy_(x[:, 2:]),
    lambda x: x[:, :2].add_(x[:, 2:4]),
    lambda x: x[0].add_(x[1]),
    lambda x: x[:, 0].add_(x[:, 1]),
    lambda x: x[:, ::4].add_(x[:, 1:2]),
    lambda x: x.mul_(x),
]


def outcome(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What is left, or the kind of error."""
    try:
        return program(x).tolist(), x.tolist()
    except RuntimeError as error:
        return type(error)


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore:.*falls back to eager:smelt.SmeltWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [*READING_BACK, *READING_AHEAD])
def test_as_in_eager(program: Callable[[Tensor], Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for width in (5, 5, 5, 37, 40):
        x = torch.randn(3, width)
        assert outcome(compiled, x.clone()) == outcome(program, x)
    if program in READING_AHEAD and dynamic is None:
        assert not compiled.stats().fallbacks


def test_why_such_a_program_runs_as_it_is() -> None:
    def shifts(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 1:] = y[:, :-1]
        return y

    compiled = smelt.compile(shifts)
    with pytest.warns(smelt.SmeltWarning, match=r"reads other elements of the memory that it writes.*\.clone\(\)"):
        compiled(torch.randn(3, 5))
    (reason,) = compiled.stats().fallbacks
    assert "test_overlaps.py" in reason
