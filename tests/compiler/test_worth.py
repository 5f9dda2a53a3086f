"""A program that is slower as partitions, or through Python, than in eager mode goes back to that."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.deciding import worth as module
from smelt.compiler.deciding.worth import ENOUGH, EVERY, FAR, FIRST, LITTLE, MARGIN, WINDOW, Worth
from smelt.compiler.object.compiled_dispatch import LOST, RESTING


class Clock:
    """A clock that only the runs move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, seconds: float, name: str) -> Any:
        def run(log: list[str]) -> str:
            self.now += seconds
            log.append(name)
            return name

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "thread_time", made)
    monkeypatch.setattr(module, "SETTLING", 4)
    return made


@pytest.mark.parametrize(("pieces", "is_lost"), [(0.5, False), (MARGIN * 0.99, False), (MARGIN * 1.01, True)])
def test_the_slower_one_is_left(clock: Clock, pieces: float, is_lost: bool) -> None:
    worth, log = Worth(), list[str]()
    for _ in range(4 + WINDOW):
        worth.run(clock.taking(pieces, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert worth.is_lost == is_lost
    assert log[:4] == ["pieces"] * 4 and log.count("whole") == 2 * WINDOW // EVERY


@pytest.mark.parametrize(("pieces", "windows"), [(0.9, 1), (LITTLE * 0.99, ENOUGH)])
def test_a_close_race_is_run_again(clock: Clock, pieces: float, windows: int) -> None:
    worth, log = Worth(), list[str]()
    while not worth.is_won:
        worth.run(clock.taking(pieces, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert worth.windows == windows and not worth.is_lost


@pytest.mark.parametrize(("pieces", "calls"), [(FAR * 1.01, FIRST), (FAR * 0.99, WINDOW)])
def test_what_is_far_behind_is_left_at_once(clock: Clock, pieces: float, calls: int) -> None:
    worth, log = Worth(), list[str]()
    while not worth.is_lost:
        worth.run(clock.taking(pieces, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert len(log) == 4 + calls


@pytest.mark.parametrize(("second", "is_lost"), [(LITTLE * 1.01, True), (LITTLE * 0.99, False)])
def test_what_is_a_little_slower_in_all_windows_is_left(clock: Clock, second: float, is_lost: bool) -> None:
    worth, log = Worth(), list[str]()
    while not (worth.is_won or worth.is_lost):
        pieces = second if worth.windows == 1 else MARGIN * 0.99
        worth.run(clock.taking(pieces, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert worth.windows == ENOUGH and worth.is_lost == is_lost


@pytest.mark.parametrize("period", [2, 3, 4, 5, 7, 8, 11])
def test_inputs_that_come_in_turns_are_met_alike(clock: Clock, period: int) -> None:
    worth, log = Worth(), list[str]()
    for n in range(4 + WINDOW):
        seconds = 0.1 if n % period == 0 else 1.0
        worth.run(clock.taking(seconds, "pieces"), clock.taking(seconds, "whole"), (log,), {})
    assert worth.windows == 1 and not worth.is_lost


def test_single_long_runs_do_not_count(clock: Clock) -> None:
    worth, log = Worth(), list[str]()
    for n in range(4 + WINDOW):
        worth.run(clock.taking(1000.0 if n % 9 == 5 else 0.9, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert worth.windows == 1 and not worth.is_lost


def test_windows_come_ever_more_seldom(clock: Clock) -> None:
    worth, log = Worth(), list[str]()
    for _ in range(9000):
        worth.run(clock.taking(0.5, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert log.count("whole") == 2 * 4 * WINDOW // EVERY


def test_errors_of_a_run_are_not_counted(clock: Clock) -> None:
    def fails(log: list[str]) -> None:
        clock.now += 100.0
        raise ValueError("no")

    worth, log = Worth(), list[str]()
    for n in range(4 + WINDOW + 1):
        if n % 5 == 1:
            with pytest.raises(ValueError, match="no"):
                worth.run(fails, fails, (log,), {})
        else:
            worth.run(clock.taking(0.5, "pieces"), clock.taking(1.0, "whole"), (log,), {})
    assert not worth.is_lost


def test_a_program_that_is_given_up_answers_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLING", 2)
    monkeypatch.setattr(module, "MARGIN", 0.0)
    log: deque[float] = deque()

    def program(x: torch.Tensor) -> torch.Tensor:
        y = (x.sin() + x.cos()) * x.exp() - x
        log.append(float(y[0]))
        return (y.tanh() + 1).sqrt() * y - x

    compiled = smelt.compile(program)
    with pytest.warns(smelt.SmeltWarning, match="as partitions"):
        for n in range(3 * WINDOW):
            x = torch.full((4,), n / 100)
            assert torch.allclose(compiled(x), program(x))
    assert len(log) == 6 * WINDOW
    assert list(log)[::2] == pytest.approx(list(log)[1::2])
    assert "split execution was slower than eager" in str(smelt.explain(compiled))
    assert compiled.stats().fallbacks[LOST] >= RESTING


def loops(x: torch.Tensor) -> torch.Tensor:
    kept = []
    while x.numel() > 0:
        kept.append(x[0])
        x = x[x > x[0] + 0.5].flip(0).flip(0)
    return torch.stack(kept)


def draws(x: torch.Tensor) -> torch.Tensor:
    return x * random.uniform(1, 2) + random.randint(1, 9)


def grows(x: torch.Tensor) -> torch.Tensor:
    for _ in range(20):
        x = torch.cat([x, x[-2:].sum(0, keepdim=True).remainder(3)])
        if x[-1] > 2:
            break
    return x


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [draws, grows])
def test_draws_and_free_sizes_are_weighed(monkeypatch: pytest.MonkeyPatch, program: Any) -> None:
    monkeypatch.setattr(module, "SETTLING", 2)
    monkeypatch.setattr(module, "MARGIN", 0.0)
    compiled = smelt.compile(program, dynamic=True)
    for n in range(2 * WINDOW):
        x = torch.linspace(0, 1, 3 + n % 2)
        random.seed(n)
        found, state = compiled(x), random.getstate()
        random.seed(n)
        assert torch.allclose(found, program(x)) and random.getstate() == state
    assert all(row.entry is None and "slower than eager" in row.reason for row in compiled.stats().rows)
    assert "slower than eager" in str(smelt.explain(compiled))


@pytest.mark.spread(2)
@pytest.mark.parametrize("margin", [0.0, 1e9])
def test_a_graph_that_goes_through_python_is_weighed_once(monkeypatch: pytest.MonkeyPatch, margin: float) -> None:
    monkeypatch.setattr(module, "SETTLING", 2)
    monkeypatch.setattr(module, "MARGIN", margin)
    monkeypatch.setattr(module, "LITTLE", margin)
    monkeypatch.setattr(module, "ENOUGH", 1)
    compiled = smelt.compile(loops)
    for n in range(2 * WINDOW):
        x = torch.linspace(0, 1 + n % 5, 7)
        assert torch.equal(compiled(x), loops(x))
    (row,) = compiled.stats().rows
    assert (row.entry is None) == (margin == 0.0) and row.worth is None
    if margin == 0.0:
        assert "slower than eager" in row.reason
        # Other calls are met all the same, some later.
        for _ in range(2 * RESTING):
            assert torch.equal(compiled(x.double()), loops(x.double()))
        assert len(compiled.stats().rows) == 2


def test_strict_programs_are_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLING", 2)
    monkeypatch.setattr(module, "MARGIN", 0.0)
    compiled = smelt.compile(loops, fullgraph=True)
    for n in range(2 * WINDOW):
        x = torch.linspace(0, 1 + n % 5, 7)
        assert torch.equal(compiled(x), loops(x))
    assert compiled.stats().rows[0].entry is not None
