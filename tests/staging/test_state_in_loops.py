"""Tensors from outside the arguments that a loop on data writes: buffers, attributes, globals, first seen inside it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

SEEN = torch.zeros(3)


class Counting(nn.Module):
    """`steps` counts, `ema` averages, `rows` keeps what was last seen; `plain` is no buffer."""

    steps: Tensor
    ema: Tensor
    rows: Tensor

    def __init__(self, body: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("ema", torch.zeros(3))
        self.register_buffer("rows", torch.zeros(4, 3))
        self.plain = torch.ones(())
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self, x)


def halved(m: Counting, x: Tensor) -> Any:
    while x.abs().max() > 1:
        x = x / 2
        m.steps += 1
    return x


def halved_in_place(m: Counting, x: Tensor) -> Any:
    while x.abs().max() > 1:
        x = x / 2
        m.steps.add_(1)
    return x, m.steps * 2


def averaged(m: Counting, x: Tensor) -> Any:
    for _ in range(int(x.abs().sum())):
        m.ema.mul_(0.9).add_(x, alpha=0.1)
        x = x + m.ema
    return x


def on_one_way(m: Counting, x: Tensor) -> Any:
    while x.abs().max() > 0.5:
        if x.sum() > 0:
            m.ema.add_(x)
        else:
            m.plain.mul_(0.5)
        x = x * 0.7
    return x + m.ema * m.plain


def left_early(m: Counting, x: Tensor) -> Any:
    for i in range(9):
        if x.abs().max() < 1:
            break
        m.steps += 1
        m.rows[i % 4] = x
        x = x * 0.6
    else:
        m.plain.add_(1)
    return x, m.rows.sum()


def through_a_view(m: Counting, x: Tensor) -> Any:
    while x.abs().max() > 1:
        row = m.rows[1]
        row.add_(x)
        x = x * 0.6 - row * 0.01
        if m.rows.abs().max() > 6:
            return m.rows[1] * 1
    return x


def asked_by_the_loop(m: Counting, x: Tensor) -> Any:
    m.plain.zero_()
    while m.plain < 4:
        m.plain.add_(x.abs().mean() + 0.5)
        x = x + 1
    return x


def nested(m: Counting, x: Tensor) -> Any:
    for _ in range(int(x.abs().max())):
        while x.sum() > 1:
            x = x * 0.5 - 0.1
            m.steps += 1
        x = x + 1
        m.ema.copy_(x)
    return x, m.ema


def of_a_global(m: Counting, x: Tensor) -> Any:
    while x.abs().max() > 1:
        SEEN.add_(x)
        x = x / 2
    return x + SEEN


def read_before(m: Counting, x: Tensor) -> Any:
    y = x * m.steps
    while x.abs().max() > 1:
        x = x / 2
        m.steps += 1
    return x, y, m.steps + 0


_BODIES = [
    halved, halved_in_place, averaged, on_one_way, left_early, through_a_view, asked_by_the_loop, nested, of_a_global,
    read_before,
]  # fmt: skip


@pytest.mark.spread(6)
@pytest.mark.parametrize("body", _BODIES, ids=lambda fn: fn.__name__)
def test_as_in_eager_and_one_graph(body: Callable[..., Any]) -> None:
    module = Counting(body)
    twin = copy.deepcopy(module)
    compiled = smelt.compile(module)
    with torch.no_grad():
        for call in range(10):
            x = torch.randn(3, generator=torch.Generator().manual_seed(call)) * (1 + call % 4)
            SEEN.zero_()
            found = compiled(x.clone())
            seen = SEEN.clone()
            SEEN.zero_()
            torch.testing.assert_close(found, twin(x.clone()))
            torch.testing.assert_close(seen, SEEN)
            torch.testing.assert_close(dict(module.named_buffers()), dict(twin.named_buffers()))
            torch.testing.assert_close(module.plain, twin.plain)
    assert compiled.stats().builds <= 2
    assert all(graph.get("no merged graph") is None for graph in smelt.explain(compiled).graphs)


def test_trace_holds_for_any_number_of_turns() -> None:
    module = Counting(halved)
    graph = smelt.trace(module, (torch.full((3,), 3.0),)).graph
    assert "while" in str(graph) and "write(" in str(graph)
