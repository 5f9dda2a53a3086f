"""Products of one or two rows with large matrices that are cut along K, against float64 and in programs."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import smelt.codegen.contract.planning as planning
from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.planning import PartsPlan, ProductPlan, plan_parts
from smelt.codegen.contract.problem import Problem
from smelt.codegen.llvm.isa import Isa
from tests.codegen.harness import call as run
from tests.codegen.harness import executables, lowered, rms_ratio
from tests.contract.harness import DTYPES, isas, normal, rms, run_items
from tests.contract.test_kernels import assert_close


def parts_of(isa: Isa, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> PartsPlan | None:
    """The plan of out = x @ w for w [k, n] with unit stride along n."""
    (m, k), n = x.shape, w.shape[1]
    problem = Problem(m, n, k, x.stride(0), x.stride(1), 0, w.stride(0), out.stride(0), 0)
    return plan_parts(isa, DTYPES[x.dtype], "rows", problem, plain(DTYPES[x.dtype]))


def run_split(plan: ProductPlan, isa: Isa, tensors: tuple[torch.Tensor, ...], split: int) -> None:
    """Run the items in so many ranges, last first."""
    bounds = [plan.items * i // split for i in range(split + 1)]
    run_items(plan.source, isa, tensors, plan.words, plan.scratch_nbytes, list(pairwise(bounds))[::-1])


def product_in_parts(isa: Isa, x: torch.Tensor, w: torch.Tensor, out: torch.Tensor, split: int = 1) -> PartsPlan:
    """out = x @ w, its parts first, into memory full of NaN."""
    plan = parts_of(isa, x, w, out)
    assert plan is not None and plan.count > 1
    parts = torch.full((plan.count, x.shape[0], w.shape[1]), torch.nan, dtype=x.dtype)
    run_split(plan.parts, isa, (x, w, parts), split)
    run_split(plan.joined, isa, (parts, out), split)
    return plan


@pytest.mark.spread(6)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("cores", [2, 64])
def test_every_remainder(isa: Isa, dtype: torch.dtype, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole lines, lines with a gap behind, blocks of columns (also for want of terms, on many cores), both heights."""
    monkeypatch.setattr(planning, "_LEAST_PARTS_NBYTES", 0)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    for n, k in ((1, 100), (31, 97), (64, 192), (513, 201), (1030, 400), (4101, 110)):
        for m in (1, 2):
            x = normal(k, m, dtype=dtype).t()
            w = normal(k, n + 5, seed=1, dtype=dtype)
            wide = torch.full((m, n + 3), 7.0, dtype=dtype)
            for right in (w[:, :n], w[:, :n].contiguous()):
                out = wide[:, :n]
                product_in_parts(isa, x, right, out)
                assert_close(out, x, right.t())
                assert bool((wide[:, n:] == 7).all()), "columns beyond the result were written"


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
def test_error_and_splits(isa: Isa) -> None:
    """The error is eager's, and the bits do not depend on who computes which items."""
    for m, n, k in ((1, 768, 768), (2, 192, 3072)):
        x, w = normal(m, k), normal(k, n, seed=1)
        exact = x.double() @ w.double()
        one, many = torch.empty(m, n), torch.empty(m, n)
        plan = product_in_parts(isa, x, w, one)
        assert rms(one, exact) <= 1.5 * rms(x @ w, exact)
        for split in (2, 3, plan.parts.items):
            product_in_parts(isa, x, w, many, split)
            assert torch.equal(one, many)


def test_what_is_not_cut() -> None:
    isa = isas()[0]
    for m, n, k in ((1, 64, 64), (3, 768, 768), (1, 768, 0), (1, 600_000, 1)):
        assert parts_of(isa, torch.empty(m, k), torch.empty(k, n), torch.empty(m, n)) is None, (m, n, k)


CONV1D = """\
graph f(%x: f32[{rows}, 768], %r: f32[{rows}, 768]) -> f32[{rows}, 768] {{
  %w: f32[768, 768] = param("w")
  %b: f32[768] = param("b")
  %0: f32[{rows}, 768] = aten.addmm.default(%b, %x, %w)
  %1: f32[{rows}, 768] = aten.relu.default(%0)
  %2: f32[{rows}, 768] = aten.add.Tensor(%1, %r)
  return %2
}}"""


@pytest.mark.parametrize("rows", [1, 2])
def test_in_a_program(rows: int) -> None:
    """Two launches; bias, activation and residual are in that of the sum. In every rung."""
    state = {"w": normal(768, 768) / 28, "b": normal(768, seed=1)}
    x, r = normal(rows, 768, seed=2), normal(rows, 768, seed=3)
    eager = torch.addmm(state["b"], x, state["w"]).relu() + r
    exact = (state["b"] + x.double() @ state["w"].double()).relu() + r
    plan = lowered(CONV1D.format(rows=rows), state)
    for executable in executables(plan.plan):
        for _ in range(2):
            (found,) = run(plan, executable, [x, r], state)
            assert found.shape == eager.shape and rms_ratio(found, eager, exact) <= 1.5
    assert [kernel.label for kernel in plan.report.kernels] == ["product lines", "product slices"]
    assert plan.report.counts == {"state": 2, "kernel": 1, "fused": 2}
