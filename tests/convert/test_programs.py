"""Each construct means the same, converted: results, exceptions and their lines, output, what is left in arguments."""

from __future__ import annotations

import pytest

from smelt.capture.convert import PLAIN
from tests.convert.programs import function_of, load, programs
from tests.convert.running import Lowering, as_converted, assert_equal, run

# Where a loop of the runtime makes all items first, a consumer that fails in the middle comes later, and what cannot be
# iterated is found by the loop.
_PLAIN_ONLY = ("consumer fails in the middle", "comprehension over what cannot")


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
            assert_equal(plain, converted, f"{name}{args}")


def test_there_are_enough() -> None:
    assert len(programs()) >= 150
