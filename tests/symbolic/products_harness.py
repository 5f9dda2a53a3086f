"""Plans of products and attentions made once, with symbols for sizes, and run at sizes of a test's choice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from smelt.codegen.contract.epilogue import Bound, plain
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.packing import Packing
from smelt.codegen.contract.planning import ProductPlan, plan_product
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import Tiling, tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.products.packed_weight import packed_by_torch
from smelt.ir.sizes import Evaluation, Range, Trace, is_symbolic, tracing
from tests.contract.harness import DTYPES, lying, normal, run_items

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Made:
    """What was made under a trace."""

    trace: Trace
    of: Any

    def at(self, **sizes: int) -> Any:
        """The same with numbers for sizes; all guards hold there."""
        evaluation = Evaluation(self.trace, sizes)
        assert all(evaluation.holds(guard) for guard in self.trace.guards)
        found = evaluation(self.of)
        assert not is_symbolic(found)
        return found

    @property
    def guards(self) -> list[str]:
        """The guards in words."""
        return [str(guard) for guard in self.trace.guards]


def made(make: Callable[[dict[str, Any]], Any], **symbols: tuple[int, Range]) -> Made:
    """`make` of the symbols, each given by its value at hand and its range."""
    with tracing(symbols) as trace:
        found = make(trace.symbols)
    assert not trace.leaks
    return Made(trace, found)


def again(first: Made, make: Callable[[dict[str, Any]], Any], **symbols: tuple[int, Range]) -> Made:
    """The same made at other sizes, with the decisions of the first time."""
    with tracing(symbols, first.trace.decisions) as trace:
        return Made(trace, make(trace.symbols))


def tiling_of(isa: Isa, dtype: torch.dtype) -> Tiling:
    """The tiling of a dtype that the instruction set has products of."""
    found = tiling_for(isa, DTYPES[dtype])
    assert found is not None
    return found


@dataclass(frozen=True)
class Layout:
    """How a product's operands lie: x row-major (or transposed), the weight as `right` says, the result row-major."""

    right: Right
    dtype: torch.dtype = torch.float32
    is_transposed: bool = False

    def plan(self, isa: Isa, m: int, n: int, k: int, bound: Bound | None = None) -> ProductPlan:
        """The plan of x[m, k] @ w[n, k]^T, sizes symbolic or not."""
        row, along_k = (1, m) if self.is_transposed else (k, 1)
        panel = 0
        if self.right == "packed":
            tiling = tiling_of(isa, self.dtype)
            panel, step = Packing(tiling, n, k).panel_nelements, tiling.panel * tiling.group
        else:
            step = n if self.right == "rows" else k
        problem = Problem(m, n, k, row, along_k, panel, step, n, 0)
        return plan_product(isa, DTYPES[self.dtype], self.right, problem, 1, bound or plain(DTYPES[self.dtype]))

    def operands(self, isa: Isa, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(x [m, k], w [n, k], the weight as the kernel gets it)."""
        x, w = normal(m, k, dtype=self.dtype), lying(normal(n, k, seed=1, dtype=self.dtype), self.right)
        if self.is_transposed:
            x = x.t().contiguous().t()
        if self.right != "packed":
            return x, w, w
        return x, w, packed_by_torch(w, Packing(tiling_of(isa, self.dtype), n, k))


def run(isa: Isa, plan: ProductPlan, *buffers: torch.Tensor, parts: int = 1) -> torch.Tensor:
    """The plan's items in `parts` ranges; the last buffer is the result, with NaN before."""
    buffers[-1].fill_(torch.nan)
    bounds = [plan.items * i // parts for i in range(parts + 1)]
    run_items(plan.source, isa, buffers, plan.words, plan.scratch_nbytes, list(pairwise(bounds)))
    return buffers[-1]
