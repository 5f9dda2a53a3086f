"""Programs with branches and loops on many ranks: outputs, gradients and three steps of training, dropout included."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.diag import SmeltError

Tensor = torch.Tensor
WIDTH = 8


class Program(nn.Module):
    """Four layers and a norm, with which a function does something."""

    def __init__(self, body: Callable[[Program, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(12, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm, self.drop, self.body = nn.LayerNorm(WIDTH), nn.Dropout(0.2), body

    def mlp(self, h: Tensor) -> Tensor:
        return self.drop(self.down(F.gelu(self.up(h))))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(self, self.table(x)))


def _branch(m: Program, h: Tensor) -> Tensor:
    if h.sum() > 1e3:
        h = m.left(h)
    else:
        h = h + m.mlp(h)
    return m.right(h)


def _one_arm(m: Program, h: Tensor) -> Tensor:
    h = m.mlp(h)
    if h.detach().abs().mean() < 1e3:
        h = torch.tanh(m.left(h)) * 2
    return h + m.right(h)


def _nested(m: Program, h: Tensor) -> Tensor:
    y = m.up(h)
    if y.mean() > -1e3:
        if y.mean() > 1e3:
            y = y * 2
        else:
            y = y.relu() + 0.1
    return m.down(y)


def _weight_sharing(m: Program, h: Tensor) -> Tensor:
    for _ in range(3):
        h = h + 0.5 * m.mlp(m.norm(h))
    return h


def _counted_by_data(m: Program, h: Tensor) -> Tensor:
    n = int((h.detach() > -1e3).sum()) // h.numel() + 2
    for i in range(n):
        h = torch.tanh(m.down(m.up(h).relu())) + i * 0.1 * h
    return h


def _while(m: Program, h: Tensor) -> Tensor:
    k = torch.zeros(())
    while k < 2.5:
        h = h + torch.sin(m.left(h))
        k = k + 1
    return m.mlp(h)


def _scan(m: Program, h: Tensor) -> Tensor:
    state, found = torch.zeros(h.shape[0], h.shape[2]), []
    for t in range(h.shape[1]):
        state = torch.tanh(m.left(h[:, t]) + m.right(state))
        found.append(state)
    return torch.stack(found, 1) + m.mlp(h)


def _halting(m: Program, h: Tensor) -> Tensor:
    for _ in range(5):
        h = h + torch.sigmoid(m.down(m.up(h)))
        if h.detach().mean() > 0.7:
            break
    return m.left(h)


_PROGRAMS: Mapping[str, Callable[[Program, Tensor], Tensor]] = {
    f.__name__.strip("_"): f
    for f in (_branch, _one_arm, _nested, _weight_sharing, _counted_by_data, _while, _scan, _halting)
}


def scheduled(name: str, mesh: str) -> smelt.Schedule:
    """A program on a mesh by the ready schedules."""
    torch.manual_seed(0)
    axes = {a: int(n) for a, n in (one.split("=") for one in mesh.split(","))}
    s = smelt.schedule(Program(_PROGRAMS[name]).train(), (torch.randint(12, (4, 6)),))
    if "tp" in axes:
        smelt.schedules.tensor_parallel(s, ranks=axes["tp"])
    if "dp" in axes:
        s.data_parallel("dp")
    if "pp" in axes:
        smelt.schedules.pipeline(s, stages=axes["pp"])
    return s


def _check(name: str, mesh: str) -> None:
    s = scheduled(name, mesh)
    assert s.log
    proof = s.verify(mesh=mesh)
    assert proof.steps == 3 and proof.error < 1e-5


@pytest.mark.parametrize("name", _PROGRAMS)
def test_branches_and_loops_on_two_ranks(name: str) -> None:
    _check(name, "tp=2")


@pytest.mark.nightly
@pytest.mark.parametrize("mesh", ["tp=4", "pp=2", "pp=4", "dp=2", "dp=2,tp=2", "tp=2,pp=2"])
@pytest.mark.parametrize("name", _PROGRAMS)
def test_branches_and_loops_on_meshes(name: str, mesh: str) -> None:
    _check(name, mesh)


class Doubled(torch.autograd.Function):
    """A gradient that no operator has."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad * 3


def test_a_backward_in_python_is_refused_in_training_and_runs_without() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(Doubled.apply(self.up(x)))

    for axis in ("tp", "pp"):
        s = smelt.schedule(Own(), (torch.randn(4, WIDTH),))
        if axis == "tp":
            s["up"].shard("weight", 0, "tp")
        else:
            s.pipeline(2)
        with pytest.raises(SmeltError, match="no gradients of Doubled") as caught:
            s.verify(mesh={axis: 2})
        assert caught.value.where is not None and "test_control_flow.py" in str(caught.value.where)
    frozen = Own().requires_grad_(False)
    s = smelt.schedule(frozen, (torch.randn(4, WIDTH),))
    s["up"].shard("weight", 0, "tp")
    assert s.verify(mesh="tp=2").error < 1e-5


def test_parameters_that_no_stage_uses_stay_with_the_first() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.spare, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).tanh())

    s = smelt.schedule(Spare(), (torch.randn(4, WIDTH),))
    s.pipeline(2)
    held = [{name.partition(".")[0] for name, _ in s.build(mesh="pp=2", rank=r).named_parameters()} for r in range(2)]
    assert held == [{"first", "spare"}, {"last"}]
    assert s.verify(mesh="pp=2").error < 1e-5


def test_ranks_of_one_process_run_one_capture() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            if WIDTH not in _TABLES:
                _TABLES[WIDTH] = torch.arange(float(WIDTH)).cos()
            return self.last((self.first(x) * _TABLES[WIDTH]).tanh())

    _TABLES.clear()
    s = smelt.schedule(Cached(), (torch.randn(4, WIDTH),))
    _TABLES.clear()
    s.pipeline(2)
    assert s.verify(mesh="pp=2").error < 1e-5


_TABLES: dict[int, Tensor] = {}
