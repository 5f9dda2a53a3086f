"""Random functions mean the same, converted; and what an arm rebinds is all in its names."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smelt.capture.convert import PLAIN, Runtime
from tests.convert.programs import INPUTS, load
from tests.convert.random_programs import random_program
from tests.convert.running import Lowering, Scrambling, as_converted, assert_equal, run


def _check(seed: int, runtime: Runtime, *, pure: bool = False) -> None:
    source = random_program(seed, pure=pure)
    name = f"random {seed}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        plain_module, module = load(name, source), load(name, source)
    for args in INPUTS:
        plain = run(plain_module["f"], args, f"<program {name}>")
        with as_converted(module["f"], runtime):
            converted = run(module["f"], args, f"<program {name}>")
        assert_equal(plain, converted, f"{args}\n{source}")


@given(seed=st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_random_programs(seed: int) -> None:
    _check(seed, PLAIN)


@given(seed=st.integers(0, 10**9))
@settings(max_examples=30, deadline=None)
def test_random_programs_whose_other_arms_run_for_nothing(seed: int) -> None:
    _check(seed, Scrambling(), pure=True)


def test_a_load_that_fails_is_told_by_its_own_line_however_often_the_code_ran() -> None:
    source = "def f(a, b):\n    for _ in range(a):\n        b = 1\n    else:\n        z = 1\n    x, y = y, z\n"
    plain_module, module = load("warm", source), load("warm", source)
    for _ in range(3):
        plain = run(plain_module["f"], (9, 1), "<program warm>")
        with as_converted(module["f"], PLAIN):
            assert_equal(plain, run(module["f"], (9, 1), "<program warm>"), source)
        assert plain.lines == [("f", 6)]


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int) -> None:
    for seed in range(part * 500, part * 500 + 500):
        _check(seed, PLAIN)
        _check(seed, Lowering())
        _check(seed, Scrambling(), pure=True)
