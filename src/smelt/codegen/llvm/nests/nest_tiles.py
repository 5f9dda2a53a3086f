"""Transposes in squares: loads that are contiguous across the lanes are turned in registers.

    for t in blocks of `lanes` of the loop across; for s in blocks of `lanes` along the lanes:
      a square of `lanes` vectors is loaded along t, turned by exchanging halves, and left on the stack
      for t' in the block: the nest's point on the lanes, reading row t' of the square

What is left over at the edges runs as usual, each lane loading from a place of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.codegen.kernels.graph import Value
from smelt.codegen.kernels.nest import Load
from smelt.codegen.llvm.lanes.lanes_types import register_type, vector_type
from smelt.codegen.llvm.nests.nest_frame import Frame, Span
from smelt.codegen.llvm.nests.nest_schedule import is_transposed
from smelt.codegen.llvm.nests.nest_values import Values
from smelt.ir.sizes import is_whole


def emit_tiles(
    frame: Frame,
    values: Values,
    bounds: tuple[str, str],
    rows: Callable[[int, str, str], None],
    along: tuple[str, str] | None = None,
) -> None:
    """The loops across and along, from `bounds` of the loop across; `rows` runs the nest as usual over a part.

    along: the part of the lanes' loop, where it is tiled (by whole vectors, but for the loop's end).
    """
    fn, schedule = frame.fn, frame.schedule
    across, lane, lanes = schedule.tile, schedule.lane, schedule.lanes
    assert across is not None and lane is not None
    low, high = bounds
    turned = [v for v in frame.graph.values if is_transposed(v, lane, across)]
    tiles = {v.number: fn.alloca(vector_type(register_type(v.dtype), lanes), lanes) for v in turned}
    with fn.loop(low, fn.add(high, 1 - lanes), lanes) as blocks:
        stop = fn.add(blocks.index, lanes)
        with frame.scope():
            start, end = along or ("0", frame.size(lane))
            length = end if start == "0" else fn.let(f"sub i64 {end}, {start}", "i")
            whole = fn.add(start, fn.let(f"and i64 {length}, {-lanes}", "i"))
            with fn.loop(start, whole, lanes) as squares:
                span = Span(lanes, 1, [squares.index])
                for value in turned:
                    _turn(frame, values, value, (blocks.index, squares.index), tiles[value.number])
                _square(frame, values, span, (blocks.index, stop), tiles)
            if not is_whole(frame.nest.sizes[lane], lanes):
                _edge(frame, values, across, lane, (blocks.index, stop), (whole, end))
    cuts = (frame.nest.sizes[across], schedule.block_size, dict(schedule.tiled).get(across, 0))
    if not all(is_whole(cut, lanes) for cut in cuts):
        length = high if low == "0" else fn.let(f"sub i64 {high}, {low}", "i")
        rows(across, fn.add(low, fn.let(f"and i64 {length}, {-lanes}", "i")), high)


def _turn(frame: Frame, values: Values, value: Value, corner: tuple[str, str], tile: str) -> None:
    """Load a square along the loop across, turn it, and leave it on the stack."""
    fn, lanes = frame.fn, frame.schedule.lanes
    source = value.source
    assert isinstance(source, Load) and frame.schedule.tile is not None and frame.schedule.lane is not None
    bits = frame.bits(lanes)
    element = bits.memory_element(source.dtype)
    type_ = vector_type(register_type(source.dtype), lanes)
    base = frame.base(source.buffer, source.index, element)
    with frame.turn(frame.schedule.tile, corner[0]), frame.lanes(frame.schedule.lane, Span(1, 1, [corner[1]])):
        begin = frame.offset(source.index)
    step = frame.word(source.index.strides[frame.schedule.lane], ("stride", source.index.strides, frame.schedule.lane))
    rows = []
    at = begin
    for _ in range(lanes):
        raw = fn.load(vector_type(element, lanes), fn.gep(element, base, at), source.dtype.itemsize)
        rows.append(bits.from_memory(raw, source.dtype))
        at = fn.add(at, step)
    for k, row in enumerate(transposed(frame, rows, type_)):
        fn.store(type_, row, fn.gep(type_, tile, k), row_align(value, lanes))


def row_align(value: Value, lanes: int) -> int:
    """Alignment of a square's rows on the stack: what a row's own size gives."""
    return min(64, lanes * max(value.dtype.itemsize, 4 if value.dtype.is_floating else 1))


def transposed(frame: Frame, rows: list[str], type_: str) -> list[str]:
    """The columns of as many vectors as they have lanes, by exchanging ever larger blocks between pairs of rows."""
    count = len(rows)
    rows = list(rows)
    distance = 1
    while distance < count:
        upper = [count + lane - distance if lane & distance else lane for lane in range(count)]
        lower = [count + lane if lane & distance else lane + distance for lane in range(count)]
        made = list(rows)
        for first in range(count):
            if first & distance:
                continue
            a, b = rows[first], rows[first + distance]
            for place, picks in ((first, upper), (first + distance, lower)):
                lanes = ", ".join(f"i32 {p}" for p in picks)
                made[place] = frame.fn.let(f"shufflevector {type_} {a}, {type_} {b}, <{count} x i32> <{lanes}>")
        rows = made
        distance *= 2
    return rows


def _square(frame: Frame, values: Values, span: Span, rows: tuple[str, str], tiles: dict[int, str]) -> None:
    """The nest's point for each row of a square, its turned loads from the stack."""
    fn, schedule = frame.fn, frame.schedule
    assert schedule.tile is not None and schedule.lane is not None
    values.tiled, values.tile_start = tiles, rows[0]
    with fn.loop(rows[0], rows[1]) as made, frame.turn(schedule.tile, made.index), frame.lanes(schedule.lane, span):
        values.store_all(frame.graph.outer_stores)
    values.tiled = {}


def _edge(frame: Frame, values: Values, across: int, lane: int, rows: tuple[str, str], rest: tuple[str, str]) -> None:
    """The lanes past the last whole square."""
    fn = frame.fn
    with (
        fn.loop(rows[0], rows[1]) as made,
        frame.turn(across, made.index),
        fn.loop(*rest) as single,
        frame.lanes(lane, Span(1, 1, [single.index])),
    ):
        values.store_all(frame.graph.outer_stores)
