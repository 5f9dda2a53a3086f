"""Tensors indexed by lists and tuples of numbers that depend on data."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.staging.programs import check

X = torch.arange(24.0).reshape(4, 6) / 7


def of_ints(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers)


def test_places_taken_apart_by_zip_are_written() -> None:
    def f(x, places):
        seen = torch.ones_like(x).bool()
        rows, cols = zip(*places.view(-1, 2), strict=True)
        seen[rows, cols] = False
        return torch.where(seen, x, -1.0), x[seen].sum()

    check(f, *[(X, of_ints(*p)) for p in ((0, 1, 3, 2), (1, 1, 1, 1), (-1, 5, 0, -6))])


def test_lists_of_numbers_are_read() -> None:
    def f(x, places):
        a, b = places[0].item(), places[1].item()
        return x[[a, b]], x[[a, 1, b], 2], x[:, [b, 0]], x[:, [[a, b], [1, 0]]], x[(a, b)], x[1, [a, b]], x[..., [a]]

    check(f, *[(X, of_ints(*p)) for p in ((0, 1), (3, 3), (-1, -4))])


def test_a_place_outside_raises_as_ever() -> None:
    def f(x, places):
        return x[:, (places[0], places[1])].sin()

    check(f, (X, of_ints(0, 3)), (X, of_ints(2, 2)))
    traced = smelt.trace(f, (X, of_ints(0, 3)))
    with pytest.raises(IndexError):
        traced(X, of_ints(0, 6))


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_dictionaries_whose_keys_are_numbers_of_data_meet() -> None:
    def program(x, c):
        n = int(c[0])
        kept = {n: x}
        chosen = {0: x + 1, 1: x * 2, 2: "text"}.get(int(c[1]), x)
        return [kept, chosen]

    compiled = smelt.compile(program)
    for numbers in ((1, 0), (-1, 1), (2, 2), (-1, 3), (1, 1), (0, 0)):
        assert repr(compiled(X[0], of_ints(*numbers))) == repr(program(X[0], of_ints(*numbers)))
    rows = [row.entry.why_paths for row in compiled.stats().rows if row.entry is not None]
    assert not any("defect" in why for why in (*rows, *compiled.stats().fallbacks))
