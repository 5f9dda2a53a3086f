"""Loops of as many turns as data say, which fill lists: eager and compiled in turn: `python bench/lists.py`."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import smelt


def step(h: Tensor) -> Tensor:
    return torch.tanh(h) * 0.5 + h * 0.9 + 0.1


def stacked(x: Tensor, n: Tensor) -> Tensor:
    items, h = [], x
    for _ in range(int(n)):
        h = step(h)
        items.append(h)
    return torch.stack(items)


def light(x: Tensor, n: Tensor) -> list[Tensor]:
    items, h = [], x
    for _ in range(int(n)):
        h = h * 1.01
        items.append(h)
    return items


def two_lists(x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    items, sums, h = [], [], x
    for _ in range(int(n)):
        h = step(h)
        items.append(h)
        sums.append(h.sum())
    return torch.stack(items), torch.stack(sums)


def on_some_ways(x: Tensor, n: Tensor) -> list[Tensor]:
    items, h = [], x
    for _ in range(int(n)):
        h = step(h)
        if h.sum() > 10:
            items.append(h)
    return items


def greedy(x: Tensor, n: Tensor) -> Tensor:
    tokens: list[Tensor] = []
    h = x
    while len(tokens) < n:
        h = step(h)
        token = h.argmax()
        tokens.append(token)
        if token == 99:
            break
    return torch.stack(tokens)


def lists_of_lists(x: Tensor, n: Tensor) -> list[list[Tensor]]:
    rows = []
    for i in range(int(n)):
        row = []
        for k in range(int(n) - i):
            row.append(x * k + i)
        rows.append(row)
    return rows


def last_one(x: Tensor, n: Tensor) -> list[Tensor]:
    items = [x + 0]
    while len(items) < n:
        items.append(items[-1] * 0.5 + 1)
    return items


PROGRAMS: tuple[Callable[..., Any], ...] = (
    stacked, light, two_lists, on_some_ways, greedy, lists_of_lists, last_one,
)  # fmt: skip


def main(rounds: int) -> None:
    """Print medians in microseconds, and their ratio."""
    torch.set_num_threads(1)
    x, n = torch.rand(64), torch.tensor(40)
    for program in PROGRAMS:
        compiled = smelt.compile(program)
        for other in (38, 39, 40):
            compiled(x, torch.tensor(other))
        ways = {"eager": program, "smelt": compiled}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, way in ways.items():
                begin = time.perf_counter()
                way(x, n)
                times[name].append((time.perf_counter() - begin) * 1e6)
        eager, ours = (statistics.median(found) for found in times.values())
        print(f"{program.__name__:15} eager {eager:7.0f} us, smelt {ours:7.0f} us: {eager / ours:.2f} times")


if __name__ == "__main__":
    with torch.no_grad():
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
