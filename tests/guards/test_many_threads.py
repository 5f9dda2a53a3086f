"""Calls of several threads at once: who waits for a build, for how long, and that each call is counted once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.deciding import turns
from smelt.compiler.deciding.turns import Turns
from smelt.compiler.object import compiled_build
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.object.compiled_state import UnderWay
from smelt.diag import SmeltError
from tests.guards.double import Builder, ReplayEntry

X = torch.ones(2)
PATIENCE_S = 60.0


def plain(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def in_threads(count: int, work: Callable[[int], None]) -> list[BaseException]:
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            with torch.no_grad():
                work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    return errors


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Calls wait for as long as a build takes; the threads that have begun to."""
    found: list[int] = []
    acquire = Turns.acquire

    def noted(self: Turns, lock: Any) -> bool:
        found.append(threading.get_ident())
        return acquire(self, lock)

    monkeypatch.setattr(turns, "_FIRST_S", PATIENCE_S)
    monkeypatch.setattr(compiled_build, "_OTHERS_S", PATIENCE_S)  # for those that have waited as long and go first
    monkeypatch.setattr(Turns, "took", lambda self, seconds: None)
    monkeypatch.setattr(Turns, "acquire", noted)
    return found


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("when", ["before_run", "after_run", "prepare"])
def test_calls_use_what_is_ready_when_they_have_waited(
    waiting: list[int], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    builder = Builder()

    def gate(*_: object) -> None:
        until(lambda: len(set(waiting)) == 5)

    if when == "prepare":
        finish = ReplayEntry.finish
        monkeypatch.setattr(ReplayEntry, "prepare", lambda self: (gate(), finish(self)))
    else:
        setattr(builder, when, gate)
    c = builder.compile(plain)

    def work(i: int) -> None:
        for _ in range(5):
            assert torch.equal(c(X), X * 3)

    assert in_threads(6, work) == []
    stats = c.stats()
    assert stats.fallbacks == {} and stats.calls == 30 and len(builder.entries) == 1


@pytest.mark.parametrize("when", ["before_run", "after_run", "prepare"])
def test_calls_wait_no_longer_than_the_program_takes(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    builder, ended = Builder(), threading.Semaphore(0)

    def gate(*_: object) -> None:
        for _ in range(5):
            assert ended.acquire(timeout=PATIENCE_S)

    if when == "prepare":
        finish = ReplayEntry.finish
        monkeypatch.setattr(ReplayEntry, "prepare", lambda self: (gate(), finish(self)))
    else:
        setattr(builder, when, gate)
    c = builder.compile(plain)

    def work(i: int) -> None:
        assert torch.equal(c(X), X * 3)  # the build ends only when five such calls have
        ended.release()

    assert in_threads(6, work) == []
    assert c.stats().fallbacks == {"another thread is compiling it": 5}
    with torch.no_grad():
        c(X)
    assert builder.runs == 1 and sum(row.hits for row in c.stats().rows) == 1


def test_a_call_waits_once() -> None:
    lock, one = threading.Lock(), Turns()
    assert one.acquire(lock)
    one.took(0.0)
    assert not one.acquire(lock)
    one = Turns()
    turns.thread.has_waited = True
    try:
        assert not one.acquire(lock)
    finally:
        turns.thread.has_waited = False
    lock.release()
    assert one.acquire(lock)


def test_a_call_that_waits_is_not_under_way() -> None:
    calls = UnderWay(threading.RLock())
    outer, inner = calls.begin(), calls.begin()
    calls.end(inner)
    inner = calls.begin()
    with calls.aside():
        assert list(calls._calls) == [outer]
    assert bool(calls)
    calls.end(inner)
    calls.end(outer)
    with calls.aside():
        assert not calls
    assert not calls


def test_another_programs_recording_is_waited_for(waiting: list[int]) -> None:
    inside = threading.Event()

    def slow(x: torch.Tensor) -> torch.Tensor:
        inside.set()
        until(lambda: len(waiting) > 0)
        return x + 1

    first, second = Builder().compile(slow), Builder().compile(plain)

    def work(i: int) -> None:
        if i == 0:
            first(X)
        else:
            assert inside.wait(PATIENCE_S)
            assert torch.equal(second(X), X * 3)

    assert in_threads(2, work) == []
    assert second.stats().fallbacks == {} and second.stats().builds == 1


class Yielding(dict[Any, Any]):
    """Lets other threads run between a read and the write that follows."""

    def get(self, key: Any, default: Any = None) -> Any:
        found = super().get(key, default)
        time.sleep(0)
        return found


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_each_call_is_counted_once() -> None:
    c = smelt.compile(plain)
    dispatcher_of(c)._stats.fallbacks = Yielding()

    def work(i: int) -> None:
        for _ in range(100):
            c(X * 1j)

    assert in_threads(8, work) == []
    assert c.stats().calls == 800 and sum(c.stats().fallbacks.values()) == 800


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_a_call_falls_back_for_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    builder = Builder()
    c = builder.compile(plain)
    with torch.no_grad():
        c(X)
        (entry,) = builder.entries
        entry.is_staged = True

        def fail(*_: object) -> None:
            raise SmeltError("it fails", code="S0401")

        monkeypatch.setattr(entry, "run", fail)
        with dispatcher_of(c)._table.lock:  # as while another thread builds
            done = threading.Thread(target=torch.no_grad()(lambda: c(X)))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Turns, "acquire", lambda self, lock: False)
                done.start()
                until(lambda: bool(c.stats().fallbacks))
        done.join(PATIENCE_S)
    stats = c.stats()
    assert stats.calls == 2 and sum(stats.fallbacks.values()) == 1


def test_a_call_that_has_waited_goes_on_between_calls_that_have_a_state() -> None:
    with_state, holds = threading.RLock(), threading.Event()
    calls, seen = UnderWay(with_state), list[bool]()

    def reads_and_writes() -> None:
        with with_state:
            holds.set()
            time.sleep(0.05)
            seen.append(bool(calls))  # after its read, before its write

    other, call = threading.Thread(target=reads_and_writes), calls.begin()
    with calls.aside():
        other.start()
        holds.wait()
    assert seen == [False] and bool(calls)
    other.join()
    calls.end(call)
