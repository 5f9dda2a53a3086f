"""Tensors that come out of a `functools.lru_cache`: used as they are in it, followed when it is cleared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

BASE = 1.0


@functools.lru_cache(maxsize=2)
def bounded(n: int) -> torch.Tensor:
    return torch.arange(float(n)) + BASE


@functools.cache
def unbounded(n: int, step: int = 1) -> tuple[torch.Tensor, str]:
    return torch.arange(float(n)) * step + BASE, "name"


def _of_bounded(x: torch.Tensor) -> torch.Tensor:
    return x * bounded(x.shape[0])


def _of_unbounded(x: torch.Tensor) -> torch.Tensor:
    return x * unbounded(x.shape[0], step=2)[0]


def _returns(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = bounded(x.shape[0])
    return x + 1, found


class Model(torch.nn.Module):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def table(self, n: int) -> torch.Tensor:
        return torch.linspace(0, 1, n)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table(x.shape[0])


@pytest.fixture(autouse=True)
def _empty() -> None:
    global BASE
    BASE = 1.0
    bounded.cache_clear()
    unbounded.cache_clear()


PROGRAMS: tuple[Callable[..., Any], ...] = (_of_bounded, _of_unbounded, _returns, Model())


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("f", PROGRAMS, ids=["bounded", "unbounded", "returns", "method"])
def test_equal_and_compiled(f: Callable[..., Any], warm: bool) -> None:
    if warm:
        f(torch.ones(3))
    compiled = smelt.compile(f, options={"measure": False})
    for _ in range(4):
        x = torch.randn(3)
        torch.testing.assert_close(compiled(x), f(x))
    stats = compiled.stats()
    assert stats.fallbacks == {} and stats.builds == 1


@pytest.mark.parametrize("f", PROGRAMS, ids=["bounded", "unbounded", "returns", "method"])
def test_traced(f: Callable[..., Any]) -> None:
    f(torch.ones(3))
    program = smelt.trace(f, (torch.randn(3),))
    x = torch.randn(3)
    torch.testing.assert_close(program(x), f(x))


@pytest.mark.parametrize("f", [_of_bounded, _of_unbounded])
def test_a_cleared_cache_is_seen(f: Callable[..., Any]) -> None:
    global BASE
    f(torch.ones(3))
    compiled = smelt.compile(f, options={"measure": False})
    x = torch.randn(3)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))
    BASE = 5.0
    torch.testing.assert_close(compiled(x), f(x))  # the cache hides the change from eager, too
    bounded.cache_clear()
    unbounded.cache_clear()
    answer = compiled(x)
    torch.testing.assert_close(answer, f(x))
    assert float((answer / x)[0]) == pytest.approx(5.0)


def test_an_evicted_result_is_seen() -> None:
    global BASE
    bounded(3)
    compiled = smelt.compile(_of_bounded, options={"measure": False})
    x = torch.randn(3)
    compiled(x)
    BASE = 7.0
    bounded(4), bounded(5)
    torch.testing.assert_close(compiled(x), _of_bounded(x))
    torch.testing.assert_close(compiled(x), x * (torch.arange(3.0) + 7.0))


def test_a_cached_tensor_is_read_as_it_is_now() -> None:
    table = bounded(3)
    compiled = smelt.compile(_of_bounded, options={"measure": False})
    x = torch.randn(3)
    for value in (1.0, 2.0, 3.0):
        table.fill_(value)
        torch.testing.assert_close(compiled(x), x * value)
    assert compiled.stats().fallbacks == {}
