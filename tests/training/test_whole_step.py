"""A whole training step as one program: forward, backward, clipping, the update, as eager leaves them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt

Tensor = torch.Tensor
Step = Callable[[Tensor, Tensor], Any]
CALLS = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def zeroed_first(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def zeroed_in_place(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return step


def never_zeroed(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach(), norm

    return step


def in_parts(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Gradients of two halves of a batch are added up."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        total = torch.zeros(())
        for one, other in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.mse_loss(model(one), other) / 2
            loss.backward()
            total = total + loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


def by_grad(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Gradients by `autograd.grad`, and an update by hand."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        weights = list(model.parameters())
        with torch.no_grad():
            for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight.sub_(0.1 * grad)
        return loss.detach()

    return step


def penalized(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """A gradient of a gradient."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        point = x.detach().requires_grad_()
        out = model(point)
        (slope,) = torch.autograd.grad(out.sum(), point, create_graph=True)
        loss = F.mse_loss(out, y) + slope.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def run(make: Any, name: str, options: dict[str, Any], schedule: bool = False, calls: int = CALLS) -> Any:
    """Eager and compiled side by side; the compiled step."""
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizers = [getattr(torch.optim, name)(m.parameters(), lr=0.01, **options) for m in (ours, theirs)]
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(o, 0.9) for o in optimizers] if schedule else []
    step = smelt.compile(make(ours, optimizers[0]), options={"adaptive": False})
    eager = make(theirs, optimizers[1])
    for call in range(calls):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        found, expected = step(x, y), eager(x, y)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
        for one, other in zip(_tensors(found), _tensors(expected), strict=True):
            assert one.requires_grad is other.requires_grad
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, msg=lambda text, call=call: f"{call}: {text}")
            assert (one.grad is None) is (other.grad is None)
            if one.grad is not None and other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
                assert one.grad.stride() == other.grad.stride()
        for scheduler in schedulers:
            scheduler.step()
    states = [o.state_dict() for o in optimizers]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], rtol=1e-4, atol=1e-6)
    return step


def _tensors(result: Any) -> list[Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def report(step: Any) -> str:
    return smelt.explain(step).to_text()


@pytest.mark.spread(4)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("SGD", {}), ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}), ("SGD", {"foreach": True}),
        ("Adam", {}), ("Adam", {"amsgrad": True, "weight_decay": 0.01}), ("AdamW", {}), ("AdamW", {"foreach": True}),
        ("AdamW", {"maximize": True}),
        ("AdamW", {"fused": True}), ("Adam", {"fused": True, "amsgrad": True, "weight_decay": 0.01}),
        ("SGD", {"fused": True, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        ("SGD", {"fused": True}), ("RMSprop", {"centered": True}), ("Adagrad", {}), ("Adadelta", {}),
        ("Adamax", {}), ("NAdam", {}), ("RAdam", {}), ("Rprop", {}), ("ASGD", {}),
        ("ASGD", {"t0": 2, "weight_decay": 0.01, "lambd": 0.1}), ("ASGD", {"foreach": True, "t0": 1}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)  # fmt: skip
def test_the_optimizers_of_torch_are_part_of_one_graph(name: str, options: dict[str, Any]) -> None:
    text = report(run(plain, name, options))
    assert "compiled: 1 graph" in text, text[:400]
    assert "compiled anew" not in text, text[:400]


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    "make", [zeroed_first, zeroed_in_place, never_zeroed, clipped, in_parts, by_grad, penalized]
)  # fmt: skip
def test_the_forms_of_a_step(make: Any, name: str) -> None:
    text = report(run(make, name, {}))
    assert "native code" in text.splitlines()[2], text[:400]
    assert "not compiled" not in text, text[:400]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_a_scheduler_does_not_compile_anew(name: str) -> None:
    step = run(plain, name, {}, schedule=True, calls=10)
    assert "compiled: 1 graph" in report(step), report(step)[:400]


def test_an_update_in_place_needs_no_copy_of_a_parameter() -> None:
    """What is written in place is the large tensors' all: the arena holds no copy of them."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(300, 200))
    optimizer = torch.optim.AdamW([weight])

    def step(x: Tensor) -> None:
        (weight * x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = smelt.compile(step, options={"adaptive": False})
    for _ in range(4):
        compiled(torch.randn(300, 200))
    memory = smelt.explain(compiled).to_dict()["memory"]
    arenas = [row["bytes"] for row in memory if row["what"] == "arena"]
    assert arenas
    assert max(arenas) < weight.nbytes, memory


def test_the_parameters_and_the_state_stay_the_users_tensors() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    step = smelt.compile(plain(model, optimizer), options={"adaptive": False})
    step(torch.randn(6, 8), torch.randn(6, 4))
    before = {name: (p, p.data_ptr(), optimizer.state[p]["exp_avg"]) for name, p in model.named_parameters()}
    for _ in range(4):
        step(torch.randn(6, 8), torch.randn(6, 4))
    for name, parameter in model.named_parameters():
        held, address, average = before[name]
        assert parameter is held
        assert parameter.data_ptr() == address
        assert optimizer.state[parameter]["exp_avg"] is average
        assert float(optimizer.state[parameter]["step"]) == 5


def test_state_that_is_loaded_is_used() -> None:
    """`load_state_dict` puts other tensors in the optimizer's state."""
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (ours, theirs)]
    step, eager = smelt.compile(plain(ours, optimizers[0]), options={"adaptive": False}), plain(theirs, optimizers[1])
    data = [(torch.randn(6, 8), torch.randn(6, 4)) for _ in range(8)]
    kept = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
    for number, (x, y) in enumerate(data):
        if number == 5:
            for optimizer, state in zip(optimizers, kept, strict=True):
                optimizer.load_state_dict(state)
        torch.testing.assert_close(step(x, y), eager(x, y), rtol=1e-5, atol=1e-6)
        if number == 2:
            kept = [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_an_update_alone_reads_the_gradients_of_each_call() -> None:
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.01) for m in (ours, theirs)]

    def update(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return step

    compiled, eager = smelt.compile(update(optimizers[0]), options={"adaptive": False}), update(optimizers[1])
    for _ in range(6):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        for model, finish in ((ours, compiled), (theirs, eager)):
            F.mse_loss(model(x), y).backward()
            finish()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert one.grad is None


def test_going_back_twice_is_eagers_error() -> None:
    torch.manual_seed(0)
    model = Net()
    step = smelt.compile(plain(model, torch.optim.SGD(model.parameters(), lr=0.1)), options={"adaptive": False})
    for _ in range(3):
        loss = step(torch.randn(6, 8), torch.randn(6, 4))
        assert loss.requires_grad
        assert not loss.is_leaf
        with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
            loss.backward()


def test_a_frozen_layer_is_seen() -> None:
    """Which parameters require gradients is guarded."""
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    steps = []
    for model in (ours, theirs):
        steps.append(plain(model, torch.optim.SGD(model.parameters(), lr=0.1)))
    steps[0] = smelt.compile(steps[0], options={"adaptive": False})
    for call in range(6):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        for model in (ours, theirs):
            model.up.requires_grad_(call % 2 == 0)
        torch.testing.assert_close(steps[0](x, y), steps[1](x, y), rtol=1e-5, atol=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", ["tensor hook", "post-accumulate hook", "module hook"])
def test_a_hook_that_comes_later_is_called(kind: str) -> None:
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    called: list[str] = []
    steps = [plain(model, torch.optim.SGD(model.parameters(), lr=0.1)) for model in (ours, theirs)]
    steps[0] = smelt.compile(steps[0], options={"adaptive": False})
    for call in range(5):
        if call == 3:
            for model in (ours, theirs):
                if kind == "tensor hook":
                    model.up.weight.register_hook(lambda grad: (called.append(kind), grad * 2)[1])
                elif kind == "post-accumulate hook":
                    model.up.weight.register_post_accumulate_grad_hook(lambda p: called.append(kind))
                else:
                    model.down.register_full_backward_hook(lambda *args: called.append(kind))
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", smelt.SmeltWarning)
            torch.testing.assert_close(steps[0](x, y), steps[1](x, y), rtol=1e-5, atol=1e-6)
    assert len(called) == 4
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_gradient_that_is_no_number_is_eagers() -> None:
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    steps = [clipped(m, torch.optim.AdamW(m.parameters(), lr=0.1)) for m in (ours, theirs)]
    steps[0] = smelt.compile(steps[0], options={"adaptive": False})
    for call in range(4):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        if call == 3:
            x[0, 0] = torch.nan
        found, expected = steps[0](x, y), steps[1](x, y)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_the_graph_of_a_step_is_readable_and_right() -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = plain(model, optimizer)
    x, y = torch.randn(6, 8), torch.randn(6, 4)
    before = copy.deepcopy(model.state_dict())
    program = smelt.trace(step, (x, y))
    after = copy.deepcopy(model.state_dict())
    model.load_state_dict(before)
    program(x, y)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, after[name], rtol=1e-5, atol=1e-6)
    text = str(program.graph)
    assert "write(%" in text
    assert "py.gradient" not in text


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("alone", [False, True])
def test_a_history_that_begins_outside_of_the_step_is_gone_back_through(alone: bool) -> None:
    """What comes in was computed with a parameter that the step uses, too. alone: and with no other."""
    torch.manual_seed(0)
    ours = Net()
    theirs = copy.deepcopy(ours)
    steps = []
    for model in (ours, theirs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x: Tensor, y: Tensor, model: Net = model, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            loss = F.mse_loss(model.down(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        steps.append(step)
    steps[0] = smelt.compile(steps[0], options={"adaptive": False})
    for call in range(5):
        x, y = torch.randn(6, 8), torch.randn(6, 4)
        for model, one in zip((ours, theirs), steps, strict=True):
            hidden = (x.repeat(1, 2) if alone else model.norm(model.up(x))) + model.down.bias.sum()
            one(hidden if call % 2 else hidden.detach(), y)
        for left, right in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_complex_parameters() -> None:
    """Their gradients are those of torch, which conjugates; the graph is whole."""
    torch.manual_seed(0)
    ours = nn.Parameter(torch.randn(3, 4, dtype=torch.complex64))
    theirs = nn.Parameter(ours.detach().clone())
    steps = []
    for turn in (ours, theirs):
        optimizer = torch.optim.SGD([turn], lr=0.01, momentum=0.9)

        def step(x: Tensor, turn: Tensor = turn, optimizer: torch.optim.Optimizer = optimizer) -> Tensor:
            y = torch.fft.ifft(torch.fft.fft(turn * x) / (turn.conj() + 3)) + turn.exp() ** 2
            loss = y.abs().sum() + (turn @ turn.mH).real.mean() + turn.angle().square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        steps.append(step)
    compiled = smelt.compile(steps[0], options={"adaptive": False})
    for call in range(5):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(call))
        torch.testing.assert_close(compiled(x), steps[1](x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    builds = compiled.stats().builds
    compiled(x)
    assert compiled.stats().builds == builds and compiled.stats().rows[-1].hits > 1


def _step(m: Net, o: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    o.step()
    o.zero_grad()


def _hooked(m: Any, o: torch.optim.Optimizer, x: Tensor) -> None:
    m.up.weight.register_hook(lambda grad: grad * 2)
    _step(m, o, m(x).sum())


def _sparse(m: Any, o: torch.optim.Optimizer, x: Tensor) -> None:
    _step(m, o, F.embedding(torch.tensor([1, 1, 3]), m.up.weight, sparse=True).sum())


def _outside(m: Any, o: torch.optim.Optimizer, x: Tensor) -> None:
    _step(m, o, m(x * 1).sum())


def _anomalous(m: Any, o: torch.optim.Optimizer, x: Tensor) -> None:
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        _step(m, o, m(x).sum())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("step", "why"),
    [
        (_hooked, "a hook"),
        (_sparse, "a gradient is sparse"),
        (_outside, "a tensor that came in with a history"),
        (_anomalous, "set_detect_anomaly"),
    ],
)
def test_why_a_step_is_left_to_eager(step: Callable[..., None], why: str) -> None:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = smelt.compile(lambda x: step(model, optimizer, x), options={"adaptive": False})
    for _ in range(3):
        x = torch.ones(2, 8, requires_grad=step is _outside)
        compiled(x * 2)
    assert any(why in str(reason) for reason in compiled.stats().fallbacks), compiled.stats().fallbacks
