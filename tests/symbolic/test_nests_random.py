"""Random graphs over symbols as kernels that are made once, run at six tuples of sizes each beside eager and float64.

SMELT_NEST_GRAPHS=500 runs more of them, SMELT_FIRST_NEST_GRAPH=5000 others.
"""

from __future__ import annotations

import os
import random

import pytest

from smelt.codegen.llvm.isa import host_isa
from tests.symbolic.nest_harness import Sizes, check, lower
from tests.symbolic.nest_programs import random_program

COUNT = int(os.environ.get("SMELT_NEST_GRAPHS", "40"))
FIRST = int(os.environ.get("SMELT_FIRST_NEST_GRAPH", "0"))
NIGHTLY = 2000
BATCHES = 10

# Fewer than lanes, as many, one more, several vectors at once.
_SIZES = (2, 3, 4, 7, 15, 16, 17, 31, 33, 40)

pytestmark = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


def _run(number: int) -> None:
    rng = random.Random(f"sizes {number}")

    def draw() -> Sizes:
        return {name: rng.choice(_SIZES) for name in "BST"}

    make, hints = random_program(number), draw()
    made = lower(make, hints)
    others = [sizes for sizes in (draw() for _ in range(12)) if made.holds(sizes)][:5]
    assert others or made.trace.guards, "every size is within no guards"
    check(make, hints, others, fused=False)


@pytest.mark.spread(8)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_graphs(batch: int) -> None:
    each = COUNT // BATCHES
    for number in range(FIRST + batch * each, FIRST + (batch + 1) * each):
        _run(number)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", range(NIGHTLY // 50))
def test_many_random_graphs(batch: int) -> None:
    for number in range(10_000 + batch * 50, 10_000 + (batch + 1) * 50):
        _run(number)


def test_most_of_what_is_drawn_is_in_kernels() -> None:
    """The graphs test kernels, not torch."""
    inside = outside = 0
    for number in range(COUNT):
        made = lower(random_program(number), {"B": 4, "S": 16, "T": 33})
        covered = {node for one in made.emitted for node in one.group.nodes}
        inside += len(covered)
        outside += sum(node not in covered for node in made.graph.body)
    assert inside > 2 * outside
