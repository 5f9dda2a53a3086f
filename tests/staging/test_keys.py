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
