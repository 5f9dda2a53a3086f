"""Steps on a module's graph under modes: in a region of bf16 or f16, around a checkpoint, where gradients are off."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt

pytestmark = pytest.mark.usefixtures("one_thread")


def _relative(a, b):
    return ((a - b).square().mean().sqrt() / a.square().mean().sqrt()).item()


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v


def _attention(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v


def _attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, scale=0.25)


class Ends(nn.Module):
    """A product of no more than 1, 15 added: `exp` of that is beyond f16."""

    def forward(self, x):
        return torch.relu(x @ x.t() + 15.0)


@pytest.mark.spread(2)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_pattern_with_an_island_in_it_is_found(compiled):
    # The cast of the island lies between the operators that the pattern names.
    torch.manual_seed(0)
    model, x, seen = nn.Sequential(Attend(), nn.Linear(16, 16)).eval(), torch.randn(2, 5, 16), []

    def attend(q, k, v):
        seen.append(q.dtype)
        return _attend(q, k, v)

    s = smelt.schedule(model, x)
    s["0"].replace(attend, s.find(_attention))
    s.precision(torch.bfloat16)
    if compiled:
        s.compile()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        seen.clear()
        y = s.build()(x)
        assert torch.bfloat16 in seen and y.dtype == torch.float32
        assert 1e-4 < _relative(model(x), y) < 0.02


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_step_brings_has_islands(compiled):
    model, x = nn.Sequential(Ends()).eval(), torch.eye(4)
    s = smelt.schedule(model, x)
    s["0"].replace(lambda t: torch.exp(t).log(), s.find(lambda t: torch.relu(t)))
    s.precision(torch.float16)
    if compiled:
        s.compile()
    with torch.no_grad():
        assert _relative(model(x), s.build()(x)) < 1e-3


@pytest.mark.parametrize("last", ["precision", "checkpoint"])
def test_a_checkpoint_computes_again_with_islands(last):
    torch.manual_seed(0)
    model, x = nn.Sequential(Attend(), Attend()), torch.randn(2, 5, 16)
    steps = {"precision": lambda s: s.precision(torch.bfloat16), "checkpoint": lambda s: s["0"].checkpoint()}
    gradients = []
    for names in (["precision"], [name for name in steps if name != last] + [last]):
        s = smelt.schedule(model, x)
        for name in names:
            steps[name](s)
        built = s.build()
        built(x).square().sum().backward()
        gradients.append([parameter.grad for parameter in built.parameters()])
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("inner", ["precision", "kept"])
def test_steps_after_precision_go_inside(inner):
    torch.manual_seed(0)
    model, x = nn.Sequential(Attend(), nn.Linear(16, 16)).eval(), torch.randn(2, 5, 16)
    s = smelt.schedule(model, x)
    s.precision(torch.bfloat16, keep=["0"]) if inner == "kept" else s["0"].precision(torch.bfloat16)
    s["0"].fuse_horizontal(s["0"].find("[qkv]$"))
    s["0"].replace(_attend, s["0"].find(_attention))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        error = _relative(model(x), s.build()(x))
    assert (1e-4 if inner == "precision" else 0) < error < 0.02


class Frozen(nn.Module):
    """A gate through which no gradient flows."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        h = self.fc(x)
        with torch.no_grad():
            gate = torch.relu(h)
        return h * gate


@pytest.mark.parametrize("new", [lambda x: x.clamp(min=0), nn.ReLU()], ids=["function", "module"])
def test_what_takes_a_place_runs_under_its_modes(new):
    torch.manual_seed(0)
    model, x = Frozen(), torch.randn(3, 8)
    s = smelt.schedule(model, x)
    s.replace(new, s.find(lambda x: torch.relu(x)))
    gradients = []
    for module in (model, s.build()):
        module(x).sum().backward()
        gradients.append(module.fc.weight.grad)
    assert torch.allclose(*gradients, rtol=1e-6)


def test_a_part_under_two_modes_is_no_place():
    s = smelt.schedule(Frozen(), torch.randn(3, 8))
    with pytest.raises(smelt.ScheduleError, match="under different modes: no_grad and without") as caught:
        s.replace(lambda h: h * h.clamp(min=0), s.find(lambda h: h * torch.relu(h)))
    assert caught.value.code == "S0609" and caught.value.where.line and s.log == ()


def test_a_step_around_a_checkpoint_says_what_it_would_lose():
    s = smelt.schedule(nn.Sequential(Attend(), nn.ReLU()), torch.randn(2, 5, 16))
    s["0"].checkpoint()
    with pytest.raises(smelt.ScheduleError, match="0 has checkpoint, which would be lost"):
        s.replace(lambda x: x.clamp(min=0), s.find(lambda x: torch.relu(x)))
