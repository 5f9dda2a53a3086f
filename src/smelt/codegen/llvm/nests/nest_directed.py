"""How a nest's loops run where a person says so: steps on its loops, checked, on top of what would be chosen.

    for i0 < 64, i1 < 256          tile i0 by 16, tile i1 by 32, vectorize i1 by 8, unroll i1 2 times:

    for i0 in tiles of 16:         items are tiles: as many of them as are work enough
      for i1 in tiles of 32:
        for i0 in its tile:
          for i1 in its tile, 8 at once, 2 vectors in a row

What no step says is chosen as ever. Invariant: points of outer loops are independent, so they may run in any order, and
a point's value has the same bits. What is combined over inner loops keeps its order but for vectors along them and for
tiles: then sums are added in another order, in chains that are no longer than before (DESIGN, "Same answer"), and what
depends on the order in another way (a scan, the first of several extremes) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import Nest, Reduce, loop_name, loop_named
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nests.nest_schedule import (
    ITEM_NS,
    OuterLevel,
    Schedule,
    Traits,
    Way,
    best_way,
    element_ns_of,
    is_masked,
    outer_order,
    traits,
)
from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep, Parallel, Stages, Tile, Unroll, Vectorize, Warps

MOST_BODIES = 64
"""Bodies of loops in a row, all steps together: beyond, the text is too long to be read, compiled and cached."""


def directed(graph: Graph, isa: Isa, steps: Sequence[LoopStep]) -> Schedule:
    """The schedule of a nest of known sizes with these steps, taken one after the other.

    Raises: ScheduleError (S0614) for the first that cannot be taken.
    """
    wanted = _Wanted(graph, isa)
    for step in steps:
        match step:
            case Tile(loop=name, size=size):
                wanted.tile(loop_named(wanted.nest, name), size)
            case Vectorize(loop=name, lanes=lanes):
                wanted.vectorize(loop_named(wanted.nest, name), lanes)
            case Unroll(loop=name, times=times):
                wanted.unroll(loop_named(wanted.nest, name), times)
            case Parallel(loop=name, iterations=turns):
                wanted.parallel(loop_named(wanted.nest, name), turns)
            case Warps() | Stages():
                raise _refused(
                    "a kernel for a CPU has no warps, and loads nothing ahead", "programs of a GPU do",
                    "use this step for a model whose tensors are on a GPU",
                )  # fmt: skip
        schedule = wanted.schedule()
    return schedule if steps else wanted.schedule()


@dataclass
class _Wanted:
    """What was asked for so far: tiles and bodies in a row by loop, the lanes, the loops over which threads go."""

    graph: Graph
    isa: Isa
    tiles: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    lanes: tuple[int | None, int] | None = None
    spread: list[int] = field(default_factory=list)
    pieces: dict[int, int | None] = field(default_factory=dict)  # of what is spread and not tiled: turns in a piece

    def __post_init__(self) -> None:
        self.traits: Traits = traits(self.graph, self.isa)
        self.nest: Nest = self.graph.nest
        self.nouter = len(self.nest.outer)

    def name(self, loop: int) -> str:
        """The name of a loop, and its turns."""
        return f"{loop_name(self.nest, loop)} < {self.nest.sizes[loop]}"

    # --- one step

    def tile(self, loop: int, size: int) -> None:
        """Take a tile. Raises: ScheduleError."""
        _check_count("a tile", size, 1)
        if loop in self.tiles:
            raise _twice(self.name(loop), "tiled", f"its tiles have {self.tiles[loop]} iterations")
        if loop in self.pieces:
            raise _refused(
                f"{self.name(loop)} is spread over threads already", "its tiles would be other work items",
                "tile it first, then spread it",
            )  # fmt: skip
        if loop < self.nouter:
            self._check_free_order(loop, "its tiles would run them in another order")
        elif len(self.nest.inner) > 1:
            self._check_combines(loop, "tiles go around the other loops")
        self.tiles[loop] = size

    def vectorize(self, loop: int, lanes: int | None) -> None:
        """Take the loop that the lanes go along. Raises: ScheduleError."""
        native = self.traits.lanes
        count = native if lanes is None else lanes
        _check_count("a vector", count, 1)
        if count > native or count & (count - 1):
            powers = ", ".join(str(1 << k) for k in range(native.bit_length()))
            raise _refused(
                f"there are no vectors of {count} lanes here", f"this kernel's may have {powers} on {self.isa.name}",
                "take one of these, and unroll the loop for more vectors at once",
            )  # fmt: skip
        if self.lanes is not None:
            raise _twice(self.name(loop), "vectorized", "vectors go along one loop of a kernel")
        if count > 1:
            if loop not in dict(self.traits.lane_costs):
                raise _refused(
                    f"{self.name(loop)} cannot be vectorized", self._why_no_lanes(loop), "vectorize another loop"
                )
            if loop >= self.nouter:
                self._check_short(loop, count)
        self.lanes = (loop if count > 1 else None, count)

    def unroll(self, loop: int, times: int | None) -> None:
        """Take a body in a row. Raises: ScheduleError."""
        turns = self.turns(loop)
        if times is None and turns > MOST_BODIES:
            raise _refused(
                f"{self.name(loop)} cannot be unrolled whole", f"{turns} bodies in a row are more than {MOST_BODIES}",
                "say how many: unroll(kernel, loop, 4)",
            )  # fmt: skip
        count = turns if times is None else times
        _check_count("an unrolled loop", count, 1 if times is None else 2)
        if loop in self.times:
            raise _twice(self.name(loop), "unrolled", f"its body stands {self.times[loop]} times already")
        if count > turns:
            raise _refused(
                f"{self.name(loop)} cannot be unrolled {count} times",
                f"{'a tile of it' if loop in self.tiles else 'it'} has {turns} iteration{'s' * (turns != 1)}",
                "unroll it less",
            )  # fmt: skip
        bodies = count * prod(self.times.values())
        if bodies > MOST_BODIES:
            raise _refused(
                f"{self.name(loop)} cannot be unrolled {count} times",
                f"with the other loops {bodies} bodies would stand in a row, and {MOST_BODIES} may", "unroll less",
            )  # fmt: skip
        self.times[loop] = count

    def parallel(self, loop: int, turns: int | None) -> None:
        """Take a loop over which threads go. Raises: ScheduleError."""
        if turns is not None:
            _check_count("a work item", turns, 1)
        if loop >= self.nouter:
            raise _refused(
                f"{self.name(loop)} cannot be spread over threads", "what it runs over is combined for each point",
                "spread a loop of points (i0, ...)",
            )  # fmt: skip
        self._check_free_order(loop, "threads would run them in any order")
        if loop in self.spread:
            raise _twice(self.name(loop), "spread over threads", "its work items are for any of them")
        if turns is not None and loop in self.tiles:
            raise _refused(
                f"{self.name(loop)} is tiled by {self.tiles[loop]} already", "its tiles are the work items",
                "leave out the number of iterations",
            )  # fmt: skip
        self.spread.append(loop)
        if loop not in self.tiles:
            self.pieces[loop] = turns

    # --- what a step needs

    def turns(self, loop: int) -> int:
        """The most turns of a loop between the levels around it."""
        return min(self.nest.sizes[loop], self.tiles.get(loop, self.nest.sizes[loop]))

    def _check_free_order(self, loop: int, what: str) -> None:
        if self.nest.ordered:
            raise _refused(
                f"{self.name(loop)} must run in order", f"its points write to the same elements in order, and {what}",
                "unroll it, which keeps the order",
            )  # fmt: skip

    def _check_combines(self, loop: int, what: str) -> None:
        kinds = [r.source.kind for r in self.graph.reduces if isinstance(r.source, Reduce)]
        first = next((kind for kind in kinds if kind.startswith("arg")), None)
        adds = any(s.source.mode == "add" and s.loops & self.graph.inner_bits for s in self.graph.stores)
        if first is not None or adds:
            why = f"{first} wants the first of equal elements" if first is not None else "elements are added in order"
            raise _refused(
                f"{self.name(loop)} cannot be tiled", f"{why}, and {what}", "unroll it, which keeps the order"
            )

    def _check_short(self, loop: int, lanes: int) -> None:
        if self.nest.sizes[loop] < lanes:
            raise _refused(
                f"{self.name(loop)} cannot be vectorized by {lanes}", "what it combines is less than one vector",
                "take fewer lanes, or vectorize another loop",
            )  # fmt: skip

    def _why_no_lanes(self, loop: int) -> str:
        if loop >= self.nouter and self.graph.scans:
            return "it carries a scan (each iteration needs the one before): only sums may be added in another order"
        if loop >= self.nouter and loop != len(self.nest.sizes) - 1:
            return (
                f"of the loops that are combined vectors go along the innermost, {self.name(len(self.nest.sizes) - 1)}"
            )
        if self.nest.ordered:
            return "its iterations write to the same elements, in order"
        return "its iterations write to one element, or to elements that depend on data"

    # --- all of it

    def schedule(self) -> Schedule:
        """The schedule. Raises: ScheduleError where what was asked for does not go together."""
        lane, lanes, tile, copies, way_lanes = self._lanes()
        order = outer_order(self.nest, lane)
        if tile is not None and lane is not None:
            order = (*(k for k in order if k not in (tile, lane)), tile, lane)
        element_ns = element_ns_of(self.graph, lane, lanes)
        tiles = {**self.tiles, **self._pieces(lane, lanes * copies, element_ns)}
        levels = self._levels(order, tiles)
        order = tuple(level.loop for level in levels if level.tile is None)
        way = Way(lane, tile, copies, False)
        long = replace(self.traits, lanes=way_lanes).is_long(way, self.nest.sizes)
        block, length, items, item_ns = self._items(levels, tiles, lane, lanes * copies, tile, element_ns)
        return Schedule(
            lane, lanes, copies, order, block, length, items, item_ns, is_masked(self.graph, self.isa, lane), tile,
            long, tuple(tiles.items()), tuple((k, n) for k, n in self.times.items() if k != lane), levels,
        )  # fmt: skip

    def _lanes(self) -> tuple[int | None, int, int | None, int, int]:
        """(the lanes' loop, lanes, the loop of squares, vectors at once, lanes that count for sums)."""
        sizes = self.nest.sizes
        best = best_way(self.traits, sizes)
        lane, lanes = (best.lane, self.traits.lanes) if self.lanes is None else self.lanes
        if lane is None:
            return None, 1, None, 1, self.traits.lanes
        tile = best.tile if self.lanes is None and self._has_squares(lane, best.tile) else None
        room = self._whole(lane, lanes)
        if tile is not None:
            return lane, lanes, tile, 1, lanes
        wanted = self.times.get(lane)
        if wanted is not None:
            self._check_vectors(lane, lanes, wanted, room)
            return lane, lanes, None, wanted, lanes
        copies = self.traits.copies
        while copies > 1 and (sizes[lane] < copies * lanes or (room is not None and room % (copies * lanes))):
            copies //= 2
        return lane, lanes, None, copies, lanes

    def _has_squares(self, lane: int, across: int | None) -> bool:
        """Whether transposes still run in squares: turns of the two loops are neither torn apart nor in a row."""
        single = [loop for loop, turns in self.pieces.items() if turns in (None, 1)]
        return self.times.keys().isdisjoint((lane, across)) and across not in single

    def _whole(self, lane: int, lanes: int) -> int | None:
        """The turns of the lanes' loop that are whole vectors: its tile, or piece. Raises: ScheduleError."""
        room = self.tiles.get(lane, self.pieces.get(lane))
        if room is None or room >= self.nest.sizes[lane]:
            return None
        if room % lanes:
            raise _refused(
                f"{self.name(lane)} cannot be tiled by {room}",
                f"vectors of {lanes} go along it, and {room} is no multiple",
                f"tile it by a multiple of {lanes}, or vectorize another loop (or by fewer lanes) before",
            )  # fmt: skip
        return room

    def _check_vectors(self, lane: int, lanes: int, times: int, room: int | None) -> None:
        what = f"{self.name(lane)}, vectorized by {lanes}, cannot be unrolled {times} times"
        if times & (times - 1):
            raise _refused(what, "vectors at once are a power of two", "take 2, 4 or 8")
        if times * lanes > self.nest.sizes[lane]:
            raise _refused(what, "it has fewer iterations than these vectors have lanes", "unroll it less")
        if room is not None and room % (times * lanes):
            raise _refused(
                what, f"its blocks of {room} iterations are no multiple of {times * lanes}", "unroll it less"
            )

    def _pieces(self, lane: int | None, step: int, element_ns: float) -> dict[int, int]:
        """The tiles that make pieces of work of loops that are not tiled."""
        found = {}
        for loop, turns in self.pieces.items():
            if turns is not None and turns > 1:
                found[loop] = turns
            elif loop == lane:
                inside = prod(self.nest.sizes) // self.nest.sizes[loop] * element_ns
                found[loop] = max(1, round(ITEM_NS / max(inside * step, 1e-9))) * step
        return found

    def _levels(self, order: tuple[int, ...], tiles: dict[int, int]) -> tuple[OuterLevel, ...]:
        spread = [OuterLevel(loop, tiles.get(loop)) for loop in self.spread]
        around = [OuterLevel(loop, size) for loop, size in tiles.items() if loop < self.nouter]
        own = [OuterLevel(loop) for loop in order]
        return tuple(dict.fromkeys((*spread, *around, *own)))

    def _items(
        self, levels: tuple[OuterLevel, ...], tiles: dict[int, int], lane: int | None, step: int, tile: int | None,
        element_ns: float,
    ) -> tuple[int, int, int, float]:  # fmt: skip
        """(the level that is cut, its turns in an item, items, time of one)."""
        sizes = self.nest.sizes

        def turns(level: OuterLevel) -> int:
            if level.tile is not None:
                return -(-sizes[level.loop] // level.tile)
            return min(sizes[level.loop], tiles.get(level.loop, sizes[level.loop]))

        def points(at: int) -> int:
            return prod(self.nest.inner) * prod(map(turns, levels[at + 1 :]))

        if not levels:
            return 0, 1, 1, points(0) * element_ns
        if self.nest.ordered:
            return 0, turns(levels[0]), 1, prod(sizes) * element_ns
        if self.spread:
            at = len(self.spread) - 1
            for level in levels[: at + 1]:
                if level.tile is None and level.loop in self.times:
                    raise _refused(
                        f"{self.name(level.loop)} cannot be both unrolled and spread over threads by single iterations",
                        "a work item is one iteration", "spread it by more iterations: parallel(kernel, loop, 8)",
                    )  # fmt: skip
            return at, 1, prod(map(turns, levels[: at + 1])), points(at) * element_ns
        # Whole tiles; else down to the first loop whose body stands in a row, which must not be torn apart.
        blocks = sum(level.tile is not None for level in levels)
        rows = [k for k, level in enumerate(levels) if level.tile is None and level.loop in self.times]
        at = blocks - 1 if blocks else min([len(levels) - (1 if tile is None else 2), *rows])
        while at and points(at) * turns(levels[at]) * element_ns < ITEM_NS:
            at -= 1
        level, unit = levels[at], 1
        if level.tile is None:
            unit = step if level.loop == lane else 16 if level.loop == tile else self.times.get(level.loop, 1)
        wanted = max(1, round(ITEM_NS / (points(at) * element_ns)))
        length = min(-(-wanted // unit) * unit, turns(level))
        items = -(-turns(level) // length) * prod(map(turns, levels[:at]))
        return at, length, items, points(at) * length * element_ns


def _check_count(what: str, count: int, least: int) -> None:
    if type(count) is not int or count < least:
        raise _refused(
            f"{what} cannot have {count!r} iterations", f"it takes a number from {least} on", "correct the number"
        )


def _twice(name: str, done: str, why: str) -> ScheduleError:
    return _refused(f"{name} cannot be {done} again", why, "undo the step before, or choose another loop")


def _refused(what: str, why: str, fix: str) -> ScheduleError:
    return ScheduleError(what, why=why, fix=fix, code="S0614")
