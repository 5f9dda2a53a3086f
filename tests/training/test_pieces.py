"""A model that cannot be one graph in training is compiled in pieces, each a node of autograd of its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.split.splitting import Splits
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


class Scaled(torch.autograd.Function):
    """Not the derivative of what it computes; saves what it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        return x * w, x.argmax(-1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad * w * 5, (grad * x).sum(0)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Sigmoid())
        self.second = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))
        self.seen: list[float] = []

    def before(self, x: Tensor) -> Tensor:
        return self.first(x) * x.cos() + x

    def after(self, x: Tensor) -> Tensor:
        return self.second(x * x.sin()) - x.mean()


class Functions(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        y, places = Scaled.apply(Straight.apply(3 * y), self.scale)
        return self.after(y) * (places < 5).unsqueeze(-1)


class Hook(Base):
    """The gradient of something in the middle is another one."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        if y.requires_grad:
            y.register_hook(lambda grad: grad.clamp(-0.01, 0.01) * 2)
        return self.after(y)


class Retained(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        self.kept = y
        y.retain_grad()
        return self.after(y)


class Logged(Base):
    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        with open("/dev/null") as file:
            self.seen.append(file.fileno())
        return self.after(y) + y.sum()


class InPlace(Base):
    """A write between two pieces to what the first one gave, and a view of that."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        half = y[:, :4]
        with open("/dev/null"):
            y.mul_(2)
        return self.after(y * 1) + half


class Frozen(Base):
    """A piece without gradients in front of one that has them."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.before(x)
        with open("/dev/null"):
            pass
        return self.after(y)


class Stateful(Base):
    """What one call leaves behind with a history, the next one goes on from."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(3, 8).double()

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = torch.tanh(self.before(x) + self.hidden)
        self.extra = self.hidden.square().mean()
        return self.after(self.hidden)


def _backward_hook(model: Base) -> None:
    model.second.register_full_backward_hook(lambda module, into, outof: (into[0] * 2,))


def _pieces(compiled: Any) -> Splits:
    splits = dispatcher_of(compiled).splits
    assert isinstance(splits, Splits)
    return splits


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        yield


def _train(run: Any, model: Any, step: int) -> tuple[Tensor, Tensor | None]:
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(step)).double().requires_grad_()
    model.zero_grad()
    loss = run(x).square().sum()
    loss.backward()
    return loss.detach(), x.grad


@pytest.mark.spread(2)
@pytest.mark.parametrize("make", [Functions, Hook, Retained, Logged, InPlace, Frozen])
def test_pieces_train(make: Callable[[], Base]) -> None:
    model, other, compiled = pair(lambda: make().double())
    for step in range(5):
        wanted, found = _train(model, model, step), _train(compiled, other, step)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        same_gradients(model, other)
        if make is Retained:
            torch.testing.assert_close(other.kept.grad, model.kept.grad, rtol=1e-4, atol=1e-5)
    assert len(other.seen) == len(model.seen)
    kinds = [piece.stats().rows[0].entry.has_gradients for piece in _pieces(compiled).running()]
    assert kinds.count(True) == (1 if make is Frozen else 2), kinds
    assert "gradients are needed" in str(smelt.explain(compiled))


def test_a_backward_hook_of_a_module() -> None:
    model, other, compiled = pair(lambda: Base().double())
    for m in (model, other):
        _backward_hook(m)
        type(m).forward = lambda self, x: self.after(self.before(x))
    for step in range(4):
        torch.testing.assert_close(_train(compiled, other, step), _train(model, model, step), rtol=1e-4, atol=1e-5)
        same_gradients(model, other)


def test_gradients_of_gradients_go_through_pieces() -> None:
    class Smooth(Base):
        def forward(self, x: Tensor) -> Tensor:
            y = self.before(x)
            with open("/dev/null"):
                pass
            return self.after(y)

    model, other, compiled = pair(lambda: Smooth().double())
    for step in range(4):
        found = []
        for run in (model, compiled):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(step)).double().requires_grad_()
            (grad,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
            grad.square().sum().backward()
            found.append((grad.detach(), x.grad))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
        same_gradients(model, other)
        model.zero_grad()
        other.zero_grad()
    assert len(_pieces(compiled).running()) == 2


def test_histories_in_attributes() -> None:
    model, other, compiled = pair(lambda: Stateful().double())
    for step in range(5):
        found = []
        for run, m in ((model, model), (compiled, other)):
            m.zero_grad()
            m.hidden = m.hidden.detach()
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(step)).double()
            loss = run(x).sum() + run(x * 2).square().sum() + m.extra
            loss.backward()
            found.append((loss.detach(), m.hidden.detach()))
        torch.testing.assert_close(*found)
        same_gradients(model, other)
    assert sum(row.hits for row in compiled.stats().rows if row.entry is not None) >= 6


def test_a_list_that_is_handed_in_gets_a_history() -> None:
    class Listing(Base):
        def forward(self, x: Tensor, losses: list[Tensor]) -> Tensor:
            y = self.before(x)
            losses.append(y.square().mean())
            return self.after(y)

    model, other, compiled = pair(lambda: Listing().double())
    for step in range(4):
        for run, m in ((model, model), (compiled, other)):
            m.zero_grad()
            losses: list[Tensor] = []
            y = run(torch.randn(3, 8, generator=torch.Generator().manual_seed(step)).double(), losses)
            (y.sum() + losses[0]).backward()
        same_gradients(model, other)
    assert is_compiled(compiled)


def test_whole_is_refused_with_the_line() -> None:
    for options in ({"fullgraph": True}, {"options": {"strict": True}}):
        with pytest.raises(smelt.CaptureError, match="a backward in Python"):
            smelt.compile(Functions(), **options)(torch.ones(3, 8))
