"""Attributes of errors, texts and numbers of the program's own classes are state like those of any object."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Stop(Exception):
    last: Any = 1.0


class Name(str):
    last: Any = 1.0


class Length(float):
    last: Any = 1.0


class Count(int):
    last: Any = 1.0


VALUES = [Stop("now"), Name("a"), Length(2.0), Count(3)]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_what_is_read_is_guarded(value: Any) -> None:
    def outside(x: Tensor) -> Tensor:
        return x * value.last

    def given(x: Tensor, value: Any) -> Tensor:
        return x * value.last

    of_outside, of_given = smelt.compile(outside), smelt.compile(given)
    x = torch.ones(2)
    for number in (1.0, 1.0, 2.0, 3.0, 2.0, 4.0):
        value.last = number
        assert of_outside(x)[0] == number
        assert of_given(x, value)[0] == number


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
def test_what_an_arm_sets_is_set(value: Any) -> None:
    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            value.last = x * 2
        return x * value.last

    found = []
    for run in (program, smelt.compile(program)):
        value.last = 1.0
        found.append([str((run(torch.tensor([v])), value.last)) for v in (1.0, -1.0, 2.0, -3.0, 1.0, 4.0, -1.0)])
    assert found[0] == found[1]
