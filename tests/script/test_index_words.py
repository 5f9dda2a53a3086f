"""The words of an index that is out of range are those of brackets where brackets stand, and a call's elsewhere."""

from __future__ import annotations

import pytest
import torch

from tests.script.checking import agrees, by_evaluator, ended

X = torch.linspace(-2, 2, 12).reshape(3, 4)
NONE = torch.full((3, 4), -5.0)


def row(x):
    try:
        return x.masked_select(x > 0)[0]
    except ValueError:
        return x


def after_a_call_that_ends_so(x):
    return torch.masked_select(x, x > 0)[0]


def two_numbers(x):
    try:
        return x[0, (x > 0).nonzero().shape[0] + 4]
    except ValueError:
        return x


def twice(x):
    try:
        return x[0][(x > 0).nonzero().shape[0] + 4]
    except ValueError:
        return x


def behind_an_ellipsis(x):
    try:
        return x[..., (x > 0).nonzero().shape[0] + 4]
    except ValueError:
        return x


def on_two_lines(x):
    try:
        return x.masked_select(x > 0)[
            2
        ]  # fmt: skip
    except ValueError:
        return x


def call(x):
    try:
        return x.masked_select(x > 0).select(0, [0][0])
    except ValueError:
        return x


def too_many(x):
    try:
        return x.masked_select(x < 9)[0, 0]
    except ValueError:
        return x


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    "program",
    [row, after_a_call_that_ends_so, two_numbers, twice, behind_an_ellipsis, on_two_lines, call, too_many],
    ids=lambda program: program.__name__,
)
def test_words(program):
    scripted = agrees(program, (X,), (NONE,))
    for x in (X, NONE):
        expected = ended(lambda x=x: program(x))
        if expected[0] == "raised":
            assert ended(lambda x=x: by_evaluator(scripted, x)) == expected
    assert ended(lambda: program(NONE))[0] == "raised"


def test_a_number_into_what_has_no_dimension():
    scripted = agrees(lambda x: x[0], (X,), runs=False)
    with pytest.raises(IndexError, match="invalid index of a 0-dim tensor"):
        by_evaluator(scripted, torch.tensor(1.0))
