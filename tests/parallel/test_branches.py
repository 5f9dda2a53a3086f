"""Branches in stages: work and random numbers inside of them, tests that need the whole batch, parameters not used."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.diag import SmeltError


class Program(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.a, self.b, self.c, self.name = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), name

    def forward(self, x: Tensor) -> Tensor:
        return {**_KINDS, **_REFUSED}[self.name](self, x)


def _all(m: Program, x: Tensor) -> Tensor:
    """Stages end inside of a branch around everything; arms draw different numbers, and give things of other types."""
    if x.sum() > 0:
        h = F.dropout(m.a(x), 0.3)
        h = F.dropout(m.b(h.tanh()).transpose(0, 1), 0.3).transpose(0, 1)
    else:
        h = m.c(torch.cat([x, x.cos()])).tanh().unflatten(0, (2, -1)).sum(0)
    return F.dropout(m.c(h), 0.2)


def _nested(m: Program, x: Tensor) -> Tensor:
    is_large = (x > 9).any()
    if x.amax() > 0:
        h = F.dropout(m.a(x), 0.3) if is_large else F.dropout(m.a(x).tanh(), 0.4)
    else:
        h = m.c(x)
    return m.b(h)


def _unused(m: Program, x: Tensor) -> Tensor:
    """A parameter of two stages that none of them uses: it has no gradient."""
    t = x.sum() > 1e4
    h = m.c(x) if t else m.a(x)
    h = m.b(h).tanh()
    return m.c(h) if t else h * 2


def _sum_in_loop(m: Program, x: Tensor) -> Tensor:
    h = m.b(x)
    while h.abs().sum() < 1000:
        h = m.a(h) + h * 1.5
    return m.c(h)


def _two_that_draw(m: Program, x: Tensor) -> Tensor:
    h = m.a(x)
    h = F.dropout(h, 0.3) if h.sum() > -1e3 else h * 2
    return F.dropout(m.b(m.c(h)), 0.3)


_KINDS: Mapping[str, Callable[[Program, Tensor], Tensor]] = {"all": _all, "nested": _nested, "unused": _unused}
_REFUSED: Mapping[str, Callable[[Program, Tensor], Tensor]] = {
    "sum in a loop": _sum_in_loop, "two that draw": _two_that_draw,
}  # fmt: skip


def _scheduled(name: str, mesh: str, microbatches: int, shift: float = 0.3) -> smelt.Schedule:
    torch.manual_seed(0)
    s = smelt.schedule(Program(name).train(), (torch.randn(4, 8) + shift,))
    if "dp" in mesh:
        s.data_parallel("dp")
    s.pipeline(2, "pp", microbatches=microbatches)
    return s


def _adamw(parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5)  # what has no gradient does not decay


@pytest.mark.parametrize(("mesh", "microbatches"), [("pp=2", 2), ("dp=2,pp=2", 2)])
@pytest.mark.parametrize("name", _KINDS)
def test_branches_in_stages(name: str, mesh: str, microbatches: int) -> None:
    proof = _scheduled(name, mesh, microbatches).verify(mesh=mesh, steps=2, optimizer=_adamw)
    assert proof.error < 1e-5


def test_the_other_arm() -> None:
    assert _scheduled("all", "pp=2", 4, -9.0).verify(mesh="pp=2", steps=2).error < 1e-5


@pytest.mark.parametrize(
    ("name", "microbatches", "why"),
    [("sum in a loop", 2, "dist.all_reduce needs"), ("two that draw", 1, "all others are drawn for the whole batch")],
)
def test_what_stages_cannot_do(name: str, microbatches: int, why: str) -> None:
    with pytest.raises(SmeltError, match=why) as caught:
        _scheduled(name, "pp=2", microbatches).verify(mesh="pp=2")
    assert "test_branches.py" in str(caught.value)
