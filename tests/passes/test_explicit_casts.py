"""Autocast inside a program becomes casts in its graph: eager's answers and types, and native code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.compiler.pipeline import pass_names
from smelt.ir import parse
from smelt.passes.layers.explicit_casts import explicit_casts
from smelt.passes.manager import run_passes

RULE = {"measure": False}


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


class Net(nn.Module):
    """Operators that autocast lowers, leaves alone, and joins."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(16, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.conv = nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = self.norm(torch.relu(self.first(x)))
            z = torch.cat([self.second(y) + x, self.conv(x[None])[0]], -1)
            scores = torch.softmax(y @ y.transpose(-1, -2), -1)
            with torch.autocast("cpu", enabled=False):
                exact = self.first(x)
            attended = F.scaled_dot_product_attention(y[None], y[None], x[None])
        return z, scores, exact, attended, self.second(x)


def by_data(model: Net) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = model.first(x)
            y = model.second(y) * 2 if y.sum() > 0 else model.second(y + 1)
            for row in x:
                if row.sum() > 0:
                    y = y + model.second(row)
        return y

    return f


def assert_alike(found: Any, expected: Any) -> None:
    for ours, eagers in zip(found, expected, strict=True):
        assert ours.dtype is eagers.dtype and ours.stride() == eagers.stride()
        loose = {} if ours.dtype is torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
        torch.testing.assert_close(ours, eagers, **loose)


def test_a_program_with_autocast_inside_is_native() -> None:
    model = Net().eval()
    compiled = smelt.compile(model, options=RULE)
    for _ in range(3):
        x = torch.randn(4, 16)
        assert_alike(compiled(x), model(x))
    (row,) = smelt.explain(compiled).graphs
    assert row["runs"] == "natively" and "autocast" in row["captured"] and "autocast" not in row["optimized"]
    model.first.weight.mul_(2)
    x = torch.randn(4, 16)
    assert_alike(compiled(x), model(x))


@pytest.mark.spread(2)
@pytest.mark.parametrize("seed", range(3))
def test_branches_and_loops(seed: int) -> None:
    f = by_data(Net())
    compiled = smelt.compile(f, options=RULE)
    for more in range(4):
        x = torch.randn(4, 16, generator=torch.Generator().manual_seed(10 * seed + more))
        assert_alike([compiled(x)], [f(x)])
    (row,) = smelt.explain(compiled).graphs
    assert row["runs"] == "natively" and "autocast" not in row["optimized"]


def test_gradients_are_those_of_the_program() -> None:
    model = Net()
    compiled = smelt.trace(model, torch.randn(4, 16))
    grads = []
    with torch.enable_grad():
        for run in (compiled, model):
            model.zero_grad()
            run(torch.ones(4, 16))[0].float().sum().backward()
            grads.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert_alike(*grads)


def test_what_is_made_of_others_stays_under_autocast() -> None:
    def f(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.einsum("ij,kj->ik", x, x) + 1

    compiled = smelt.compile(f, options=RULE)
    for _ in range(3):
        x = torch.randn(4, 16)
        assert_alike([compiled(x)], [f(x)])
    assert "autocast" in smelt.explain(compiled).graphs[0]["optimized"]


GRAPH = """\
graph f(%x: f32[4, 8], %w: f32[8, 8], %i: i64[4]) -> {types} {{
  {body}
}}"""


@pytest.mark.parametrize(
    ("types", "body", "expected"),
    [
        ("bf16[4, 8]", '%0: bf16[4, 8] = aten.linear.default(%x, %w)  ["autocast(bf16)"]\n  return %0', 2),
        ("f32[4, 8]", '%0: f32[4, 8] = aten.relu.default(%x)  ["autocast(bf16)"]\n  return %0', 0),
        ("f16[4, 8]", '%0: f16[4, 8] = aten.mm.default(%x, %w)  ["no_grad autocast(f16)"]\n  return %0', 2),
        ("f32[]", '%0: f32[] = aten.mse_loss.default(%x, %x)  ["autocast(bf16)"]\n  return %0', 0),
    ],
)
def test_casts(types: str, body: str, expected: int) -> None:
    made = parse(GRAPH.format(types=types, body=body))
    run_passes(made, (explicit_casts,))
    nodes = list(made.walk())
    assert [n.op for n in nodes].count("aten.to.dtype") == expected and not any("autocast" in n.mode for n in nodes)
    assert [n.mode for n in nodes if "no_grad" in body and n.op == "aten.mm.default"] in ([], [""])


def test_it_comes_first_of_the_passes_that_match_operators() -> None:
    assert pass_names()[:2] == ("unroll", "explicit-casts")
