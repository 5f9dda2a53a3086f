"""Loops over any number of rows that fill a list, look at it, and may return from within: one graph for all numbers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import smelt


def counted(x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    for _, row in enumerate(x):
        if row.sum() < 0:
            continue
        if row.max() > 3:
            return torch.stack(kept) if kept else x[:0]
        kept.append(row)
    if len(kept) == 0:
        return x[:0]
    return torch.stack(kept)


def plainly(x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    for row in x:
        if row.max() > 2:
            return torch.stack(kept)[1:] if len(kept) > 0 else x[:1]
        if row.sum() > 0:
            kept.append(row * 2)
    return torch.stack(kept) if kept else x[:0]


@pytest.mark.spread(2)
@pytest.mark.parametrize("program", [counted, plainly])
def test_one_graph_for_all_numbers_of_rows(program: Callable[[Tensor], Tensor]) -> None:
    compiled = smelt.compile(program)
    with torch.no_grad():
        for number, rows in enumerate((4, 5, 6, 9, 2, 3, 17, 5, 6)):
            for shift in (1.0, 0.0, -1.0):
                x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number)) + shift
                torch.testing.assert_close(compiled(x), program(x))
        builds = compiled.stats().builds
        assert builds <= 3
        for rows in (1, 0):
            x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
            torch.testing.assert_close(compiled(x), program(x))
