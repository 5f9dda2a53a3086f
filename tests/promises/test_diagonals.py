"""`fill_diagonal_`, of any rank, layout and size, on arguments, views and in loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


def contrast(x: Tensor) -> Tensor:
    return (x @ x.t()).fill_diagonal_(-math.inf).softmax(-1)


def argument(x: Tensor) -> Any:
    y = x.fill_diagonal_(7)
    return y is x, x * 2, y


def branches(x: Tensor) -> Tensor:
    y = x.clone()
    if x.sum() > 0:
        y.fill_diagonal_(0)
    else:
        y.t()[1:].fill_diagonal_(5.5)
    return y * 2


def loop(x: Tensor) -> Tensor:
    y = x.abs().clone()
    for i in range(int(y.max())):
        y = y.roll(1, 0).fill_diagonal_(i) * 0.5
    return y


PROGRAMS: list[Callable[[Tensor], Any]] = [
    contrast, argument, branches, loop,
    lambda x: x.clone().fill_diagonal_(3),
    lambda x: x.clone().fill_diagonal_(3, wrap=True) + 1,
    lambda x: x.expand(3, *x.shape[1:]).fill_diagonal_(2),
    lambda x: x[::2].fill_diagonal_(1),
]  # fmt: skip
INPUTS: list[Callable[[], Tensor]] = [
    lambda: torch.randn(4, 4), lambda: -torch.rand(5, 3), lambda: torch.rand(3, 7).t() * 3, lambda: torch.randn(9, 2),
    lambda: torch.zeros(0, 3), lambda: torch.randint(9, (5, 5)), lambda: torch.randn(4, 4).bool(),
    lambda: torch.randn(6, 4, dtype=torch.complex64), lambda: torch.randn(3, 3, 3), lambda: torch.randn(2, 3, 3),
    lambda: torch.randn(2, 2, 2, 2), lambda: torch.randn(4), lambda: torch.randn(1, 4),
]  # fmt: skip


def ended(program: Callable[[Tensor], Any], x: Tensor) -> Any:
    """What comes back and what is left of the argument, or the kind of error."""
    try:
        return program(x), x
    except (RuntimeError, IndexError) as error:
        return [type(error) is RuntimeError], x


@pytest.mark.spread(7)
@pytest.mark.filterwarnings("ignore:.*falls back to eager:smelt.SmeltWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program: Callable[[Tensor], Any], dynamic: bool | None) -> None:
    torch.manual_seed(0)
    for i, make in enumerate(INPUTS):
        if i % 4 == 0:  # not compiled again and again
            compiled = smelt.compile(program, dynamic=dynamic)
        x = make()
        for _ in range(2):
            given, wanted = (torch.empty_like(x).copy_(x) for _ in range(2))
            torch.testing.assert_close(ended(compiled, given), ended(program, wanted), equal_nan=True)


def test_it_is_compiled() -> None:
    for program, x in ((contrast, torch.randn(4, 3)), (argument, torch.randn(4, 5)), (branches, torch.randn(4, 4))):
        compiled = smelt.compile(program)
        compiled(x.clone())
        compiled(x.clone())
        assert not compiled.stats().fallbacks
    program = smelt.trace(contrast, torch.randn(4, 3), dynamic_shapes={"x": {0: "B"}})
    assert "aten.diagonal" in str(program.graph) and "fill_diagonal_" not in str(program.graph)
    x = torch.randn(9, 3)
    torch.testing.assert_close(program(x), contrast(x))
