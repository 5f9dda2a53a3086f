"""Which kernel computes a product, with which words: chosen by sizes and layout alone."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from smelt.codegen.contract.dots import HEIGHTS, Dots, dots_source
from smelt.codegen.contract.epilogue import Bound
from smelt.codegen.contract.gemm import MAX_ROWS, Gemm, Right, gemm_source
from smelt.codegen.contract.lines import HEIGHTS as LINE_HEIGHTS
from smelt.codegen.contract.lines import MAX_COLUMNS, Lines, lines_source
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tiling import BLOCK, Tiling, tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.ir import DType

# Estimates of one core, for the grain of threads: what a tile computes and memory delivers, and a chunk worth claiming.
_FLOPS_PER_NS, _BYTES_PER_NS, _CHUNK_NS = 100.0, 20.0, 10_000.0
_CHUNKS = 16
# A matrix of so many bytes may still be in a core's own cache from its last use.
_NEAR_NBYTES = 512 * 1024
# Columns of an item of dot products.
_DOT_COLUMNS = 32
# With fewer rows eager's library sums shorter chains: 96 have 1.35 times its error at K = 768, 192 have 1.8 times.
_MANY_ROWS, _FEW_ROWS_BLOCK = 16, 96
# With fewer terms than this a result is mostly stored, which the library does with less ado unless it is small.
_LEAST_TERMS, _SMALL = 8, 4096
# A matrix read line by line is shared by the cores in long pieces of lines, of so many columns at least.
_LEAST_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """A launch of a product: buffers are left, right, the epilogue's, out."""

    source: KernelSource
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int
    kind: str


def is_worthwhile(m: int, n: int, k: int) -> bool:
    """Whether own kernels suit the sizes: not a matrix times a vector of activations, not hardly anything to sum."""
    return (n > 1 or m <= max(HEIGHTS)) and (k >= _LEAST_TERMS or m * n <= _SMALL)


def takes_dots(m: int, right: Right) -> bool:
    """Whether the product is computed as dot products: few rows, columns of unit stride."""
    return right == "columns" and m <= max(HEIGHTS)


def plan_product(isa: Isa, dtype: DType, right: Right, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    """The plan of `batch` products of this dtype; `right_panel` and `block_rows` of the problem are filled in here,
    but for packed panels, whose distance is the packing's.

    Raises: ValueError if the instruction set has no product of that dtype.
    """
    tiling = tiling_for(isa, dtype)
    if tiling is None:
        raise ValueError(f"no product of {dtype} for {isa.name}")
    if takes_dots(problem.m, right):
        return _dots(isa, tiling, problem, batch, bound)
    if right == "rows" and problem.m <= max(LINE_HEIGHTS) and tiling.group == 1:
        return _lines(isa, tiling, problem, batch, bound)
    return _gemm(isa, tiling, right, problem, batch, bound)


def _dots(isa: Isa, tiling: Tiling, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    height = next(h for h in HEIGHTS if h >= problem.m)
    dots = Dots(tiling, height, bound.epilogue)
    columns = min(_DOT_COLUMNS, tiling.panel)
    items = batch * _ceil(problem.n, columns)
    nbytes = min(columns, problem.n) * problem.k * tiling.element_nbytes
    item_ns = nbytes * max(1.0 / _BYTES_PER_NS, problem.m / (4 * _FLOPS_PER_NS))
    far = int(problem.n * problem.k * tiling.element_nbytes > _NEAR_NBYTES)
    words = (*replace(problem, block_rows=columns, direct=far).words(), *bound.words)
    return ProductPlan(dots_source(dots, isa), words, items, item_ns, dots.scratch_nbytes, "dots")


def _lines(isa: Isa, tiling: Tiling, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    lines = Lines(tiling, problem.m, bound.epilogue)
    columns = _line_columns(tiling, problem.n)
    items = batch * _ceil(problem.n, columns)
    item_ns = min(columns, problem.n) * problem.k * tiling.element_nbytes / _BYTES_PER_NS
    words = (*replace(problem, block_rows=columns).words(), *bound.words)
    return ProductPlan(lines_source(lines, isa), words, items, item_ns, lines.scratch_nbytes, "lines")


def _line_columns(tiling: Tiling, n: int) -> int:
    """Columns of an item: whole lines are read up to 1.4 times as fast as pieces of 384, but each core needs some."""
    cores = os.cpu_count() or 1
    items = cores * _ceil(n, cores * MAX_COLUMNS)
    share = _ceil(_ceil(n, items), tiling.lanes) * tiling.lanes
    return min(max(share, _LEAST_COLUMNS), MAX_COLUMNS)


def _gemm(isa: Isa, tiling: Tiling, right: Right, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    gemm = Gemm(tiling, right, bound.epilogue, unit=problem.left_k == 1)
    panels = batch * _ceil(problem.n, tiling.panel)
    rows = _block_rows(tiling, problem, panels)
    items = panels * _ceil(problem.m, rows)
    columns = min(tiling.panel, _ceil(problem.n, tiling.lanes) * tiling.lanes)
    work = 2.0 * min(rows, problem.m) * columns * problem.k / tiling.group / _FLOPS_PER_NS
    read = columns * problem.k * tiling.element_nbytes / _BYTES_PER_NS
    filled = replace(problem, block_rows=rows, block_terms=BLOCK if problem.m >= _MANY_ROWS else _FEW_ROWS_BLOCK)
    if right == "rows":
        filled = replace(filled, right_panel=tiling.panel)
    elif right == "columns":
        filled = replace(filled, right_panel=tiling.panel * problem.right_step)
    words = (*filled.words(), *bound.words)
    return ProductPlan(gemm_source(gemm, isa), words, items, max(work, read), gemm.scratch_nbytes, right)


def _block_rows(tiling: Tiling, problem: Problem, panels: int) -> int:
    """Rows of an item: as many as stay in cache, fewer where there would be too few items to share."""
    blocks = _ceil(problem.m, MAX_ROWS)
    total_ns = 2.0 * problem.m * problem.k * panels * tiling.panel / tiling.group / _FLOPS_PER_NS
    wanted = min(_CHUNKS, int(total_ns / _CHUNK_NS))
    if panels * blocks < wanted:
        blocks = min(_ceil(wanted, panels), max(problem.m // (2 * tiling.rows), blocks))
    even = _ceil(problem.m, blocks)
    whole = _ceil(even, tiling.rows) * tiling.rows
    return min((whole, even), key=lambda rows: _tiled_rows(tiling, problem.m, rows))


def _tiled_rows(tiling: Tiling, m: int, block: int) -> int:
    """Rows that tiles cost for m rows in blocks: the last tile of a block may be higher than what is left, and one of a
    single row, too few sums to hide a multiply-add's latency, takes as long as two.
    """
    total = 0
    for rows in (block,) * (m // block) + (m % block,):
        rest = rows % tiling.rows
        total += rows - rest + (max(2, min(h for h in tiling.heights if h >= rest)) if rest else 0)
    return total


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
