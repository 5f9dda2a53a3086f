"""A weight in panels: what the packing kernel writes, once, before the first run.

    packed[panel][k][column] = b[k, panel * columns + column]      # beyond the last column: anything

Invariant: one packing serves every row count. A panel has `panel_rows` rows, at least K, so that whole squares may be
written.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from smelt.codegen.contract.integers import minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.panels import pack_call, pack_columns, pack_rows
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText


@dataclass(frozen=True, slots=True)
class Packing:
    """The packing of a matrix [k, n] for a tiling. The kernel's buffers: matrix, packed."""

    tiling: Tiling
    n: int
    k: int

    @property
    def panels(self) -> int:
        """How many panels there are: the kernel's items."""
        return -(-self.n // self.tiling.panel)

    @property
    def panel_nelements(self) -> int:
        """Elements from one panel to the next."""
        square = self.tiling.lanes * self.tiling.group
        return -(-self.k // square) * square * self.tiling.panel

    @property
    def nelements(self) -> int:
        """Elements of all panels."""
        return self.panels * self.panel_nelements

    def words(self, step: int, along_columns: bool) -> tuple[int, ...]:
        """The kernel's words; `step`: elements between rows of the matrix, or between columns if these are along K."""
        return self.n, self.k, step, self.tiling.panel * (step if along_columns else 1), self.panel_nelements


@lru_cache(maxsize=16)
def packing_source(tiling: Tiling, along_columns: bool) -> KernelSource:
    """The kernel for matrices whose columns (or else rows) have unit stride."""
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
