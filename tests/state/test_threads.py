"""Calls of several threads that change the same state: none is lost, from the first call on."""

from __future__ import annotations

import threading

import torch

import smelt
from tests.state.twins import Base, rows


class Counting(Base):
    def init(self) -> None:
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return (x.sin() + 1) * 2


def counted(threads: int, calls: int) -> int:
    """What that many calls of each thread leave, from a cold start."""
    model, (x,), together = Counting(), rows(0), threading.Barrier(threads)
    compiled = smelt.compile(model)

    def work() -> None:
        together.wait()
        with torch.no_grad():
            for _ in range(calls):
                compiled(x)

    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    return model.n


def test_calls_under_way_when_the_state_is_found_out_are_not_lost() -> None:
    # One start in five or so lost some.
    assert [counted(8, 32) for _ in range(40)] == [8 * 32] * 40
