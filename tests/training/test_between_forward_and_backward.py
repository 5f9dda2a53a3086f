"""What people do between forward and backward, or give to backward: eager's gradients, or eager's error.

Each scenario takes a model to call and its parameters, and says what came of it; it is run eagerly and compiled.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.training.harness import is_compiled, pair

Tensor = torch.Tensor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(torch.tanh(self.up(x))))


def _input() -> Tensor:
    return torch.linspace(-2, 2, 48).reshape(6, 8)


def _grads(module: nn.Module) -> list[Tensor | None]:
    return [None if p.grad is None else p.grad.clone() for p in module.parameters()]


def _freed(run: Any, module: Any) -> Any:
    loss = run(_input()).sum()
    module.up.weight = nn.Parameter(torch.zeros(16, 8))
    gc.collect()
    loss.backward()
    return _grads(module)


def _resized(run: Any, module: Any) -> Any:
    loss = run(_input()).sum()
    with torch.no_grad():
        module.down.weight.data = torch.ones(2, 16)
    loss.backward()
    return _grads(module)


def _other_data(run: Any, module: Any) -> Any:
    loss = run(_input()).sum()
    module.down.weight.data = torch.ones(4, 16)
    loss.backward()
    return _grads(module)


def _input_written(run: Any, module: Any) -> Any:
    x = _input()
    loss = run(x).sum()
    x.zero_()
    loss.backward()
    return _grads(module)


def _result_written(run: Any, module: Any) -> Any:
    y = run(_input())
    y.mul_(2)
    y.sum().backward()
    return _grads(module)


def _twice(run: Any, module: Any) -> Any:
    loss = run(_input()).sum()
    loss.backward()
    loss.backward()


def _nan(run: Any, module: Any) -> Any:
    y = run(_input())
    y.backward(torch.full_like(y, float("nan")))
    return _grads(module)


def _infinite(run: Any, module: Any) -> Any:
    y = run(_input())
    y.backward(torch.full_like(y, float("inf")))
    return _grads(module)


def _expanded(run: Any, module: Any) -> Any:
    y = run(_input())
    y.backward(torch.ones(()).expand_as(y))
    return _grads(module)


def _of_another_shape(run: Any, module: Any) -> Any:
    run(_input()).backward(torch.ones(4))


def _of_another_dtype(run: Any, module: Any) -> Any:
    y = run(_input())
    y.backward(torch.ones(y.shape, dtype=torch.float64))
    return _grads(module)


def _without_a_scalar(run: Any, module: Any) -> Any:
    run(_input()).backward()


def _hook_raises(run: Any, module: Any) -> Any:
    def hook(grad: Tensor) -> None:
        raise KeyError("stop")

    handle = module.up.weight.register_hook(hook)
    try:
        run(_input()).sum().backward()
    except KeyError as error:
        return [torch.tensor(len(str(error)))]
    finally:
        handle.remove()


def _hook_on_the_result(run: Any, module: Any) -> Any:
    y = run(_input())
    y.register_hook(lambda grad: grad * 3)
    y.sum().backward()
    return _grads(module)


def _in_a_checkpoint(run: Any, module: Any) -> Any:
    x = _input().requires_grad_()
    checkpoint(run, x, use_reentrant=False).sum().backward()
    return [x.grad, *_grads(module)]


def _in_a_checkpoint_again(run: Any, module: Any) -> Any:
    """Compiled outside for such an input first."""
    run(_input().requires_grad_()).sum().backward()
    run(_input().requires_grad_()).sum().backward()
    module.zero_grad()
    return _in_a_checkpoint(run, module)


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 5


def _beside_a_function(run: Any, module: Any) -> Any:
    x = _input().requires_grad_()
    _Twice.apply(run(_Twice.apply(x))).sum().backward()
    return [x.grad, *_grads(module)]


def _generator_moved(run: Any, module: Any) -> Any:
    loss = run(_input()).sum()
    torch.rand(3)
    loss.backward()
    return [torch.rand(2), *_grads(module)]


def _two_forwards(run: Any, module: Any) -> Any:
    first, second = run(_input()), run(_input() * 2)
    second.sum().backward()
    first.square().sum().backward()
    return _grads(module)


def _multiplied_grad(run: Any, module: Any) -> Any:
    """Of a gradient that the user has kept and written, backward adds to the same tensor."""
    run(_input()).sum().backward()
    kept = module.up.weight.grad
    kept.mul_(2)
    run(_input()).sum().backward()
    assert module.up.weight.grad is kept
    return _grads(module)


SCENARIOS: list[Callable[[Any, Any], Any]] = [
    _freed, _resized, _other_data, _input_written, _result_written, _twice, _nan, _infinite, _expanded,
    _of_another_shape, _of_another_dtype, _without_a_scalar, _hook_raises, _hook_on_the_result, _in_a_checkpoint,
    _in_a_checkpoint_again,
    _beside_a_function, _generator_moved, _two_forwards, _multiplied_grad,
]  # fmt: skip


def _outcome(scenario: Callable[[Any, Any], Any], run: Any, module: Any) -> Any:
    torch.manual_seed(0)
    module.zero_grad()
    try:
        return scenario(run, module)
    except RuntimeError as error:
        return type(error)


@pytest.mark.spread(2)
@pytest.mark.usefixtures("young_heap")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_scenarios(scenario: Callable[[Any, Any], Any]) -> None:
    model, other, compiled = pair(Net)
    for _ in range(2):
        compiled(_input()).sum().backward()
    assert is_compiled(compiled)
    want, got = _outcome(scenario, model, model), _outcome(scenario, compiled, other)
    if not isinstance(want, list):
        assert got == want
        return
    assert [g is None for g in got] == [w is None for w in want], (got, want)
    for g, w in zip(got, want, strict=True):
        if w is not None:
            torch.testing.assert_close(g, w, rtol=2e-5, atol=1e-6, equal_nan=True)


def test_gradients_of_an_embedding_that_are_sparse() -> None:
    model, other, compiled = pair(lambda: nn.Embedding(7, 3, sparse=True))
    with pytest.warns(match="falls back to eager"):
        compiled(torch.tensor([1, 2, 2])).sum().backward()
    model(torch.tensor([1, 2, 2])).sum().backward()
    assert other.weight.grad.is_sparse and torch.equal(other.weight.grad.to_dense(), model.weight.grad.to_dense())


def test_frozen_inputs_of_a_loss_without_gradients() -> None:
    """A path that is not differentiable ends in eager's error."""

    class Rounded(Net):
        def forward(self, x: Tensor) -> Tensor:
            return F.one_hot(super().forward(x).argmax(-1), 4).sum()

    model, _, compiled = pair(Rounded)
    for run in (model, compiled, compiled):
        with pytest.raises(RuntimeError, match="does not require grad"):
            run(_input()).backward()
