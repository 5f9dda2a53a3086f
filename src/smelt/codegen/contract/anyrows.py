"""Products whose number of rows is known at run time only: few rows as dot products, more as panels, in one kernel.

    if m <= 4:      the text of `dots` for 4 rows           # the weight as it lies
    elif m <= 8:    the text of `dots` for 8 rows
    else:           the text of `gemm`                      # the weight packed

Invariant: each m gives the bits of the kernel whose text it is.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.contract.dots import Dots, DotsDriver
from smelt.codegen.contract.driver import Part
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.gemm import Gemm, GemmDriver
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.problem import WORDS
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record

_CALL = "(ptr %args, i64 %begin, i64 %end, ptr %scratch)"


@record
class AnyRows:
    """A kernel. Its buffers: left (elements of a row side by side), right with columns of unit stride, right packed if
    `many`, those of the epilogue, out; its words: `Problem`, as `dots` or `gemm` wants them for the m at hand, then the
    epilogue's.

    heights: of dot products, ascending. many: there may be more rows than the greatest.
    """

    tiling: Tiling
    epilogue: Epilogue
    heights: tuple[int, ...]
    many: bool

    @property
    def panels(self) -> Gemm:
        """The part for many rows."""
        return Gemm(self.tiling, "packed", self.epilogue, unit=True)

    @property
    def scratch_nbytes(self) -> int:
        """As much as any part needs."""
        lines = Dots(self.tiling, max(self.heights), self.epilogue).scratch_nbytes
        return max(lines, self.panels.scratch_nbytes) if self.many else lines


@lru_cache(maxsize=64)
def any_rows_source(kernel: AnyRows, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    rights = 2 if kernel.many else 1
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    m = fn.word(2 + rights + len(kernel.epilogue.buffers) + WORDS.index("m"))
    done = fn.fresh("done")
    functions: list[FunctionText] = []
    for height in kernel.heights:
        part = Part(f"dots.{height}", 0, rights)
        functions.append(DotsDriver(Dots(kernel.tiling, height, kernel.epilogue), isa, part).function())
        if height == max(kernel.heights) and not kernel.many:
            fn.do(f"call void @{part.name}{_CALL}")
            break
        here, further = fn.fresh("few"), fn.fresh("more")
        fits = fn.let(f"icmp sle i64 {m}, {height}", "b")
        fn.do(f"br i1 {fits}, label %{here}, label %{further}")
        fn.label(here)
        fn.do(f"call void @{part.name}{_CALL}")
        fn.do(f"br label %{done}")
        fn.label(further)
    if kernel.many:
        part = Part("panels", 1, rights)
        panels, helpers = GemmDriver(kernel.panels, isa, part).functions()
        functions += [panels, *helpers]
        fn.do(f"call void @{part.name}{_CALL}")
    fn.do(f"br label %{done}")
    fn.label(done)
    return KernelSource.of(module_text(fn, functions))
