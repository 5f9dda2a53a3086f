"""Which kernel computes a product over few bits, with which words."""

from __future__ import annotations

from smelt.codegen.contract.epilogue import Bound
from smelt.codegen.contract.gemm import Gemm
from smelt.codegen.contract.narrow.int4 import HEIGHTS, Int4, int4_gemm_source, int4_source
from smelt.codegen.contract.narrow.int4_forms import COLUMNS, Int4Form
from smelt.codegen.contract.narrow.int8 import BLOCK_TERMS, Int8, int8_source
from smelt.codegen.contract.narrow.int8_forms import Int8Form, padded
from smelt.codegen.contract.planning import BYTES_PER_NS, FLOPS_PER_NS, ProductPlan, block_rows, gemm_cut, lines_asked
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import BLOCK, Tiling, tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.ir import DType
from smelt.ir.sizes import is_symbolic, late

# Multiply-adds of bytes in the time of one of floats.
_BYTE_WORK = 1.8


def plan_int8(isa: Isa, form: Int8Form, m: int, row: int, bound: Bound) -> ProductPlan:
    """The plan of a product of m rows of bytes, `row` elements apart, with a weight in that form."""
    tiling, n, terms = form.tiling, form.n, padded(form.k)
    rows, items, item_ns = _int8_cut(tiling, m, n, terms)
    kernel = Int8(tiling, bound.epilogue, lines_asked(tiling, rows if type(rows) is int else m))
    panel = form.panel_nbytes // tiling.element_nbytes
    problem = Problem(m, n, terms, row, 1, panel, form.columns, n, rows, block_terms=BLOCK_TERMS)
    words = (*problem.words(), *bound.words)
    return ProductPlan(int8_source(kernel, isa), words, items, item_ns, kernel.gemm.scratch_nbytes, "int8")


@late
def _int8_cut(tiling: Tiling, m: int, n: int, k: int) -> tuple[int, int, float]:
    """(rows of an item, items, the cost of one)."""
    panels = -(-n // tiling.panel)
    rows = block_rows(tiling, m, k, panels)
    work = 2.0 * min(rows, m) * tiling.panel * k / _BYTE_WORK / FLOPS_PER_NS
    return rows, panels * -(-m // rows), max(work, tiling.panel * k / BYTES_PER_NS)


def plan_int4(isa: Isa, form: Int4Form, m: int, row: int, bound: Bound) -> ProductPlan:
    """The plan of a product of m rows of floats, `row` elements apart, with a weight in that form.

    Raises: ValueError if the instruction set has no product of floats.
    """
    tiling, n, k = tiling_for(isa, DType.F32), form.n, form.k
    if tiling is None:
        raise ValueError(f"no product of floats for {isa.name}")
    if not is_symbolic(m) and m <= max(HEIGHTS):
        few = Int4(tiling, next(h for h in HEIGHTS if h >= m), form.group, bound.epilogue)
        problem = Problem(m, n, k, row, 1, form.panel_nbytes // 4, 0, n, 0)
        item_ns = form.panel_nbytes / BYTES_PER_NS
        words = (*problem.words(), *bound.words)
        return ProductPlan(int4_source(few, isa), words, form.panels, item_ns, few.scratch_nbytes(k), "int4")
    rows, _, items, item_ns = gemm_cut(tiling, m, n, k, 1)
    gemm = Gemm(tiling, "columns", bound.epilogue, unit=True)
    panel = tiling.panel // COLUMNS * form.panel_nbytes // 4
    terms = BLOCK // form.group * form.group
    problem = Problem(m, n, k, row, 1, panel, form.panel_nbytes, n, rows, block_terms=terms)
    source = int4_gemm_source(gemm, form.group, isa)
    return ProductPlan(source, (*problem.words(), *bound.words), items, item_ns, gemm.scratch_nbytes, "int4")
