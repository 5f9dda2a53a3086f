"""Loops over free sizes that write parts of a tensor: native, values and memory as in eager, errors too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.runtime.plan import Blit, Branch, Copy, Dispatch, End, Loop, PyCall
from tests.symbolic.sized import free, sized

WEIGHT = torch.linspace(-1, 1, 16).reshape(4, 4)
SIZES = (5, 7, 9, 3, 20, 2, 1, 0, 4)


def filtered(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(1, x.shape[0]):
        out[i] = out[i - 1] * 0.5 + x[i]
    return out


def columns(x: Any) -> Any:
    out = torch.zeros(4, x.shape[0])
    for t in range(x.shape[0]):
        out[:, t] = out[:, t - 1] * 0.5 + x[t]
    return out


def in_place(x: Any) -> Any:
    for i in range(1, x.shape[0]):
        x[i] += x[i - 1]
    return x.sum()


def from_the_end(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[-i - 1] = x[i] + out[-i]
    return out, out[0]


def backwards(x: Any) -> Any:
    out = torch.zeros(x.shape[1], x.shape[0]).t()
    for i in range(x.shape[0] - 1, -1, -1):
        out[i] = x[i] - out[i - 1]
    for i in range(0, x.shape[0], 2):
        out[i] *= 2
    return out


def reads_rows_elsewhere(x: Any) -> Any:
    out = x.clone()
    for i in range(x.shape[0]):
        out[i] = out[i - 1].flip(0)
        out[i] = out[i].cumsum(0) + out[i - 1].softmax(0)
        out[i, 1] = out[i].sum()
        out[i, 2:] = out[i - 1, :-2]
    return out


def product(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = torch.tanh(WEIGHT @ out[i - 1] + x[i])
    return out


def old_rows(x: Any) -> Any:
    out, total = torch.zeros_like(x), torch.zeros(4)
    for i in range(x.shape[0]):
        old, before = out[i].clone(), out[i - 1]
        out[i] = x[i] + before
        total = total + old + before + out[i - 1]
    return out, total


def old_tables(x: Any) -> Any:
    out, other = torch.zeros_like(x), torch.ones_like(x)
    for i in range(x.shape[0]):
        kept = out
        out = out.clone()
        out[i] = x[i] + kept[i - 1]
        other[i] = kept.sum(0)
    return out, other


def swapped(x: Any) -> Any:
    a, b = torch.zeros_like(x) + x.sum(), torch.ones_like(x)
    for i in range(x.shape[0]):
        a[i] = x[i] + b[i - 1]
        a, b = b + 0, a
    return a, b


def on_some_ways(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            out[i] = out[i - 1]
            out[i - 1] += 1
        elif x[i, 1] > 0:
            out[i, 1] = x[i, 0]
    return out, out[0]


def two_on_some_ways(x: Any) -> Any:
    out = torch.zeros_like(x)
    other = out.clone()
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            other = out.clone()
            out[i] = other[i - 1] + 1
        else:
            out[i] = other[i]
            other = other * 2
    return out, other


def another_table_on_some_ways(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if x[i, 0] > 0:
            out = out + 1
        else:
            out[i] = x[i]
    return out + 0


def until(x: Any) -> Any:
    out, i = torch.zeros_like(x), 0
    while i < x.shape[0] and out.sum() < 3:
        out[i] = x[i].abs()
        i += 1
    return out, i


def through_views(x: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        row = out[i]
        row += x[i]
        row[1] = 3
        for j in range(4):
            row[j] = row[j - 1] + x[i, j]
    return out


def nested(x: Any) -> Any:
    out = torch.zeros(x.shape[0], x.shape[0], 4)
    for i in range(x.shape[0]):
        for j in range(i):
            out[i, j] = x[i] + out[i - 1, j]
            out[j, :, 1] = x[j, 0]
            out[i, j, 2] += 1
    return out


def other_dtypes(x: Any) -> Any:
    whole, half = torch.zeros(x.shape, dtype=torch.int64), torch.zeros(x.shape, dtype=torch.bfloat16)
    flags = torch.zeros(x.shape, dtype=torch.bool)
    for i in range(x.shape[0]):
        whole[i] = x[i] * 3 + whole[i - 1]
        half[i] = x[i] + half[i - 1]
        flags[i] = (x[i] > 0) | flags[i - 1]
        flags[i, 2] = i > 2
    return whole, half, flags


def viterbi(x: Any) -> Any:
    score, back = torch.zeros_like(x), torch.zeros(x.shape, dtype=torch.int64)
    score[0] = x[0]
    for t in range(1, x.shape[0]):
        best, chosen = (score[t - 1][:, None] + WEIGHT).max(0)
        score[t] = best + x[t]
        back[t] = chosen
    path = torch.zeros(x.shape[0], dtype=torch.int64)
    path[-1] = score[-1].argmax()
    for t in range(x.shape[0] - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    return score, path


def time_warping(x: Any) -> Any:
    n, m = x.shape[0], x.shape[0] + 2
    y = torch.cat((x, x[:2] * 2)) if n > 1 else x[[0, 0, 0]]
    d = torch.full((n + 1, m + 1), float("inf"))
    d[0, 0] = 0.0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            cost = (x[i - 1] - y[j - 1]).abs().sum()
            d[i, j] = cost + torch.minimum(torch.minimum(d[i - 1, j], d[i, j - 1]), d[i - 1, j - 1])
    return d


def edit_distance(x: Any) -> Any:
    a, b = (x[:, 0] * 2).long(), (x[:, 1] * 2).long()
    n, m = a.shape[0], b.shape[0]
    d = torch.zeros(n + 1, m + 1, dtype=torch.int64)
    for i in range(n + 1):
        d[i, 0] = i
    for j in range(m + 1):
        d[0, j] = j
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            if a[i - 1] == b[j - 1]:
                d[i, j] = d[i - 1, j - 1]
            else:
                d[i, j] = 1 + min(d[i - 1, j], d[i, j - 1], d[i - 1, j - 1])
    return d


def stacked(x: Any) -> Any:
    h, out = torch.zeros(4), []
    for t in range(x.shape[0]):
        h = torch.tanh(h + x[t])
        out.append(h)
    return torch.stack(out), h


def joined(x: Any) -> Any:
    h, out, twice = torch.zeros(4), [x[0] + 1], []
    for row in x:
        h = h * 0.5 + row
        out.append(h)
        twice.append(h * 2)
    return torch.stack(out, 1) * 2, torch.cat(twice)


def every_third_row(x: Any) -> Any:
    table, out = torch.zeros_like(x), []
    for t in range(0, x.shape[0], 3):
        table[t] = x[t] + table[t - 1]
        out.append(table[t])
        table[t] *= 2
    return torch.stack(out, -1), table


PROGRAMS = (
    filtered, columns, in_place, from_the_end, backwards, reads_rows_elsewhere, product, old_rows, old_tables, swapped,
    on_some_ways, two_on_some_ways, another_table_on_some_ways, until, through_views, nested, other_dtypes, viterbi,
    time_warping, edit_distance, stacked, joined, every_third_row,
)  # fmt: skip


def outcome(f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, ...]:
    """What a call gives and leaves in its arguments, or the kind of error and its text."""
    given = [a.clone() for a in args]
    try:
        return ("gives", f(*given), given)
    except Exception as error:
        return ("raises", type(error), str(error))


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple | list):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert found.stride() == wanted.stride()
    else:
        assert found == wanted


def assert_native(compiled: Any) -> None:
    report = smelt.explain(compiled).to_dict()
    assert report["fallbacks"] == [] and {graph["runs"] for graph in report["graphs"]} == {"natively"}


@pytest.mark.spread(24)
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_rows_are_as_in_eager_for_all_sizes(program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        # Some of these are built once for each of the sizes that are 0 or 1.
        warnings.filterwarnings("ignore", ".*compiled again and again")
        # One that is built for each size takes ever longer.
        for size in SIZES if program is not another_table_on_some_ways else (5, 3, 2, 1, 0, 4):
            x = torch.randn(size, 4)
            assert_same(outcome(compiled, x), outcome(program, x))
    assert_native(compiled)


def at_numbers(x: Any, at: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[int(at[i])] = x[i]
        out[at[i], 1] = i
    return out


def at_columns(x: Any, at: Any) -> Any:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i, int(at[i])] = 1
    return out


def of_one_row(x: Any, at: Any) -> Any:
    out = torch.zeros(1, x.shape[0])
    for i in range(x.shape[0]):
        out[int(at[i]), i] = x[i, 0]
    return out


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [at_numbers, at_columns, of_one_row], ids=lambda f: f.__name__)
def test_positions_out_of_range_raise_as_in_eager(program: Callable[..., Any]) -> None:
    compiled = smelt.compile(program, dynamic=True)
    with torch.no_grad():
        for at in ([0, -1, 0], [0] * 6, [0, -1, 1, 2, 0], [4, 3, 3, 2], [0, 0, -9], [0, 7, 0, 0], [-1, 0, -1, 0, -1]):
            args = torch.randn(len(at), 4), torch.tensor(at)
            assert_same(outcome(compiled, *args), outcome(program, *args))
    assert_native(compiled)


@pytest.mark.parametrize("program", [filtered, columns, viterbi], ids=lambda f: f.__name__)
def test_no_turn_copies_the_table(program: Callable[..., Any]) -> None:
    plan = sized(program, (torch.randn(6, 4),), free("B_")).lowered.lowered.plan
    depth, found = 0, []
    for instruction in plan.instructions:
        depth += isinstance(instruction, Loop | Branch) - isinstance(instruction, End)
        if depth and isinstance(instruction, Blit | Copy | Dispatch | PyCall):
            found.append(instruction)
    assert found == []
