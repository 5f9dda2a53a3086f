"""Loops over ranges in programs that ask nothing of data: long ones are one loop of the graph where they can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.capture.staging import stage

TURNS = 65
W = torch.linspace(-0.3, 0.3, 16).view(4, 4)


def chain(x: Tensor) -> Tensor:
    for i in range(TURNS):
        x = torch.sin(x) * 1.01 + i
    return x


def rows(x: Tensor) -> Tensor:
    y = torch.zeros(4)
    for i in range(3, 3 + 2 * TURNS, 2):
        y = torch.tanh(W @ y + x[i % 4]) + i / 7
    return y


def in_place(x: Tensor) -> Tensor:
    y = x.clone()
    for i in range(TURNS):
        y[1] += x[2] * i
    return y


def of_two(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x, x + 1
    for _ in range(TURNS):
        a, b = torch.sin(a + b), a * b
    return a, b


def swapped(x: Tensor) -> tuple[Tensor, Tensor]:
    a, b = x, x + 1
    for _ in range(TURNS):
        a, b = b, (a + b) / 2
    return a, b


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(4, 4)

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.tanh(self.map(h) + x)


class Network(nn.Module):
    """The loop stands in one function, what it does in another."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = Cell()

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for _ in range(TURNS):
            h = self.cell(x, h)
        return h


def in_a_list(x: Tensor) -> Tensor:
    h, found = x, []
    for _ in range(TURNS):
        h = torch.cos(h)
        found.append(h)
    return torch.stack(found)


def numbers(x: Tensor) -> Tensor:
    a, b = 0, 1
    for _ in range(TURNS):
        a, b = b, (a + b) % 11
        x = x + a
    return x * b


def kinds(x: Tensor) -> Tensor:
    for i in range(TURNS):
        x = x + 1 if i % 7 else x.double()
    return x


def parts(x: Tensor) -> list[Tensor]:
    found = list(x.unbind())
    for i in range(TURNS):
        found[i % 4] = found[i % 4] + found[(i + 1) % 4]
    return found


def text(x: Tensor, function: Callable[..., Any]) -> str:
    return str(smelt.trace(function, (x,)).graph)


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(-1, 1, 16).view(4, 4)


LOOPS = (chain, rows, in_place, of_two, Network(), in_a_list)
TURN_BY_TURN = (swapped, numbers, kinds, parts)


def named(program: Any) -> str:
    return getattr(program, "__name__", type(program).__name__)


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", (*LOOPS, *TURN_BY_TURN), ids=named)
def test_the_answer(program: Callable[..., Any], x: Tensor) -> None:
    compiled, traced = smelt.compile(program), smelt.trace(program, (x,))
    with torch.no_grad():
        for given in (x, x * 2, -x):
            expected = program(given)
            torch.testing.assert_close(compiled(given), expected)
            torch.testing.assert_close(traced(given), expected)


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", LOOPS, ids=named)
def test_one_loop_of_the_graph(program: Callable[..., Any], x: Tensor) -> None:
    with torch.no_grad():
        shown = text(x, program)
        assert shown.count("= for %") == 1
        assert len(shown.splitlines()) < 20


@pytest.mark.parametrize("program", TURN_BY_TURN, ids=named)
def test_turn_by_turn_where_python_knows_what_changes(program: Callable[..., Any], x: Tensor) -> None:
    assert "= for %" not in text(x, program)


def test_a_short_loop_is_taken_turn_by_turn(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TURNS", 16)
    assert "= for %" not in text(x, chain)


def test_the_number_of_turns_is_guarded(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = smelt.compile(chain)
    for turns in (65, 80, 3, 65):
        monkeypatch.setitem(globals(), "TURNS", turns)
        torch.testing.assert_close(compiled(x), chain(x))


def test_what_an_outer_function_counts_is_counted_once(x: Tensor) -> None:
    calls = []

    def program(x: Tensor) -> Tensor:
        calls.append(1)
        for _ in range(TURNS):
            x = torch.sin(x)
        return x

    compiled = smelt.compile(program)
    for n in range(1, 4):
        compiled(x)
        assert len(calls) == n


def test_what_would_be_unrolled_again_is_compiled_from_its_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Network()
    given = torch.linspace(-1, 1, 16).view(4, 4)
    for turns, is_one_loop in ((40, False), (65, True)):
        monkeypatch.setitem(globals(), "TURNS", turns)
        compiled = smelt.compile(cell)
        with torch.no_grad():
            torch.testing.assert_close(compiled(given), cell(given))
            assert "= for %" in text(given, cell)
        assert ("= for %" in smelt.explain(compiled).graphs[0]["captured"]) == is_one_loop


def test_a_loop_of_many_operators_is_staged_at_once(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recorded run has shown how many: no iteration has to be staged to find out, and no run begun again."""
    runs = []
    once = stage._Run._once

    def counted(self: Any, *args: Any) -> Any:
        runs.append(self)
        return once(self, *args)

    def wide(x: Tensor) -> Tensor:
        for i in range(16):
            x = torch.sin(x) * 1.01 + torch.cos(x) * 0.5
            x = x - x.mean() + i / torch.exp(x.abs())
        return x

    monkeypatch.setattr(stage._Run, "_once", counted)
    with torch.no_grad():
        assert text(x, wide).count("= for %") == 1
    assert len(runs) == 1
