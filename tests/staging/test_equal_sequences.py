"""Lists and tuples of what depends on data are compared by one question, and printed with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.staging.programs import check

X = torch.arange(24.0).reshape(2, 4, 3) / 7
MASKS = [torch.tensor(m) for m in ([[1, 0, 0], [1, 0, 1]], [[1, 1, 1], [1, 0, 1]], [[0, 0, 0], [0, 0, 0]])]


@pytest.mark.spread(2)
@pytest.mark.parametrize("make", [list, tuple])
def test_sizes_are_compared_as_one_question(make: Any) -> None:
    def f(x, m):
        n = m.sum()
        y = x[m]
        if make(y.size()) != make([n, 3]):
            raise ValueError(f"wrong: {(n, 3)} is {y.size()}")
        z = torch.zeros(n, 3)
        if [y.shape[0], x.sum() > 0] == [2, True]:
            z = z + 1
        if (y.shape[0], 1) != (2, 1):
            z = z * 3
        if y.size() != (2, 3):
            raise ValueError(f"wrong: {(2, n)} is {y.size()}")
        return z + y

    rows = X[0]
    masks = [[True, False, False, True], [False] * 4, [True, True, True, False], [False, True, True, False]]
    check(f, *[(sign * rows, torch.tensor(m)) for sign in (1, -1) for m in masks])


def test_sequences_of_other_lengths_and_kinds_are_not_equal() -> None:
    def f(x, m):
        n = m.sum().item()
        return x * (1 if [n, 1] == [n] else 2) + (3 if [n] == (n,) else 4) + (5 if (n, [n, 2]) == (n, [2, 2]) else 6)

    check(f, *[(X, m) for m in (*MASKS, torch.tensor([[1, 1]]))])
