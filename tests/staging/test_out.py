"""A result that is written into an empty tensor gives it a size, which no staged graph says: recorded ways do."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture import capture
from smelt.capture.staging.stage import stage

X = torch.ones(3, 4)


def before_a_branch(x: Tensor) -> tuple[Tensor, int]:
    out = torch.empty(0)
    torch.add(x.sum(0), 1, out=out)
    if x.sum() > 0:
        out = out + 1
    return out * out, out.shape[0]


def in_a_branch(x: Tensor) -> tuple[Tensor, int]:
    out = torch.empty(0)
    if x.sum() > 0:
        torch.add(x[0], 1, out=out)
    return out**2, out.shape[0]


def of_its_size(x: Tensor) -> tuple[Tensor, int]:
    out = torch.empty(4)
    torch.add(x.sum(0), 1, out=out)
    if x.sum() > 0:
        out = out + 1
    return out * out, out.shape[0]


@pytest.mark.parametrize("program", [before_a_branch, in_a_branch, of_its_size], ids=lambda program: program.__name__)
def test_as_in_eager(program) -> None:
    native = capture(program, (X,), {}, specialize=True)
    staged = stage(program, (X,), {}, target=None, name=None, native=native)
    assert (staged.error is None) == (program is of_its_size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        traced = smelt.trace(program, (X,))
    compiled = smelt.compile(program)
    for x in (X, X * 2, -X):
        expected = program(x)
        found = compiled(x)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
        try:
            found = traced(x)
        except smelt.CaptureError:
            continue
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
