"""`while` loops whose number of turns follows from a free number or size: one loop of the graph for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

NUMBERS = (1, 2, 3, 4, 7, 0, 12, 5, 20, 3, -1, 33)


def counted(x: Any, n: Any) -> Any:
    i = 0
    while i < n:
        x = x * 1.1
        i += 1
    return x


def counted_down(x: Any, n: Any) -> Any:
    while n > 1:
        x = x + n
        n //= 2
    return x, n


def beside_data(x: Any, n: Any) -> Any:
    i = 0
    while i < n and x.sum() < 1000:
        x = x * 1.1
        i += 1
    return x, i


def nested(x: Any, n: Any) -> Any:
    i = 0
    while i < n:
        j = 0
        while j < i:
            x = x + j
            j += 1
        i += 1
    return x


def two_numbers(x: Any, n: Any) -> Any:
    a, b = 0, 1
    while b < n:
        a, b = b, a + b
    return x * b, a


def collected(x: Any, n: Any) -> Any:
    found: list[Any] = []
    while len(found) < n:
        found.append(x + len(found))
    return found, len(found)


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: Any, n: Any) -> Any:
        t = 0
        while t < n:
            x = torch.tanh(self.layer(x))
            t += 1
        return x


LOOPS = (counted, counted_down, beside_data, nested, two_numbers, collected, Layers())


@pytest.mark.spread(4)
@pytest.mark.parametrize("program", LOOPS)
@torch.no_grad()
def test_one_loop_for_all_numbers(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    x = torch.rand(4)
    for n in NUMBERS:
        torch.testing.assert_close(compiled(x, n), program(x, n))
    stats = compiled.stats()
    # No turn, one turn, and one loop for all further ones; the first number is taken as it is.
    assert stats.builds <= 5 and stats.fallbacks == {}


def test_a_loop_that_halves_its_tensor_stays_as_it_is() -> None:
    def folded(x: Any) -> Any:
        while x.shape[0] > 1:
            half = x.shape[0] // 2
            x = x[:half] + x[half : 2 * half]
        return x

    compiled = smelt.compile(folded)
    for n in (8, 9, 15, 12, 4, 1, 0, 32, 33):
        x = torch.rand(n, 3)
        torch.testing.assert_close(compiled(x), folded(x))
    # One for each number of turns, and each has all its sizes from the argument's.
    graphs = [row.entry.graph for row in compiled.stats().rows if row.entry is not None]
    assert not any(node.op == "while" for graph in graphs for node in graph.walk())
