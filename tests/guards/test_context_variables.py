"""What a run puts into a context variable is its own; what the variable held before is the world's."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.reads.reads import record_reads

COLLECTOR: ContextVar[Any] = ContextVar("COLLECTOR", default=None)
OUTER: list[int] = []


def _collected(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """As `transformers` collects hidden states: hooks append to what the outermost call put there."""
    token = COLLECTOR.set({"states": []})
    try:
        for _ in range(2):
            x = x.sin()
            found = COLLECTOR.get()
            if found is not None:
                found["states"].append(x)
        return x, COLLECTOR.get()["states"]
    finally:
        COLLECTOR.reset(token)


def test_a_container_put_there_by_the_run_may_change() -> None:
    x = torch.randn(3)
    with record_reads({"f": _collected}, (x,), {}) as log:
        _collected(x)
    assert log.is_replayable, log.why_not()
    compiled = smelt.compile(_collected, options={"measure": False})
    for _ in range(3):
        y = torch.randn(3)
        last, states = compiled(y)
        torch.testing.assert_close(states, [y.sin(), y.sin().sin()])
        torch.testing.assert_close(last, states[-1])
    assert compiled.stats().fallbacks == {} and compiled.stats().builds == 1


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_container_that_was_there_before_may_not() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        COLLECTOR.get()["calls"].append(1)
        return x * 2

    held: dict[str, list[int]] = {"calls": []}
    token = COLLECTOR.set(held)
    try:
        compiled = smelt.compile(f, options={"measure": False})
        for n in range(1, 5):
            compiled(torch.ones(2))
            assert len(held["calls"]) == n
    finally:
        COLLECTOR.reset(token)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_container_from_outside_that_the_run_puts_there_may_not() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        token = COLLECTOR.set(OUTER)
        COLLECTOR.get().append(1)
        COLLECTOR.reset(token)
        return x * 2

    compiled = smelt.compile(f, options={"measure": False})
    before = len(OUTER)
    for n in range(1, 5):
        compiled(torch.ones(2))
        assert len(OUTER) == before + n


def test_what_was_there_before_is_guarded() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        scale = COLLECTOR.get()
        token = COLLECTOR.set({"other": 3})
        COLLECTOR.get()["more"] = 1
        COLLECTOR.reset(token)
        return x * (2 if scale is None else scale)

    compiled = smelt.compile(f, options={"measure": False})
    x = torch.ones(2)
    assert compiled(x).tolist() == [2, 2] == compiled(x).tolist()
    token = COLLECTOR.set(5)
    try:
        assert compiled(x).tolist() == [5, 5]
    finally:
        COLLECTOR.reset(token)
    assert compiled(x).tolist() == [2, 2]


UNSET: ContextVar[Any] = ContextVar("UNSET")


def _set_in_an_arm(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        UNSET.set([x])
    return x + 1


def test_an_arm_that_is_not_taken_sets_nothing() -> None:
    compiled = smelt.compile(_set_in_an_arm, options={"measure": False})
    for _ in range(3):
        torch.testing.assert_close(compiled(-torch.ones(2)), torch.zeros(2))
        assert UNSET.get(None) is None
