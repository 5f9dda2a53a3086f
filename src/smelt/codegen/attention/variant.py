"""What differs in a kernel's text, and the words that all attention kernels take after their buffers."""

from __future__ import annotations

from smelt.codegen.llvm.isa import Isa
from smelt.diag.records import record
from smelt.ir import DType

BLOCK = 256
"""Keys that are packed and multiplied at a time; also the longest chain of additions."""

AHEAD = 32
"""Rows of keys or values that are fetched before they are needed, where they are read in place."""

ROW_PADDING = 16
"""Elements between rows of a tile, so that they do not fall on the same cache lines."""

OPERANDS = ("q", "k", "v", "o")
"""Buffers in order; then "l" where logarithms of the sums are kept, and "m" where there is a mask."""

BACKWARD_OPERANDS = ("g", "q", "k", "v", "o", "l", "dq", "dk", "dv")
"""Buffers of the gradient (g: of the result; l: logarithms of the sums), then "m" where there is a mask."""

WORDS = (
    "q_batch", "q_head", "q_group", "q_row", "q_column",
    "k_batch", "k_head", "k_row", "k_column",
    "v_batch", "v_head", "v_row", "v_column",
    "o_batch", "o_head", "o_group", "o_row", "o_column",
    "m_batch", "m_head", "m_group", "m_row", "m_column",
    "heads", "rows", "queries", "keys", "size", "value_size", "value_width",
    "chunks", "chunk", "block",
    "limit", "limit_step", "checked", "bound", "reach", "scale_before", "scale_after", "empty",
)  # fmt: skip
"""Strides in elements (`head`: of key/value heads, `group`: of the query heads that share one), sizes, and numbers.

heads: key/value heads. rows: queries of all heads of a group. value_width: value_size up to whole vectors. chunk: rows
of an item, chunks of one head. block: keys at a time. Query s sees keys below min(keys, limit + limit_step * s). Where
`checked`, a value that is larger than `bound` (f64 bits) or NaN is refused (few queries: not; they are divided before
they meet the values). Where a mask hides keys, queries and keys larger than `reach` are. Scales are f64 bits; `empty`
is put in the place of 1 / 0, f64 bits.
"""

LOGARITHM_WORDS = ("l_batch", "l_head", "l_group", "l_row")
"""The words that follow where logarithms of the sums are kept."""

BACKWARD_WORDS = (
    *(f"{name}_{part}" for name in ("g", "q", "o", "dq", "m") for part in ("batch", "head", "group", "row", "column")),
    *(f"{name}_{part}" for name in ("k", "v", "dk", "dv") for part in ("batch", "head", "row", "column")),
    *LOGARITHM_WORDS,
    "heads", "groups", "queries", "keys", "size", "width", "value_size", "value_width", "block",
    "limit", "limit_step", "checked", "bound", "scale",
)  # fmt: skip
"""The words of the gradient, as above. groups: query heads of a head of keys. width: `size` up to whole vectors."""

NUMBERS = ("bound", "reach", "scale_before", "scale_after", "scale", "empty")
"""Words that are bits of an f64."""


@record
class Variant:
    """One kernel text: dtypes of queries, keys, values and result, of the mask, and which path.

    rows: queries that the path for few takes, 0 for tiles. row_size: room for a query in a tile. lanes: of its
    vectors, 0 for full registers. any_keys: in the path for few there may be fewer keys than lanes, or very many.
    keeps_sums: the logarithms of the sums are a second result. is_backward: the gradient.
    """

    dtype: DType
    mask: DType | None
    rows: int = 0
    row_size: int = BLOCK
    lanes: int = 0
    any_keys: bool = False
    keeps_sums: bool = False
    is_backward: bool = False

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the buffers, in order."""
        mask = ("m",) if self.mask is not None else ()
        if self.is_backward:
            return (*BACKWARD_OPERANDS, *mask)
        return (*OPERANDS, *(("l",) if self.keeps_sums else ()), *mask)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the words that follow the buffers."""
        if self.is_backward:
            return BACKWARD_WORDS
        return (*WORDS, *(LOGARITHM_WORDS if self.keeps_sums else ()))

    @property
    def compute(self) -> DType:
        """What is computed in."""
        return DType.F64 if self.dtype is DType.F64 else DType.F32


@record
class Tile:
    """Queries x vectors of keys or columns held in registers."""

    rows: int
    vectors: int

    @staticmethod
    def of(isa: Isa) -> Tile:
        """As many sums as hide the latency of two multiply-adds a cycle, within the registers there are."""
        return Tile(8, 2) if isa.vector_registers >= 32 else Tile(6, 2)
