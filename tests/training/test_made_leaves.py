"""Tensors that a program makes and has require gradients: what was computed from them before has none by them.

b = a * 1; c = b * 2; b.requires_grad_(); grad((c * b).sum(), b)      c, not c + 2 * b
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.capture import capture
from smelt.ops.evaluate import evaluate, no_state
from tests.training.harness import is_compiled

Tensor = torch.Tensor


def _by_method(a: Tensor, c: Tensor) -> Any:
    b = a.detach() * 1
    before = b * 2
    b.requires_grad_()
    return torch.autograd.grad((before * b * 3).sum(), b)


def _by_attribute(a: Tensor, c: Tensor) -> Any:
    b = a.detach() * 1
    before = b.exp()
    b.requires_grad = True
    (before * b).sum().backward()
    return b.grad


def _on_one_path(a: Tensor, c: Tensor) -> Any:
    b = a.detach() * 1
    before = b * 2
    if c.sum() > 0:
        a = a + 1
    b.requires_grad_()
    return torch.autograd.grad((before * b * a).sum(), b)


def _constant(a: Tensor, c: Tensor) -> Any:
    b = torch.tensor([1.0, 2.0, 3.0])
    before = b * a
    b.requires_grad_()
    (grad,) = torch.autograd.grad((before * b).sum(), b)
    b.requires_grad_(False)
    return grad + b


def _parameter(a: Tensor, c: Tensor) -> Any:
    b = a.detach() * 1
    before, made = b * 2, nn.Parameter(b)
    return torch.autograd.grad((before * made).sum(), made)


def _in_steps(a: Tensor, c: Tensor) -> Any:
    b = a.detach().clone()
    for _ in range(3):
        b.requires_grad_()
        (grad,) = torch.autograd.grad((b * b * a).sum(), b)
        b = (b + 0.1 * grad.sign()).detach()
    return b


def _off_and_on(a: Tensor, c: Tensor) -> Any:
    b = a.detach().requires_grad_()
    before = b * 2
    b.requires_grad_(False)
    between = b * 3
    b.requires_grad_()
    return torch.autograd.grad((before * between).sum(), b)


def _with_a_view(a: Tensor, c: Tensor) -> Any:
    b = a.detach().clone()
    before = b[1:] * 2
    b.requires_grad_()
    return torch.autograd.grad((b[1:] * before).sum(), b)


WHOLE = [_by_method, _by_attribute, _on_one_path, _constant, _parameter, _in_steps]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("program", [*WHOLE, _off_and_on, _with_a_view], ids=lambda one: one.__name__.strip("_"))
def test_gradients(program: Callable[[Tensor, Tensor], Any]) -> None:
    compiled = smelt.compile(program, options={"adaptive": False})
    for call in range(4):
        a, c = torch.randn(3), torch.tensor([1.0 if call % 2 else -1.0])
        torch.testing.assert_close(compiled(a, c), program(a, c))
    assert is_compiled(compiled) == (program in WHOLE)


def test_the_graph_as_recorded_runs() -> None:
    captured = capture(_by_method, (a := torch.randn(3), a), {})
    assert captured.error is None and captured.graph is not None and captured.signature is not None
    found = evaluate(captured.graph, captured.signature.flatten((a, a), {}), no_state)
    torch.testing.assert_close(found[0], _by_method(a, a)[0])
