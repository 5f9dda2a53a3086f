"""Calls of several threads that change the same state: none is lost, from the first call on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest
import torch

import smelt
from smelt.compiler.object import compiled_state


class Counter:
    """Not a module, which sets its attributes in Python: two threads can then lose `self.n += 1` without Smelt, too."""

    def __init__(self) -> None:
        self.n = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return (x.sin() + 1) * 2


def in_threads(threads: int, work: Callable[[], object]) -> None:
    """Have each thread do it, all from one moment on."""
    together = threading.Barrier(threads)

    def run() -> None:
        together.wait()
        with torch.no_grad():
            work()

    working = [threading.Thread(target=run) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()


def counted(threads: int, calls: int) -> int:
    """What that many calls of each thread leave, from a cold start."""
    counter, x = Counter(), torch.rand(4, 3)
    compiled = smelt.compile(counter.step)
    in_threads(threads, lambda: [compiled(x) for _ in range(calls)])
    return counter.n


@pytest.fixture
def _threads_take_turns_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_calls_under_way_when_the_state_is_found_out_are_not_lost() -> None:
    # One start in eight or so lost some.
    assert [counted(8, 32) for _ in range(40)] == [8 * 32] * 40


def test_a_recorded_run_that_waits_for_another_call_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_state, "_WAIT_S", 0.05)
    meeting, met = threading.Barrier(2), []

    def meets(x: torch.Tensor) -> torch.Tensor:
        met.append(meeting.wait(30))
        return x + 1

    compiled = smelt.compile(meets)
    in_threads(2, lambda: compiled(torch.ones(2)))
    assert sorted(met) == [0, 1]


def test_a_call_inside_a_recorded_run_does_not_wait_for_it() -> None:
    seen = []

    def halves(x: torch.Tensor, depth: int) -> torch.Tensor:
        seen.append(depth)
        return x if depth == 0 else compiled(x / 2, depth - 1)

    compiled = smelt.compile(halves)
    assert torch.equal(compiled(torch.ones(2), 3), torch.full((2,), 1 / 8)) and seen == [3, 2, 1, 0]
