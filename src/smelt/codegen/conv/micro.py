"""The innermost part of all dense kernels: a tile of pixels x channels that grows by outer products.

    for k:  w[j] = packed weights (vectors);  for pixel p:  a = x[p][k];  acc[p][j] = fma(a, w[j], acc[p][j])

Invariant: the order in which one element's products are summed depends on the shape alone, never on which tile, item
or thread computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import FunctionText
from smelt.diag.records import record


@record
class Tile:
    """`pixels` x `vectors` registers of `lanes` f32 channels each."""

    lanes: int
    vectors: int
    pixels: int

    @property
    def columns(self) -> int:
        """Channels of a tile."""
        return self.lanes * self.vectors

    @property
    def type(self) -> str:
        """LLVM's type of one register."""
        return f"<{self.lanes} x float>"


@record
class Ahead:
    """Memory to prefetch while sums are made: where to begin, and how many bytes further for each k."""

    first: str
    step: str


class Micro:
    """Vector instructions of one tile in one function."""

    def __init__(self, fn: FunctionText, isa: Isa, tile: Tile) -> None:
        self.fn, self.isa, self.tile, self.type = fn, isa, tile, tile.type
        self._mask_type = f"<{tile.lanes} x i1>"
        self._suffix = f"v{tile.lanes}f32"

    # --- vectors

    def splat(self, value: str, element: str = "float") -> str:
        """A scalar in every lane."""
        lanes = self.tile.lanes
        one = self.fn.let(f"insertelement <{lanes} x {element}> poison, {element} {value}, i64 0")
        vector = f"<{lanes} x {element}>"
        return self.fn.let(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once where the target can."""
        if self.isa.name == "baseline":
            product = self.fn.let(f"fmul {self.type} {a}, {b}")
            return self.fn.let(f"fadd {self.type} {product}, {c}")
        name = f"llvm.fma.{self._suffix}"
        self.fn.declare(f"declare {self.type} @{name}({self.type}, {self.type}, {self.type})")
        return self.fn.let(f"call {self.type} @{name}({self.type} {a}, {self.type} {b}, {self.type} {c})")

    def load(self, at: str, mask: str | None = None) -> str:
        """A vector at an address of floats; lanes outside `mask` are 0 and not touched."""
        if mask is None:
            return self.fn.load(self.type, at, 4)
        name = f"llvm.masked.load.{self._suffix}.p0"
        self.fn.declare(f"declare {self.type} @{name}(ptr, i32 immarg, {self._mask_type}, {self.type})")
        return self.fn.let(
            f"call {self.type} @{name}(ptr {at}, i32 4, {self._mask_type} {mask}, {self.type} zeroinitializer)"
        )

    def store(self, value: str, at: str, mask: str | None = None) -> None:
        """Write a vector to an address of floats; lanes outside `mask` are not touched."""
        if mask is None:
            self.fn.store(self.type, value, at, 4)
            return
        name = f"llvm.masked.store.{self._suffix}.p0"
        self.fn.declare(f"declare void @{name}({self.type}, ptr, i32 immarg, {self._mask_type})")
        self.fn.do(f"call void @{name}({self.type} {value}, ptr {at}, i32 4, {self._mask_type} {mask})")

    def masks(self, columns_left: str) -> list[str]:
        """For each vector of the tile, which lanes are among the first `columns_left` channels."""
        lanes = self.tile.lanes
        made = []
        for j in range(self.tile.vectors):
            numbers = ", ".join(f"i32 {j * lanes + i}" for i in range(lanes))
            left = self.splat(self.fn.let(f"trunc i64 {columns_left} to i32"), "i32")
            made.append(self.fn.let(f"icmp slt <{lanes} x i32> <{numbers}>, {left}"))
        return made

    # --- the tile

    def zeros(self) -> list[str]:
        """Accumulators that are all zero."""
        return ["zeroinitializer"] * (self.tile.pixels * self.tile.vectors)

    def outer_product(self, weights: str, element: Callable[[int], str], acc: Sequence[str]) -> list[str]:
        """acc + x (x) w for one k: `weights` is the address of the tile's channels, element(p) that of pixel p's x."""
        fn, tile = self.fn, self.tile
        w = [self.load(fn.gep("float", weights, j * tile.lanes)) for j in range(tile.vectors)]
        grown = []
        for p in range(tile.pixels):
            a = self.splat(fn.load("float", element(p), 4))
            grown += [self.fma(a, w[j], acc[p * tile.vectors + j]) for j in range(tile.vectors)]
        return grown

    def sum_over(
        self,
        length: str,
        weights: str,
        acc: Sequence[str],
        element: Callable[[str, int], str],
        ahead: Ahead | None = None,
    ) -> list[str]:
        """acc after `length` outer products. Unrolling this loop was measured to bring nothing.

        weights: where the first k's channels lie, the next follow. element(k, p): the address of pixel p's x at k.
        ahead: what to bring to the second-level cache meanwhile.
        """
        fn = self.fn
        carried = [(self.type, value) for value in acc]
        with fn.loop(0, length, 1, carried if ahead is None else [*carried, ("ptr", ahead.first)]) as loop:
            if ahead is not None:
                at = loop.carried[-1]
                fn.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
                fn.do(f"call void @llvm.prefetch.p0(ptr {at.now}, i32 0, i32 2, i32 1)")
                at.next = fn.gep("i8", at.now, ahead.step)
            row = fn.gep("float", weights, fn.mul(loop.index, self.tile.columns))
            sums = loop.carried[: len(carried)]
            grown = self.outer_product(row, partial(element, loop.index), [c.now for c in sums])
            for c, value in zip(sums, grown, strict=True):
                c.next = value
        return [c.last for c in sums]

    # --- sums of blocks

    @property
    def registers(self) -> int:
        """How many sums a tile has."""
        return self.tile.pixels * self.tile.vectors

    def totals(self) -> str:
        """Stack memory for the sums of the blocks before."""
        return self.fn.alloca(self.type, self.registers)

    def clear(self, totals: str) -> None:
        """Set the totals to zero."""
        for i in range(self.registers):
            self.fn.store(self.type, "zeroinitializer", self.fn.gep(self.type, totals, i), 4)

    def add_to(self, totals: str, acc: Sequence[str], before: str | None = None) -> None:
        """Make the totals those `before` (the same memory where none is given) plus a block's sums."""
        old = self.read(totals if before is None else before)
        for i, (total, sum_) in enumerate(zip(old, acc, strict=True)):
            whole = self.fn.let(f"fadd {self.type} {total}, {sum_}")
            self.fn.store(self.type, whole, self.fn.gep(self.type, totals, i), 4)

    def read(self, totals: str) -> list[str]:
        """The totals as accumulators."""
        return [self.fn.load(self.type, self.fn.gep(self.type, totals, i), 4) for i in range(self.registers)]
