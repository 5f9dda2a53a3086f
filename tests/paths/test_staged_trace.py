"""A trace of a program whose way depends on data is one graph for all its ways, where that can be."""

from __future__ import annotations

import copy

import pytest
import torch

import smelt
from smelt import CaptureError, SmeltWarning

from .judge import agree
from .programs import PROGRAMS

# What is not one graph: a result that is a tensor or None, elements read by NumPy, a text that depends on data, a
# training flag beside a counter that decides.
APART = ("early_return", "numpy_read", "formatted", "nested")


@pytest.mark.spread(14)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in APART])
def test_all_ways(name: str) -> None:
    torch.manual_seed(0)
    factory, inputs = PROGRAMS[name]
    source = factory()
    eager = copy.deepcopy(source)
    with torch.no_grad():
        program = smelt.trace(source, copy.deepcopy(inputs[0]))
        eager(*copy.deepcopy(inputs[0]))
        agree(program, eager, [*inputs, *inputs[::-1]])
    assert program.native_failure is None


@pytest.mark.parametrize("name", [n for n in APART if n != "nested"])
def test_what_is_not_one_graph_says_so(name: str) -> None:
    factory, inputs = PROGRAMS[name]
    with pytest.warns(SmeltWarning, match="holds for one path"):
        program = smelt.trace(factory(), copy.deepcopy(inputs[0]))
    with pytest.raises(CaptureError):
        program(*inputs[1])
