"""Transforms of torch.func around, of and inside compiled programs; products with Hessians; penalties of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import smelt
from tests.training.harness import is_compiled

Tensor = torch.Tensor
Scalar = Callable[[Tensor], Tensor]


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()


NET = _net()
X, V = torch.linspace(-1, 1, 6).double(), torch.linspace(2, -1, 6).double()


def _loss(x: Tensor) -> Tensor:
    return NET(x).square().sum()


TRANSFORMS: dict[str, Callable[[Scalar, Tensor, Tensor], Any]] = {
    "grad": lambda f, x, v: grad(f)(x),
    "vjp": lambda f, x, v: vjp(f, x)[1](torch.ones((), dtype=x.dtype))[0],
    "jvp": lambda f, x, v: jvp(f, (x,), (v,))[1],
    "hessian": lambda f, x, v: hessian(f)(x),
    "jacrev": lambda f, x, v: jacrev(f)(x),
    "jacfwd": lambda f, x, v: jacfwd(f)(x),
    "grad of each": lambda f, x, v: vmap(grad(f))(torch.stack([x, v])),
    "product with the hessian": lambda f, x, v: jvp(grad(f), (x,), (v,))[1],
}


@pytest.mark.spread(2)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_what_is_compiled_and_inside_it(name: str) -> None:
    transform = TRANSFORMS[name]
    expected = transform(_loss, X, V)
    compiled = smelt.compile(_loss)
    for _ in range(2):
        compiled(X)
    traced = smelt.trace(_loss, (X,))
    for f in (compiled, traced):
        torch.testing.assert_close(transform(f, X, V), expected)
    inside = smelt.compile(lambda x, v: transform(_loss, x, v))
    for factor in (2, 3, 1):
        torch.testing.assert_close(inside(X * factor, V), transform(_loss, X * factor, V))
    # What `vjp` returns is called when its level has ended, where nothing is recorded any more.
    assert is_compiled(inside) == (name != "vjp")


class Block(nn.Module):
    """A small transformer, written out so that torch has second derivatives of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.qkv = nn.Embedding(20, 16), nn.LayerNorm(16), nn.Linear(16, 48)
        self.up, self.down, self.head = nn.Linear(16, 32), nn.Linear(32, 16), nn.Linear(16, 20)

    def forward(self, x: Tensor) -> Tensor:
        h = self.words(x)
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(h)).chunk(3, -1))
        h = h + (torch.softmax(q @ k.transpose(-1, -2) / 8**0.5, -1) @ v).transpose(1, 2).flatten(2)
        return self.head(h + self.down(F.gelu(self.up(h))))


def test_a_product_with_the_hessian_of_a_transformer_is_a_graph() -> None:
    torch.manual_seed(0)
    model = Block()
    tokens = torch.randint(20, (2, 5))
    given = {name: parameter.detach() for name, parameter in model.named_parameters()}
    along = [torch.randn_like(parameter) for parameter in given.values()]

    def product(given: dict[str, Tensor], along: list[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        leaves = {name: value.detach().requires_grad_() for name, value in given.items()}
        scores = functional_call(model, leaves, (x,))
        loss = F.cross_entropy(scores[:, :-1].flatten(0, 1), x[:, 1:].flatten())
        grads = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        return torch.autograd.grad(grads, list(leaves.values()), along)

    compiled = smelt.compile(product)
    for seed in range(3):
        x = torch.randint(20, (2, 5), generator=torch.Generator().manual_seed(seed))
        for found, expected in zip(compiled(given, along, x), product(given, along, x), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    assert is_compiled(compiled) and tokens.shape == x.shape


def test_a_penalty_of_gradients_is_one_program() -> None:
    def penalty(x: Tensor) -> Tensor:
        y = NET(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (slope.norm(dim=1) - 1).square().mean()

    compiled = smelt.compile(penalty)
    for step in range(3):
        grads = []
        for f in (penalty, compiled):
            x = (torch.stack([X, V]) * (step + 1)).requires_grad_()
            loss = f(x)
            grads.append((loss.detach(), *torch.autograd.grad(loss, [x, *NET.parameters()], allow_unused=True)))
        for found, expected in zip(*reversed(grads), strict=True):
            torch.testing.assert_close(found, expected)
    assert is_compiled(compiled)


class Halves(nn.Module):
    """A branch on data."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x - 1


CRITICS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)),
    "leaky_relu": lambda: nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1)),
    "prelu": lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 1)),
    "norm": lambda: nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 1)),
    "branch": lambda: nn.Sequential(Halves(), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CRITICS)
def test_penalty_of_gradients_through_kinks(name: str) -> None:
    """The bias below a ReLU has a second derivative of zeros, which eager puts into `.grad`."""
    torch.manual_seed(0)
    critic = CRITICS[name]()

    def penalty(real: Tensor, fake: Tensor) -> list[Tensor | None]:
        for p in critic.parameters():
            p.grad = None
        mixed = (0.3 * real + 0.7 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        return [None if p.grad is None else p.grad.clone() for p in critic.parameters()]

    compiled = smelt.compile(penalty)
    for _ in range(3):
        inputs = torch.randn(5, 4), torch.randn(5, 4)
        expected, found = penalty(*inputs), compiled(*inputs)
        assert [one is None for one in found] == [one is None for one in expected]
        for one, two in zip(found, expected, strict=True):
            if two is not None:
                torch.testing.assert_close(one, two)
    assert not compiled.stats().fallbacks


def test_a_gradient_that_is_lost_is_not_taken_for_zeros() -> None:
    """What has its history from outside goes back to a parameter by no path of the graph."""
    w = torch.ones(3, requires_grad=True)

    def program(outside: Tensor) -> Tensor:
        y = (w.relu() * outside).sum()
        (slope,) = torch.autograd.grad(y, w, create_graph=True)
        return torch.autograd.grad(slope.sum(), w)[0]

    compiled = smelt.compile(program)
    with pytest.warns(smelt.SmeltWarning, match="came in with a history"):
        torch.testing.assert_close(compiled(w.sin()), program(w.sin()))
    for factor in (3.0, 4.0):
        torch.testing.assert_close(compiled(w.sin() * factor), program(w.sin() * factor))


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CRITICS)
def test_penalty_of_a_compiled_models_gradients_through_kinks(name: str) -> None:
    torch.manual_seed(0)
    critic = CRITICS[name]()
    compiled = smelt.compile(critic)

    def gradients(call: Callable[[Tensor], Tensor], start: Tensor) -> list[Tensor | None]:
        x = start.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        penalty = ((slope.norm(dim=1) - 1) ** 2).mean()
        return list(torch.autograd.grad(penalty, [*critic.parameters(), x], allow_unused=True))

    original = type(critic)(*critic)  # the same parameters
    for _ in range(3):
        start = torch.randn(5, 4)
        expected, found = gradients(original, start), gradients(compiled, start)
        assert [one is None for one in found] == [one is None for one in expected]
        for one, two in zip(found, expected, strict=True):
            if one is not None:
                torch.testing.assert_close(one, two)
    assert is_compiled(compiled)


def test_a_penalty_of_a_frozen_model_has_zeros_for_its_input() -> None:
    """Each path from the gradient to the input goes through the comparison of the ReLU."""
    torch.manual_seed(0)
    critic = CRITICS["relu"]().requires_grad_(False)
    compiled, original = smelt.compile(critic), type(critic)(*critic)
    for _ in range(3):
        start, found = torch.randn(5, 4), []
        for call in (original, compiled):
            x = start.clone().requires_grad_()
            (slope,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(slope.square().sum(), x)
            found.append((slope.detach(), second))
        torch.testing.assert_close(found[1], found[0])
    assert is_compiled(compiled)
