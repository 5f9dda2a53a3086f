"""Several texts for one nest whose sizes are known at run time only, of which one runs at each tuple of sizes.

    softmax of f32[B, S]      short rows: lanes along B      longer ones: lanes along S      long ones: sums in blocks

What is cheapest at some sizes may cost several times as much at others, and which loop the lanes go along is text. So
there is one kernel for each way that is the cheapest somewhere in the ranges, and the number of items of all but one of
them is 0. Invariant: every way is right at all sizes, but for sums, which are in blocks wherever they are long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.sizes import at_most
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nests.nest_schedule import SHORT_CHAIN, Schedule, Traits, Way, best_way, scheduled, traits
from smelt.ir.sizes import Size, late

_PROBES = (1, 4, 8, 16, 48, 256, 8192)
_FEW_PROBES = (1, 16, 8192)
_MANY_LOOPS = 3


def plans(graph: Graph, isa: Isa) -> tuple[tuple[Schedule, int], ...]:
    """The schedules of a nest, one for each way that it may run in; with each 1 at sizes for which it runs, else 0."""
    found = traits(graph, isa)
    sizes = graph.nest.sizes
    ways = tuple(_ways(found, sizes))
    made = [scheduled(graph, isa, found, way) for way in ways]
    return tuple((one, _runs(found, sizes, ways, number)) for number, one in enumerate(made))


@late
def _runs(found: Traits, sizes: tuple[int, ...], ways: tuple[Way, ...], number: int) -> int:
    return int(_picked(found, sizes, ways) == number)


def _picked(found: Traits, sizes: Sequence[int], ways: Sequence[Way]) -> int:
    """The number of the way that runs at sizes: one with the cheapest loops, its sums in blocks where they are long."""
    best = best_way(found, sizes)
    fits = (
        lambda way: (way.lane, way.tile, way.copies) == (best.lane, best.tile, best.copies),
        lambda way: (way.lane, way.tile) == (best.lane, best.tile),
        lambda way: way.lane == best.lane,
        lambda way: True,
    )
    for fit in fits:
        for number, way in enumerate(ways):
            if fit(way) and (way.long == found.is_long(way, sizes) or (way.long and not _has_short(way, ways))):
                return number
    raise AssertionError("there is a schedule for sums of every length")


def _has_short(way: Way, ways: Sequence[Way]) -> bool:
    return replace(way, long=False) in ways


def _ways(found: Traits, sizes: Sequence[int]) -> Iterator[Way]:
    """The ways that are the cheapest at some sizes within the ranges."""
    loops = [loop for loop, size in enumerate(sizes) if type(size) is Size]
    probes = _PROBES if len(loops) < _MANY_LOOPS else _FEW_PROBES
    seen: set[tuple[int | None, int | None]] = set()
    for numbers in product(*(_within(sizes[loop], probes) for loop in loops)):
        known = dict(zip(loops, numbers, strict=True))
        best = best_way(found, [known.get(loop, size) for loop, size in enumerate(sizes)])
        if (best.lane, best.tile) in seen:
            continue
        seen.add((best.lane, best.tile))
        if best.lane is None or best.lane not in loops or best.tile is not None:
            yield from _lengths(found, best, sizes)
            continue
        # As many vectors in flight as there may be work for; rows of one vector have no others to be combined with.
        yield from _lengths(found, replace(best, copies=found.copies), sizes)
        if best.lane >= found.nouter and found.copies > 1 and not at_most(2 * found.lanes, sizes[best.lane]):
            yield replace(best, copies=1, long=False)


def _lengths(found: Traits, way: Way, sizes: Sequence[int]) -> Iterator[Way]:
    """A way with sums in blocks, and without where that pays and they may be short."""
    total = 1
    for size in sizes[found.nouter :]:
        total *= size
    chain = total // found.unit(way)
    if not found.sums or at_most(chain, SHORT_CHAIN):
        yield replace(way, long=False)
        return
    if found.unit(way) > 1 and not at_most(SHORT_CHAIN + 1, chain):
        yield replace(way, long=False)
    yield replace(way, long=True)


def _within(size: int, probes: Sequence[int]) -> list[int]:
    assert type(size) is Size
    low, high = size.trace.bounds(size.poly)
    return sorted({int(min(max(probe, low, 1), high)) for probe in probes})
