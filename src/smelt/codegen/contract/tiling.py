"""How a product is cut for an instruction set: the tile of sums in registers, the panel of columns, blocks of K.

Invariant: a sum over K is the sum of the sums of blocks of `BLOCK` or fewer, each begun at zero, on every instruction
set, so that its error is that of the best libraries: one chain over K = 3072 has four times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from smelt.codegen.llvm.isa import Isa
from smelt.diag.records import record
from smelt.ir import DType

LINE_NBYTES = 64
"""What a packed panel has of each row: a line of memory, on every instruction set that has so many columns at once."""
BLOCK = 192
"""Terms of one chain of fused multiply-adds at most."""

Kind = Literal["f32", "f64", "bf16", "pairs", "quads"]
"""What is multiplied. bf16 is summed in f32 by dot products of pairs. Bytes are summed in i32: signed words of 16 bits
with bytes by dot products of pairs, unsigned bytes with signed ones by dot products of four.
"""

_KINDS: dict[DType, Kind] = {DType.F32: "f32", DType.F64: "f64", DType.BF16: "bf16"}


@record
class Tiling:
    """A tile of `rows` x `vectors` registers of `lanes` sums; a panel has `vectors * lanes` columns.

    heights: row counts that have a tile, descending, 1 last. fused: whether the CPU has fused multiply-add.
    """

    kind: Kind
    lanes: int
    rows: int
    vectors: int
    heights: tuple[int, ...]
    fused: bool

    @property
    def panel(self) -> int:
        """Columns of a panel."""
        return self.vectors * self.lanes

    @property
    def packed_columns(self) -> int:
        """Columns of a panel of a matrix that is packed before the run: a line of memory, several of which are one
        panel of the tile, so that the packed matrix is the same on every instruction set.
        """
        return self.lanes * min(self.vectors, max(1, LINE_NBYTES // (self.lanes * self.right_nbytes)))

    @property
    def packed(self) -> Tiling:
        """How a matrix is cut that is packed before the run."""
        return replace(self, vectors=self.packed_columns // self.lanes)

    def packed_panels(self, n: int) -> int:
        """How many panels so many columns are packed in."""
        return -(-n // self.packed_columns)

    @property
    def right_nbytes(self) -> int:
        """Bytes of a column for one group of K."""
        return self.group if self.is_integer else self.element_nbytes * self.group

    @property
    def left_nbytes(self) -> int:
        """Bytes of a row of the left matrix for one group of K."""
        return self.element_nbytes * self.group

    @property
    def is_integer(self) -> bool:
        """Whether sums are whole numbers."""
        return self.kind in ("pairs", "quads")

    @property
    def sum_type(self) -> str:
        """LLVM's type of a sum."""
        if self.is_integer:
            return "i32"
        return "double" if self.kind == "f64" else "float"

    @property
    def vector(self) -> str:
        """LLVM's type of a register of sums."""
        return f"<{self.lanes} x {self.sum_type}>"

    @property
    def sum_nbytes(self) -> int:
        """Bytes of a sum."""
        return 8 if self.kind == "f64" else 4

    @property
    def element_nbytes(self) -> int:
        """Bytes of an element of either matrix; of products of bytes, of the left one."""
        return {"f32": 4, "f64": 8, "bf16": 2, "pairs": 2, "quads": 1}[self.kind]

    @property
    def group(self) -> int:
        """Elements along K that one multiply-add takes."""
        return {"bf16": 2, "pairs": 2, "quads": 4}.get(self.kind, 1)

    @property
    def row_nbytes(self) -> int:
        """Bytes of a packed panel for one group of K; but for pairs, those of a row of sums, too."""
        return self.panel * self.right_nbytes


def paired_rest(heights: Sequence[int]) -> int:
    """How many rows behind whole tiles are computed with the last of these by two tiles of the second height, since no
    height is theirs; 0 where there are none such. Of heights 6, 4 and 1 two: 4 and 4, not 6 and 4 for 2.
    """
    if len(heights) < 2:
        return 0
    rest = 2 * heights[1] - heights[0]
    return rest if rest > 0 and rest not in heights else 0


def tiling_for(isa: Isa, dtype: DType) -> Tiling | None:
    """The tiling of an instruction set; None where it has no good product of that dtype."""
    kind = _KINDS.get(dtype)
    if kind is None or (kind == "bf16" and not isa.has_bf16):
        return None
    lanes = isa.f32_lanes // (2 if kind == "f64" else 1)
    match isa.name:
        case "avx512":
            return Tiling(kind, lanes, 8, 3, (8, 6, 4, 2, 1), True)
        case "avx2":
            return Tiling(kind, lanes, 6, 2, (6, 4, 1), True)
        case "neon":
            return Tiling(kind, lanes, 6, 4, (6, 4, 1), True)
        case _:
            return Tiling(kind, lanes, 4, 2, (4, 2, 1), False)


def byte_tiling(isa: Isa) -> Tiling | None:
    """The tiling of products of bytes; None where an instruction set has none that is faster than floats."""
    match isa.name:
        case "avx512" if isa.has_vnni:
            return Tiling("quads", isa.f32_lanes, 8, 3, (8, 4, 2, 1), True)
        case "avx512":
            return Tiling("pairs", isa.f32_lanes, 12, 2, (12, 6, 2, 1), True)
        case "avx2":
            return Tiling("pairs", isa.f32_lanes, 6, 2, (6, 4, 2, 1), True)
        case _:
            return None
