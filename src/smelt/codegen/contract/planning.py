"""Which kernel computes a product, with which words: chosen by sizes and layout alone.

Sizes may be known at run time only (`ir.sizes`). Then a kernel is chosen that is right for all of them, and words,
items and costs are late.
"""

from __future__ import annotations

import os
from dataclasses import fields, replace

from smelt.codegen.contract.anyrows import AnyRows, any_rows_source
from smelt.codegen.contract.coded import HEIGHTS as CODED_HEIGHTS
from smelt.codegen.contract.coded import Coded, coded_source
from smelt.codegen.contract.coding import COLUMNS as CODED_COLUMNS
from smelt.codegen.contract.coding import Coding
from smelt.codegen.contract.dots import HEIGHTS, Dots, dots_source
from smelt.codegen.contract.epilogue import Bound, plain
from smelt.codegen.contract.gemm import MAX_ROWS, Gemm, Right, gemm_source
from smelt.codegen.contract.lines import HEIGHTS as LINE_HEIGHTS
from smelt.codegen.contract.lines import MAX_COLUMNS, Lines, lines_source
from smelt.codegen.contract.packing import Packing, TilePacking
from smelt.codegen.contract.parts import COLUMNS, Joined, joined_source
from smelt.codegen.contract.problem import Problem
from smelt.codegen.contract.tile import TURN, chains_of
from smelt.codegen.contract.tiling import BLOCK, LINE_NBYTES, Tiling, paired_rest, tiling_for
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import blind, equals, is_one, is_symbolic, late, size_max, size_min
from smelt.runtime.machine.cpu import data_cache_nbytes, last_cache_nbytes, memory_nbytes

# Estimates of one core, for the grain of threads: what a tile computes and memory delivers, and a chunk worth claiming.
FLOPS_PER_NS, BYTES_PER_NS, _CHUNK_NS = 100.0, 20.0, 10_000.0
_CHUNKS = 16
# Columns of an item of dot products, and of more than so many rows: by three streams at once.
_DOT_COLUMNS, _FEWEST, _DOT_COLUMNS_OF_MORE = 32, 4, 48
# With fewer rows eager's library sums shorter chains, the shortest with the fewest: of 96 terms, eight rows have 1.5
# times its error at K = 512 and twice at 192, of 32 terms 1.1 and 1.35 times.
_MANY_ROWS, _SOME_ROWS_CHAIN, _FEW_ROWS_CHAIN = 16, 48, 32
# Heights of dot products where few rows are not what is expected: for less text, a height serves half its rows at 1.05
# times what their own costs.
_RARE_HEIGHTS = (4, 8)
# With fewer terms than this a result is mostly stored, which the library does with less ado unless it is small.
_LEAST_TERMS, _SMALL = 8, 4096
# From so many blocks of rows on, a matrix that a run makes is packed once, not read where it lies by each of them.
_PACKED_BLOCKS = 2
# A matrix read line by line is shared by the cores in long pieces of lines, of so many columns at least.
_LEAST_COLUMNS, _MOST_COLUMNS = 128, 1024
# A matrix that comes from memory is cut into parts of whole lines instead, each core to have two or more of at most so
# many bytes and at least so many terms; below so many bytes in all the parts' sum costs more than it saves.
_PART_NBYTES, _LEAST_PART_TERMS, _LEAST_PARTS_NBYTES = 5 << 19, 48, 2 << 20
# A weight is coded from so many bytes on, with so many panels for each core, where the state of the program is so many
# times what the last cache holds and at most this share of the machine's memory.
_LEAST_CODED_NBYTES, _LEAST_CODED_PANELS, _CODED_FAR, _CODED_SHARE = 1 << 20, 4, 2, 8


@record
class ProductPlan:
    """A launch of a product: buffers are left, right, the epilogue's, out."""

    source: KernelSource
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int
    kind: str


@record
class Both:
    """How a product of few rows or many is computed: heights of dot products; elements between panels of the packed
    matrix, and between their steps.
    """

    heights: tuple[int, ...]
    panel: int
    step: int


@blind
def is_worthwhile(m: int, n: int, k: int) -> bool:
    """Whether own kernels suit the sizes: not a matrix times a vector of activations, not hardly anything to sum."""
    return (n > 1 or m <= max(HEIGHTS)) and (k >= _LEAST_TERMS or m * n <= _SMALL)


def is_few(m: int) -> bool:
    """Whether there are so few rows, at all sizes, that dot products compute them."""
    return equals(size_max(m, max(HEIGHTS)), max(HEIGHTS))


def is_near(nbytes: int) -> bool:
    """Whether so much that is read again and again stays in a core's own cache."""
    return nbytes <= data_cache_nbytes()[1] // 2


def takes_dots(m: int, right: Right) -> bool:
    """Whether the product is computed as dot products: few rows, columns of unit stride."""
    return right == "columns" and is_few(m)


def heights_of_both(m: int) -> tuple[int, ...]:
    """The heights of dot products beside which panels compute more rows, in one kernel; none where it is known before
    the run which of the two it is.
    """
    most = max(HEIGHTS)
    if is_few(m) or equals(size_min(m, most + 1), most + 1):
        return ()
    return HEIGHTS if _is_few_at_hand(m) else _RARE_HEIGHTS


@blind
def _is_few_at_hand(m: int) -> bool:
    return m <= max(HEIGHTS)


def plan_product(
    isa: Isa, dtype: DType, right: Right, problem: Problem, batch: int, bound: Bound, *, tiled: bool = False
) -> ProductPlan:
    """The plan of `batch` products of this dtype; `right_panel` and `block_rows` of the problem are filled in here,
    but for packed panels, whose distance is the packing's. tiled: the left matrix is packed, too, in tiles.

    Raises: ValueError if the instruction set has no product of that dtype.
    """
    tiling = _tiling(isa, dtype)
    if takes_dots(problem.m, right):
        return _dots(isa, tiling, problem, batch, bound)
    if right == "rows" and tiling.group == 1 and not is_symbolic(problem.m) and problem.m <= max(LINE_HEIGHTS):
        return _lines(isa, tiling, problem, batch, bound)
    return _gemm(isa, tiling, right, problem, batch, bound, tiled)


def plan_both(isa: Isa, dtype: DType, problem: Problem, both: Both, bound: Bound) -> ProductPlan:
    """The plan of a product whose rows may be few or many; its right matrix comes as it lies, with columns of unit
    stride, then packed.

    Raises: ValueError if the instruction set has no product of that dtype.
    """
    tiling = _tiling(isa, dtype)
    kernel = AnyRows(tiling, bound.epilogue, both.heights, many=True)
    chosen, items, item_ns = _words_of_both(
        tiling, problem.m, problem.n, problem.k, problem.right_step, both.panel, both.step
    )
    words = (*replace(problem, **chosen.as_fields()).words(), *bound.words)
    return ProductPlan(any_rows_source(kernel, isa), words, items, item_ns, kernel.scratch_nbytes, "dots, packed")


def packings_in_run(
    isa: Isa, dtype: DType, m: int, n: int, k: int, batch: int, *, left_lies_in_rows: bool
) -> tuple[Packing | None, TilePacking | None]:
    """The panels that a run packs its right matrix into before it multiplies, and the tiles of its left one: where more
    than two blocks of rows would each read the right one where it lies, or pack it for themselves, and where as many
    panels would read the left one across its rows. None where that does not pay, or sizes are not known before.

    Raises: ValueError if the instruction set has no product of that dtype.
    """
    tiling = _tiling(isa, dtype)
    if batch != 1 or any(map(is_symbolic, (m, n, k))):
        return None, None
    right = Packing(tiling, n, k) if m > _PACKED_BLOCKS * MAX_ROWS else None
    wanted = not left_lies_in_rows and tiling.group == 1 and n > _PACKED_BLOCKS * tiling.panel and m >= tiling.rows
    return right, TilePacking(tiling, m, k) if wanted else None


def _tiling(isa: Isa, dtype: DType) -> Tiling:
    tiling = tiling_for(isa, dtype)
    if tiling is None:
        raise ValueError(f"no product of {dtype} for {isa.name}")
    return tiling


@record
class _Chosen:
    """Fields of a problem that depend on the way a product is computed."""

    right_panel: int
    right_step: int
    block_rows: int
    reading: int
    block_terms: int

    def as_fields(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


@late
def _words_of_both(
    tiling: Tiling, m: int, n: int, k: int, step: int, panel: int, panel_step: int
) -> tuple[_Chosen, int, float]:
    """The words for m rows, the items, and the cost of one."""
    if m <= max(HEIGHTS):
        columns, far, items, item_ns = _dots_cut(tiling, m, n, k, 1)
        return _Chosen(0, step, columns, far, BLOCK), items, item_ns
    rows, terms, items, item_ns = gemm_cut(tiling, m, n, k, 1)
    return _Chosen(panel, panel_step, rows, 1, terms), items, item_ns


# --- dot products


def _dots(isa: Isa, tiling: Tiling, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    columns, far, items, item_ns = _dots_cut(tiling, problem.m, problem.n, problem.k, batch)
    words = (*replace(problem, block_rows=columns, reading=far).words(), *bound.words)
    if is_symbolic(problem.m):
        every = AnyRows(tiling, bound.epilogue, HEIGHTS, many=False)
        return ProductPlan(any_rows_source(every, isa), words, items, item_ns, every.scratch_nbytes, "dots")
    dots = Dots(tiling, next(h for h in HEIGHTS if h >= problem.m), bound.epilogue)
    return ProductPlan(dots_source(dots, isa), words, items, item_ns, dots.scratch_nbytes, "dots")


@late
def _dots_cut(tiling: Tiling, m: int, n: int, k: int, batch: int) -> tuple[int, int, int, float]:
    """(columns of an item, whether the matrix is far, items, the cost of one)."""
    columns = min(_DOT_COLUMNS if m <= _FEWEST else _DOT_COLUMNS_OF_MORE, tiling.panel)
    nbytes = min(columns, n) * k * tiling.element_nbytes
    item_ns = nbytes * max(1.0 / BYTES_PER_NS, m / (4 * FLOPS_PER_NS))
    return columns, int(not is_near(n * k * tiling.element_nbytes)), batch * _ceil(n, columns), item_ns


# --- coded weights


def is_worth_coding(m: int, n: int, k: int, state_nbytes: int) -> bool:
    """Whether a product reads its weight from memory at each run, so that fewer bytes are less time: few rows, a large
    matrix with panels enough for all cores, in a program whose state stays in no cache and leaves room for the copy.
    """
    if any(map(is_symbolic, (m, n, k))) or m > max(CODED_HEIGHTS) or 4 * n * k < _LEAST_CODED_NBYTES:
        return False
    if _ceil(n, CODED_COLUMNS) < _LEAST_CODED_PANELS * (os.cpu_count() or 1):
        return False
    return _CODED_FAR * last_cache_nbytes() <= state_nbytes <= memory_nbytes() // _CODED_SHARE


def plan_coded(isa: Isa, problem: Problem, coding: Coding, bound: Bound) -> ProductPlan:
    """The plan of a product of few rows with a coded weight."""
    coded = Coded(coding.tiling, next(h for h in CODED_HEIGHTS if h >= problem.m), bound.epilogue)
    words = (*problem.words(), *bound.words)
    item_ns = coding.panel_nbytes / BYTES_PER_NS
    return ProductPlan(coded_source(coded, isa), words, coding.panels, item_ns, coded.scratch_nbytes, "compressed")


# --- lines


def _lines(isa: Isa, tiling: Tiling, problem: Problem, batch: int, bound: Bound) -> ProductPlan:
    lines = Lines(tiling, problem.m, bound.epilogue)
    columns, terms, items, item_ns = _lines_cut(tiling, problem.n, problem.k, batch)
    words = (*replace(problem, block_rows=columns, block_terms=terms, reading=0).words(), *bound.words)
    return ProductPlan(lines_source(lines, isa), words, items, item_ns, lines.scratch_nbytes, "lines")


@late
def _lines_cut(tiling: Tiling, n: int, k: int, batch: int) -> tuple[int, int, int, float]:
    """(columns of an item, its terms, items, the cost of one)."""
    columns = _line_columns(tiling, n)
    item_ns = min(columns, n) * k * tiling.element_nbytes / BYTES_PER_NS
    return columns, max(k, 1), batch * _ceil(n, columns), item_ns


def _line_columns(tiling: Tiling, n: int) -> int:
    """Columns of an item: whole lines are read up to 1.4 times as fast as pieces of 384, but each core needs some."""
    cores = os.cpu_count() or 1
    items = cores * _ceil(n, cores * _MOST_COLUMNS)
    share = _ceil(_ceil(n, items), tiling.lanes) * tiling.lanes
    return min(max(share, _LEAST_COLUMNS), _MOST_COLUMNS)


# --- lines in parts


@record
class PartsPlan:
    """Two launches: parts of a product, stored as f[count, rows, columns], and what adds them and has the epilogue."""

    parts: ProductPlan
    joined: ProductPlan
    count: int


def plan_parts(isa: Isa, dtype: DType, right: Right, problem: Problem, bound: Bound) -> PartsPlan | None:
    """The plan of a product of few rows with a large matrix whose rows lie along n, cut along k; None for any other.

    Raises: ValueError if the instruction set has no product of that dtype.
    """
    tiling = _tiling(isa, dtype)
    m, n, k = problem.m, problem.n, problem.k
    if right != "rows" or tiling.group > 1 or any(map(is_symbolic, (m, n, k))) or m > max(LINE_HEIGHTS):
        return None
    nbytes = n * k * tiling.element_nbytes
    if nbytes < _LEAST_PARTS_NBYTES:
        return None
    columns, terms = _parts_cut(tiling, n, k)
    count = _ceil(k, terms)
    if count == 1:
        return None
    cut = replace(
        problem, out_row=n, block_rows=columns, block_terms=terms, reading=int(columns == n == problem.right_step)
    )
    lines = Lines(tiling, m, plain(dtype).epilogue)
    items = count * _ceil(n, columns)
    parts = ProductPlan(
        lines_source(lines, isa), cut.words(), items, nbytes / items / BYTES_PER_NS, lines.scratch_nbytes, "lines"
    )
    joined = Joined(tiling, m, bound.epilogue)
    words = (*replace(cut, out_row=problem.out_row, block_rows=COLUMNS).words(), *bound.words)
    item_ns = count * m * min(n, COLUMNS) * tiling.sum_nbytes / BYTES_PER_NS
    source = joined_source(joined, isa)
    return PartsPlan(
        parts, ProductPlan(source, words, _ceil(n, COLUMNS), item_ns, joined.scratch_nbytes, "slices"), count
    )


def _parts_cut(tiling: Tiling, n: int, k: int) -> tuple[int, int]:
    """(columns of an item, its terms): whole lines if there are enough of them for all cores."""
    shares = 2 * (os.cpu_count() or 1)
    wanted = shares * _ceil(n * k * tiling.element_nbytes, shares * _PART_NBYTES)
    pieces = _ceil(n, MAX_COLUMNS)
    terms = max(_ceil(k, _ceil(wanted, pieces)), min(_LEAST_PART_TERMS, k))
    pieces = max(pieces, min(_ceil(wanted, _ceil(k, terms)), _ceil(n, _LEAST_COLUMNS)))
    columns = n if pieces == 1 else _ceil(_ceil(n, pieces), tiling.lanes) * tiling.lanes
    return columns, _ceil(terms, 8) * 8


# --- panels


def _gemm(
    isa: Isa, tiling: Tiling, right: Right, problem: Problem, batch: int, bound: Bound, tiled: bool
) -> ProductPlan:
    rows, terms, items, item_ns = gemm_cut(tiling, problem.m, problem.n, problem.k, batch)
    if tiled and rows < problem.m:
        rows = _ceil(rows, tiling.rows) * tiling.rows
        items = batch * _ceil(problem.n, tiling.panel) * _ceil(problem.m, rows)
    gemm = Gemm(
        tiling, right, bound.epilogue, unit=is_one(problem.left_k), tiled=tiled,
        whole_rows=_are_multiples(tiling.rows, problem.m, rows), widths=_widths(tiling, problem.n),
        lines=lines_asked(tiling, rows if type(rows) is int else problem.m),
    )  # fmt: skip
    filled = replace(problem, block_rows=rows, block_terms=terms)
    if right == "rows":
        filled = replace(filled, right_panel=tiling.panel)
    elif right == "columns":
        filled = replace(filled, right_panel=tiling.panel * problem.right_step)
    words = (*filled.words(), *bound.words)
    return ProductPlan(gemm_source(gemm, isa), words, items, item_ns, gemm.scratch_nbytes, right)


@blind
def lines_asked(tiling: Tiling, rows: int) -> int:
    """Lines of each packed panel that a tile asks for with each turn, so that the tiles of so many rows together ask
    for all of the next block: fewer tiles ask for more.
    """
    read = _ceil(TURN * tiling.packed.row_nbytes, LINE_NBYTES)
    return next((lines for lines in range(1, read) if rows > (_ceil(read, lines) - 1) * tiling.rows), read)


def _widths(tiling: Tiling, n: int) -> tuple[int, ...]:
    """How many registers the columns of items fill, ascending; nothing where that is not known before the run."""
    if type(n) is not int:
        return ()
    full, rest = divmod(n, tiling.panel)
    found = {_ceil(rest, tiling.lanes), tiling.vectors if full else 0} - {0}
    return tuple(sorted(found))


def _are_multiples(of: int, *sizes: int) -> bool:
    """Whether sizes, known before the run, are multiples of a number."""
    return all(type(size) is int and size % of == 0 for size in sizes)


@late
def gemm_cut(tiling: Tiling, m: int, n: int, k: int, batch: int) -> tuple[int, int, int, float]:
    """(rows of an item, terms of a chain, items, the cost of one)."""
    panels = batch * _ceil(n, tiling.panel)
    rows = block_rows(tiling, m, k, panels)
    columns = min(tiling.panel, _ceil(n, tiling.lanes) * tiling.lanes)
    work = 2.0 * min(rows, m) * columns * k / tiling.group / FLOPS_PER_NS
    item_ns = max(work, columns * k * tiling.element_nbytes / BYTES_PER_NS)
    return rows, _block_terms(tiling, m), panels * _ceil(m, rows), item_ns


def _block_terms(tiling: Tiling, m: int) -> int:
    if m >= _MANY_ROWS:
        return BLOCK
    if m > max(HEIGHTS):
        return _SOME_ROWS_CHAIN
    height = next((height for height in reversed(tiling.heights) if height >= m), tiling.rows)
    return min(BLOCK, _FEW_ROWS_CHAIN * chains_of(tiling, height, tiling.vectors))


def block_rows(tiling: Tiling, m: int, k: int, panels: int) -> int:
    """Rows of an item: as many as stay in cache, fewer where there would be too few items to share."""
    blocks = _ceil(m, MAX_ROWS)
    total_ns = 2.0 * m * k * panels * tiling.panel / tiling.group / FLOPS_PER_NS
    wanted = min(_CHUNKS, int(total_ns / _CHUNK_NS))
    if panels * blocks < wanted:
        blocks = min(_ceil(wanted, panels), max(m // (2 * tiling.rows), blocks))
    even = _ceil(m, blocks)
    whole = _ceil(even, tiling.rows) * tiling.rows
    return min((whole, even), key=lambda rows: _tiled_rows(tiling, m, rows))


def _tiled_rows(tiling: Tiling, m: int, block: int) -> int:
    """Rows that tiles cost for m rows in blocks: the last tile of a block may be higher than what is left, and one of a
    single row, too few sums to hide a multiply-add's latency, takes as long as two.
    """
    total = 0
    for rows in (block,) * (m // block) + (m % block,):
        rest = rows % tiling.rows
        if rest == paired_rest(tiling.heights) and rows > tiling.rows:
            total += rows
            continue
        total += rows - rest + (max(2, min(h for h in tiling.heights if h >= rest)) if rest else 0)
    return total


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
