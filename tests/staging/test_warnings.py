# ruff: noqa: B028 (that the level is the default one is what is tested)
"""Warnings of a program: given by its graph, at its lines, as often as Python's filters show them in eager."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from typing import Any
from warnings import warn

import pytest
import torch

import smelt
from tests.forked import smelt_forks

X = torch.arange(1.0, 4.0)


class Own(UserWarning):
    pass


def straight(x: torch.Tensor) -> torch.Tensor:
    warnings.warn("at each call")
    return x.sin() + 1


def arm(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        warnings.warn("positive", RuntimeWarning)
        return x * 3
    return x - 1


def imported(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        warn(
            "over lines",
            category=Own,
        )
    return x.sin()


def instance(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        warnings.warn(Own("two", 2))
    return x.sin()


def of_data(x: torch.Tensor) -> torch.Tensor:
    total = x.sum().item()
    if total > 0:
        warnings.warn(f"the sum is {total:.1f}")
    return x / total


def in_loop(x: torch.Tensor) -> torch.Tensor:
    while x.sum() > 1:
        warnings.warn("halved")
        x = x / 2
    return x


def helper(x: torch.Tensor, level: int) -> torch.Tensor:
    if x.max() > 0:
        [warnings.warn(f"level {level}", stacklevel=level) for _ in range(1)]
        return x + 1
    return x


def levels(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        for level in range(5):
            x = helper(x, level)
    return x * 2


def inner(kind: str, level: int) -> Any:
    """A warning from within a comprehension or generator expression of a kind, which has a frame or has none."""

    def said(*of: Any) -> bool:
        warnings.warn(f"{kind} at {level}", stacklevel=level)
        return bool(of)

    match kind:
        case "nested":
            return [[said(i, j) for i in range(1)] for j in range(1)]
        case "set":
            return {said(i) for i in range(1)}
        case "dict":
            return {i: said(i) for i in range(1)}
        case "generator":
            return list(said(i) for i in range(1))  # noqa: C400
        case "sum":
            return sum(said(i) for i in range(1))
        case "any":
            return any(said(i) for i in range(1))
        case _:
            return [inner("set", level) for _ in range(1)]


def comprehensions(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        for kind in ("nested", "set", "dict", "generator", "sum", "any", "again"):
            for level in range(2, 5):
                inner(kind, level)
    return x * 2


class Layer(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return levels(x) if x.sum() > 0 else x


def quiet(x: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if x.sum() > 0:
            warnings.warn("nobody hears")
    return x.sin()


def fails_after(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        warnings.warn("before it fails")
        if x.max() > 1:
            raise ValueError("too large")
    return x.sin()


def shown(f: Callable[..., Any], x: torch.Tensor, action: Any = "always", line: bool = True) -> list[Any]:
    """Each warning of a call with its place, and how the call ends; line: with the line of an error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter(action)
        try:
            f(x)
            end = ""
        except Exception as error:
            end = f"{error!r} at {traceback.extract_tb(error.__traceback__)[-1].lineno if line else '?'}"
    found = [(type(w.message), w.message.args, w.filename, w.lineno) for w in said]  # type: ignore[union-attr]
    return [*found, end]


MAKERS: dict[str, Callable[..., Any]] = {
    "compile": smelt.compile,
    "trace": lambda f: smelt.trace(f, (-X,)),
    "script": smelt.script,
}
PROGRAMS = (straight, arm, imported, instance, of_data, in_loop, levels, comprehensions, quiet, fails_after)


@pytest.mark.spread(10)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("way", MAKERS)
def test_as_in_eager(program: Callable[..., Any], way: str) -> None:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: Any = MAKERS[way](program)
        for action in ("always", "error", "ignore"):
            for x in (-X, X, -X, X, X / 4):
                # A program that was traced ends in the graph's error, not in the source's.
                assert shown(made, x, action, way != "trace") == shown(program, x, action, way != "trace")
    if way == "compile":
        assert made.stats().builds == 1


def test_lines_of_a_modules_callers() -> None:
    compiled, module = smelt.compile(Layer()), Layer()
    with torch.no_grad():
        for x in (-X, X, X):
            assert shown(compiled, x) == shown(module, x)


def test_filters_show_one_a_line_by_default() -> None:
    compiled = smelt.compile(arm)
    with torch.no_grad(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for x in (-X, X, X, -X, X):
            compiled(x)
    assert [str(w.message) for w in said] == ["positive"]


def test_a_warning_on_the_standard_stream_is_no_use_of_a_file() -> None:
    source = """
import sys, warnings, torch, smelt
def arm(x):
    if x.sum() > 0:
        warnings.warn("positive")
        return x * 3
    return x - 1
warnings.simplefilter("always")
warnings.simplefilter("error", smelt.SmeltWarning)
compiled, traced = smelt.compile(arm), smelt.trace(arm, (torch.ones(2),))
for x in (torch.ones(2), -torch.ones(2)) * 2:
    assert torch.equal(compiled(x), traced(x))
stats = compiled.stats()
assert stats.builds == 1 and not stats.fallbacks, stats
"""
    assert smelt_forks().run(source).count("UserWarning: positive") == 5


class Made(UserWarning):
    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}")


def test_a_warning_that_no_graph_can_make_costs_no_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            warnings.warn(Made(3))
        return x.sin()

    compiled = smelt.compile(program)
    with torch.no_grad():
        assert torch.equal(compiled(-X), (-X).sin())
        compiled(X)
    assert compiled.stats().builds == 1


def test_a_program_that_counts_its_warnings() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if x.sum() > 0:
                warnings.warn("positive")
        return x * len(said)

    compiled = smelt.compile(program)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (-X, X, -X, X):
            assert torch.equal(compiled(x), program(x))


def none_or_more(x: torch.Tensor) -> torch.Tensor | None:
    warnings.warn("at each call")
    if x.sum() < 0:
        return None
    return x * 2


def test_warnings_of_a_program_that_is_no_one_graph() -> None:
    compiled = smelt.compile(none_or_more)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (-X, X, -X, X):
            found = compiled(x)
            assert found is None if x.sum() < 0 else torch.equal(found, x * 2)
    with torch.no_grad():
        for x in (X, -X, X, -X):
            assert shown(compiled, x) == shown(none_or_more, x)
        told = shown(lambda x: smelt.trace(none_or_more, (x,)), X)
    assert any("does not repeat all that the run did: it warns" in str(one) for one in told)


def test_what_the_program_itself_does_not_hear_splits_nothing() -> None:
    def program(x: torch.Tensor) -> torch.Tensor | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("nobody hears")
        return None if x.sum() < 0 else x.sin()

    compiled = smelt.compile(program)
    with torch.no_grad():
        for x in (X, X, X):
            assert shown(compiled, x) == [""]
    assert compiled.stats().fallbacks == {}
