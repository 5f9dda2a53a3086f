"""An error that Python raises within a script is the program's, wherever Smelt did for it what Python does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def turned(x: Tensor, n: Any) -> Tensor:
    for _ in n:
        x = x + 1
    return x


def spread(x: Tensor, n: Any) -> Tensor:
    a, b = n
    return x * a * b


def listed(x: Tensor, n: Any) -> Tensor:
    return x * len([*n])


def sized(x: Tensor, n: Any) -> Tensor:
    return x * len(n)


def taken(x: Tensor, n: Any) -> Tensor:
    return x * n[0]


def summed(x: Tensor, n: Any) -> Tensor:
    return x * sum(n)


FUNCTIONS = (turned, spread, listed, sized, taken, summed)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_called_functions_errors_are_caught(function: Callable[..., Tensor]) -> None:
    def program(x: smelt.f32[3]) -> Tensor:
        try:
            return function(x, 5)
        except TypeError as error:
            return x * len(str(error))

    x = torch.arange(3.0)
    assert torch.equal(smelt.script(program)(x), program(x))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:every run of")
def test_errors_that_nobody_catches_are_raised(function: Callable[..., Tensor]) -> None:
    def program(x: smelt.f32[3]) -> Tensor:
        return function(x, 5)

    x = torch.arange(3.0)
    with pytest.raises(TypeError) as eager:
        program(x)
    with pytest.raises(TypeError) as scripted:
        smelt.script(program)(x)
    assert str(scripted.value) == str(eager.value)


@pytest.mark.filterwarnings("ignore:every run of")
def test_a_program_that_is_one_such_loop() -> None:
    def program(x: smelt.f32[3]) -> Tensor:
        for _ in 5:  # type: ignore[attr-defined]
            x = x + 1
        return x

    with pytest.raises(TypeError, match="'int' object is not iterable"):
        smelt.script(program)(torch.ones(3))
