"""Random graphs with regions: the plan, natively and in Python, gives the evaluator's answer."""

from __future__ import annotations

import os

import pytest

from smelt.ir import parse, verify
from tests.control.generate import Generator, inputs
from tests.control.harness import LIBRARY, OWN, compare

COUNT = int(os.environ.get("SMELT_RANDOM_REGIONS", "100"))


@pytest.mark.spread(10)
@pytest.mark.parametrize("seed", range(0, COUNT, 10))
def test_random_graphs(seed: int) -> None:
    for number in range(seed, min(seed + 10, COUNT)):
        text = Generator(number).text()
        verify(parse(text))
        options = (OWN,) if number % 4 else (OWN, LIBRARY)
        try:
            compare(text, inputs(number), inputs(number + 1), inputs(number + 2), options=options)
        except Exception as error:
            raise AssertionError(f"seed {number}:\n{text}") from error
