"""Writes in place that autograd has an opinion of: eager's error or value, whichever of the two it is.

y = (x * w).exp(); y += 1        the gradient of exp needs what y was: eager raises on the way back
x.mul_(w)                        of a leaf: eager raises at once; of another tensor: it gets a history
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable

import pytest
import torch

import smelt
from tests.training.harness import is_compiled, same_as_eager

Tensor = torch.Tensor
GIVEN = [[torch.arange(3.0) + i, torch.full((3,), 2.0)] for i in range(3)]


def _result(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).exp()
    y += 1
    return y.sum()


def _operand(x: Tensor, w: Tensor) -> Tensor:
    x = x * 1
    y = x * w
    x.add_(1)
    return (y * x).sum()


def _itself(x: Tensor, w: Tensor) -> Tensor:
    x = x * 1
    x.mul_(x)
    return (x * w).sum()


def _through_a_view(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).tanh()
    y[1:].add_(1)
    return y.sum()


def _detached(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).sigmoid()
    y.detach().zero_()
    return y.sum()


def _in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    y = x * 1
    for row in w:
        z = y * row
        y.add_(row)
        y = y + z
    return y.sum()


def _on_one_path(x: Tensor, w: Tensor) -> Tensor:
    y = (x * w).exp()
    if x.sum() > 4:
        y.add_(1)
    return y.sum()


def _leaf(x: Tensor, w: Tensor) -> Tensor:
    x.mul_(w)
    return x.sum()


def _view_of_a_leaf(x: Tensor, w: Tensor) -> Tensor:
    x[1:].add_(w[1:])
    return x.sum()


@pytest.mark.parametrize(
    "program",
    [_result, _operand, _itself, _through_a_view, _detached, _in_a_loop, _on_one_path, _leaf, _view_of_a_leaf],
)
def test_eagers_errors(program: Callable[..., Tensor]) -> None:
    same_as_eager(program, GIVEN)


def _sums(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    y += 1
    return y.relu_().sum()


def _scaled(x: Tensor, w: Tensor) -> Tensor:
    x = x * 1
    x.mul_(w)
    x.mul_(w)
    x[0] = w[1]
    return x.sum()


def _in_two_arms(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 4:
        y.add_(1)
    else:
        y = y.exp()
    return y.sum()


@pytest.mark.parametrize("program", [_sums, _scaled, _in_two_arms])
def test_writes_to_what_no_gradient_needs(program: Callable[..., Tensor]) -> None:
    assert is_compiled(same_as_eager(program, GIVEN))


def test_arguments_that_get_a_history() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        x.mul_(2)
        return (x * w).sum()

    compiled = smelt.compile(program, options={"train": True})
    with pytest.warns(smelt.SmeltWarning, match="writes to what others see"):
        compiled(torch.ones(2, requires_grad=True) * 1, torch.ones(2))
    for _ in range(2):
        leaf = torch.ones(2, requires_grad=True)
        x = leaf * 1
        (compiled(x, torch.ones(2)) + x.sum()).backward()
        assert torch.equal(leaf.grad, torch.full((2,), 4.0))


def test_leaves_after_other_tensors() -> None:
    """The entry of a tensor with a history is no answer for a leaf."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x + w
        x.add_(1)
        return y.sum()

    compiled = smelt.compile(program, options={"train": True})
    for _ in range(3):
        compiled(torch.ones(2), torch.ones(2, requires_grad=True))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        compiled(torch.ones(2, requires_grad=True), torch.ones(2))


def test_a_write_to_what_eager_saves_is_eagers_error_in_backward() -> None:
    """No piece of the program stands for it: what the pieces save may be something else."""

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x, y = x.clone(), y.clone()
        y[0] = x.amin() + 0.0
        x.t().copy_(torch.zeros(4, 3))
        kinds = Counter(torch.ones(2).tolist())
        return y * len(kinds)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = smelt.compile(program, options={"adaptive": False})
        for _ in range(3):
            result = compiled(torch.rand(3, 4, requires_grad=True), torch.rand(4)).sum()
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward()
