"""Products planned once for sizes known at run time only: at every size right, and as the plan made for that size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from smelt.codegen.contract.epilogue import plain
from smelt.codegen.contract.gemm import Right
from smelt.codegen.contract.packing import Packing
from smelt.codegen.contract.planning import (
    Both,
    ProductPlan,
    heights_of_both,
    is_few,
    is_worthwhile,
    plan_both,
    plan_product,
    takes_dots,
)
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.lower.products.packed_weight import packed_by_torch
from smelt.ir.sizes import Range
from tests.contract.harness import DTYPES, isas, normal, rms
from tests.contract.test_kernels import assert_close
from tests.symbolic.products_harness import Layout, again, made, run, tiling_of

RIGHTS: tuple[Right, ...] = ("packed", "rows", "columns")
ROWS = (1, 2, 3, 8, 9, 15, 16, 17, 40, 128, 129, 300)
"""On both sides of each threshold: heights of dot products and lines, terms of a chain, rows of a block."""


@pytest.mark.spread(10)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize(("dtype", "hint"), [*((dtype, 200) for dtype in DTYPES), (torch.float32, 3)], ids=str)
def test_one_plan_serves_all_rows(isa: Isa, dtype: torch.dtype, right: Right, hint: int) -> None:
    if tiling_for(isa, DTYPES[dtype]) is None:
        assert dtype is torch.bfloat16
        return
    layout, (n, k) = Layout(right, dtype), (100, 65)
    found = made(lambda s: layout.plan(isa, s["M"], n, k), M=(hint, Range(1)))
    assert found.guards == []
    for m in ROWS:
        x, w, weight = layout.operands(isa, m, n, k)
        out = run(isa, found.at(M=m), x, weight, torch.empty(m, n, dtype=dtype), parts=3)
        assert_close(out, x, w)


def assert_same_but_for_tiles(plan: ProductPlan, alone: ProductPlan) -> None:
    """A plan for sizes to come against one for these alone, whose kernel lacks tiles that these do not use."""
    assert replace(plan, source=alone.source) == alone


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
def test_the_words_are_those_of_a_plan_for_these_rows(isa: Isa, right: Right) -> None:
    layout = Layout(right)
    found = made(lambda s: layout.plan(isa, s["M"], 768, 256), M=(64, Range(1)))
    for m in (9, 15, 16, 64, 129, 1000, 5000):
        assert_same_but_for_tiles(found.at(M=m), layout.plan(isa, m, 768, 256))
    assert len({found.at(M=m).source for m in (9, 64, 5000)}) == 1


@pytest.mark.spread(2)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", RIGHTS)
@pytest.mark.parametrize("m", [1, 2, 4, 12, 40])
def test_error_is_within_that_of_eager(isa: Isa, right: Right, m: int) -> None:
    layout = Layout(right)
    found = made(lambda s: layout.plan(isa, s["M"], 96, s["K"]), M=(64, Range(1)), K=(64, Range(1)))
    for k in (768, 3072):
        x, w, weight = layout.operands(isa, m, 96, k)
        out = run(isa, found.at(M=m, K=k), x, weight, torch.empty(m, 96))
        exact = x.double() @ w.double().t()
        assert rms(out, exact) <= 1.5 * rms(x @ w.t(), exact)


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_all_sizes_may_be_symbols(isa: Isa, dtype: torch.dtype, right: Right, is_transposed: bool) -> None:
    layout = Layout(right, dtype, is_transposed)
    found = made(
        lambda s: layout.plan(isa, s["M"], s["N"], s["K"]), M=(30, Range(1)), N=(20, Range(1)), K=(50, Range(1))
    )
    assert found.guards == []
    for m, n, k in ((1, 1, 1), (1, 300, 70), (9, 1, 400), (2, 33, 1), (17, 48, 192), (130, 49, 193), (64, 1000, 3)):
        x, w, weight = layout.operands(isa, m, n, k)
        out = run(isa, found.at(M=m, N=n, K=k), x, weight, torch.empty(m, n, dtype=dtype), parts=2)
        assert_close(out, x, w)


@pytest.mark.spread(6)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("right", ["rows", "columns"])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_known_few_rows_with_other_sizes_symbolic(isa: Isa, right: Right, m: int) -> None:
    """A decoding step's scores and its values: one row, as many columns or terms as the cache is long."""
    layout = Layout(right)
    found = made(lambda s: layout.plan(isa, m, s["N"], s["K"]), N=(20, Range(1)), K=(50, Range(1)))
    assert found.guards == []
    for n, k in ((1, 1), (64, 7), (64, 5000), (5000, 64), (1025, 200), (400, 800)):
        x, w, weight = layout.operands(isa, m, n, k)
        plan = found.at(N=n, K=k)
        assert_same_but_for_tiles(plan, layout.plan(isa, m, n, k))
        assert plan.source == found.of.source
        out = run(isa, plan, x, weight, torch.empty(m, n))
        assert_close(out, x, w)


def test_batches_may_be_symbols() -> None:
    isa = isas()[0]

    def plan(b: int, h: int, m: int, n: int, k: int) -> Any:
        problem = Problem(m, n, k, k, 1, 0, n, n, 0, h, h * m * k, m * k, h * k * n, k * n, h * m * n, m * n)
        return plan_product(isa, DTYPES[torch.float32], "rows", problem, b * h, plain(DTYPES[torch.float32]))

    found = made(lambda s: plan(s["B"], s["H"], s["S"], s["S"], 24), B=(2, Range(1)), H=(3, Range(1)), S=(20, Range(1)))
    assert found.guards == []
    for b, h, s in ((1, 1, 1), (1, 5, 33), (4, 1, 8), (3, 2, 129), (2, 12, 2)):
        x, w = normal(b, h, s, 24), normal(b, h, 24, s, seed=1)
        out = run(isa, found.at(B=b, H=h, S=s), x, w, torch.empty(b, h, s, s), parts=4)
        assert_close(out, x, w.mT)


# --- few rows or many


FEW, MANY = (1, 2, 4, 8), (4, 8)
"""Heights where few rows are expected, and where many are."""


def plan_of_both(isa: Isa, dtype: torch.dtype, heights: tuple[int, ...], m: int, n: int, k: int) -> Any:
    tiling = tiling_of(isa, dtype)
    both = Both(heights, Packing(tiling, n, k).panel_nelements, tiling.panel * tiling.group)
    problem = Problem(m, n, k, k, 1, 0, k, n, 0)
    return plan_both(isa, DTYPES[dtype], problem, both, plain(DTYPES[dtype]))


@pytest.mark.spread(10)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heights", [FEW, MANY], ids=str)
def test_few_rows_or_many_give_the_bits_of_their_own_kernels(
    isa: Isa, dtype: torch.dtype, heights: tuple[int, ...]
) -> None:
    if tiling_for(isa, DTYPES[dtype]) is None:
        assert dtype is torch.bfloat16
        return
    n, k = 300, 200
    found = made(lambda s: plan_of_both(isa, dtype, heights, s["M"], n, k), M=(4, Range(1)))
    assert found.guards == []
    for m in (*range(1, 12), 16, 17, 129):
        own = Layout("columns" if m <= 8 else "packed", dtype)
        x, w, weight = own.operands(isa, m, n, k)
        panels = packed_by_torch(w, Packing(tiling_of(isa, dtype), n, k))
        out = run(isa, found.at(M=m), x, w, panels, torch.empty(m, n, dtype=dtype), parts=3)
        assert_close(out, x, w)
        alone = run(isa, own.plan(isa, m, n, k), x, weight, torch.empty(m, n, dtype=dtype))
        # One or two rows are summed as four are where few are not expected.
        assert torch.equal(out, alone) or m < min(3, heights[0])


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("heights", [FEW, MANY], ids=str)
def test_the_error_of_few_rows_or_many_is_within_eagers(isa: Isa, heights: tuple[int, ...]) -> None:
    found = made(
        lambda s: plan_of_both(isa, torch.float32, heights, s["M"], 96, s["K"]), M=(4, Range(1)), K=(9, Range(1))
    )
    for m in (1, 2, 7, 40):
        for k in (768, 3072):
            x, w, _ = Layout("columns").operands(isa, m, 96, k)
            panels = packed_by_torch(w, Packing(tiling_of(isa, torch.float32), 96, k))
            out = run(isa, found.at(M=m, K=k), x, w, panels, torch.empty(m, 96))
            exact = x.double() @ w.double().t()
            assert rms(out, exact) <= 1.5 * rms(x @ w.t(), exact)


@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
def test_the_words_for_few_rows_or_many_are_those_of_their_own_kernels(isa: Isa) -> None:
    found = made(lambda s: plan_of_both(isa, torch.float32, MANY, s["M"], 768, 256), M=(4, Range(1)))
    for m in (1, 8, 9, 100, 5000):
        plan = found.at(M=m)
        own = Layout("columns" if m <= 8 else "packed").plan(isa, m, 768, 256)
        assert (plan.words, plan.items, plan.item_ns) == (own.words, own.items, own.item_ns)


@pytest.mark.spread(3)
@pytest.mark.parametrize("isa", isas(), ids=lambda isa: isa.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_are_always_few_give_the_bits_of_each_height(isa: Isa, dtype: torch.dtype) -> None:
    if tiling_for(isa, DTYPES[dtype]) is None:
        assert dtype is torch.bfloat16
        return
    layout, n, k = Layout("columns", dtype), 65, 130
    found = made(lambda s: layout.plan(isa, s["M"], n, k), M=(2, Range(1, 8)))
    assert found.guards == [] and found.of.kind == "dots"
    for m in range(1, 9):
        x, w, weight = layout.operands(isa, m, n, k)
        out, alone = (torch.empty(m, n, dtype=dtype) for _ in range(2))
        run(isa, found.at(M=m), x, weight, out, parts=2)
        run(isa, layout.plan(isa, m, n, k), x, weight, alone)
        assert torch.equal(out, alone)
        assert_close(out, x, w)


def test_an_epilogue_is_done_by_each_part() -> None:
    from smelt.codegen.contract.epilogue import bound
    from smelt.codegen.kernels.nest import ACC, Index, Load, Op, Ref
    from smelt.ir import DType

    isa, (n, k) = isas()[0], (50, 40)
    tiling = tiling_of(isa, torch.float32)
    both = Both(MANY, Packing(tiling, n, k).panel_nelements, tiling.panel)
    # gelu's erf is a helper function of the text, which the parts share; the residual's rows lie M apart.
    inner = Op("erf", (Op("add", (Ref(ACC, DType.F32), Load(0, Index(0, (0, 1)), DType.F32)), DType.F32),), DType.F32)

    def plan(s: dict[str, Any]) -> Any:
        residual = Load(1, Index(s["M"], (s["R"], 1)), DType.F32)
        made_bound = bound(Op("add", (inner, residual), DType.F32), DType.F32, [DType.F32, DType.F32])
        assert made_bound is not None
        problem = Problem(s["M"], n, k, k, 1, 0, k, n, 0)
        return plan_both(isa, DType.F32, problem, both, made_bound)

    found = made(plan, M=(4, Range(1)), R=(64, Range(50)))
    assert found.guards == []
    for m, r in ((1, 50), (3, 64), (8, 51), (9, 70), (40, 50)):
        x, w, b = normal(m, k), normal(n, k, seed=1), normal(n, seed=2)
        room = normal(m + m * r + n, seed=3)
        panels = packed_by_torch(w, Packing(tiling, n, k))
        out = run(isa, found.at(M=m, R=r), x, w, panels, b, room, torch.empty(m, n))
        exact = torch.erf(x.double() @ w.double().t() + b) + room[m : m + m * r].view(m, r)[:, :n].double()
        assert float((out - exact).abs().max()) < 1e-5


def test_a_stride_that_is_a_symbol_along_columns_is_no_epilogue() -> None:
    from smelt.codegen.contract.epilogue import bound
    from smelt.codegen.kernels.nest import ACC, Const, Index, Load, Op, Ref
    from smelt.ir import DType

    def bounds(s: dict[str, Any]) -> Any:
        acc = Ref(ACC, DType.F32)
        strided = Op("add", (acc, Load(0, Index(0, (1, s["S"])), DType.F32)), DType.F32)
        scaled = Op("mul", (acc, Const(s["S"], DType.F32)), DType.F32)
        return [bound(e, DType.F32, [DType.F32]) for e in (strided, scaled)]

    # A step that is 1 now, and another one later.
    found = made(bounds, S=(1, Range(1)))
    assert found.guards == [] and found.of == [None, None]


# --- what is decided


def test_thresholds_are_crossed_without_guards() -> None:
    def decided(s: dict[str, Any]) -> Any:
        m = s["M"]
        return [
            is_few(m), takes_dots(m, "columns"), heights_of_both(m), is_worthwhile(m, 5, 5), is_worthwhile(m, 1, 64)
        ]  # fmt: skip

    few = made(decided, M=(4, Range(2)))
    many = made(decided, M=(5000, Range(2)))
    assert few.guards == many.guards == []
    assert few.of == [False, False, FEW, True, True]
    assert many.of == [False, False, MANY, False, False]
    # Lowered once more at other sizes, with the first decisions.
    assert again(few, decided, M=(5000, Range(2))).of == few.of
    assert again(many, decided, M=(4, Range(2))).of == many.of
    assert made(decided, M=(4, Range(2, 8))).of[:3] == [True, True, ()]
    assert made(decided, M=(12, Range(9))).of[:3] == [False, False, ()]
    assert [is_few(m) for m in (1, 8, 9)] == [True, True, False]
    assert [heights_of_both(m) for m in (1, 8, 9)] == [(), (), ()]


def test_a_plan_made_again_elsewhere_is_the_same() -> None:
    isa = isas()[0]
    for layout in (Layout("packed"), Layout("rows"), Layout("columns")):

        def plan(s: dict[str, Any], layout: Layout = layout) -> Any:
            return layout.plan(isa, s["M"], 96, s["K"])

        first = made(plan, M=(4, Range(2)), K=(64, Range(2)))
        other = again(first, plan, M=(500, Range(2)), K=(3, Range(2)))
        assert other.of.source == first.of.source and other.of.scratch_nbytes == first.of.scratch_nbytes
        assert replace(first.at(M=500, K=3)) == other.at(M=500, K=3)
        assert first.at(M=500, K=3).words == layout.plan(isa, 500, 96, 3).words
