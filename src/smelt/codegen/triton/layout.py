"""Which points of a nest a program computes: one of six forms, each a block of at most two axes.

    flat     outer points in blocks of R                       pointwise, one contiguous walk
    tile     R steps of one outer loop x B of another        broadcasts and transposes, without division
    rows     R outer points x all inner ones                   softmax, norms: each element is loaded once
    chunk    R outer points x B inner ones, in a loop          rows that registers do not hold, sums of columns
    serial   R outer points, inner ones one by one             pooling windows, short sums of columns
    dot      R rows x B columns, K inner points in a loop      sums of products, on tensor cores

Invariant: what a form computes does not depend on R and B, but for the order of floating-point sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final, Literal, TypeAlias

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import Load
from smelt.codegen.kernels.simplify import indices
from smelt.codegen.triton.contraction import Tile, contraction, tile_of
from smelt.diag.records import record

Form: TypeAlias = Literal["flat", "tile", "rows", "chunk", "serial", "dot"]
FORMS: Final[tuple[Form, ...]] = ("flat", "tile", "rows", "chunk", "serial", "dot")

_BLOCK = 1024
"""Elements of a block: 8 for each thread of 4 warps."""
_LONGEST_ROW = 8192
"""Elements of a row that is whole in registers: 32 for each thread of 8 warps."""
_SERIAL = 64
"""Turns of a sum that has one accumulator."""
_COLUMNS = 64
"""Columns side by side where a column is reduced: whole lines of memory."""
_MIN_TILE = 16
_PROGRAMS = 256
"""Programs that keep all processors of a GPU at work, two each."""


@record
class Layout:
    """How a nest's points are divided: over programs, along two axes of a block, over iterations.

    grid: outer loops of which a program has one step. across: those of its first axis, R points at a time, and along:
    those of its second, B at a time; no axis where there are none. An inner loop that is on no axis runs one by one.
    k: inner points of a product's block, and stages: blocks that are loaded ahead. unroll: bodies of its loop in a row.
    """

    form: Form
    grid: tuple[int, ...]
    across: tuple[int, ...]
    along: tuple[int, ...]
    r: int
    b: int
    warps: int
    k: int = 1
    stages: int = 3
    unroll: int = 1

    @property
    def is_looped(self) -> bool:
        """Whether a program walks over the inner points in a loop."""
        return self.form in ("chunk", "serial")

    def axes(self, loop: int) -> int:
        """The axis that a loop is on, as bits: 1 the first, 2 the second, 0 none."""
        return 1 if loop in self.across else 2 if loop in self.along else 0


def choose(graph: Graph, form: Form | None = None, r: int = 0, b: int = 0) -> Layout:
    """A nest's layout; of a given form, and with given block sizes (powers of two), where they are not None or 0."""
    found = _of_form(graph, form or _best(graph))
    found = replace(found, r=r or found.r if found.across else 1, b=b or found.b if found.along else 1)
    if found.form == "dot":
        return found
    if found.form == "rows":
        # All of a row, whatever was wished.
        found = replace(found, b=power_of_two(prod(graph.nest.inner)))
    if found.form == "rows" and found.r == 1:
        found = replace(found, grid=found.across, across=())
    return replace(found, warps=_warps(found.r * found.b))


def fits(graph: Graph, form: Form) -> bool:
    """Whether a nest has this form."""
    nest = graph.nest
    if form in ("flat", "tile"):
        return not nest.inner and (form == "flat" or len(nest.outer) > 1)
    if form == "dot":
        return contraction(graph) is not None
    if form == "rows":
        return bool(nest.inner) and prod(nest.inner) <= _LONGEST_ROW
    return bool(nest.inner) and not _loads_what_is_stored(graph)


def _loads_what_is_stored(graph: Graph) -> bool:
    """Whether an inner point loads what another one stores: an iteration would see what one before it stored."""
    inner = slice(len(graph.nest.outer), None)
    stores = {(s.source.buffer, s.source.index) for s in graph.stores}
    written = {buffer for buffer, _ in stores}
    for value in graph.values:
        load = value.source
        if isinstance(load, Load) and load.buffer in written and any(load.index.strides[inner]):
            others = {index for buffer, index in stores if buffer == load.buffer}
            if others != {load.index}:
                return True
    return False


def _best(graph: Graph) -> Form:
    nest = graph.nest
    if not nest.inner:
        return "tile" if _has_tile(graph) else "flat"
    if contraction(graph) is not None:
        return "dot"
    length = prod(nest.inner)
    if _loads_what_is_stored(graph):
        return "rows"
    is_across = _unit_outer(graph) is not None and not _walks_inner(graph)
    if length <= _SERIAL and (is_across or len(nest.inner) > 1) and not graph.scans:
        return "serial"
    if is_across and length > _MIN_TILE and not graph.scans:
        return "chunk"
    return "rows" if length <= _LONGEST_ROW else "chunk"


def _of_form(graph: Graph, form: Form) -> Layout:
    nest = graph.nest
    outer = tuple(range(len(nest.outer)))
    inner = tuple(range(len(nest.outer), len(nest.sizes)))
    points, length = prod(nest.outer), prod(nest.inner)
    match form:
        case "flat":
            return Layout(form, (), outer, (), _block(points, _BLOCK), 1, 4)
        case "serial":
            return Layout(form, (), outer, (), _block(points, 256), 1, 4)
        case "tile":
            row, column = _tile_loops(graph)
            rest = tuple(k for k in outer if k not in (row, column))
            b = min(power_of_two(nest.sizes[column]), 32 if _is_transposed(graph, column) else 256)
            return Layout(form, rest, (row,), (column,), min(power_of_two(nest.sizes[row]), _BLOCK // b), b, 4)
        case "dot":
            return _tiled(graph)
        case "rows":
            b = power_of_two(length)
            # Rows share a program where there are more of them than a GPU runs programs at once.
            return Layout(form, (), outer, inner, _block(max(1, points // _PROGRAMS), max(1, _BLOCK // b)), b, 4)
        case "chunk":
            if _unit_outer(graph) is not None and not _walks_inner(graph):
                return Layout(form, (), outer, inner, _block(points, _COLUMNS), 32, 4)
            return Layout(form, outer, (), inner, 1, min(power_of_two(length), 2 * _BLOCK), 4)


def _tiled(graph: Graph) -> Layout:
    found = contraction(graph)
    assert found is not None
    sizes = graph.nest.sizes
    rows, columns, batch = (prod(sizes[k] for k in loops) for loops in (found.rows, found.columns, found.grid))
    tile = tile_of(rows, columns, prod(graph.nest.inner), batch, found.factors[0].dtype)
    return with_tile(Layout("dot", found.grid, found.rows, found.columns, 1, 1, 4), tile)


def with_tile(layout: Layout, tile: Tile) -> Layout:
    """A product's layout with the blocks of a tile."""
    return replace(layout, r=tile.r, b=tile.b, k=tile.k, warps=tile.warps, stages=tile.stages)


def _block(points: int, most: int) -> int:
    return min(power_of_two(points), most)


def power_of_two(n: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(0, n - 1).bit_length()


def _warps(elements: int) -> int:
    """Warps of 32 threads: 8 elements for each thread of few, and more elements where there are many."""
    return min(16, max(1, power_of_two(elements) // 256))


# --- what a nest's memory looks like


def _unit_outer(graph: Graph) -> int | None:
    """The outer loop along which loads of inner points lie side by side."""
    nouter = len(graph.nest.outer)
    for strides in _inner_loads(graph):
        for loop in range(nouter):
            if strides[loop] == 1:
                return loop
    return None


def _walks_inner(graph: Graph) -> bool:
    """Whether some load of inner points walks along an inner loop element by element."""
    return any(1 in strides[len(graph.nest.outer) :] for strides in _inner_loads(graph))


def _inner_loads(graph: Graph) -> Sequence[tuple[int, ...]]:
    nouter = len(graph.nest.outer)
    loads = (v.source for v in graph.values if isinstance(v.source, Load))
    return [load.index.strides for load in loads if any(load.index.strides[nouter:])]


def _has_tile(graph: Graph) -> bool:
    if len(graph.nest.outer) < 2:
        return False
    row, column = _tile_loops(graph)
    return graph.nest.sizes[column] >= _MIN_TILE and graph.nest.sizes[row] > 1


def _tile_loops(graph: Graph) -> tuple[int, int]:
    """The two outer loops of a tile: the one that stores walk along, and that which some load walks along instead."""
    nest = graph.nest
    found = indices(nest)
    column = next((k for index in found for k, stride in enumerate(index.strides) if stride == 1), len(nest.outer) - 1)
    others = [k for k in range(len(nest.outer)) if k != column]
    crossing = [k for k in others if any(index.strides[k] == 1 for index in found)]
    row = crossing[0] if crossing else max(others, key=lambda k: (nest.sizes[k], k))
    return row, column


def _is_transposed(graph: Graph, column: int) -> bool:
    """Whether some load walks along another loop than the columns."""
    return any(index.strides[column] not in (0, 1) and 1 in index.strides for index in indices(graph.nest))
