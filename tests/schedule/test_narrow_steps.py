"""Steps on a module's graph in a region of bf16 or f16: they hold there, and what they bring along has its islands."""

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


class Ends(nn.Module):
    """A product of no more than 1, 15 added: `exp` of that is beyond f16."""

    def forward(self, x):
        return torch.relu(x @ x.t() + 15.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_pattern_with_an_island_in_it_is_found(compiled):
    # The cast of the island lies between the operators that the pattern names.
    torch.manual_seed(0)
    model, x, seen = nn.Sequential(Attend(), nn.Linear(16, 16)).eval(), torch.randn(2, 5, 16), []

    def attend(q, k, v):
        seen.append(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, scale=0.25)

    s = smelt.schedule(model, x)
    found = s.find(lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) / 4.0, -1) @ v)
    s["0"].replace(attend, found)
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
