"""Branches whose arms lie differently: one place for both where nothing sees how the result lies."""

from __future__ import annotations

import pytest
import torch

from tests.control.harness import compare

ARMS = """graph f(%x: f32[3, 2], %c: bool[]) -> {type} {{
  %0: f32[2, 3]{{_, _}} = if %c {{
    %1: f32[2, 3]{{1, 2}} = aten.t.default(%x)
    yield %1
  }} else {{
    %2: f32[2, 3] = aten.view.default(%x, [2, 3])
    %3: f32[2, 3] = aten.exp.default(%2)
    yield %3
  }}
{rest}}}"""

NESTED = """  %4: f32[2, 3]{_, _} = if %c {
    %5: f32[2, 3] = aten.zeros.default([2, 3])
    yield %5
  } else {
    yield %0
  }
  %6: f32[2] = aten.sum.dim_IntList(%4, [1])
  return %6
"""
SEEN = """  %4: int = aten.sym_stride.int(%0, 0)
  return %4
"""
LEAVES = """  return %0
"""


def calls() -> list[list[torch.Tensor]]:
    return [[torch.randn(3, 2), torch.tensor(which)] for which in (True, False, True, False)]


SUM = """  %4: f32[2] = aten.sum.dim_IntList(%0, [1])
  return %4
"""


@pytest.mark.parametrize("rest", [SUM, NESTED])
def test_one_place_for_both(rest: str) -> None:
    compare(ARMS.format(type="f32[2]", rest=rest), *calls(), exact=False, python=0)


@pytest.mark.parametrize(("type_", "rest", "python"), [("int", SEEN, 1), ("f32[2, 3]{_, _}", LEAVES, 0)])
def test_strides_that_are_seen_are_those_of_the_arm(type_: str, rest: str, python: int) -> None:
    compare(ARMS.format(type=type_, rest=rest), *calls(), exact=False, python=python)
