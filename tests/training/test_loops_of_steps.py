"""Loops in whole steps stay loops: compiled once, for the price of one iteration, with eager's numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt

LONG = 90


class Ode(nn.Module):
    """Midpoint steps of a neural field: a chain reads what the loop puts aside for its backward."""

    def __init__(self) -> None:
        super().__init__()
        self.field = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(LONG):
            half = x + 0.005 * self.field(x)
            x = x + 0.01 * self.field(half) + 0.001 * half
        return F.mse_loss(x, y)


class Filter(nn.Module):
    """A Kalman filter: the loss begins as a number, and the gain of one iteration is not read by the next."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.c = nn.Parameter(0.9 * torch.eye(3)), nn.Parameter(torch.ones(1, 3))
        self.noise = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        state, spread, loss = x.new_zeros(3), torch.eye(3), 0.0
        for i in range(LONG):
            state = self.a @ state
            spread = self.a @ spread @ self.a.t() + torch.diag(self.noise.exp())
            off = y[i] - self.c @ state
            size = self.c @ spread @ self.c.t() + 1
            gain = spread @ self.c.t() / size
            state = state + gain @ off
            spread = (torch.eye(3) - gain @ self.c) @ spread
            loss = loss + off.square().sum() / size[0, 0] + size[0, 0].log()
        return loss / LONG + gain.square().sum() * x.sum()


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.over, self.out = nn.Linear(2, 6), nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 6)
        for t in range(x.shape[0]):
            h = torch.tanh(self.into(x[t]) + self.over(h))
        return F.mse_loss(self.out(h), y)


MODELS: dict[str, tuple[type[nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "ode": (Ode, (4, 3), (4, 3)),
    "filter": (Filter, (2,), (LONG, 1)),
    "rnn": (Rnn, (LONG, 4, 2), (4, 1)),
}


def trained(model: nn.Module, wrap: Callable[[Any], Any], calls: list[tuple[Tensor, Tensor]]) -> tuple[Any, Any]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = model(x, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run = wrap(step)
    losses = [run(x, y).clone() for x, y in calls]
    return run, [*losses, *(p.detach() for p in model.parameters())]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", MODELS)
def test_a_long_loop_is_one_loop_of_the_step(name: str) -> None:
    torch.manual_seed(0)
    make, *sizes = MODELS[name]
    model = make()
    calls = [(torch.randn(*sizes[0]), torch.randn(*sizes[1])) for _ in range(5)]
    twin = copy.deepcopy(model)
    step, found = trained(model, lambda f: smelt.compile(f, options={"adaptive": False}), calls)
    _, expected = trained(twin, lambda f: f, calls)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)
    (entry,) = smelt.explain(step).to_dict()["graphs"]
    assert entry["nodes captured"] < 500  # unrolled, each of these has thousands
    assert "block 2" in entry["nodes by how they run"]  # forward and backward
    assert "python" not in entry["nodes by how they run"] and "dispatcher" not in entry["nodes by how they run"]


def test_gradients_of_what_the_program_makes() -> None:
    """A tensor made a leaf in the program gets its `.grad` there, read or not, whatever data decide beside it."""

    def attack(model: nn.Module, x: Tensor) -> Tensor:
        point = x.detach().clone().requires_grad_()
        model(point).square().sum().backward()
        return point.grad.sign()

    def residual(model: nn.Module, x: Tensor) -> Tensor:
        point = x.detach().requires_grad_()
        u = model(point)
        (first,) = torch.autograd.grad(u.sum(), point, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), point, create_graph=True)
        loss = (first[:, 1] - second[:, 0]).square().mean() + u.mean()
        loss.backward()
        return loss.detach()

    for program in (attack, residual):
        results = []
        for is_compiled in (False, True):
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

            def step(x: Tensor, program: Any = program, model: Any = model, optimizer: Any = optimizer) -> Tensor:
                found = program(model, x)
                optimizer.step()
                optimizer.zero_grad()
                return found

            run = smelt.compile(step, options={"adaptive": False}) if is_compiled else step
            results.append([run(torch.randn(5, 2, generator=torch.Generator().manual_seed(i))) for i in range(5)])
            if is_compiled:
                assert len(smelt.explain(run).to_dict()["graphs"]) == 1  # none for each count of steps
        for a, b in zip(*results, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [(), (1,), (-2,), (0, 0, 1)], ids=str)
def test_the_gradient_of_diag_embed(how: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    weights = torch.randn_like(torch.diag_embed(x, *how))

    def gradient(x: Tensor, weights: Tensor) -> Tensor:
        return torch.autograd.grad((torch.diag_embed(x, *how) * weights).sum(), x)[0]

    compiled = smelt.compile(gradient)
    compiled(x, weights)
    assert torch.equal(compiled(x, weights), gradient(x, weights))
    assert "py.vjp" not in smelt.explain(compiled).to_text(everything=True)
