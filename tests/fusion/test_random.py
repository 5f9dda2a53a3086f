"""Random programs through own kernels, beside eager: exact where nothing rounds otherwise, else within roundings.

SMELT_PROGRAMS=20000 runs more of them, SMELT_FIRST_PROGRAM=5000 others.
"""

from __future__ import annotations

import dataclasses
import os
import random

import pytest

from smelt.codegen.llvm.isa import host_isa
from tests.differential.generate import Generator
from tests.differential.judge import OWN, judge
from tests.differential.programs import Program
from tests.differential.shrink import shrink

COUNT = int(os.environ.get("SMELT_PROGRAMS", "64"))
FIRST = int(os.environ.get("SMELT_FIRST_PROGRAM", "0"))
BATCHES = 16

_SUMS = ("norm", "var(", "std", "sum", "mean", "avg", "prod", "softmax", "matmul", "@", "diff")

pytestmark = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


def program(number: int) -> Program:
    """A program in which nothing that jumps follows something that rounds: its results may be compared closely."""
    generator = Generator(random.Random(f"own {number}"), with_products=False, is_exact=False)
    drawn = generator.program(generator.rng.randrange(1, 9))
    text = "".join(drawn.lines)
    if ".view(torch." in text:
        # Bits of what is rounded.
        return program(number + 1_000_000)
    if any(word in text for word in _SUMS):
        # Of large numbers that cancel, or whose squares overflow, the order of adding decides.
        tame = {n: tuple(t.replace("wild", "tame") for t in getattr(drawn, n)) for n in ("inputs", "state")}
        drawn = dataclasses.replace(drawn, inputs=tame["inputs"], state=tame["state"])
    return drawn


@pytest.mark.spread(20)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(batch: int) -> None:
    each = COUNT // BATCHES
    _check(range(FIRST + batch * each, FIRST + (batch + 1) * each))


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(50))
def test_many_random_programs(batch: int) -> None:
    _check(range(200_000 + batch * 40, 200_000 + (batch + 1) * 40))


def _check(numbers: range) -> None:
    for number in numbers:
        drawn = program(number)
        difference = judge(drawn, options=OWN)
        if difference is not None and not _is_speck(difference):
            kind = _kind(difference)

            def fails(smaller: Program, kind: str = kind) -> bool:
                return _kind(judge(dataclasses.replace(smaller, is_exact=False), options=OWN) or "") == kind

            small = shrink(drawn, fails)
            pytest.fail(f"program {number}: {judge(small, options=OWN)}\n{small}\n{small.source()}")


def _is_speck(difference: str) -> bool:
    """Whether all there is are the roundings of what is zero but for them: a norm of one element, for one."""
    largest = difference.rpartition("where the largest value is ")[2]
    return "differs by" in difference and abs(float(largest)) < 1e-3


def _kind(difference: str) -> str:
    return difference.partition(" is [")[0][:60]
