"""Products read and write nothing outside their operands: each ends where memory that may not be touched begins."""

from __future__ import annotations

import pytest
import torch

from smelt.codegen.contract.epilogue import bound
from smelt.codegen.contract.gemm import Right
from smelt.codegen.kernels.nest import ACC, Index, Load, Op, Ref
from smelt.codegen.llvm.isa import Isa
from smelt.ir import DType
from tests.contract.harness import isas, normal, product
from tests.kernels.edge import before_the_edge, status_of_child

BIAS = bound(Op("add", (Ref(ACC, DType.F32), Load(0, Index(0, (0, 1)), DType.F32)), DType.F32), DType.F32, [DType.F32])


@pytest.mark.spread(12)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", ["packed", "rows", "columns"])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 9, 13])
def test_nothing_outside_is_touched(isa: Isa, right: Right, m: int) -> None:
    for n, k in ((33, 37), (70, 5), (1, 193)):
        x, bias = before_the_edge(normal(m, k)), before_the_edge(normal(n))
        w = before_the_edge(normal(k, n)).mT if right == "rows" else before_the_edge(normal(n, k))
        out = before_the_edge(torch.empty(m, n))
        # Built before the child process begins, which only runs it.
        product(isa, right, normal(m, k), w.clone(), torch.empty(m, n), bound=BIAS, operands=[bias.clone()])

        def run(x: torch.Tensor = x, w: torch.Tensor = w, out: torch.Tensor = out, bias: torch.Tensor = bias) -> None:
            product(isa, right, x, w, out, bound=BIAS, operands=[bias])

        assert status_of_child(run) == 0
