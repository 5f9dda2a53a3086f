"""Calls of a program like the last one take a short way; others are examined, and answer as ever."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import CaptureError


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.drop = nn.Dropout(1.0)

    def forward(self, x: Tensor, shift: int = 1) -> Tensor:
        return self.drop(x * self.scale + shift)


def known(program: smelt.Program, *args: object) -> bool:
    return program._known_unit(args, {}) is not None


def test_the_second_call_is_known_and_answers_alike() -> None:
    x = torch.arange(6.0).view(2, 3)
    module = Scaled().eval()
    with torch.no_grad():
        program = smelt.trace(module, (x,))
        for _ in range(3):
            torch.testing.assert_close(program(x), module(x))
        assert known(program, x)
        assert known(program, x + 1)
        torch.testing.assert_close(program(x + 1), module(x + 1))


def test_other_calls_are_examined() -> None:
    x = torch.arange(6.0).view(2, 3)
    module = Scaled().eval()
    with torch.no_grad():
        program = smelt.trace(module, (x,))
        program(x)
        turned = x.t().contiguous().t()
        for other in (x.double(), turned, turned[:, :2]):
            assert not known(program, other)
        assert not known(program, x, 2)
        torch.testing.assert_close(program(x.double()), module(x.double()))
        torch.testing.assert_close(program(turned), module(turned))
        program(x)
        with pytest.raises(CaptureError):
            program(x[:, :2])
        program(x)
        module.scale.copy_(torch.full((3,), 5.0))
        torch.testing.assert_close(program(x), module(x))
        module.scale = nn.Parameter(torch.full((3,), 7.0))
        assert not known(program, x)
        torch.testing.assert_close(program(x), module(x))
        program.train()
        assert not known(program, x)
        torch.testing.assert_close(program(x), torch.zeros(2, 3))
    program.eval()
    assert not known(program, x)
    program(x).sum().backward()
    assert module.scale.grad is not None


@pytest.mark.usefixtures("young_heap")
def test_what_was_passed_is_not_kept() -> None:
    def double(x: Tensor) -> Tensor:
        return x + x

    program = smelt.trace(double, (torch.ones(4),))
    x = torch.ones(4)
    program(x)
    assert known(program, torch.zeros(4))
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None
    assert not known(program, torch.zeros(4, requires_grad=True))
    torch.testing.assert_close(copy.deepcopy(program)(torch.ones(4)), torch.full((4,), 2.0))


def test_lists_of_tensors_are_examined_each_time() -> None:
    def total(xs: list[Tensor]) -> Tensor:
        return xs[0] + xs[1]

    xs = [torch.ones(2), torch.ones(2)]
    program = smelt.trace(total, (xs,))
    program(xs)
    assert not known(program, xs)
    xs[1] = torch.full((2,), 3.0)
    torch.testing.assert_close(program(xs), torch.full((2,), 4.0))


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:.*runs operation by operation")
def test_a_sparse_argument_is_taken_at_every_call() -> None:
    matrix, x = torch.eye(5).to_sparse_csr(), torch.randn(5, 3)
    program = smelt.trace(lambda a, b: torch.sparse.mm(a, b, "sum"), (matrix, x))
    for scale in (1.0, 2.0, 3.0):
        assert torch.equal(program(matrix, x * scale), x * scale)
