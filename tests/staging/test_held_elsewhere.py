"""What objects hold outside of any container (elements of arrays, bytes, errors' arguments, an order): one arm of a
branch that changes it is nothing to the other, nor to the caller's own objects."""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


COUNTS = np.zeros(2)


def elements_outside(x: Tensor) -> Any:
    if x.sum() > 0:
        COUNTS[0] += 1
    return x * float(COUNTS[0])


def elements(x: Tensor) -> Any:
    counts = np.zeros(2)
    if x.sum() > 0:
        counts[0] += 1
    return x + float(counts[0]), counts.tolist()


def some_bytes(x: Tensor) -> Any:
    text = bytearray(b"a")
    if x.sum() > 0:
        text += b"b"
    return x * len(text), bytes(text)


def an_array(x: Tensor) -> Any:
    numbers = array.array("i", [1])
    if x.sum() > 0:
        numbers.append(2)
    return x * len(numbers)


def an_error(x: Tensor) -> Any:
    error = ValueError(1)
    if x.sum() > 0:
        error.args += (2,)
    return x * len(error.args)


def an_order(x: Tensor) -> Any:
    table = OrderedDict(a=1, b=2)
    if x.sum() > 0:
        table.move_to_end("a")
    return x, list(table)


def an_order_by_hand(x: Tensor) -> Any:
    table = {"a": 1, "b": 2}
    if x.sum() > 0:
        table["a"] = table.pop("a")
    return x, list(table)


def an_order_in_a_loop(x: Tensor) -> Any:
    table = {"a": 1, "b": 2, "c": 3}
    while x.sum() < 9:
        first = next(iter(table))
        table[first] = table.pop(first)
        x = x.abs() + 1
    return x, list(table)


PROGRAMS = [
    elements_outside, elements, some_bytes, an_array, an_error, an_order, an_order_by_hand, an_order_in_a_loop,
]  # fmt: skip


def _run(program: Callable[..., Any]) -> list[str]:
    COUNTS[:] = 0
    return [str((program(torch.tensor([v, 0.5])), COUNTS)) for v in (-1.0, 3.0, -2.0, 5.0, -7.0, 1.0)]


@pytest.mark.spread(3)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    expected = _run(program)
    compiled = smelt.compile(program)
    for _ in range(2):
        assert _run(compiled) == expected


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")  # an error's arguments are changed in Python
def test_an_arguments_order_and_error() -> None:
    def program(x: Tensor, table: Any, error: Any) -> Any:
        if x.sum() > 0:
            table.move_to_end("a")
            error.args += ("p",)
        return x * 2

    found = []
    for run in (program, smelt.compile(program)):
        seen = []
        for first in (1.0, -1.0, 2.0, -2.0):
            table, error = OrderedDict(a=1, b=2), ValueError(1)
            seen.append(str((run(torch.tensor([first]), table, error), list(table), error.args)))
        found.append(seen)
    assert found[0] == found[1]


def test_an_order_that_was_changed_before_an_arm() -> None:
    def program(x: Tensor) -> Any:
        table = OrderedDict(a=1, b=2, c=3)
        table.move_to_end("a")
        if x.sum() > 0:
            x = x + 1
        return list(table), x

    compiled = smelt.compile(program)
    for first in (1.0, -1.0, 2.0, -2.0):
        assert str(compiled(torch.tensor([first]))) == str(program(torch.tensor([first])))


@pytest.mark.parametrize("name, value", [("__name__", "zed"), ("__defaults__", (7,)), ("__kwdefaults__", {"b": 8})])
def test_what_a_function_is_called_and_has_by_default(name: str, value: Any) -> None:
    def program(x: Tensor) -> Any:
        def inner(a: int = 1, *, b: int = 2) -> Any:
            return a, b

        if x.sum() > 0:
            setattr(inner, name, value)
        return inner.__name__, inner(), x + 1

    compiled = smelt.compile(program)
    for first in (1.0, -1.0, 2.0, -2.0):
        assert str(compiled(torch.tensor([first]))) == str(program(torch.tensor([first])))
