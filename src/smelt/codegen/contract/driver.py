"""What the kernels of products have in common: their arguments, where a batch begins, the end of an item."""

from __future__ import annotations

from smelt.codegen.contract.epilogue import Block, Epilogue, emit_epilogue
from smelt.codegen.contract.integers import ceil_div, div_rem
from smelt.codegen.contract.problem import WORDS
from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record


@record
class Part:
    """A function that a kernel calls with its own arguments: its name, and which of the right matrices it reads."""

    name: str
    right: int
    rights: int


class Driver:
    """A kernel's function under construction, or a part of one. Sums of the item at hand begin at %scratch, a row every
    panel. rights: how many right matrices there are.
    """

    def __init__(
        self, tiling: Tiling, epilogue: Epilogue, isa: Isa, part: Part | None = None, *, rights: int = 1
    ) -> None:
        self.tiling, self.epilogue, self.isa = tiling, epilogue, isa
        if part is None:
            self.fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
            right = 0
        else:
            self.fn = FunctionText(part.name, KERNEL_PARAMETERS, result="internal void")
            right, rights = part.right, part.rights
        nbuffers = 2 + rights + len(epilogue.buffers)
        self.left, *buffers, self.out = (self.fn.address(i) for i in range(nbuffers))
        self.extra = buffers[rights:]
        self.right = buffers[right] if rights else ""
        self.word = {name: self.fn.word(nbuffers + i) for i, name in enumerate(WORDS)}
        self._first_epilogue_word = nbuffers + len(WORDS)

    def nbytes(self, count: str) -> str:
        """Bytes of so many elements of either matrix."""
        return self.fn.mul(count, self.tiling.element_nbytes)

    def split(self, number: str, size: str, part: str) -> tuple[str, str]:
        """`number` as (how many times all parts of `size`, which part)."""
        return self.div_rem(number, ceil_div(self.fn, size, part))

    def div_rem(self, a: str, b: str) -> tuple[str, str]:
        """Quotient and remainder."""
        return div_rem(self.fn, a, b)

    def start(self, name: str, outer: str, inner: str) -> str:
        """Where `left`, `right` begins in a batch."""
        base = {"left": self.left, "right": self.right}[name]
        return self.fn.gep("i8", base, self.nbytes(self._batch(name, outer, inner)))

    def _batch(self, name: str, outer: str, inner: str) -> str:
        fn, word = self.fn, self.word
        return fn.add(fn.mul(outer, word[f"{name}_outer"]), fn.mul(inner, word[f"{name}_inner"]))

    def out_at(self, outer: str, inner: str, row: str, column: str) -> str:
        """Where the result has the element (row, column) of a batch."""
        fn, word = self.fn, self.word
        at = fn.add(fn.add(self._batch("out", outer, inner), fn.mul(row, word["out_row"])), column)
        return fn.gep("i8", self.out, fn.mul(at, self.epilogue.out.itemsize))

    def finish_block(self, outer: str, inner: str, row: str, column: str, rows: str, columns: str) -> None:
        """Apply the epilogue to the sums of rows x columns at (row, column) of a batch, and store."""
        fn, word = self.fn, self.word
        out = self.out_at(outer, inner, row, column)
        block = Block("%scratch", rows, columns, out, word["out_row"], (outer, inner, row, column))
        emit_epilogue(fn, self.isa, self.tiling, self.epilogue, block, self.extra, self._first_epilogue_word)
