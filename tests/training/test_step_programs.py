"""Training steps of many forms, eager and compiled side by side: results, parameters, buffers, gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Any]
Make = Callable[[Any, Any], Step]
PROGRAMS: list[Make] = []


def program(make: Make) -> Make:
    PROGRAMS.append(make)
    return make


class Net(nn.Module):
    """One layer is used by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.d, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.d(F.relu(self.bn(self.a(x)))))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head, self.map = nn.Embedding(12, 8), nn.Linear(8, 12, bias=False), nn.Linear(8, 8)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.map(self.words((x.abs() * 5).long() % 12)))).mean(1)[:, :4]


@program
def batch_norm_and_dropout(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        o.step()
        o.zero_grad()
        return loss

    return step


@program
def loss_as_a_number(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.item()

    return step


@program
def left_early_at_nan(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        if torch.isnan(loss):
            return None
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def loss_scaled_by_data(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        if loss > 1.2:
            loss = loss * 2
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def exit_by_data(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        h = F.relu(m.a(x))
        if h.mean() > 0.33:
            out = h[:, :4]
        else:
            out = m.b(h)
        loss = F.mse_loss(out, y)
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def autocast(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(m(x).float(), y)
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def back_twice(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def average_of_weights(m: Any, o: Any) -> Step:
    avg = [p.detach().clone() for p in m.parameters()]
    m.averages = avg

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        o.step()
        o.zero_grad()
        with torch.no_grad():
            for e, p in zip(avg, m.parameters(), strict=True):
                e.lerp_(p, 0.1)
        return loss.detach()

    return step


@program
def update_at_every_other_call(m: Any, o: Any) -> Step:
    m.count = 0

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y) / 2
        loss.backward()
        m.count += 1
        if m.count % 2 == 0:
            o.step()
            o.zero_grad()
        return loss.detach()

    return step


@program
def gradients_pile_up(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y) / 2
        loss.backward()
        return loss.detach()

    return step


@program
def a_result_with_a_live_history(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        out = m(x)
        loss = F.mse_loss(out, y)
        reg = sum((p**2).sum() for p in m.parameters())
        loss.backward()
        o.step()
        o.zero_grad()
        return loss.detach(), out, reg

    return step


@program
def scaler_that_is_off(m: Any, o: Any) -> Step:
    s = torch.amp.GradScaler("cpu", enabled=False)

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        s.scale(loss).backward()
        s.step(o)
        s.update()
        o.zero_grad()
        return loss.detach()

    return step


@program
def clipped_values(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(m.parameters(), 0.01)
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def norm_of_a_gradient(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        g = m.a.weight.grad.norm()
        o.step()
        o.zero_grad()
        return loss.detach(), g

    return step


@program
def gradient_returned(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        o.zero_grad()
        loss = F.mse_loss(m(x), y)
        loss.backward()
        o.step()
        return m.a.weight.grad

    return step


@program
def evaluated_before_and_after(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        with torch.no_grad():
            before = F.mse_loss(m(x), y)
        loss = F.mse_loss(m(x), y)
        loss.backward()
        o.step()
        o.zero_grad()
        with torch.no_grad():
            after = F.mse_loss(m(x), y)
        return before, loss.detach(), after

    return step


@program
def two_losses(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        h = m.a(x)
        l1 = h.square().mean()
        l2 = F.mse_loss(m.b(h), y)
        torch.autograd.backward([l1, l2])
        o.step()
        o.zero_grad()
        return l1.detach(), l2.detach()

    return step


@program
def micro_batches(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        for i in range(3):
            (F.mse_loss(m(x + i * 0.1), y) / 3).backward()
        o.step()
        o.zero_grad()

    return step


@program
def inner_steps(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        for _ in range(3):
            loss = F.mse_loss(m(x), y)
            loss.backward()
            o.step()
            o.zero_grad()
        return loss.detach()

    return step


@program
def of_some_leaves(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward(inputs=[m.a.weight, m.b.bias])
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def gradient_assigned(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        gs = torch.autograd.grad(loss, [m.a.weight, m.b.weight])
        m.a.weight.grad, m.b.weight.grad = gs[0] * 2, gs[1]
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def gradient_changed_in_place(m: Any, o: Any) -> Step:
    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(m(x), y)
        loss.backward()
        for p in m.parameters():
            if p.grad is not None:
                p.grad.mul_(0.5).add_(p.detach(), alpha=0.01)
        o.step()
        o.zero_grad()
        return loss.detach()

    return step


@program
def two_optimizers(m: Any, o: Any) -> Step:
    d = nn.Linear(4, 1)
    torch.manual_seed(5)
    nn.init.normal_(d.weight)
    nn.init.zeros_(d.bias)
    m.judge = d
    od = torch.optim.SGD(d.parameters(), lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        fake = m(x)
        ld = F.softplus(-d(y)).mean() + F.softplus(d(fake.detach())).mean()
        od.zero_grad()
        ld.backward()
        od.step()
        lg = F.softplus(-d(fake)).mean()
        o.zero_grad()
        lg.backward()
        o.step()
        return ld.detach(), lg.detach()

    return step


def check(make: Make, optimizer: str, net: type[nn.Module] = Net, sizes: tuple[int, ...] = (6,) * 6) -> Any:
    """Eager and compiled side by side; the compiled step. A large eps: rounding is no update of its own."""
    torch.manual_seed(0)
    ours = net()
    theirs = copy.deepcopy(ours)
    more = {"eps": 1e-2} if optimizer == "AdamW" else {}
    steps = [make(m, getattr(torch.optim, optimizer)(m.parameters(), lr=1e-2, **more)) for m in (ours, theirs)]
    steps[0] = smelt.compile(steps[0], options={"adaptive": False})
    generator = torch.Generator().manual_seed(1)
    for call, size in enumerate(sizes):
        x, y = torch.randn(size, 8, generator=generator), torch.randn(size, 4, generator=generator)
        answers = []
        for step in steps:
            torch.manual_seed(call)
            answers.append(step(x, y))
        found, expected = (list(a) if isinstance(a, tuple) else [a] for a in answers)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert [getattr(one, "requires_grad", None) for one in found] == [
            getattr(one, "requires_grad", None) for one in expected
        ]
        compare(ours, theirs, call)
    return steps[0]


def compare(ours: nn.Module, theirs: nn.Module, call: int) -> None:
    state = theirs.state_dict()
    for name, value in ours.state_dict().items():
        torch.testing.assert_close(value, state[name], rtol=1e-3, atol=2e-4, msg=lambda t, n=name: f"{call} {n}: {t}")
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert (one.grad is None) is (other.grad is None), (call, name)
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-5)
    for one, other in zip(getattr(ours, "averages", ()), getattr(theirs, "averages", ()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-4)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.spread(5)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_a_step_is_as_eager_makes_it(make: Make, optimizer: str) -> None:
    check(make, optimizer)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "make", [batch_norm_and_dropout, left_early_at_nan, two_optimizers, micro_batches, inner_steps]
)
def test_steps_are_one_graph_whatever_the_count_of_steps(make: Make) -> None:
    text = smelt.explain(check(make, "AdamW")).to_text()
    assert "compiled: 1 graph, native code" in text, text[:600]


def test_tied_weights() -> None:
    check(batch_norm_and_dropout, "AdamW", Tied)


@pytest.mark.spread(2)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_batches_of_other_sizes(optimizer: str) -> None:
    check(batch_norm_and_dropout, optimizer, sizes=(6, 5, 6, 7, 8, 5, 6, 9))
