"""Nests that sum products, and the tiles of their results: what tensor cores compute.

    for i0 < M, i1 < N: sum f32 over (j0 < K) of mul(%x[K*i0 + j0], %w[K*i1 + j0])    rows i0, columns i1

Invariant: along rows only the left operands change, along columns only the right ones, along the inner loops both.
"""

from __future__ import annotations

from typing import Final

from smelt.codegen.kernels.graph import Graph, Value
from smelt.codegen.kernels.nest import Op, Reduce
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import ceil_div

_SUMMED = (DType.F32, DType.F64)
"""What tensor cores add in: f16 and bf16 in f32."""
_MOST = 2
"""Products that one program accumulates: those of a gated layer share their left operand."""


@record
class Factors:
    """One product: the values that are multiplied, that with the result's rows first, and what their elements are."""

    reduce: Value
    left: Value
    right: Value
    dtype: DType

    @property
    def sums(self) -> DType:
        """What its sums are: f32, or f64."""
        return self.reduce.dtype


@record
class Contraction:
    """All products of a nest, and its outer loops: those of the left operands alone, of the right ones, the others."""

    factors: tuple[Factors, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    grid: tuple[int, ...]


def contraction(graph: Graph) -> Contraction | None:
    """A nest's products; None if it is anything else."""
    nest = graph.nest
    if (
        not nest.inner
        or len(nest.outer) < 2
        or not graph.reduces
        or len(graph.reduces) > _MOST
        or graph.scans
        or nest.ordered
    ):
        return None
    if any(s.loops & graph.inner_bits or s.source.mode != "set" for s in graph.stores):
        return None
    found = [_factors(graph, reduce) for reduce in graph.reduces]
    factors = [one for one in found if one is not None]
    outer = range(len(nest.outer))
    sides = {(_only(outer, f.left, f.right), _only(outer, f.right, f.left)) for f in factors}
    if len(factors) < len(found) or len(sides) != 1 or len({f.dtype for f in factors}) != 1:
        return None
    ((rows, columns),) = sides
    if not rows or not columns:
        return None
    grid = tuple(k for k in outer if k not in (*rows, *columns))
    return Contraction(tuple(factors), rows, columns, grid)


def _only(outer: range, a: Value, b: Value) -> tuple[int, ...]:
    """The outer loops along which the first of two values changes alone."""
    return tuple(k for k in outer if (a.loops & ~b.loops) >> k & 1)


def _factors(graph: Graph, reduce: Value) -> Factors | None:
    source, (product,) = reduce.source, reduce.args
    assert isinstance(source, Reduce)
    is_sum = source.kind == "sum" and source.dtype in _SUMMED and product.stage == 0
    if not is_sum or not isinstance(product.source, Op) or product.source.op != "mul":
        return None
    if product.dtype is not source.dtype:
        return None
    left, right = (_narrow(value) for value in product.args)
    if left.dtype is not right.dtype:
        left, right = product.args
    if any(not v.loops & graph.inner_bits for v in (left, right)):
        return None
    if _column(graph, left):
        left, right = right, left
    return Factors(reduce, left, right, left.dtype)


def _narrow(value: Value) -> Value:
    """What a value is cast from, where that is f16 or bf16: tensor cores take it as it is."""
    if isinstance(value.source, Op) and value.source.op == "cast" and value.args[0].dtype.is_half:
        return value.args[0]
    return value


def _column(graph: Graph, value: Value) -> bool:
    """Whether a value changes along the loop that stores walk element by element."""
    unit = (k for s in graph.stores for k, stride in enumerate(s.source.index.strides) if stride == 1)
    column = next(unit, len(graph.nest.outer) - 1)
    return bool(value.loops >> column & 1)


# --- tiles


@record
class Tile:
    """Sizes of a product's blocks (powers of two, at least 16), warps of a program, iterations under way at once."""

    r: int
    b: int
    k: int
    warps: int
    stages: int


_LEAST: Final = 16
_WIDEST: Final = 64
TILES: Final = (
    Tile(128, 256, 64, 8, 3), Tile(128, 128, 64, 8, 3), Tile(128, 128, 32, 4, 4), Tile(128, 64, 64, 4, 4),
    Tile(64, 128, 64, 4, 4), Tile(64, 64, 64, 4, 4), Tile(64, 32, 64, 4, 4), Tile(32, 64, 64, 4, 4),
    Tile(32, 32, 64, 4, 4), Tile(16, 64, 64, 4, 4), Tile(16, 128, 64, 4, 4),
)  # fmt: skip
"""Tiles worth measuring for f16 and bf16; those of f32, whose multiplications are written one by one, are 16 deep."""
_PROGRAMS = 128
"""Programs below which processors of a GPU stand idle."""


def tile_of(rows: int, columns: int, length: int, batch: int, dtype: DType) -> Tile:
    """The tile of a product: the largest that fits its sizes and leaves no processor idle, else the smallest."""
    fitting = [_fitted(t, rows, columns, length, dtype) for t in TILES[1:]]
    for tile in fitting:
        if tiles(tile, rows, columns) * batch >= _PROGRAMS:
            return tile
    return max(fitting, key=lambda t: (tiles(t, rows, columns), t.r * t.b))


def tiles_for(rows: int, columns: int, length: int, dtype: DType) -> list[Tile]:
    """The tiles worth measuring for a product's sizes, each once."""
    return list(dict.fromkeys(_fitted(tile, rows, columns, length, dtype) for tile in TILES))


def tiles(tile: Tile, rows: int, columns: int) -> int:
    """How many tiles a result has."""
    return ceil_div(rows, tile.r) * ceil_div(columns, tile.b)


def _fitted(tile: Tile, rows: int, columns: int, length: int, dtype: DType) -> Tile:
    def least(size: int, most: int) -> int:
        return max(_LEAST, min(most, 1 << max(0, size - 1).bit_length()))

    depth = tile.k if dtype.is_half else _LEAST
    # An accumulator of f64 takes two registers of each thread.
    most = _WIDEST if dtype is DType.F64 else tile.r * tile.b
    r, b = least(rows, min(tile.r, most)), least(columns, min(tile.b, most))
    return Tile(r, b, least(length, depth), tile.warps if r * b > 2048 else 4, tile.stages)
