"""How many ways staging goes where a program's questions could be asked of each other's answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.staging.session import Session
from smelt.capture.staging.stage import _Run

Tensor = torch.Tensor


@pytest.fixture
def explored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of the regions that were run, and behind it that of each run of the program."""
    count, once = [0], _Run._once

    def counted(self: _Run, session: Session, *args: Any) -> Any:
        try:
            return once(self, session, *args)
        finally:
            count[0] += session.paths.count
            count.append(session.paths.count)

    monkeypatch.setattr(_Run, "_once", counted)
    return count


def check(f: Callable[..., Any], *calls: tuple[Any, ...]) -> None:
    """One staged graph gives what eager gives, in each call."""
    compiled = smelt.compile(f)
    for args in calls:
        given = [a.clone() for a in args]
        torch.testing.assert_close(compiled(*given), f(*args))
    entries = [row.entry for row in compiled.stats().rows if row.entry is not None]
    assert [entry.is_staged for entry in entries] == [True]


def settles(centres: Tensor, x: Tensor) -> tuple[Tensor, int]:
    old, turns = torch.zeros_like(centres), 0
    while not torch.equal(old, centres):
        old = centres
        label = torch.cdist(x, centres).argmin(1)
        centres = torch.zeros_like(centres).index_add_(0, label, x)
        centres = centres / torch.bincount(label, minlength=len(centres)).clamp(min=1)[:, None]
        turns += 1
    return centres, turns


def halves(x: Tensor, y: Tensor) -> Tensor:
    for _ in range(6):
        if torch.allclose(x, y, atol=0.1):
            break
        x = x / 2
    return x


def counts(x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    n = 0
    for i in range(12):
        if torch.is_nonzero((x > i).sum()):
            n += 1
        if x.equal(y) or x.allclose(y + i):
            y = y + 1
    return y, n


def same(x: Tensor, y: Tensor) -> bool:
    return torch.equal(x, y)


@pytest.mark.parametrize(("f", "most"), [(settles, 12), (halves, 24), (counts, 120), (same, 2)])
def test_operators_that_give_a_bool_ask_one_question(f: Callable[..., Any], most: int, explored: list[int]) -> None:
    x, y = torch.tensor([[1.0, 4.0], [2.0, 1.0]]), torch.tensor([[1.0, 3.0], [2.0, 6.0], [0.0, 5.0]])
    if f is settles:
        check(f, (x, y), (x * 3, y), (torch.zeros(2, 2), y))
    else:
        check(f, (x, x), (x, x + 1), (x, x / 4), (-x, x))
    assert explored[0] <= most, explored


def solved_in_place(a: Tensor, b: Tensor) -> tuple[Tensor, int]:
    x = torch.zeros_like(b)
    for turn in range(20):
        for i in range(3):
            x[i] = (b[i] - a[i] @ x + a[i, i] * x[i]) / a[i, i]
            if x[i].abs() > 1e6:
                return x, -1
        if (a @ x - b).abs().max() < 1e-4:
            return x, turn
    return x, 20


def test_what_is_returned_out_of_a_loop_is_what_was_there_before(explored: list[int]) -> None:
    """A tensor that is written at each turn, and returned at some."""
    a, b = torch.tensor([[4.0, 1.0, 0.0], [1.0, 5.0, 2.0], [0.0, 1.0, 3.0]]), torch.tensor([1.0, 2.0, 3.0])
    check(solved_in_place, (a, b), (a * 1e-7, b), (a - 3, b), (a, b * 0))
    assert explored[0] <= 80


def number_or_tensor(x: Tensor) -> Tensor:
    best: Any = 0.0
    for i in range(8):
        for k in range(6):
            x = x + 1 if x.max() > k * i else x - 1
        if x.sum() > best:
            best = x.sum()
    return x * best


def test_ways_that_cannot_all_be_gone_are_not_begun(explored: list[int]) -> None:
    """Each answer of the first way has another one, before which all comes once more that came before it."""
    compiled = smelt.compile(number_or_tensor)
    for x in (torch.ones(4), -torch.ones(4) * 900):
        assert torch.equal(compiled(x), number_or_tensor(x))
    told = [row.entry.why_paths for row in compiled.stats().rows if row.entry is not None]
    assert any("the program has too many paths" in why for why in told)
    # Short runs find out that its loop is none of the graph; all paths are begun in the last one.
    *short, last = explored[1:]
    assert last <= 99 and len(short) <= 2 and sum(short) <= 54, explored


def kept_of_rows(x: Tensor) -> Tensor:
    kept = []
    while True:
        if x.numel() == 0:
            break
        kept.append(x[0])
        x = x[1:]
        x = x[x > kept[-1]]
    return torch.stack(kept) if kept else x


def test_what_a_staging_learns_the_next_ones_for_other_sizes_begin_with(explored: list[int]) -> None:
    compiled, x = smelt.compile(kept_of_rows), torch.arange(12.0)
    compiled(x)
    alone = explored[0]  # of one staging, which finds out that its list grows without end
    torch.testing.assert_close(compiled(x[:7]), kept_of_rows(x[:7]))
    # From 1 on: at any size, and where it is 1. It was 72 where each learnt by itself.
    assert explored[0] - alone <= 60
