"""Lists of the graph that the program had before a branch, where one arm leaves another list or dict in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.ops.evaluate import evaluate


def written_in_one_arm(x: Tensor, items: list[Tensor]) -> Any:
    if x[0] > 0:
        items[0] = x * 2
    else:
        items = items + [x]  # noqa: RUF005 concatenation is what is tested
    items[0].add_(1)
    return len(items), items[0]


def longer_in_one_arm(x: Tensor, items: list[Tensor]) -> Any:
    if x[0] > 0:
        items.append(x * 2)
    else:
        items = [x]
    return len(items)


def changed_afterwards(x: Tensor, items: list[Tensor]) -> Any:
    kept = items
    if x[0] > 0:
        items = items + [x]  # noqa: RUF005 concatenation is what is tested
    items.append(x * 3)
    return items, len(kept)


def of_the_programs_own(x: Tensor, items: list[Tensor]) -> Any:
    ys = []
    for i in range(int(x[1])):
        ys.append(x * i)
    kept = ys
    if x[0] > 0:
        ys.append(x * 2)
    else:
        ys = ys + [x]  # noqa: RUF005
    ys.append(x)
    return ys, kept, len(kept)


def one_of_two(x: Tensor, items: list[Tensor]) -> Any:
    ys, zs = [], []
    for i in range(int(x[1])):
        ys.append(x * i)
        zs.append(x + i)
    chosen = ys if x[0] > 0 else zs
    chosen.append(x * 5)
    return ys, zs, chosen


def or_none(x: Tensor, items: list[Tensor]) -> Any:
    chosen = items if x[0] > 0 else None
    if chosen is not None:
        chosen.append(x)
    return len(items)


def of_a_dict(x: Tensor, items: list[Tensor]) -> Any:
    named = {}
    for i in range(int(x[1])):
        named[str(i)] = x * i
    kept = named
    if x[0] > 0:
        named["a"] = x
    else:
        named = {"a": x * 2}
    return named["a"], len(named), len(kept)


PROGRAMS = [
    written_in_one_arm, longer_in_one_arm, changed_afterwards, of_the_programs_own, one_of_two, or_none, of_a_dict,
]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__name__)
def test_a_list_of_before_the_branch_stays_the_one_it_is(f: Callable[..., Any]) -> None:
    program = smelt.script(f)
    for first in (1.0, -1.0, 2.0, -2.0):
        results = []
        for run in (f, program, lambda *given: by_the_graph(program, given)):
            x, items = torch.full((4,), first), [torch.zeros(4), torch.ones(4)]
            x[1] = 2
            held = list(items)
            results.append(str((run(x, items), x, held)))
        assert results[0] == results[1] == results[2], first


def by_the_graph(program: Any, given: tuple[Any, ...]) -> Any:
    results = evaluate(program.graph, program.inputs_for(*given), program.unit.lookup)
    return program.unit.signature.rebuild(results, given, {})


def test_in_a_loop_it_is_refused_at_the_branch() -> None:
    def f(x: Tensor, items: list[Tensor]) -> int:
        for i in range(int(x[1])):
            if x[0] > i:
                items = items[1:]
        return len(items)

    with pytest.raises(smelt.CaptureError, match="was there before meets another") as caught:
        smelt.script(f)
    assert caught.value.code == "S0109"
    assert caught.value.where is not None
    assert caught.value.where.line == f.__code__.co_firstlineno + 2
