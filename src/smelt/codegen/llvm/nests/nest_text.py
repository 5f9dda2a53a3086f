"""A nest with the way its loops run, as text for people.

nest(%x: f32, %out: f32)
  parallel for i0 < 64 in tiles of 16:
    for i1 < 256 in tiles of 32:
      for i0 in its tile:
        for i1 in its tile, in vectors of 8, 2 at once:
          %out[256*i0 + i1] = exp(%x[256*i0 + i1])
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.codegen.kernels.nest import Nest, body_lines, head_text, loop_name
from smelt.codegen.llvm.nests.nest_schedule import OuterLevel, Schedule


def scheduled_text(nest: Nest, schedule: Schedule) -> str:
    """The text of a nest that runs by a schedule of its own loops."""
    return "\n".join(_lines(nest, schedule))


def _lines(nest: Nest, schedule: Schedule) -> Iterator[str]:
    yield head_text(nest)
    depth = 1
    for at, level in enumerate(schedule.levels):
        yield f"{'  ' * depth}{_outer_text(nest, schedule, at, level)}:"
        depth += 1
    if not schedule.levels:
        yield "  once:"
        depth += 1
    for loop in range(len(nest.outer), len(nest.sizes)):
        yield f"{'  ' * depth}# {_inner_text(nest, schedule, loop)}"
    yield from (f"{'  ' * depth}{line}" for line in body_lines(nest))


def _outer_text(nest: Nest, schedule: Schedule, at: int, level: OuterLevel) -> str:
    name, size, tiled = loop_name(nest, level.loop), nest.sizes[level.loop], dict(schedule.tiled)
    text = f"for {name} in its tile" if level.loop in tiled and level.tile is None else f"for {name} < {size}"
    if level.tile is not None:
        text += f" in tiles of {level.tile}"
    if nest.ordered:
        text = f"{text} in order"
    elif at <= schedule.block and schedule.items > 1:
        text = f"parallel {text}"
        if at == schedule.block and schedule.block_size > 1:
            text += f" by {schedule.block_size}"
    return text if level.tile is not None else text + _runs(schedule, level.loop)


def _inner_text(nest: Nest, schedule: Schedule, loop: int) -> str:
    tile = dict(schedule.tiled).get(loop)
    tiles = "" if tile is None else f" in tiles of {tile}"
    return f"{loop_name(nest, loop)} < {nest.sizes[loop]}{tiles}{_runs(schedule, loop) or ' one by one'}"


def _runs(schedule: Schedule, loop: int) -> str:
    """How single turns of a loop run."""
    if loop == schedule.lane:
        more = f", {schedule.copies} at once" if schedule.copies > 1 else ""
        return f", in vectors of {schedule.lanes}{more}"
    if loop == schedule.tile:
        return f", in squares of {schedule.lanes}"
    times = schedule.times(loop)
    return f", unrolled {times} times" if times > 1 else ""
