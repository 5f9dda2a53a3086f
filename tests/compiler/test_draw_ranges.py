"""What is cut at numbers that are drawn: of a known size where the generator promises where they lie, and native."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

import smelt
from smelt.ir import TensorType

Program = Callable[[torch.Tensor], torch.Tensor]


def by_python(x: torch.Tensor) -> torch.Tensor:
    top, left = random.randint(0, x.shape[-2] - 5), random.randrange(x.shape[-1] - 5 + 1)
    x = x[:, top : top + 5, left : left + 5]
    if random.random() < 0.5:
        x = x.flip(-1)
    return (x - 0.5) / 2


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    top, left = np.random.randint(0, 4), np.random.randint(3)
    return x[:, top + 1 : top + 5, left : left + 5].relu()


def by_torch(x: torch.Tensor) -> torch.Tensor:
    top = int(torch.randint(0, x.shape[-2] - 5 + 1, (1,)))
    left = torch.randint(x.shape[-1] - 5, (), dtype=torch.int32).item()
    x = x[..., top : top + 5, left : left + 5]
    if torch.rand(1) < 0.5:
        x = x.flip(-1)
    if torch.rand(1) < 0.5:
        x = x.flip(-2)
    return x * 2 + x.abs()


def by_items(x: torch.Tensor) -> torch.Tensor:
    i, j = torch.randint(0, 4, (2,)).tolist()
    k = int(torch.randint(1, 4, (3,))[1])
    return x[:, i : i + 5, j : j + 4].abs() + x.transpose(1, 2)[:, k : k + 5, 1:5]


def by_rows(x: torch.Tensor) -> torch.Tensor:
    rows = [row[i : i + 5] for row in x.flatten(1) for i in [random.randint(0, 3)]]
    return torch.stack(rows)


def seeded(program: Program, x: torch.Tensor, seed: int) -> torch.Tensor:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return program(x)


@pytest.mark.spread(6)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [by_python, by_numpy, by_torch, by_items, by_rows])
def test_cuts_at_what_is_drawn_are_native(program: Program, dynamic: bool) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for seed in range(30):
        x = torch.randn(2, 8, 9 if dynamic and seed % 2 else 8)
        found, after = seeded(compiled, x, seed), (random.random(), np.random.random(), torch.rand(1))
        assert torch.equal(found, seeded(program, x, seed)) and found.is_contiguous()
        assert after == (random.random(), np.random.random(), torch.rand(1))
    if not dynamic:
        (row,) = compiled.stats().rows
        assert isinstance(row.entry.graph.outputs[0].type, TensorType) and row.entry.graph.outputs[0].type.is_static
        assert {n.op for n in row.entry.lowered.report.nodes if n.how == "python"} <= {"py.draw"}


def written(x: torch.Tensor) -> torch.Tensor:
    at = torch.randint(0, 4, (1,))
    at += 3
    return x[0, 0, int(at) : int(at) + 5] + 1


def written_by_turns(x: torch.Tensor) -> torch.Tensor:
    at, total = torch.randint(0, 2, (1,)), x.sum()
    for _ in range(int(x.abs().sum()) % 4 + 2):
        total = total + x[0, 0, int(at) : int(at) + 5].sum()
        at += 3
    return total


def too_long(x: torch.Tensor) -> torch.Tensor:
    at = random.randint(0, 6)
    return x[0, 0, at : at + 5] + 1


def from_the_end(x: torch.Tensor) -> torch.Tensor:
    at = random.randint(-6, -1)
    return x[0, 0, at : at + 3] * 2


@pytest.mark.parametrize("program", [written, written_by_turns, too_long, from_the_end])
def test_cuts_of_other_lengths_are_as_eager_makes_them(program: Program) -> None:
    compiled = smelt.compile(program)
    for seed in range(30):
        x = torch.randn(2, 8, 8)
        found, expected = seeded(compiled, x, seed), seeded(program, x, seed)
        assert found.shape == expected.shape and torch.allclose(found, expected, atol=1e-6)
