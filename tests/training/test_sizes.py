"""Free sizes in training: the second size makes a program for all, a further one records nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


class Dense(nn.Module):
    """Its result depends on the size as a number, too."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(torch.tanh(self.up(x)))).view(x.shape[0], -1) / x.shape[0]


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).mean((2, 3)))


class Attending(nn.Module):
    """Two sizes, dropout, and a mask that follows from one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = F.dropout(self.words(x), 0.2)
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(h).chunk(3, -1))
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.head(h[:, :-1]).flatten(0, 1), x[:, 1:].flatten(), reduction="mean")


def _floats(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def _words(*sizes: int) -> Tensor:
    return torch.randint(11, sizes, generator=torch.Generator().manual_seed(sum(sizes)))


CASES: dict[str, tuple[Callable[[], nn.Module], list[Tensor]]] = {
    "dense": (Dense, [_floats(n, 8) for n in (6, 5, 7, 1, 3)]),
    "normed": (Normed, [_floats(n, 3, 8, 8) for n in (4, 3, 6, 2)]),
    "attending": (Attending, [_words(*sizes) for sizes in ((3, 5), (2, 7), (4, 6), (2, 9))]),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CASES)
def test_the_second_size_is_the_last_that_is_recorded(name: str) -> None:
    make, inputs = CASES[name]
    model, other, compiled = pair(make)
    for step, x in enumerate([*inputs, *inputs]):
        after = []
        for run, m in ((model, model), (compiled, other)):
            m.zero_grad()
            torch.manual_seed(step)
            given = x.clone().requires_grad_(x.is_floating_point())
            loss = run(given).square().sum()
            loss.backward()
            after.append((loss.detach(), given.grad, torch.rand(1)))
        torch.testing.assert_close(*after, rtol=1e-4, atol=1e-5)
        same_gradients(model, other)
        assert compiled.stats().builds == min(step, 1) + 1
    for (name, b), c in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(c, b, msg=name)
    assert is_compiled(compiled)


def test_sizes_and_gradients_change_together() -> None:
    """What needs gradients is no matter of sizes; calls without gradients have their own program for all sizes."""
    model, other, compiled = pair(Dense)
    for n in (6, 5, 7):
        for frozen in (False, True):
            for m in (model, other):
                m.up.requires_grad_(not frozen)
                m.zero_grad()
            for run in (model, compiled):
                run(_floats(n, 8)).square().sum().backward()
            same_gradients(model, other)
            with torch.no_grad():
                torch.testing.assert_close(compiled(_floats(n, 8)), model(_floats(n, 8)), rtol=1e-4, atol=1e-5)
    assert is_compiled(compiled) and compiled.stats().builds <= 6


def test_a_number_that_changes() -> None:
    def program(x: Tensor, scale: float) -> Tensor:
        return (x.sin() * scale).square().sum()

    compiled = smelt.compile(program)
    for scale in (2.0, 3.0, 4.0, 2.0):
        grads = []
        for f in (program, compiled):
            x = torch.linspace(-1, 1, 5).requires_grad_()
            f(x, scale).backward()
            grads.append(x.grad)
        torch.testing.assert_close(*grads)
    assert is_compiled(compiled)


def test_sizes_that_are_free_from_the_first_call() -> None:
    model, other, compiled = pair(Dense)
    compiled = smelt.compile(other, dynamic=True)
    for n in (6, 5, 9):
        for run, m in ((model, model), (compiled, other)):
            m.zero_grad()
            run(_floats(n, 8)).square().sum().backward()
        same_gradients(model, other)
    assert is_compiled(compiled) and compiled.stats().builds == 1
