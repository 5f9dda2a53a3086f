"""Random straight programs with random conversions: compiled as in eager over several calls, effects included."""

from __future__ import annotations

import copy
import warnings

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import Tensor

import smelt
from smelt import SmeltWarning

from .judge import agree
from .straight import STEPS, Straight

steps = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 3)), min_size=1, max_size=6)
inputs = st.lists(st.integers(-3, 3), min_size=4, max_size=4).map(lambda v: torch.tensor(v, dtype=torch.float64))


CASE = (steps, st.integers(0, 6), st.lists(inputs, min_size=2, max_size=3), st.lists(st.integers(0, 2), max_size=5))


def check(steps: list[tuple[str, int]], stop: int, xs: list[Tensor], order: list[int]) -> None:
    eager = Straight(steps, stop)
    compiled = smelt.compile(copy.deepcopy(eager), options={"measure": False})
    calls = [(xs[i % len(xs)],) for i in (*range(len(xs)), *order)]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SmeltWarning)
        agree(compiled, eager, calls)


@pytest.mark.usefixtures("paths_only")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(*CASE)
def test_random_programs(steps: list[tuple[str, int]], stop: int, xs: list[Tensor], order: list[int]) -> None:
    check(steps, stop, xs, order)


@pytest.mark.nightly
@pytest.mark.usefixtures("paths_only")
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(*CASE)
def test_many_random_programs(steps: list[tuple[str, int]], stop: int, xs: list[Tensor], order: list[int]) -> None:
    check(steps, stop, xs, order)
