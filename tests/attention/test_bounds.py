"""Kernels read nothing outside their operands: each ends where memory that may not be touched begins."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.llvm.isa import Isa
from tests.attention.harness import Case, isas
from tests.kernels.edge import before_the_edge, status_of_child

ISAS = isas()


@pytest.mark.spread(9)
@pytest.mark.parametrize("isa", ISAS, ids=[isa.name for isa in ISAS])
@pytest.mark.parametrize(
    "sizes", [(1, 2, 9, 37, 16), (1, 1, 3, 37, 32), (2, 1, 1, 19, 64), (1, 1, 17, 5, 21), (1, 1, 1, 300, 7)], ids=str
)
def test_nothing_outside_is_touched(sizes: tuple[int, int, int, int, int], isa: Isa) -> None:
    b, h, s, t, d = sizes
    q, k, v = (before_the_edge(torch.randn(b, h, n, d)) for n in (s, t, t))
    mask = before_the_edge(torch.randn(1, 1, s, t))
    out = before_the_edge(torch.empty(b, h, s, d))
    runs = [Case(q, k, v, isa=isa), Case(q, k, v, mask, isa=isa), Case(q, k, v, mask > 0, isa=isa)]
    for case in runs:
        # Built before the child process begins, which only runs it.
        case.load()

    def all_run() -> None:
        for case in runs:
            assert case.run(out) is not None

    assert status_of_child(all_run) == 0
