"""Views at places that data tell: what a compiled program returns shares memory as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt

STATE = torch.zeros(3)


def of_an_argument(x: Tensor, y: Tensor) -> Any:
    return (x[int(y[1]) % 3],)


def of_what_is_returned(x: Tensor, y: Tensor) -> Any:
    v = x + 1
    w = v[int(y[1]) % 3].unsqueeze(0)
    return w + 1, w, v


def two_of_one(x: Tensor, y: Tensor) -> Any:
    v, at = x + 1, int(y[1]) % 3
    return v[at], v[(at + 1) % 3]


def written_through(x: Tensor, y: Tensor) -> Any:
    w = x[int(y[1]) % 3]
    w.add_(1)
    return (w,)


def beside_a_write_to_another(x: Tensor, y: Tensor) -> Any:
    y.clamp_(max=2)
    return x[int(y[1]) % 3], x[int(y[1]) % 3 :]


def of_what_is_written(x: Tensor, y: Tensor) -> Any:
    w = x[int(y[1]) % 3]
    x.mul_(2)
    return (w,)


def beside_a_write(x: Tensor, y: Tensor) -> Any:
    v = x + 1
    w = v[int(y[1]) % 3]
    STATE.add_(1)
    return w, v


def of_a_list_on_one_way(x: Tensor, y: Tensor) -> Any:
    row = list(x)[int(y[1]) % 3] if y[1] > 0 else x[0]
    return (row,)


def of_a_list_beside_a_write(x: Tensor, y: Tensor) -> Any:
    v = x + 1
    y.clamp_(max=2)
    return x.split(1)[int(y[1]) % 3], v.unbind(0)[int(y[1]) % 3], v


def written_on_one_way(x: Tensor, y: Tensor) -> Any:
    first, _, last = (x + 1).unbind(0)
    row = first if y[1] > 1 else first * 2
    row -= 1
    return row, last


def written_in_one_arm(x: Tensor, y: Tensor) -> Any:
    v = x + 1
    row = v[0]
    if y[1] > 1:
        row -= 1
    else:
        row = row * 2
    return row, v


def written_in_a_loop(x: Tensor, y: Tensor) -> Any:
    v = x + 1
    row = v[0]
    for i in range(1 + int(y[1])):
        row = v[i]
        row -= 1
    return row, v


def popped_of_a_list_that_a_loop_filled(x: Tensor, y: Tensor) -> Any:
    rows, i = [x[0]], 0
    while i < y[1]:
        rows.append(x[i + 1])
        i += 1
    return (rows.pop(),)


def best_of_a_list_that_a_loop_filled(x: Tensor, y: Tensor) -> Any:
    rows = [x[i] for i in range(1 + int(y[1]))]
    best = rows[0]
    for row in rows:
        if row.sum() > best.sum():
            best = row
    return (best,)


def last_of_what_begins_with_an_argument(x: Tensor, y: Tensor) -> Any:
    states = [x]
    for _ in range(int(y[1])):
        states.append(torch.tanh(states[-1]))
    return torch.stack(states), states[-1], states[0]


def of_a_branch_in_one_of_other_sizes(x: Tensor, y: Tensor) -> Any:
    v = x * 2
    if y[1] > 0:
        v = x[:2] if y[1] > 1 else x[1:]
    return (v,)


def _seen(run: Callable[..., Any], y: Tensor) -> Any:
    x = torch.tensor([[0.0, 2.0], [5.0, 4.0], [2.0, 1.0]])
    every = (*run(x, y), x)
    shared = [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in every] for b in every]
    return shared, [(t.tolist(), t.stride(), t.storage_offset()) for t in every]


PROGRAMS = [
    of_an_argument, of_what_is_returned, two_of_one, written_through, beside_a_write,
    beside_a_write_to_another, of_what_is_written, of_a_list_on_one_way, of_a_list_beside_a_write,
    written_on_one_way, written_in_one_arm, written_in_a_loop, popped_of_a_list_that_a_loop_filled,
    best_of_a_list_that_a_loop_filled, last_of_what_begins_with_an_argument,
    of_a_branch_in_one_of_other_sizes,
]  # fmt: skip


@pytest.mark.spread(14)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("own", [True, False], ids=["own kernels", "library"])
def test_what_is_returned_shares_memory_as_in_eager(fn: Callable[..., Any], own: bool) -> None:
    compiled = smelt.compile(fn, options={"measure": False, "own_kernels": own})
    with torch.no_grad():
        for at in (1.0, 1.0, 2.0, 0.0):
            y = torch.tensor([0.0, at])
            assert _seen(compiled, y) == _seen(fn, y)
    assert not compiled.stats().fallbacks


def selected_rows(x: Tensor, m: Tensor) -> Any:
    return x[m], x[:, 0][m] * 2, m.nonzero()


def columns_of_selected_rows(x: Tensor, m: Tensor) -> Any:
    b = x[m]
    return b[:, :1].clamp(0, 1), b[:, 1], b


def pieces_of_selected_rows(x: Tensor, m: Tensor) -> Any:
    b = x[m] * 2
    return *b.unbind(1), b[1:], b.t(), b[:, None]


def selected_on_one_way(x: Tensor, m: Tensor) -> Any:
    b = x[m]
    if b.sum() > 5:
        b = b * 2
    return b[:, 1:], b


def filled_by_a_loop(x: Tensor, m: Tensor) -> Any:
    rows, i = [x[0] * 2], 0
    while i < 2 and m[i]:
        rows.append(x[i] * 2)
        i += 1
    return (torch.stack(rows),)


SELECTIONS = [
    selected_rows, columns_of_selected_rows, pieces_of_selected_rows, selected_on_one_way, filled_by_a_loop,
]  # fmt: skip


@pytest.mark.spread(6)
@pytest.mark.parametrize("fn", SELECTIONS, ids=lambda fn: fn.__name__)
def test_what_is_returned_lies_in_memory_of_the_size_that_data_tell(fn: Callable[..., Any]) -> None:
    x = torch.tensor([[0.0, 2.0], [5.0, 4.0], [2.0, 1.0]])

    def seen(run: Callable[..., Any], m: Tensor) -> Any:
        every = run(x, m)
        starts = [t.untyped_storage().data_ptr() for t in every]
        shared = [[a == b for a in starts] for b in starts] if m.any() else None
        return shared, [(t.tolist(), t.stride(), t.storage_offset(), t.untyped_storage().nbytes()) for t in every]

    compiled = smelt.compile(fn)
    with torch.no_grad():
        for count in (2, 1, 0, 3, 2):
            m = torch.arange(3) < count
            assert seen(compiled, m) == seen(fn, m)
    assert not compiled.stats().fallbacks
