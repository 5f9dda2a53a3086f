"""Programs whose way depends on data, compiled: as eager, effects included, in any order of calls, from their paths."""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.object.compiled import Compiled

from .judge import agree
from .programs import PROGRAMS

RAISES = ("asserting", "raising")


def make(name: str) -> tuple[Any, Any, list[Any]]:
    torch.manual_seed(0)
    factory, inputs = PROGRAMS[name]
    eager = factory()
    compiled = smelt.compile(copy.deepcopy(eager), options={"strict": False})
    return compiled, eager, list(inputs)


@pytest.mark.spread(18)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), pytest.param((1, 2, 0), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.usefixtures("paths_only")
def test_it_is_as_in_eager(name: str, order: tuple[int, ...]) -> None:
    compiled, eager, inputs = make(name)
    with torch.no_grad():
        agree(compiled, eager, [inputs[i] for i in (*order, *order, *reversed(order), order[0], order[0])])
    if name != "formatted":
        assert compiled_whole(compiled), compiled.stats().fallbacks


def compiled_whole(compiled: Compiled) -> bool:
    stats = compiled.stats()
    return not stats.fallbacks and all(row.entry is not None for row in stats.rows)


@pytest.mark.spread(12)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in (*RAISES, "nested", "counted", "draws_decide")])
def test_each_way_is_recorded_once_and_then_found(name: str, both: str) -> None:
    compiled, eager, inputs = make(name)
    agree(compiled, eager, inputs)
    before = compiled.stats()
    agree(compiled, eager, inputs * 2)
    stats = compiled.stats()
    assert stats.builds == before.builds == len(stats.rows)
    assert sum(row.hits for row in stats.rows) == 3 * len(inputs) - stats.builds


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", RAISES)
def test_a_way_that_ends_in_an_error_is_no_storm(name: str, both: str) -> None:
    compiled, eager, inputs = make(name)
    agree(compiled, eager, inputs * 12)
    assert compiled_whole(compiled)
    assert (
        sum(row.hits for row in compiled.stats().rows)
        >= sum(12 for (x,) in inputs if x.min() >= (0 if name == "asserting" else -1)) - 1
    )


def test_training_flags_and_paths(both: str) -> None:
    compiled, eager, inputs = make("nested")
    with torch.no_grad():
        for train in (True, False, True, False):
            compiled.train(train)
            eager.train(train)
            agree(compiled, eager, inputs * 2)


def test_a_mode_of_the_caller_is_a_guard_beside_the_paths(both: str) -> None:
    compiled, eager, inputs = make("branch")
    agree(compiled, eager, inputs)
    with torch.inference_mode():
        agree(compiled, eager, inputs)
    leaf = inputs[0][0].clone().requires_grad_()
    # Gradients of a recorded path alone: its other paths have others.
    with (
        contextlib.nullcontext() if both == "staged" else pytest.warns(smelt.SmeltWarning, match="path depends on data")
    ):
        compiled(leaf).sum().backward()
    assert torch.equal(leaf.grad, torch.full((3,), 2.0))
    agree(compiled, eager, inputs)


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_as_in_eager_where_it_can_be_staged(name: str) -> None:
    compiled, eager, inputs = make(name)
    with torch.no_grad():
        agree(compiled, eager, [*inputs, *inputs, *reversed(inputs)])
    if name != "formatted":
        assert compiled_whole(compiled), compiled.stats().fallbacks


class Arms(torch.nn.Module):
    """Each way reads something of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = 2, 5
        self.table = {"c": 7}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 3:
            return x * self.a
        if x.sum() > 0:
            return x * self.b + FACTOR
        if x.sum() < -3:
            raise ValueError(f"the sum is below {self.a}")
        return helper(x) + self.table["c"]


FACTOR = 1


def helper(x: torch.Tensor) -> torch.Tensor:
    return x - 1 if x.max() > 0 else x + 1


def other_helper(x: torch.Tensor) -> torch.Tensor:
    return x * 9


@pytest.mark.spread(2)
def test_what_only_other_ways_read_is_guarded(both: str, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = Arms()
    compiled = smelt.compile(eager)
    inputs = [(torch.tensor(v),) for v in ([2.0, 3.0], [1.0, 0.5], [-1.0, 0.5], [-1.0, -0.5], [-3.0, -3.0])]
    module = sys.modules[__name__]

    def change(n: int) -> None:
        match n:
            case 1:
                eager.b = 6
            case 2:
                eager.table["c"] = 8
            case 3:
                monkeypatch.setattr(module, "FACTOR", 2)
            case 4:
                monkeypatch.setattr(module, "helper", other_helper)
            case 5:
                eager.a = 3

    with torch.no_grad():
        for n in range(6):
            change(n)
            agree(compiled, eager, inputs)
            agree(compiled, eager, inputs[::-1])


def test_an_address_on_any_way_is_not_baked(both: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x * 2
        return x + 1 if x.data_ptr() % 64 == 0 else x + 2

    compiled = smelt.compile(f)
    base = torch.zeros(40)
    start = (-base.data_ptr() // 4) % 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for offset in (0, 1, 0, 3):
            for value in (1.0, -1.0, -2.0):
                x = base[start + offset : start + offset + 4].fill_(value)
                assert torch.equal(compiled(x), f(x))
