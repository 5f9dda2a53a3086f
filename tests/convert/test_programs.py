"""Each construct means the same, converted: results, exceptions and their lines, output, what is left in arguments."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import groupby

import pytest

from smelt.capture.convert import PLAIN
from tests.convert.programs import function_of, load, programs
from tests.convert.running import Lowering, Outcome, as_converted, assert_equal, run

# Where a loop of the runtime makes all items first, a consumer that fails in the middle comes later, and what cannot be
# iterated is found by the loop.
_PLAIN_ONLY = ("consumer fails in the middle", "comprehension over what cannot")
# CPython 3.13 asks the truth of one object in a nested chain twice in a row, where the language has it asked once.
_ASKED_AGAIN = ("bool in a nested chain",) if sys.version_info >= (3, 13) else ()


@pytest.mark.spread(14)
@pytest.mark.parametrize("name", programs())
def test_converted_means_the_same(name: str) -> None:
    source, inputs = programs()[name]
    file = f"<program {name}>"
    for args in inputs:
        plain = run(load(name, source)["f"], args, file)
        for runtime in (PLAIN, Lowering()):
            if runtime is not PLAIN and name in _PLAIN_ONLY:
                continue
            module = load(name, source)
            with as_converted(function_of(module), runtime):
                converted = run(module["f"], args, file)
            if name in _ASKED_AGAIN:
                plain, converted = _once(plain), _once(converted)
            assert_equal(plain, converted, f"{name}{args}")


def _once(outcome: Outcome) -> Outcome:
    return replace(outcome, printed="".join(line for line, _ in groupby(outcome.printed.splitlines(keepends=True))))


def test_there_are_enough() -> None:
    assert len(programs()) >= 150
