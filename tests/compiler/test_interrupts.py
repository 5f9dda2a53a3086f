"""Signals while a program is captured: handlers run, what they raise comes up in the program or behind the capture."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.staging import stage
from smelt.compiler.object import interrupts
from smelt.diag import collector

X = torch.linspace(-1, 1, 6)
PATCHED = [(torch.nn.Module, "__call__"), (torch.Tensor, "__repr__"), (torch.Tensor, "item"), (torch.Tensor, "shape")]

STEPS = [(collector._postponed, "enter"), (collector._postponed, "leave"), (stage, "Session")]


class Late(Exception):
    """A time-out."""


def _late(number: int, frame: Any) -> None:
    raise Late


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = [vars(owner).get(name) for owner, name in PATCHED]
    alarm = signal.signal(signal.SIGALRM, _late)
    # A shell has what it runs in the background ignore the key.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGALRM) is _late
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, interrupt)
    assert [vars(owner).get(name) for owner, name in PATCHED] == before
    assert sys.getprofile() is None and not torch._C._len_torch_dispatch_stack()


def asks(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 1 else x - 1


@pytest.mark.spread(3)
@torch.no_grad()
@pytest.mark.parametrize("number, error", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Late)])
@pytest.mark.parametrize(
    "where, name", [(collector._postponed, "enter"), (collector._postponed, "leave"), (stage, "Session")]
)
def test_in_a_step_of_the_capture_it_waits_for_the_end(
    number: int, error: type, where: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(where, name)
    compiled = smelt.compile(asks)
    with monkeypatch.context() as patched:
        # No frame of the test's stands between Smelt's and the signal.
        patched.setattr(where, name, _chain(partial(signal.raise_signal, number), original))
        with pytest.raises(error):
            compiled(X)
    for x in (X, X + 1, X):
        assert torch.equal(compiled(x), asks(x))
    assert compiled.stats().builds == 1


@torch.no_grad()
def test_to_wait_is_no_step_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_AGAIN_S", 1e-4)  # the program is being captured at many of these moments
    test_in_a_step_of_the_capture_it_waits_for_the_end(signal.SIGALRM, Late, stage, "Session", monkeypatch)


def _chain(first: Any, then: Any) -> Any:
    """One function, then another, as a step of Smelt's."""
    made: dict[str, Any] = {"__name__": "smelt.test", "first": first, "then": then}
    exec("def both(*args, **kwargs):\n    first()\n    return then(*args, **kwargs)", made)
    return made["both"]


@torch.no_grad()
@pytest.mark.parametrize("is_caught", [False, True])
def test_in_the_program_it_comes_up_at_once_and_its_way_is_not_kept(is_caught: bool) -> None:
    """A timer's work, which nothing in the program asks for: the line that is interrupted waits for it."""
    passed = []

    def program(x: torch.Tensor) -> torch.Tensor:
        try:
            idle(passed)
            return x * 2
        except Late:
            if not is_caught:
                raise
            return x * 3

    compiled = smelt.compile(program)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        if is_caught:
            assert torch.equal(compiled(X), X * 3)
        else:
            with pytest.raises(Late):
                compiled(X)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert not passed and compiled.stats().builds == 0
    passed.append(1)
    assert torch.equal(compiled(X), X * 2) and torch.equal(compiled(X), X * 2)
    assert compiled.stats().builds == 1


def idle(passed: list[int]) -> None:
    """Until there is something in it, or an exception comes up."""
    for _ in range(10**9):
        if passed:
            return
    raise AssertionError("no exception came up")


def test_what_calls_programs_is_there() -> None:
    assert all(find_spec(module) for module in interrupts._CALLERS)


@torch.no_grad()
def test_a_handler_that_raises_nothing_runs_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    signal.signal(signal.SIGALRM, lambda number, frame: seen.append(float(torch.ones(3).sum())))
    monkeypatch.setattr(stage, "Session", _chain(partial(signal.raise_signal, signal.SIGALRM), stage.Session))
    compiled = smelt.compile(asks)
    for x in (X, X + 1):
        assert torch.equal(compiled(x), asks(x))
    signal.signal(signal.SIGALRM, _late)
    assert seen == [3.0] and compiled.stats().builds == 1


@torch.no_grad()
def test_it_does_not_come_up_where_it_would_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a callback of the garbage collector raises is lost."""

    def callback(phase: str, info: Any) -> None:
        if phase == "start":
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(stage, "Session", _chain(partial(_with_callback, callback), stage.Session))
    compiled = smelt.compile(asks)
    with pytest.raises(Late):
        compiled(X)
    assert torch.equal(compiled(X + 1), asks(X + 1)) and compiled.stats().builds == 1


def _with_callback(callback: Any) -> None:
    """A collection with a callback, all of it as a step of Smelt's."""
    made: dict[str, Any] = {"__name__": "smelt.test", "gc": gc, "callback": callback}
    exec("gc.callbacks.append(callback)\ntry: gc.collect(0)\nfinally: gc.callbacks.remove(callback)", made)


@torch.no_grad()
def test_other_threads_leave_handlers_alone() -> None:
    compiled, found = smelt.compile(asks), []

    def work() -> None:
        with torch.no_grad():
            found.append(compiled(X))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(found[0], asks(X))


@pytest.mark.spread(10)
@torch.no_grad()
@pytest.mark.parametrize("after_ms", range(1, 60, 4))
def test_whenever_it_comes_all_is_as_before(after_ms: int) -> None:
    compiled = smelt.compile(asks)
    signal.setitimer(signal.ITIMER_REAL, after_ms / 1000)
    try:
        for x in (X, X + 1, X[:4], X[:3]):
            compiled(x)
    except Late:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    for x in (X, X + 1, X[:4], X[:3], X + 2):
        assert torch.equal(compiled(x), asks(x))
