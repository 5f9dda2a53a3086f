"""What data make an operator raise is caught by the program: each call goes the way that eager goes."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import Tensor

import smelt
from smelt.diag import CaptureError

X = torch.arange(12.0).reshape(3, 4)


def indexed(x: Tensor, i: Tensor) -> Tensor:
    try:
        y = x[i]
    except IndexError:
        y = x * 2
    return y + 1


def beside_a_branch(x: Tensor, i: Tensor) -> Tensor:
    if x.sum() > 100:
        x = x + 1
    try:
        y = x[i]
    except IndexError:
        y = x * 2
    return y + 1


def in_words(x: Tensor, i: Tensor) -> tuple[Tensor, str]:
    try:
        return x.index_select(0, i), ""
    except IndexError as error:
        return x, str(error)


def written(x: Tensor, i: Tensor) -> Tensor:
    x = x.clone()
    try:
        x[i] = 7.0
    except IndexError:
        x.add_(1)
    return x


def in_another(x: Tensor, i: Tensor) -> Tensor:
    try:
        return _row(x, i) * 2
    except IndexError:
        return x


def _row(x: Tensor, i: Tensor) -> Tensor:
    return x[i]


def suppressed(x: Tensor, i: Tensor) -> Tensor:
    y = x * 2
    with contextlib.suppress(IndexError):
        y = x[i]
    return y + 1


def by_a_size(x: Tensor, i: Tensor) -> Tensor:
    try:
        return (x > i).nonzero()[0]
    except IndexError:
        return x[0]


PROGRAMS = [indexed, beside_a_branch, in_words, written, in_another, suppressed, by_a_size]
NUMBERS = ([1, 7, 1, 2, 7, 9], [7, 1, 7, 1, 30, 2])


def _same(found: object, expected: object) -> bool:
    if isinstance(expected, tuple):
        return isinstance(found, tuple) and all(map(_same, found, expected))
    return torch.equal(found, expected) if isinstance(expected, Tensor) else found == expected  # type: ignore[arg-type]


@pytest.mark.spread(3)
@pytest.mark.parametrize("numbers", NUMBERS, ids=["first fits", "first raises"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_compiled(program, numbers) -> None:
    compiled = smelt.compile(program)
    for number in numbers:
        i = torch.tensor([number])
        assert _same(compiled(X, i), program(X, i)), number


@pytest.mark.spread(2)
@pytest.mark.parametrize("numbers", NUMBERS, ids=["first fits", "first raises"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_traced_is_right_or_refuses(program, numbers) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        traced = smelt.trace(program, (X, torch.tensor(numbers[:1])))
    refused = 0
    for number in numbers:
        i = torch.tensor([number])
        try:
            found = traced(X, i)
        except CaptureError:
            refused += 1
            continue
        assert _same(found, program(X, i)), number
    if numbers is NUMBERS[0] or program is by_a_size:
        assert not refused  # a graph whose errors the program itself answers
    else:
        assert 0 < refused < len(numbers)  # the way of an error that was handled


def test_what_nobody_catches_is_no_reading() -> None:
    def program(x: Tensor, i: Tensor) -> Tensor:
        return x[i] + 1

    assert "py.raised" not in str(smelt.trace(program, (X, torch.tensor([1]))).graph)
    compiled = smelt.compile(indexed)
    compiled(X, torch.tensor([1]))
    assert "py.raised" not in str(compiled.stats().rows[0].entry.graph)


def test_random_numbers_of_no_data_are_no_reading() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return x + torch.randint_like(torch.zeros(4), 0, 5)
        except RuntimeError:
            return x

    traced = smelt.trace(program, (X,))
    torch.manual_seed(3)
    expected = program(X)
    torch.manual_seed(3)
    assert torch.equal(traced(X), expected)
