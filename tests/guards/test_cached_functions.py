"""Tensors that come out of a `functools.lru_cache`: used as they are in it, followed when it is cleared."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture import tensors_of

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


@functools.lru_cache(maxsize=4)
def written(n: int) -> torch.Tensor:
    table = torch.empty(n)
    table[::2] = 1.0
    table[1::2].fill_(2.0)
    return table


@functools.cache
def several(n: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    table = torch.arange(float(n))
    return {"pair": (table, table * 2)}


@functools.cache
def drawn(n: int) -> torch.Tensor:
    return torch.rand(n)


@functools.cache
def accumulated(n: int) -> torch.Tensor:
    return torch.zeros(n)


def _drawn(x: torch.Tensor) -> Any:
    return x + drawn(3) + torch.rand(3), drawn(3)


def _accumulated(x: torch.Tensor) -> Any:
    table = accumulated(3)
    table.add_(x)
    return table * 2, table


class Tables(torch.nn.Module):
    @functools.cached_property
    def table(self) -> torch.Tensor:
        return torch.arange(3.0)

    @functools.cached_property
    def written(self) -> list[torch.Tensor]:
        table = torch.zeros(3)
        table += 1
        return [table, table[1:], torch.tensor([1.0, 2.0, 3.0])]

    def forward(self, x: torch.Tensor) -> Any:
        return x + self.table + self.written[0], self.table, self.written


FILLED: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]], int]] = {
    "cached property": (model := Tables(), lambda: [model.table, *model.written], 1),
    "bounded": (_returns, lambda: [bounded(3)], 1),
    "written": (lambda x: (x + written(3), written(3)), lambda: [written(3)], 1),
    "several": (lambda x: (x + several(3)["pair"][1], several(3)), lambda: list(several(3)["pair"]), 1),
    "drawn": (_drawn, lambda: [drawn(3)], 2),
    "accumulated": (_accumulated, lambda: [accumulated(3)], 2),
}


@pytest.mark.parametrize(("f", "kept", "builds"), FILLED.values(), ids=FILLED)
def test_what_the_recorded_call_put_in_a_cache_is_followed(
    f: Callable[..., Any], kept: Callable[[], list[torch.Tensor]], builds: int
) -> None:
    compiled = smelt.compile(f, options={"measure": False})
    x = torch.ones(3)
    for call in range(5):
        before = [t.clone() for t in kept()] if call else []
        state = torch.get_rng_state()
        found = compiled(x)
        drawn_by_us = torch.get_rng_state()
        ids = [id(t) for t in kept()]
        assert [id(t) for t in tensors_of(found[1:])] == ids
        if call:
            for tensor, value in zip(kept(), before, strict=True):
                tensor.copy_(value)
            torch.set_rng_state(state)
            expected = [t.clone() for t in tensors_of(f(x))]
            for ours, eagers in zip(tensors_of(found), expected, strict=True):
                assert torch.equal(ours, eagers)
            assert torch.equal(drawn_by_us, torch.get_rng_state())
        if call in (0, 2):
            kept()[0].mul_(3).add_(1)
    assert compiled.stats().builds == builds


def test_a_trace_follows_what_its_run_put_in_a_cache() -> None:
    model = Tables()
    program = smelt.trace(model, torch.ones(3))
    for _ in range(3):
        found = program(torch.ones(3))
        assert found[1] is model.table and torch.equal(found[0], model(torch.ones(3))[0])
        model.table.add_(1)


class Settings:
    def __init__(self) -> None:
        self.k = 2
        self.ks = [2]


def _number_world(maxsize: int | None) -> tuple[Callable[..., Any], Any, Settings]:
    settings = Settings()

    @functools.lru_cache(maxsize=maxsize)
    def scale(a: int) -> int:
        return a * settings.k

    return (lambda x: x * scale(1)), scale, settings


@pytest.mark.parametrize("maxsize", [None, 1, 2])
@pytest.mark.parametrize("warm", [False, True])
def test_numbers_out_of_a_cache_are_those_that_it_holds(maxsize: int | None, warm: bool) -> None:
    f, scale, settings = _number_world(maxsize)
    compiled, x = smelt.compile(f), torch.ones(2)
    if warm:
        scale(1)
    for _ in range(3):
        assert torch.equal(compiled(x), x * 2)
    settings.k = 5
    assert torch.equal(compiled(x), x * 2)  # as in eager: the cache still has it
    scale.cache_clear()
    for _ in range(2):
        assert torch.equal(compiled(x), x * 5)
    assert scale.cache_info().currsize == 1
    settings.k = 7
    scale(2), scale(3)
    assert torch.equal(compiled(x), x * (5 if maxsize is None else 7))


def test_other_results_come_and_go() -> None:
    f, scale, _ = _number_world(4)
    scale(5), scale(6), scale(1)
    compiled, x = smelt.compile(f), torch.ones(2)
    for i in range(8):
        scale(10 + i)
        scale(1)
        assert torch.equal(compiled(x), x * 2)
    assert compiled.stats().builds == 1


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("warm", [False, True])
def test_objects_out_of_a_cache_are_read_as_they_are(warm: bool) -> None:
    @functools.lru_cache
    def settings() -> Settings:
        return Settings()

    compiled, x = smelt.compile(lambda x: x * settings().k * settings().ks[0]), torch.ones(2)
    if warm:
        settings()
    for _ in range(3):
        assert torch.equal(compiled(x), x * 4)
    settings().k = 3
    assert torch.equal(compiled(x), x * 6)
    settings().ks[0] = 5
    assert torch.equal(compiled(x), x * 15)
    settings.cache_clear()
    assert torch.equal(compiled(x), x * 4)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_how_often_a_cache_was_used_is_asked_at_each_call() -> None:
    (_, ours, _), (_, theirs, _) = _number_world(2), _number_world(2)

    def f(x: torch.Tensor, scale: Any) -> torch.Tensor:
        return x * scale(1) + scale.cache_info().hits

    compiled, x = smelt.compile(lambda x: f(x, ours)), torch.ones(2)
    for _ in range(5):
        assert torch.equal(compiled(x), f(x, theirs))
