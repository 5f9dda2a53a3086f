"""Variables that are None until a loop fills them, on some of its ways, and what is returned from within."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from tests.script.checking import agrees


def best_pair(x: smelt.f32[None, 4]) -> Any:
    best = None
    for i, row in enumerate(x):
        v = row.sum().item()
        if v < 0:
            continue
        if best is None or v > best[0]:
            best = (v, i)
    return best


def first_above(x: smelt.f32[None, 4], t: float) -> Any:
    first = None
    for i, row in enumerate(x):
        if row.sum().item() > t:  # noqa: SIM102
            if first is None:
                first = i
    return first


def found_and_left(xs: list[int]) -> Any:
    found = None
    for i, v in enumerate(xs):
        if v == 3:
            found = i
            break
    return found


def number_for_sizes(x: smelt.f32[None, 4]) -> Any:
    n = None
    for i, row in enumerate(x):
        if row.sum().item() > 0:
            n = i + 1
    return x if n is None else x.repeat(n, 1)


def best_tensor_pair(x: smelt.f32[None, 4]) -> Any:
    best = None
    for i, row in enumerate(x):
        if row.sum() < 0:
            continue
        if best is None or row.sum() > best[0]:
            best = (row.sum(), i)
    return best


def best_row(x: smelt.f32[None, 4]) -> Any:
    best = None
    for row in x:
        if row.sum() > 0:
            if best is None:  # noqa: SIM114
                best = row
            elif row.max() > best.max():
                best = row
    return best


def two_of_them(x: smelt.f32[None, 4]) -> Any:
    best = None
    at = None
    for i, row in enumerate(x):
        if row.sum() < -3:
            break
        if row.sum() > 0:  # noqa: SIM102
            if best is None or row.max() > best.max():
                best = row
                at = i
    if best is None:
        return x.sum(0), at
    return best * 2, at


def set_and_unset(x: smelt.f32[None, 4]) -> Any:
    last = None
    for i in range(x.size(0)):
        if x[i].sum() > 0:
            if x[i].max() > 1:
                last = x[i]
            else:
                last = None
    return last


def found_in_while(x: smelt.f32[None, 4]) -> Any:
    i = 0
    found = None
    while i < len(x):
        if x[i].sum() > 2:
            found = x[i]
            break
        i += 1
    return found


def returned_from_within(xs: list[str], key: str) -> Any:
    prev = None
    for s in xs:
        if s == key:
            return prev
        if len(s) > 2:
            prev = s
    return None


def running(x: smelt.f32[None, 4]) -> Any:
    h = None
    for row in x:
        if h is None:
            h = row
            continue
        h = h * 0.5 + row
    return h


def item_or_none(xs: list[str], key: str) -> Any:
    for s in xs:
        if s == key:
            return s
    return None


def item_before(xs: list[str], key: str) -> Any:
    prev = None
    for s in xs:
        if s == key:
            return prev
        prev = s
    return None


def row_or_none(x: smelt.f32[None, 4]) -> Any:
    best = None
    for _, row in enumerate(x):
        if row.sum() < -3:
            return best
        if row.sum() > 0:
            best = row
    return best


def from_a_dict(x: smelt.f32[None, 4], d: dict[str, int]) -> Any:
    n = d.get("a")
    for row in x:
        if row.sum() > 1:
            n = 3
        elif row.sum() < -1:
            n = None
    return n


def in_nested_loops(x: smelt.f32[None, 4]) -> Any:
    best = None
    for i in range(x.size(0)):
        for j in range(4):
            v = x[i, j].item()
            if v < 0:
                continue
            if best is None or v > best[0]:
                best = (v, i, j)
    if best is None:
        return -1, -1
    return best[1], best[2]


def least_and_greatest(xs: list[int]) -> Any:
    lo = None
    hi = None
    for v in xs:
        if v == 0:
            continue
        if lo is None or v < lo:
            lo = v
        if hi is None or v > hi:
            hi = v
    if lo is not None and hi is not None:
        return hi - lo
    return 0


def best_two(x: smelt.f32[None, 4]) -> Any:
    a = None
    b = None
    for row in x:
        if row.sum() < 0:
            continue
        if a is None or row.sum() > a[0]:
            b = a
            a = (row.sum(), row)
        elif b is None or row.sum() > b[0]:
            b = (row.sum(), row)
    if b is None:
        return None
    return a[1] - b[1]


def changed_in_place(x: smelt.f32[None, 4]) -> Any:
    best = None
    for row in x:
        if best is None:
            best = row
        else:
            best.add_(row)
    return best, x.sum()


def a_copy_changed(x: smelt.f32[None, 4]) -> Any:
    best = None
    for row in x:
        if row.sum() < 0:
            continue
        if best is None:
            best = row.clone()
        else:
            best.add_(row)
    return best


def changed_behind_continue(x: smelt.f32[None, 4]) -> Any:
    best = None
    for row in x:
        if row.sum() < 0:
            continue
        if best is None:
            best = row
        else:
            best.add_(row)
    return best, x * 1


def pair_updated(x: smelt.f32[None, 4]) -> Any:
    s = None
    for row in x:
        if row.sum() < 0:
            continue
        s = (row, row.sum()) if s is None else (s[0] + row, torch.maximum(s[1], row.sum()))
    if s is None:
        raise ValueError("none")
    return s[0] / s[1]


def in_while(x: smelt.f32[None, 4], n: int) -> Any:
    out = None
    while n > 0:
        n -= 1
        if n % 2:
            continue
        out = x if out is None else out + x * n
        if out.sum() > 20:
            break
    return out


def begun_again(x: smelt.f32[None, 4]) -> Any:
    a = None
    for row in x:
        if row.sum() < 0:
            a = None
            continue
        a = row if a is None else a + row
    return a


def of_numbers(x: smelt.f32[None, 4], thr: float | None = None) -> Any:
    k = None
    for i in range(x.size(0)):
        m = x[i].max().item()
        if thr is not None and m > thr:
            break
        if k is None or m > k:
            k = m
    return k


def a_parameter_changed(x: smelt.f32[3], c: bool, n: int) -> Any:
    best = None
    for i in range(n):
        if c and i > 0:
            continue
        if best is None:
            best = x
        best.add_(i + 1)
    return x * 1, best


def a_row_changed_later(x: smelt.f32[None, 3], n: int) -> Any:
    best = None
    for r in x:
        if r.sum() > n:
            best = r
            continue
        if best is not None:
            best.mul_(2)
    return x * 1, best


def of_a_pair_changed(x: smelt.f32[None, 3], n: int) -> Any:
    pair = None
    for i in range(n):
        if i % 2:
            continue
        if pair is None:
            pair = (x[0], i)
        pair[0].add_(1)
    return x * 1, pair


def _rows() -> list[torch.Tensor]:
    drawn = [torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in (4, 0, 1, 6, 9)]
    return [*drawn, -torch.ones(3, 4), torch.ones(3, 4)]


_OF_ROWS = (
    best_pair, number_for_sizes, best_tensor_pair, best_row, two_of_them, set_and_unset, found_in_while, running,
    row_or_none, in_nested_loops, best_two, changed_in_place, a_copy_changed, changed_behind_continue, pair_updated,
    begun_again,
)  # fmt: skip
_WORDS = ((["abc", "d", "e"], "e"), ([], "e"), (["e"], "e"), (["a"], "b"), (["abcd", "e"], "e"))


@pytest.mark.spread(14)
@pytest.mark.parametrize("fn", _OF_ROWS, ids=lambda fn: fn.__name__)
def test_over_rows(fn: Callable[..., Any]) -> None:
    agrees(fn, *((rows,) for rows in _rows()))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        (first_above, [(rows, t) for rows in _rows() for t in (0.0, 1.0)]),
        (found_and_left, [([1, 2, 3],), ([],), ([3],), ([1],)]),
        (returned_from_within, _WORDS),
        (item_or_none, _WORDS),
        (item_before, _WORDS),
        (from_a_dict, [(rows, d) for rows in _rows() for d in ({}, {"a": 1})]),
        (least_and_greatest, [([1, 0, 5],), ([],), ([0],), ([-3],), ([2, 9, 0, -4],)]),
        (in_while, [(rows, n) for rows in _rows()[:3] for n in (0, 1, 5, 8)]),
        (a_parameter_changed, [(torch.arange(3.0), flag, n) for flag in (True, False) for n in (0, 1, 3)]),
        (a_row_changed_later, [(rows[:, :3].contiguous(), n) for rows in _rows()[::2] for n in (0, -1)]),
        (of_a_pair_changed, [(rows[:, :3].contiguous(), n) for rows in _rows()[::3] for n in (0, 1, 3)]),
        (of_numbers, [(rows, t) for rows in _rows() for t in (None, 1.0)]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:.*compiled again and again")
def test_of_other_arguments(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    agrees(fn, *calls)


def test_a_loop_carries_what_may_be_none() -> None:
    graph = str(smelt.script(first_above).graph)
    assert "optional[int] = None" in graph and graph.count("while") + graph.count("for ") == 1
