"""A weight in panels: what the packing kernel writes, once, before the first run.

    packed[panel][k][column] = b[k, panel * columns + column]      # beyond the last column: anything

Invariant: one packing serves every row count and every instruction set whose tiles are a line of memory wide or more. A
panel has at least K rows, so that whole squares may be written.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.panels import pack_call, pack_columns, pack_rows
from smelt.codegen.contract.tiling import LINE_NBYTES, Tiling
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record


@record
class Packing:
    """The packing of a matrix [k, n] for a tiling. The kernel's buffers: matrix, packed."""

    tiling: Tiling
    n: int
    k: int

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.tiling.packed_columns

    @property
    def panels(self) -> int:
        """How many panels there are."""
        return self.tiling.packed_panels(self.n)

    @property
    def items(self) -> int:
        """The kernel's items."""
        return self.panels

    @property
    def panel_nelements(self) -> int:
        """Elements from one panel to the next."""
        square = LINE_NBYTES // self.tiling.element_nbytes
        return -(-self.k // square) * square * self.columns

    @property
    def nelements(self) -> int:
        """Elements of all panels."""
        return self.panels * self.panel_nelements

    @property
    def step(self) -> int:
        """Elements from one group of K to the next."""
        return self.columns * self.tiling.group

    def words(self, step: int, along_columns: bool) -> tuple[int, ...]:
        """The kernel's words; `step`: elements between rows of the matrix, or between columns if these are along K."""
        return self.n, self.k, step, self.columns * (step if along_columns else 1), self.panel_nelements


@lru_cache(maxsize=16)
def packing_source(tiling: Tiling, along_columns: bool) -> KernelSource:
    """The kernel for matrices whose columns (or else rows) have unit stride."""
    tiling = tiling.packed
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    matrix, packed = fn.address(0), fn.address(1)
    n, k, step, panel_step, panel_size = (fn.word(2 + i) for i in range(5))
    with fn.loop("%begin", "%end") as panel:
        source = fn.gep("i8", matrix, fn.mul(fn.mul(panel.index, panel_step), tiling.element_nbytes))
        to = fn.gep("i8", packed, fn.mul(fn.mul(panel.index, panel_size), tiling.element_nbytes))
        left = fn.let(f"sub nsw i64 {n}, {fn.mul(panel.index, tiling.panel)}", "i")
        columns = minimum(fn, left, str(tiling.panel))
        fn.do(pack_call(source, fn.mul(step, tiling.element_nbytes), k, columns, to))
    return KernelSource.of(module_text(fn, [(pack_columns if along_columns else pack_rows)(tiling)]))


@record
class TilePacking:
    """The packing of a left matrix [m, k] whose columns have unit stride, as tiles read it: [tile][k][row of a tile].
    The kernel's buffers: matrix, packed.
    """

    tiling: Tiling
    m: int
    k: int

    @property
    def items(self) -> int:
        """The kernel's items: some neighbouring tiles each, which read whole lines of memory."""
        return -(-self.m // (self.tiling.rows * _tiles_of_item(self.tiling)))

    @property
    def nelements(self) -> int:
        """Elements of all tiles, the last of them whole."""
        return -(-self.m // self.tiling.rows) * self.tiling.rows * self.k

    def words(self, step: int) -> tuple[int, ...]:
        """The kernel's words; `step`: elements between columns of the matrix."""
        return self.m, self.k, step


def _tiles_of_item(tiling: Tiling) -> int:
    return max(1, tiling.panel // tiling.rows)


@lru_cache(maxsize=16)
def tile_packing_source(tiling: Tiling) -> KernelSource:
    """The kernel of `TilePacking`. Rows beyond the last are copies of it."""
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    matrix, packed = fn.address(0), fn.address(1)
    m, k, step = (fn.word(2 + i) for i in range(3))
    height, nbytes, count = tiling.rows, tiling.element_nbytes, _tiles_of_item(tiling)
    tile = f"<{height} x {tiling.sum_type}>"
    tile_nbytes = fn.mul(k, height * nbytes)
    with fn.loop("%begin", "%end") as item:
        first = fn.mul(item.index, height * count)
        source = fn.gep("i8", matrix, fn.mul(first, nbytes))
        to = fn.gep("i8", packed, fn.mul(fn.mul(item.index, count), tile_nbytes))
        left = minimum(fn, fn.let(f"sub nsw i64 {m}, {first}", "i"), str(height * count))
        whole = fn.let(f"udiv i64 {left}, {height}", "i")
        is_full = fn.let(f"icmp eq i64 {whole}, {count}", "b")
        columns = fn.let(f"select i1 {is_full}, i64 {k}, i64 0", "i")
        with fn.loop(0, columns) as column:
            line = fn.gep("i8", source, fn.mul(fn.mul(column.index, step), nbytes))
            at = fn.gep("i8", to, fn.mul(column.index, height * nbytes))
            for i in range(count):
                value = fn.load(tile, fn.gep("i8", line, i * height * nbytes), nbytes)
                fn.store(tile, value, fn.gep("i8", at, fn.mul(tile_nbytes, i)), nbytes)
        with fn.loop(0, fn.let(f"select i1 {is_full}, i64 0, i64 {left}", "i"), height) as row:
            at = fn.gep("i8", to, fn.mul(fn.let(f"udiv i64 {row.index}, {height}", "i"), tile_nbytes))
            last = fn.let(f"sub nsw i64 {left}, 1", "i")
            rows = [minimum(fn, fn.add(row.index, i), last) for i in range(height)]
            with fn.loop(0, k) as column:
                line = fn.gep("i8", source, fn.mul(fn.mul(column.index, step), nbytes))
                there = fn.gep("i8", at, fn.mul(column.index, height * nbytes))
                for i, one in enumerate(rows):
                    value = fn.load(tiling.sum_type, fn.gep("i8", line, fn.mul(one, nbytes)), nbytes)
                    fn.store(tiling.sum_type, value, fn.gep("i8", there, i * nbytes), nbytes)
    return KernelSource.of(module_text(fn, []))
