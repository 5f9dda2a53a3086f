"""Random programs through own kernels, within what roundings of eager's own operators would change, value by value.

Unlike `tests/fusion/test_random.py` nothing is left out for being delicate: comparisons, remainders and floors of what
was rounded are drawn too, and large neighbours excuse nothing. SMELT_PROGRAMS=20000 runs more of them,
SMELT_FIRST_PROGRAM=5000 others.
"""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import smelt
from smelt.codegen.llvm.isa import host_isa
from tests.differential.compare import Outcome, observe
from tests.differential.envelope import Envelope
from tests.differential.generate import Generator
from tests.differential.judge import OWN
from tests.differential.programs import Program, Subject, make_inputs, make_subject
from tests.differential.shrink import shrink

COUNT = int(os.environ.get("SMELT_PROGRAMS", "96"))
FIRST = int(os.environ.get("SMELT_FIRST_PROGRAM", "0"))
BATCHES = 8

# Where squares overflow, which of NaN, 0 and 1 comes out depends on the order of eager's own sums.
_SQUARES = ("norm", "var", "std", "mean", "sum", "avg", "prod", "softmax", "diff", "interpolate")

pytestmark = [
    pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine"),
    pytest.mark.filterwarnings("ignore"),
]


def program(number: int) -> Program:
    """The program of a number."""
    generator = Generator(random.Random(f"graph {number}"), with_products=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        drawn = generator.program(generator.rng.choice((1, 2, 3, 4, 6, 9)))
    if any(word in "".join(drawn.lines) for word in _SQUARES):
        tame = {n: tuple(t.replace("wild", "tame") for t in getattr(drawn, n)) for n in ("inputs", "state")}
        drawn = replace(drawn, inputs=tame["inputs"], state=tame["state"])
    return drawn


def _envelope(drawn: Program, seed: int) -> Envelope:
    def run() -> Outcome:
        subject = make_subject(drawn)
        return observe(subject.fn, make_inputs(drawn, seed), subject.state)

    return Envelope(run)


def _restored(subject: Subject, drawn: Program) -> bool:
    """Whether a traced program's state has its first values again: not where tracing changed its sizes."""
    fresh = make_subject(drawn)
    for held, first in zip(subject.state, fresh.state, strict=True):
        if (held.shape, held.stride(), held.dtype) != (first.shape, first.stride(), first.dtype):
            return False
        held.data.copy_(first.data)
    return True


def judge(drawn: Program) -> str | None:
    """What differs from eager beyond roundings, or None."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        envelope = _envelope(drawn, 0)
        subject = make_subject(drawn)
        torch.manual_seed(0)
        try:
            graph = smelt.trace(subject.fn, tuple(make_inputs(drawn, 0)), options=OWN, check=False)
        except smelt.CaptureError as error:
            return None if envelope.expected.error or error.code in ("S0101", "S0102") else f"cannot be traced: {error}"
        except smelt.SmeltError as error:
            return f"cannot be traced: {error}"
        except Exception as error:
            return None if type(error) is envelope.expected.error else f"raised {error!r}"
        for call in range(2):
            if call:
                envelope = _envelope(drawn, call)
            if envelope.is_unstable or not _restored(subject, drawn):
                return None
            text = envelope.difference(observe(graph, make_inputs(drawn, call), subject.state))
            if text is not None:
                return f"call {call}: {text}"
    return None


def check(numbers: range) -> None:
    for number in numbers:
        drawn = program(number)
        difference = judge(drawn)
        if difference is not None:
            small = shrink(drawn, _fails_like(difference))
            pytest.fail(f"program {number}: {judge(small)}\n{small}\n{small.source()}")


def _fails_like(difference: str) -> Callable[[Program], bool]:
    return lambda smaller: (judge(smaller) or "").partition(" at [")[0] == difference.partition(" at [")[0]


@pytest.mark.spread(6)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs(batch: int) -> None:
    each = COUNT // BATCHES
    check(range(FIRST + batch * each, FIRST + (batch + 1) * each))


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(100))
def test_many_random_graphs(batch: int) -> None:
    check(range(100_000 + batch * 200, 100_000 + (batch + 1) * 200))
