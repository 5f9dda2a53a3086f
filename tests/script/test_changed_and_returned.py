"""Containers of an argument that a scripted program changes without a tensor, and returns: the graph gives the changed
ones, although it acts on no object of Python's."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.evaluate import evaluate


def counted(x: Tensor, held: Any) -> Any:
    held["n"] += 1
    return x + held["n"], held


def grown(x: Tensor, held: Any) -> Any:
    held += [1, 2]
    return x * len(held), held


def put_into_a_set(x: Tensor, held: Any) -> Any:
    held.add(4)
    return x, held


def appended(x: Tensor, held: Any) -> Any:
    held.append(3)
    return x, {"seen": (held, 1)}


def emptied(x: Tensor, held: Any) -> Any:
    held.clear()
    return x, held


def returned_twice(x: Tensor, held: Any) -> Any:
    held["n"] = len(held)
    return held, x, held


def not_changed(x: Tensor, held: Any) -> Any:
    return x * 2, held


def counts() -> Any:
    return {"n": 0, "kept": []}


_CASES: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    (counted, counts),
    (counted, lambda: defaultdict(int, {"kept": 2})),
    (counted, lambda: OrderedDict(kept=(), n=4)),
    (grown, list),
    (appended, lambda: deque([0], maxlen=2)),
    (emptied, counts),
    (returned_twice, counts),
    (not_changed, counts),
]


@pytest.mark.parametrize(("program", "make"), [*_CASES, (put_into_a_set, lambda: {1})])
def test_the_graph_gives_what_the_run_left(program: Callable[..., Any], make: Callable[[], Any]) -> None:
    example = make()
    scripted = smelt.script(program, example_inputs=(torch.tensor([1.0, 2.0]), example))
    assert str(example) == str(make())  # nothing has run
    unit = scripted.unit
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 2.0])):
        held = make()
        inputs = scripted.inputs_for(x, held)
        got = unit.signature.rebuild(evaluate(scripted.graph, inputs, unit.lookup), (x, held), {})
        want = program(x, make())
        assert str(got) == str(want)
        assert [type(part) for part in got] == [type(part) for part in want]
    if program is returned_twice:
        assert got[0] is got[2]


@pytest.mark.parametrize(("program", "make"), _CASES)
def test_a_call_changes_the_argument_itself(program: Callable[..., Any], make: Callable[[], Any]) -> None:
    scripted = smelt.script(program, example_inputs=(torch.tensor([1.0, 2.0]), make()))
    for _ in range(2):
        x, held, expected = torch.tensor([1.0, 2.0]), make(), make()
        assert str(scripted(x, held)) == str(program(x, expected))
        assert str(held) == str(expected)
