"""Loops over lists that become longer or shorter in them: Python asks for the length before each turn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.evaluate import evaluate


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def halves(x: Tensor) -> Tensor:
    found = [x]
    for y in found:
        if y.sum() > 1:
            found.append(y * 0.5)
    return torch.stack(found).sum(0)


def of_an_argument(items: list[Tensor]) -> Tensor:
    for y in items:
        if len(items) < 5:
            items.append(y + 1)
    return items[-1]


def numbered(items: list[Tensor]) -> Any:
    turns = 0
    for _, y in enumerate(items):
        turns += 1
        if y.sum() > 1 and len(items) < 12:
            items.append(y * 0.5)
    return items[-1], turns


def in_step(items: list[Tensor]) -> Any:
    total = items[0] * 0
    for y, number in zip(items, range(7), strict=False):
        total = total + y * number
        if y.sum() > 1:
            items.append(y * 0.5)
    return total


def until(items: list[Tensor]) -> Tensor:
    for y in items:
        items.append(y + 1)
        if len(items) > 6 or y.sum() > 4:
            break
    return items[-1]


def made_in_a_loop(x: Tensor, k: int) -> Any:
    found = [x * i for i in range(k)]
    for i in range(k):
        found += [x * i]
    total = x * 0
    for y in found:
        total = total + y
        if len(found) < 9 and total.sum() > 2:
            found.append(y + 1)
    return total, len(found)


def shorter(items: list[Tensor]) -> Any:
    total = items[0] * 0
    for y in items:
        total += y
        if y.sum() > 1:
            items.pop()
    return total


def same_length(items: list[Tensor]) -> Tensor:
    found = list(items)
    for i, y in enumerate(found):
        if y.sum() > 1:
            found[i] = y * 2
    return torch.stack(found)


T = torch.tensor
PROGRAMS: dict[Callable[..., Any], list[Any]] = {
    halves: [(T([1.0, 2.0]),), (T([40.0, -2.0]),), (T([0.0, 0.0]),)],
    of_an_argument: [([T([1.0])],), ([T([1.0]), T([2.0])],), ([T([1.0])] * 6,)],
    numbered: [([T([1.0])],), ([T([10.0]), T([2.0])],), ([T([1.0])] * 3,)],
    in_step: [([T([1.0])],), ([T([10.0]), T([2.0])],), ([T([9.0])] * 3,)],
    until: [([T([1.0])],), ([T([1.0]), T([2.0])],), ([T([5.0])],)],
    made_in_a_loop: [(T([1.0]), 3), (T([5.0]), 3), (T([5.0]), 4), (T([-5.0]), 5)],
    shorter: [([T([1.0])] * 4,), ([T([10.0]), T([2.0]), T([3.0])],), ([T([10.0])] * 5,)],
    same_length: [([T([1.0])] * 4,), ([T([10.0]), T([2.0]), T([0.0])],)],
}


def plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, Tensor) else value


def of(f: Callable[..., Any], args: Any) -> Any:
    """What a call gives, and what it leaves in its arguments."""
    given = copy.deepcopy(args)
    return plain(f(*given)), plain(given)


@pytest.mark.spread(10)
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("step", [1, -1])
def test_compiled(program: Callable[..., Any], step: int) -> None:
    compiled = smelt.compile(program, options={"measure": False})
    for args in PROGRAMS[program][::step] * 2:
        assert of(compiled, args) == of(program, args)


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", PROGRAMS)
def test_scripted(program: Callable[..., Any]) -> None:
    scripted = smelt.script(program)
    for args in PROGRAMS[program] * 2:
        assert of(scripted, args) == of(program, args)


@pytest.mark.parametrize("program", [halves, of_an_argument, made_in_a_loop, shorter])
def test_the_graph_of_the_source(program: Callable[..., Any]) -> None:
    scripted = smelt.script(program)
    unit = scripted.unit
    for args in PROGRAMS[program]:
        given = copy.deepcopy(args)
        found = evaluate(scripted.graph, scripted.inputs_for(*given), unit.lookup)
        assert plain(unit.signature.rebuild(found, given, {})) == of(program, args)[0]


def test_one_graph_holds_for_all_lengths() -> None:
    compiled = smelt.compile(halves, options={"measure": False})
    for args in PROGRAMS[halves]:
        assert of(compiled, args) == of(halves, args)
    assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}
