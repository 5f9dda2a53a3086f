"""Lists that loops fill whose number of turns data decide: as in eager, over calls that take other numbers of turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.lower.python.appends import _Append
from smelt.runtime.plan import PyCall

Tensor = torch.Tensor
CALLS = (3, 5, 0, 1, 7, 2, 4)


def stacked(x: Tensor, n: Tensor) -> object:
    items, h = [x * 2], x
    for _ in range(int(n)):
        h = torch.tanh(h) * 0.5 + h
        items.append(h)
    return torch.stack(items)


def until(x: Tensor, n: Tensor) -> object:
    items = [x + 0]
    while items[-1].sum() < 8 * n:
        items.append(items[-1] * 1.5 + 1)
    return items


def of_numbers(x: Tensor, n: Tensor) -> object:
    sums, k = [], 0
    while k < n:
        sums.append((x * k).sum().item())
        k += 1
    return sums, len(sums)


def two(x: Tensor, n: Tensor) -> object:
    one, other = [x + 0], [x - 1]
    for i in range(int(n)):
        one.append(x * i + 1)
        other.append(one[-1] * 2)
        other.append(x * i - 2)
    return one, other


def kept_before(x: Tensor, n: Tensor) -> object:
    items: list[Tensor] = []
    counts = 0
    for i in range(int(n)):
        before = items
        items = items + [x * 2 + i]  # noqa: RUF005
        counts += len(before)
    return counts, items


def of_lists(x: Tensor, n: Tensor) -> object:
    rows = []
    for i in range(int(n)):
        row = []
        for k in range(int(n) - i):
            row.append(x * k + i)
        rows.append(row)
    return rows


def one_in_two_loops(x: Tensor, n: Tensor) -> object:
    items = []
    for i in range(int(n)):
        items.append(x * 2 + i)
    while len(items) < 2 * n:
        items.append(items[0] * 3 + 1)
    return items, len(items)


def from_the_same_each_time(x: Tensor, n: Tensor) -> object:
    first, total = [x + 0, x * 2], x * 0
    for i in range(int(n)):
        longer = first + [x + i]  # noqa: RUF005
        total = total + torch.stack(longer).sum(0)
    return first, total


def on_some_ways(x: Tensor, n: Tensor) -> object:
    items = []
    for i in range(int(n)):
        h = x * i + 1
        if h.sum() > 8:
            items.append(h)
    return items


def left_early(x: Tensor, n: Tensor) -> object:
    items, h = [], x
    for _ in range(int(n)):
        h = h * 2 + 1
        items.append(h)
        if h.sum() > 40:
            break
    return items


def of_views(x: Tensor, n: Tensor) -> object:
    items = []
    h = x.repeat(2, 1)
    for i in range(int(n)):
        h = h * 1.5 + i
        items.append(h.t())
        items.append(h)
    return items


def one_twice(x: Tensor, n: Tensor) -> object:
    items = []
    for i in range(int(n)):
        h = x * 1.5 + i
        items.append(h)
        items.append(h)
    return items


PROGRAMS = (
    stacked, until, of_numbers, two, kept_before, of_lists, one_in_two_loops,
    from_the_same_each_time, on_some_ways, left_early, of_views, one_twice,
)  # fmt: skip


@pytest.mark.spread(6)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_lists_hold_what_they_hold_in_eager(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program)
    left = []
    for n in (*CALLS, *CALLS):
        x = torch.arange(4.0) - n / 4
        left.append((told(program(x, torch.tensor(n))), compiled(x, torch.tensor(n))))
    # Later calls change nothing of what earlier ones gave.
    for wanted, found in left:
        assert told(found) == wanted


@pytest.mark.spread(4)
@pytest.mark.parametrize("program, count", [(stacked, 1), (of_numbers, 1), (two, 2), (of_lists, 2), (on_some_ways, 1)])
def test_a_list_that_nobody_else_sees_stays_where_it_is(program: Callable[..., Any], count: int) -> None:
    traced = smelt.trace(program, (torch.ones(4), torch.tensor(3)), check=False)
    traced(torch.ones(4), torch.tensor(5))
    calls = [step.fn for step in traced.unit.executable.plan.instructions if isinstance(step, PyCall)]
    assert [call.is_in_place for call in calls if isinstance(call, _Append)] == [True] * count


def told(value: Any, seen: dict[int, int] | None = None) -> Any:
    """A value with its layouts, and which of its lists and tensors are one."""
    seen = {} if seen is None else seen
    if isinstance(value, (list, tuple)):
        number = seen.setdefault(id(value), len(seen)) if isinstance(value, list) else None
        return type(value), number, [told(v, seen) for v in value]
    if isinstance(value, Tensor):
        return seen.setdefault(id(value), len(seen)), value.stride(), value.storage_offset(), value.tolist()
    return value
