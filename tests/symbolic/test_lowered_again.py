"""At which other sizes a graph is lowered again to check its plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import smelt
from smelt.codegen.lower.symbolic import lowering
from smelt.compiler import SizedUnit


@pytest.mark.parametrize("most", [None, 9])
def test_far_sizes_once_near_ones_twice(most: int | None) -> None:
    program = smelt.trace(
        lambda x: torch.softmax(x * 2, -1),
        (torch.randn(4, 5),),
        dynamic_shapes={"x": {0: smelt.Dim("B", min=2, max=most), 1: smelt.Dim("S", min=2, max=most)}},
    )
    for rows, columns in ((4, 5), (9, 2), (7, 9)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(program(x), torch.softmax(x * 2, -1))
    (unit,) = program.units
    assert isinstance(unit, SizedUnit)
    checked = unit.templates[0].lowered.checked
    assert len(checked) == (1 if most is None else 2)
    assert all(rows > 16 and columns > 20 for rows, columns in checked) is (most is None)


def rounded(n: int) -> int:
    return -(-n // 8) * 8


def shared(n: int) -> int:
    return n // 64


def cut(n: int) -> int:
    return min(n, 50)


@pytest.mark.parametrize("hidden", [rounded, shared, cut])
def test_far_sizes_tell_numbers_from_those_at_hand(hidden: Any) -> None:
    # A number baked in at 24 rows: two near sizes, such as 25 and 49, do not tell each of these.
    (rows,) = next(lowering._other_sizes((24,), [(2, float("inf"))], lambda *sizes: True))
    assert hidden(rows) != hidden(24) and rows % 24
