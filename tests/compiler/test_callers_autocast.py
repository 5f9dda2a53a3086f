"""Autocast of whoever calls: what it casts is in the graph, native code runs without it, and it is as it was after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt._torch.library import shim
from smelt.compiler.object.compiled import dispatcher_of
from smelt.runtime.encoding.table import AUTOCAST_CELLS
from tests.promises.models import entry_of

RULE = {"measure": False}
LOW = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Net(nn.Module):
    """Operators that autocast lowers, raises, leaves alone and joins; parts under other settings; a way by data."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))
        self.norm = nn.LayerNorm(16)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(torch.relu(self.first(x)))
        z = torch.cat([self.second(y) + x, self.conv(x[None])[0]], -1)
        with torch.autocast("cpu", enabled=False):
            exact = self.first(x), x.cumsum(0)
        with torch.autocast("cpu", torch.bfloat16):
            inner = self.third(x)  # torch keeps weights as the outer setting has cast them
        attended = F.scaled_dot_product_attention(y[None], y[None], x[None])
        total = F.mse_loss(y.float(), x) + y.norm() + y.prod()
        return z, torch.softmax(y @ y.mT, -1), exact, inner, attended, total, y.to(torch.bfloat16).cumsum(0)


def by_data(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        y = linear(x)
        y = linear(y) * 2 if x.sum() > 0 else linear(y + 1)
        while y.abs().max() > 1:
            y = y / 2
        for row in x:
            if row.sum() > 0:
                y = y + linear(row)
        return y

    return f


def by_python(linear: nn.Linear) -> Callable[[Tensor], Any]:
    """Each step has an operator without native form, which reads what autocast made."""

    def f(x: Tensor) -> Any:
        y = torch.linalg.svdvals(x @ x.mT)
        return torch.einsum("ij,kj->ik", linear(x), x), y, torch.bucketize(linear(x).float(), y.sort().values)

    return f


PROGRAMS: dict[str, Callable[[], Callable[..., Any]]] = {
    "net": lambda: Net().eval(),
    "by data": lambda: by_data(nn.Linear(16, 16)),
    "by python": lambda: by_python(nn.Linear(16, 16)),
}


def assert_same(found: Any, want: Any) -> None:
    torch.testing.assert_close(found, want, rtol=0.02, atol=0.02)
    for a, b in zip(torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(want), strict=True):
        assert a.dtype == b.dtype and a.stride() == b.stride()


@pytest.mark.spread(6)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_setting_has_its_own_answer(program: str, native: bool) -> None:
    """In any order, with what switches autocast off natively and without."""
    f = PROGRAMS[program]()
    hidden = () if native else tuple(name for _, name in AUTOCAST_CELLS)
    with shim.hidden(*hidden):
        compiled = smelt.compile(f, options=RULE)
        for low in (*LOW, None, *reversed(LOW), None):
            with torch.autocast("cpu", dtype=low, enabled=low is not None):
                for x in (torch.randn(4, 16), -torch.rand(4, 16), torch.rand(4, 16)):
                    assert_same(compiled(x), f(x))
                    assert torch.is_autocast_enabled("cpu") == (low is not None)
                    assert low is None or torch.get_autocast_dtype("cpu") is low
    assert compiled.stats().fallbacks == {}


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_captured_for_each_setting(program: str) -> None:
    f = PROGRAMS[program]()
    x = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        traced = smelt.trace(f, x)
        scripted = smelt.script(f)
    for low in (None, torch.bfloat16, None):
        with torch.autocast("cpu", dtype=low, enabled=low is not None):
            assert_same(traced(x), f(x))
            assert_same(scripted(x), f(x))


def test_what_is_cast_stands_in_the_graph() -> None:
    linear = nn.Linear(16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        traced = smelt.trace(linear, torch.randn(4, 16))
        assert 'linear.default(%input, %weight, %bias)  ["autocast(bf16)"]' in str(traced.graph)
        optimized = str(traced.graph_for(torch.randn(4, 16)))
    assert '"autocast(' not in optimized and "bf16" in optimized


def test_generated_python_is_as_the_program_under_any_callers_autocast() -> None:
    linear = nn.Linear(16, 16)

    def f(x: Tensor) -> Any:
        with torch.autocast("cpu", enabled=False):
            exact = linear(x)
        return exact, linear(x), linear(exact) if exact.sum() > 0 else linear(x) * 2

    x = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        traced, want = smelt.trace(f, x), f(x)
        assert_same(traced.code.run(x), want)
        assert_same(traced.to_fx()(x), want)
        assert_same(traced(x), want)
    assert_same(traced.code.run(x), want)
    assert_same(traced.to_fx()(x), want)


def test_calls_are_served_natively() -> None:
    """The guards know autocast and its dtype, and no operator goes through the dispatcher for it."""
    net = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.Softmax(-1)).eval()
    x = torch.randn(4, 16)
    compiled = smelt.compile(lambda x: net(x), options=RULE)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(4):
            compiled(x)
        served = dispatcher_of(compiled).counters
        before = served.calls
        compiled(x)
        assert served.calls == before + 1
    with torch.autocast("cpu", torch.float16):
        assert compiled(x).dtype == net(x).dtype
        assert served.calls == before + 1
    entry = entry_of(compiled)
    assert entry.executable is not None and entry.executable.counts.python == 0
    assert compiled(x).dtype == torch.float32


def test_it_is_as_it_was_after_an_error() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return (x @ x.mT)[i]

    compiled = smelt.compile(f, options=RULE)
    x = torch.randn(4, 16)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(3):
            assert_same(compiled(x, torch.tensor([1])), f(x, torch.tensor([1])))
        with pytest.raises(IndexError):
            compiled(x, torch.tensor([9]))
        assert torch.is_autocast_enabled("cpu") and (x @ x.mT).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")
