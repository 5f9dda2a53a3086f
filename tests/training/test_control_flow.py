"""Training programs whose path depends on data: one build for all paths, and eager's gradients on each of them.

Where no path from the loss leads to a leaf, its gradient is None as in eager, not zeros: optimizers skip it.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.training.harness import is_compiled, pair, same_as_eager, same_gradients

Tensor = torch.Tensor


def long(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(100):
        x = torch.tanh(x @ w)
    return x.sum()


def until(x: Tensor, w: Tensor) -> Tensor:
    n = 0
    while x.abs().sum() > 0.5 and n < 20:
        x = torch.tanh(x @ w) * 0.5
        n += 1
    return x.sum()


def counted(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(int(x.abs().sum())):
        x = torch.sin(x @ w)
    return x.sum()


@pytest.mark.parametrize("program", [long, until, counted])
def test_loops(program: object) -> None:
    """Long, ended by data, over a count that data give."""
    given = [torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(step)) for step in range(4)]
    compiled = same_as_eager(program, given)
    assert is_compiled(compiled) and compiled.stats().builds == 1, compiled.stats()


def chosen(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return ((x * w).tanh() if x.sum() > 0 else (x * v).sin()).sum()


def early(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x * w
    if y.sum() > 0:
        return y.sum()
    return (y * v).sum()


def nested(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x * 2
    if x.sum() > 0:
        y = y * w
        if x[0] > 1:
            y = y * v
    return y.sum()


def in_loop(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x * 1
    for row in w:
        y = y + row * v if y.sum() > 0 else y - 1
    return y.sum()


def over_count(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = x * 1
    for _ in range(int(x[0])):
        y = y * w
    return y.sum()


PATHS = [
    [torch.full((3,), start), torch.linspace(1, 2, 3), torch.linspace(-2, -1, 3)]
    for start in (2.0, -1.0, 0.5, 0.0, 3.0)
]


@pytest.mark.parametrize("program", [chosen, early, nested, in_loop, over_count])
def test_gradients_of_paths_that_were_not_taken(program: object) -> None:
    compiled = same_as_eager(program, PATHS)
    assert is_compiled(compiled) and compiled.stats().builds == 1, compiled.stats()


def test_gradients_of_results_whose_size_depends_on_the_path() -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        y = x * w
        return y * v if x.sum() > 0 else y[:2] * 1

    compiled = same_as_eager(program, PATHS, ends=lambda result: result.sum())
    assert "follows from data" in next(iter(compiled.stats().fallbacks))


def test_gradients_of_paths_and_of_some_results() -> None:
    def program(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        a = x * w
        return a.sum(), (a * v).sum() if x.sum() > 0 else x.sum()

    for number in (0, 1):
        compiled = same_as_eager(program, PATHS, ends=lambda result, number=number: result[number])
        assert is_compiled(compiled)


def test_optimizers_skip_what_was_not_used() -> None:
    class Router(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = nn.Linear(4, 1), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            gate = self.gate(x).mean()
            return ((self.experts[0](x) if gate > 0 else self.experts[1](x)) * gate).square().mean()

    model, other, compiled = pair(Router)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, weight_decay=0.5) for m in (model, other)]
    taken = set()
    for step in range(6):
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        for m, optimizer in zip((model, compiled), optimizers, strict=True):
            optimizer.zero_grad()
            m(x).backward()
            optimizer.step()
        same_gradients(model, other)
        taken.add(model.experts[0].weight.grad is None)
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert taken == {True, False} and is_compiled(compiled)


def test_results_with_gradients_on_some_paths() -> None:
    """No graph says whether such a result requires them: eager does."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        return x * w if x.sum() > 0 else x.detach() * 2

    compiled = smelt.compile(program, options={"train": True})
    with pytest.warns(smelt.SmeltWarning, match="on some of its paths"):
        compiled(torch.ones(2, requires_grad=True), torch.ones(2))
    for sign in (1.0, -1.0, 1.0, -1.0):
        found = compiled(torch.full((2,), sign, requires_grad=True), torch.ones(2))
        assert found.requires_grad == (sign > 0)


def test_gradients_of_gradients_through_loops() -> None:
    """A loop whose stacks are lists has no second gradient of ours: torch takes it, operator by operator."""
    compiled = smelt.compile(until, options={"train": True})
    for _ in range(3):
        found = []
        for f in (until, compiled):
            x, w = (t.requires_grad_() for t in torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(1)))
            (grad,) = torch.autograd.grad(f(x, w), w, create_graph=True)
            found.append(torch.autograd.grad(grad.square().sum(), (x, w)))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert is_compiled(compiled)


def test_gradients_of_gradients_require_what_eagers_do() -> None:
    compiled = smelt.compile(lambda x, w: ((x + w).sum() * 2, (w * w).sum()), options={"train": True})
    for _ in range(3):
        x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
        first, second = compiled(x, w)
        (a,) = torch.autograd.grad(first, x, create_graph=True)
        (b,) = torch.autograd.grad(second, w, create_graph=True)
        assert not a.requires_grad and b.requires_grad
    assert is_compiled(compiled)


def test_errors_that_nothing_but_the_program_needs() -> None:
    """What may raise is run though no result follows from it."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = (x * w).sum()
        assert y < 3, "too large"
        return y

    compiled = smelt.compile(program, options={"train": True})
    for value in (1.0, 1.0, 0.5):
        compiled(torch.full((2,), value, requires_grad=True), torch.ones(2)).backward()
    with pytest.raises(AssertionError, match="too large"):
        compiled(torch.full((2,), 5.0, requires_grad=True), torch.ones(2))
    assert is_compiled(compiled)


def _drawing(x: Tensor, w: Tensor) -> Tensor:
    y = x * w
    if x.sum() > 0:
        y = F.dropout(y, 0.3, True)
        y = F.dropout(y * w, 0.2, True).tanh() if y.sum() > 1 else y.sin()
    else:
        y = F.dropout(y, 0.9, True) + torch.rand(3, 4) * w
    return (y * y).sum()


def test_random_numbers_in_branches() -> None:
    """They are drawn once, in eager's order, whichever arms run; the gradient takes what was drawn."""
    compiled = smelt.compile(_drawing, options={"train": True})
    for step in range(6):
        found = []
        for run in (_drawing, compiled):
            x = (torch.linspace(-1, 2, 12).reshape(3, 4) * (-1) ** step + 0.2 * step).requires_grad_()
            w = torch.full((3, 4), 1.5).requires_grad_()
            torch.manual_seed(step)
            loss = run(x, w)
            found.append([loss.detach(), *torch.autograd.grad(loss, (x, w)), torch.rand(2)])
        torch.testing.assert_close(*found)
    assert is_compiled(compiled) and compiled.stats().builds == 1
