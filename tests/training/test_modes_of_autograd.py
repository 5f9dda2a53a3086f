"""Modes and forms of autograd around a compiled model: eager's values, by the node or by eager, never an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

import smelt
from smelt.compiler.object.compiled_types import ANOMALIES
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 4))


def _input() -> Tensor:
    return torch.linspace(-2, 2, 24).reshape(3, 8)


@pytest.mark.parametrize("create_graph", [False, True])
def test_gradients_in_batches(create_graph: bool) -> None:
    model, _, compiled = pair(_net)
    for _ in range(2):
        compiled(_input().requires_grad_()).sum().backward()
    found = []
    for run in (model, compiled):
        x = _input().requires_grad_()
        y = run(x)
        many = torch.eye(y.numel()).reshape(-1, *y.shape)
        (rows,) = torch.autograd.grad(y, x, many, is_grads_batched=True, create_graph=create_graph)
        again = torch.autograd.grad(rows.square().sum(), x)[0] if create_graph else x
        jacobian = torch.autograd.functional.jacobian(run, _input(), vectorize=True)
        found.append((rows.detach(), again.detach(), jacobian))
    for own, expected in zip(*reversed(found), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5)
    assert is_compiled(compiled)


@pytest.mark.parametrize("needs", [False, True])
def test_forward_mode_keeps_tangents(needs: bool) -> None:
    model, _, compiled = pair(_net)
    with torch.set_grad_enabled(needs):
        for _ in range(3):
            compiled(_input())
        with forward_ad.dual_level():
            tangents = [
                forward_ad.unpack_dual(f(forward_ad.make_dual(_input(), _input()))).tangent for f in (model, compiled)
            ]
        assert tangents[0] is not None
        torch.testing.assert_close(*tangents)
        compiled(_input())
    assert sum(compiled.stats().fallbacks.values()) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_anomalies_are_eagers_from_the_first_call() -> None:
    compiled = smelt.compile(lambda x: torch.sqrt(x * 0).sum())
    for _ in range(2):
        with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="MulBackward0"):
            compiled(torch.ones(3, requires_grad=True)).backward()
    assert compiled.stats().fallbacks == {ANOMALIES: 2}


def test_nothing_is_compiled_with_gradients_where_that_is_not_wanted(recwarn: pytest.WarningsRecorder) -> None:
    model, other, compiled = pair(_net, train=False)
    for _ in range(3):
        for run in (model, compiled):
            run.zero_grad()
            run(_input()).sum().backward()
        same_gradients(model, other)
        with torch.no_grad():
            torch.testing.assert_close(compiled(_input()), model(_input()))
    stats = compiled.stats()
    assert not recwarn.list and stats.builds == 1 and stats.rows[0].hits == 2, stats
    assert "'train': False" in str(smelt.explain(compiled))


def test_one_object_serves_training_and_inference() -> None:
    """Without a rebuild when they take turns, and natively from the first of each kind."""
    model, other, compiled = pair(_net)
    for step in range(4):
        for run in (model, compiled):
            run.zero_grad()
            run(_input()).sum().backward()
        same_gradients(model, other)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found: Any = compiled(_input())
            assert not found.requires_grad
            torch.testing.assert_close(found, model(_input()))
        assert step == 0 or compiled.stats().builds == 3
    assert is_compiled(compiled)
