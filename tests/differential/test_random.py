"""Random programs give eager's answers, errors, effects and aliases, traced and compiled.

SMELT_PROGRAMS=20000 runs more of them, SMELT_FIRST_PROGRAM=5000 others. A failure prints a small program, to be kept in
`test_found.py`.
"""

from __future__ import annotations

import os

import pytest

from tests.differential.generate import generate
from tests.differential.judge import judge
from tests.differential.programs import Program
from tests.differential.shrink import shrink

COUNT = int(os.environ.get("SMELT_PROGRAMS", "128"))
FIRST = int(os.environ.get("SMELT_FIRST_PROGRAM", "0"))
BATCHES = 16


def check(numbers: range) -> None:
    for number in numbers:
        program = generate(number)
        difference = judge(program)
        if difference is not None:
            kind = _kind(difference)

            def fails(smaller: Program, kind: str = kind) -> bool:
                return _kind(judge(smaller) or "") == kind

            small = shrink(program, fails)
            pytest.fail(f"program {number}: {judge(small)}\n{small}\n{small.source()}")


def _kind(difference: str) -> str:
    return difference.partition(" is [")[0][:60]


@pytest.mark.spread(14)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    each = COUNT // BATCHES
    check(range(FIRST + batch * each, FIRST + (batch + 1) * each))


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(100))
def test_many_random_programs(batch: int) -> None:
    check(range(100_000 + batch * 200, 100_000 + (batch + 1) * 200))
