"""What stands in brackets behind a tensor of which nothing is said: each kind of index, and what is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import smelt
from tests.script.checking import agrees, by_evaluator, ended

X = torch.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[(0,), (1,)],
        lambda x: x[[0, 2]],
        lambda x: x[[0, 2], (1, 1)],
        lambda x: x[[[0, 1], [1, 0]], 1],
        lambda x: x[range(2)],
        lambda x: x[np.int64(1)],
    ],
)
def test_lists_and_tuples(program):
    agrees(program, (X,))


@pytest.mark.filterwarnings("ignore:every run")
@pytest.mark.parametrize(
    "program",
    [lambda x: x[1.5], lambda x: x[0, None, 1j], lambda x: x[{1}], lambda x: x[1:2.5], lambda x: x[:, object]],
)
def test_what_is_no_index(program):
    scripted = agrees(program, (X,))
    assert ended(lambda: by_evaluator(scripted, X)) == ended(lambda: program(X))


def at(x, n: float):
    return x[n]


@pytest.mark.filterwarnings("ignore:every run")
def test_a_number_that_is_no_index():
    scripted = agrees(at, (X, 1.0))
    assert ended(lambda: by_evaluator(scripted, X, 1.0)) == ended(lambda: at(X, 1.0))


def test_arrays_are_refused():
    with pytest.raises(smelt.CaptureError, match="an array of NumPy's"):
        smelt.script(lambda x: x[np.array([1])])


@pytest.mark.parametrize(
    "program", [lambda x: x[[[0, 1], [1, 0]]], lambda x: x[[slice(1), None]], lambda x: x[[torch.tensor([0, 2])]]]
)
def test_lists_that_torch_takes_for_tuples_are_refused(program):
    with pytest.raises(smelt.CaptureError, match="more than numbers"):
        smelt.script(program)
