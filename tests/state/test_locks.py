"""Locks are taken at every call, as in eager: the lines that take them run in Python."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.diag import CaptureError
from tests.state.twins import Base, rows


def is_held(lock: Any) -> bool:
    """Whether another thread would have to wait."""
    free: list[bool] = []

    def ask() -> None:
        free.append(lock.acquire(blocking=False))
        if free[0]:
            lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return not free[0]


class Watched:
    """Tells what is held while it works."""

    def __init__(self, lock: Any) -> None:
        self.lock, self.seen = lock, list[bool]()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(is_held(self.lock))
        return x * 2


def by_with(lock: Any, x: torch.Tensor, work: Any) -> torch.Tensor:
    with lock:
        return work(x.sin().cos() + 1)


def by_hand(lock: Any, x: torch.Tensor, work: Any) -> torch.Tensor:
    lock.acquire()
    try:
        return work(x.sin().cos() + 1)
    finally:
        lock.release()


def by_stack(lock: Any, x: torch.Tensor, work: Any) -> torch.Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        return work(x.sin().cos() + 1)


@pytest.mark.parametrize("make", [threading.Lock, threading.RLock, threading.Semaphore])
@pytest.mark.parametrize("take", [by_with, by_hand, by_stack])
def test_a_lock_is_taken_at_every_call(make: Callable[[], Any], take: Callable[..., torch.Tensor]) -> None:
    lock = make()
    work = Watched(lock)

    def program(x: torch.Tensor) -> torch.Tensor:
        return take(lock, x, work) + x.exp().sin()

    compiled = smelt.compile(program)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(5):
            torch.testing.assert_close(compiled(*rows(i)), (rows(i)[0].sin().cos() + 1) * 2 + rows(i)[0].exp().sin())
    assert work.seen == [True] * 5 and not is_held(lock)
    assert "lock" in str(caught[0].message)


class Locked(Base):
    def init(self) -> None:
        self.lock, self.n = threading.Lock(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.f(x).cos() + 1
        with self.lock:
            self.n += 1
        return self.f(y).cos() + 1


def test_a_call_waits_for_whoever_holds_the_lock() -> None:
    model = Locked()
    compiled = smelt.compile(model)
    x = rows(0)[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            compiled(x)
        with model.lock:
            thread = threading.Thread(target=torch.no_grad()(compiled), args=(x,))
            thread.start()
            thread.join(0.05)
            assert thread.is_alive() and model.n == 4
        thread.join()
    assert model.n == 5
    assert any("takes a lock" in str(row) for row in smelt.explain(compiled).breaks)


def test_fullgraph_names_the_line() -> None:
    with torch.no_grad(), pytest.raises(CaptureError, match="takes a lock") as caught:
        smelt.compile(Locked(), fullgraph=True)(*rows(0))
    assert caught.value.where is not None and caught.value.where.file == __file__


def test_trace_warns_of_it() -> None:
    with torch.no_grad(), pytest.warns(smelt.SmeltWarning, match="lock"):
        smelt.trace(Locked(), rows(0))
