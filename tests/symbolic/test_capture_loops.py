"""Loops over sizes and numbers, control flow over data beside symbols, and what has to be a plain number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from smelt.capture import capture
from tests.symbolic.capture_harness import check, everything, symbolic

Call = tuple[Any, ...]


def f(*shape: int) -> torch.Tensor:
    return torch.randn(shape)


def over_range(x: Any) -> Any:
    t = torch.zeros(x.shape[1:])
    for i in range(x.shape[0]):
        t = t * 0.5 + x[i]
    return t


def over_number(x: Any, n: Any) -> Any:
    for i in range(n):
        x = x * 1.5 + i
    return x


def over_rows(x: Any) -> Any:
    t = torch.zeros(())
    for row in x:
        t = t + row.sum()
    return t


def enumerated(x: Any) -> Any:
    t = torch.zeros(())
    for i, row in enumerate(x):
        t = t + row.sum() * i
    return t


def zipped(x: Any, y: Any) -> Any:
    t = torch.zeros(())
    for a, b in zip(x, y):  # noqa: B905
        t = t + (a * b).sum()
    return t


def collected(x: Any) -> Any:
    out = []
    for i in range(x.shape[0]):
        out.append(x[i] * 2)
    return torch.stack(out)


def stepped(x: Any) -> Any:
    t = torch.zeros(())
    for i in range(0, x.shape[0], 2):
        t = t + x[i].sum()
    return t


def nested(x: Any) -> Any:
    t = torch.zeros(())
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            t = t * 0.9 + x[i, j]
    return t


def ends_early(x: Any) -> Any:
    for i in range(x.shape[0]):
        if x[i].sum() > 1:
            return x[i]
    return x[0] * 0


def branch_on_data(x: Any) -> Any:
    if x.sum() > 0:
        return x[: x.shape[0] // 2]
    return x[: x.shape[0] // 2] * 2


def until_data(x: Any) -> Any:
    n = x.shape[0]
    while x.sum() < n * 10:
        x = x + 1
    return x


def selected(x: Any) -> Any:
    return x[x > 0].sum() * x.shape[0], torch.zeros(x.shape[0], 3)


def kept_by_key(x: Any) -> Any:
    d = {}
    for i in range(x.shape[0]):
        d[i] = x[i]
    return sum(d.values())


def comprehension(x: Any) -> Any:
    return torch.cat([x[i : i + 1] * i for i in range(x.shape[0])])


def looked_up(x: Any) -> Any:
    return x * [1, 2, 3, 4, 5, 6, 7, 8][x.shape[0]]


def hashed(x: Any) -> Any:
    return {x.shape[0]: x}[x.shape[0]]


def numpys(x: Any) -> Any:
    return x + torch.from_numpy(np.ones(x.shape[1], dtype=np.float32))


def list_times(x: Any) -> Any:
    return torch.tensor([1.0] * x.shape[1]) + x


def counted_down(x: Any, n: Any) -> Any:
    while n > 0:
        x, n = x + n, n - 2
    return x


def logarithm(x: Any) -> Any:
    return x * math.log(x.shape[0]) + math.floor(x.shape[1] / 3)


def positions_read(x: Any) -> Any:
    positions = torch.arange(x.shape[1])
    if (positions.diff() == 1).all():
        return x + positions
    return x


PROGRAMS: list[tuple[Callable[..., Any], Call, list[Call], list[Call]]] = [
    (over_range, (f(4, 3),), [(f(7, 2),)], []),
    (over_number, (f(4), 3), [(f(5), 6), (f(5), 0), (f(5), -2)], []),
    (over_rows, (f(4, 3),), [(f(9, 2),)], []),
    (enumerated, (f(4, 3),), [(f(9, 2),)], []),
    (zipped, (f(4, 3), f(4, 3)), [(f(7, 2), f(7, 2)), (f(7, 2), f(5, 2))], [(f(7, 2), f(7, 3))]),
    (collected, (f(4, 3),), [(f(9, 2),)], []),
    (stepped, (f(6, 3),), [(f(7, 9),)], []),
    (nested, (f(3, 3),), [(f(7, 9),)], []),
    (ends_early, (f(4, 3).abs(),), [(f(7, 2),), (-f(3, 2).abs(),)], []),
    (branch_on_data, (f(6, 2).abs(),), [(-f(9, 2).abs(),), (f(8, 3).abs(),)], []),
    (until_data, (f(4, 3),), [(f(7, 2),)], []),
    (selected, (f(4, 3),), [(f(7, 2),)], []),
    (kept_by_key, (f(4, 3),), [(f(4, 2),)], [(f(7, 2),)]),
    (comprehension, (f(4, 3),), [(f(4, 2),), (f(7, 2),), (f(2, 5),)], []),
    (looked_up, (f(4, 3),), [(f(4, 2),)], [(f(7, 2),)]),
    (hashed, (f(4, 3),), [(f(4, 2),)], [(f(7, 2),)]),
    (numpys, (f(4, 3),), [(f(7, 3),)], [(f(4, 2),)]),
    (list_times, (f(4, 3),), [(f(7, 3),)], [(f(4, 2),)]),
    (counted_down, (f(4), 3), [(f(5), 4), (f(5), 5), (f(5), 2), (f(5), 12)], [(f(5), 0), (f(5), -1)]),
    (logarithm, (f(4, 3),), [(f(7, 9),)], []),
    (positions_read, (f(4, 3),), [(f(7, 9),)], []),
]


@pytest.mark.spread(6)
@pytest.mark.parametrize("number", range(len(PROGRAMS)), ids=lambda n: PROGRAMS[n][0].__name__)
def test_loops(number: int) -> None:
    program, args, inside, outside = PROGRAMS[number]
    check(program, args, *inside, outside=tuple(outside), is_straight=False)


@pytest.mark.parametrize("program", [over_range, over_rows, enumerated, stepped, collected])
def test_a_loop_over_a_size_is_one_of_the_graph(program: Any) -> None:
    found = symbolic(program, (f(4, 3),))
    assert "for" in {node.op for node in found.graph.walk()}  # type: ignore[union-attr]
    assert not found.sizes.guards  # type: ignore[union-attr]


def by_type(x: Any) -> Any:
    n = x.shape[0]
    return x * 2 if type(n) is int else x * 3


def test_a_program_that_asks_for_the_class_of_a_symbol() -> None:
    args = (f(4, 3),)
    found = capture(by_type, args, specialize=True, dynamic=everything(args))
    assert found.sizes is not None and not found.sizes.guards and found.graph is not None
    assert [node.args[1] for node in found.graph.walk() if node.op == "aten.mul.Tensor"] == [2]
