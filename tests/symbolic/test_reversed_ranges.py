"""Ranges from the last number on: one loop for all lengths, and `reversed` is gone over once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def returns(x, n):
    """Discounted sums from the end, as in learning from rewards."""
    sums, last = torch.zeros_like(x), torch.zeros(2)
    for t in reversed(range(len(x))):
        last = x[t] + 0.9 * last
        sums[t] = last
    return sums


def inserted(x, n):
    last, sums = torch.zeros(2), []
    for t in reversed(range(len(x))):
        last = x[t] + 0.9 * last
        sums.insert(0, last)
    return torch.stack(sums)


def from_zero(x, n):
    s = 0
    for i in range(x.shape[0]):
        s = s * 0.5 + x[i]
    for i in range(x.shape[0] - 1, -1, -1):
        s = s * 0.5 + x[i] * i
    return s


def of_numbers(x, n):
    for i in reversed(range(n)):
        x = x * 0.5 + i
    for i in reversed(range(1, len(x) + 3, 2)):
        x = x * 0.5 + i
    for i in reversed(range(len(x), 0, -1)):
        x = x - i
    return x


def once(x, n):
    numbers, s = reversed(range(len(x))), x * 1
    for i in numbers:
        s = s * 0.5 + i
    for _ in numbers:
        s = s + 100
    return s, list(numbers), list(reversed(range(n))), next(numbers, None)


def left(x, n):
    numbers, s = reversed(range(len(x))), x * 1
    for i in numbers:
        s = s + i
        if i == 2:
            break
    for i in numbers:
        s = s * 2 + i
    return s


def stepped(x, n):
    numbers = reversed(range(len(x)))
    first = next(numbers)
    return x[first] + sum(numbers)


def test_loops_over_free_sizes_run_natively() -> None:
    def recurrent(x):
        h = torch.zeros(2)
        for i in range(len(x)):
            h = torch.tanh(h * 0.9 + x[i])
        for _ in range(len(x)):
            x = torch.cat([x[1:], x[:1]]) - h
        return x

    compiled = smelt.compile(recurrent)
    for rows in (3, 5, 4, 9, 7, 2):
        x = torch.randn(rows, 2)
        torch.testing.assert_close(compiled(x), recurrent(x))
    assert compiled.stats().builds == 2 and smelt.explain(compiled).fallbacks == []


@pytest.mark.spread(6)
@pytest.mark.parametrize(
    ("f", "most"), [(returns, 2), (inserted, 2), (from_zero, 2), (of_numbers, 3), (once, 3), (left, 8), (stepped, 8)]
)
def test_backwards_as_in_eager(f: Callable[..., Any], most: int) -> None:
    compiled = smelt.compile(f)
    for rows, n in ((3, 2), (5, 4), (4, 7), (9, 3), (7, 0), (2, -5), (6, 1)):
        x = torch.randn(rows, 2)
        found, expected = compiled(x, n), f(x, n)
        assert str(found) == str(expected) if isinstance(expected, tuple) else torch.allclose(found, expected)
    assert compiled.stats().builds <= most
