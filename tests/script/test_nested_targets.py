"""Targets in targets (`for i, (n, t) in ...`): each level of what only a graph has is taken apart by the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from tests.script.checking import by_evaluator


def of_a_dict(x: Tensor, d: dict[str, tuple[int, Tensor]]) -> Any:
    out = {}
    for key, (n, t) in d.items():
        out[key] = n * t
    return out, {key: t + n for key, (n, t) in d.items()}


def numbered(x: Tensor, d: dict[str, tuple[int, Tensor]]) -> Any:
    pairs = list(d.values())
    return [x * i + n * t for i, (n, t) in enumerate(pairs)]


def first_and_rest(x: Tensor, d: dict[str, tuple[int, Tensor]]) -> Any:
    pairs = list(d.values())
    (n, t), *rest = pairs
    return n * t, len(rest), rest[0][1]


def rest_inside(x: Tensor, d: dict[str, tuple[int, Tensor]]) -> Any:
    pairs = [(x, list(d)), (x + 1, ["z"])]
    total = x
    for t, [first, *others] in pairs:
        total = total + t * (len(others) + len(first))
    return total


def into_places(x: Tensor, d: dict[str, tuple[int, Tensor]]) -> Any:
    held, kept = [0, 0], {}
    for i, (held[1], kept["t"]) in enumerate(d.values()):
        held[0] = i
    return held, kept


_PROGRAMS = [of_a_dict, numbered, first_and_rest, rest_inside, into_places]


def given() -> tuple[Tensor, dict[str, tuple[int, Tensor]]]:
    return torch.tensor([1.0, -2.0]), {"a": (2, torch.tensor([3.0, 1.0])), "bc": (5, torch.tensor([0.5, 4.0]))}


@pytest.mark.spread(5)
@pytest.mark.parametrize("with_example", (False, True))
@pytest.mark.parametrize("program", _PROGRAMS)
def test_a_graph_from_source(program: Callable[..., Any], with_example: bool) -> None:
    scripted = smelt.script(program, example_inputs=given() if with_example else None)
    assert str(by_evaluator(scripted, *given())) == str(program(*given()))
    assert str(scripted(*given())) == str(program(*given()))


def grown(x: Tensor) -> Tensor:
    pairs, total, n = [], x.sum() * 0, 0
    while x.sum() < 20:
        pairs.append((x, (x * 2, x.sum())))
        x, n = x + 1, n + 1
    for i, (a, (b, c)) in enumerate(pairs):
        total = total + a.sum() * i - b.sum() + c
    return total


def test_what_a_loop_of_data_made() -> None:
    compiled = smelt.compile(grown)
    with torch.no_grad():
        for start in (0.0, 3.0, 30.0, -4.0):
            x = torch.full((2,), start)
            assert torch.equal(compiled(x), grown(x))
