"""How a nest's points are divided where a person says so: steps on its loops, checked, on top of what would be chosen.

    for i0 < 64, i1 < 256      tile i0 by 4, tile i1 by 64, warps 2:

    a program has the points of 4 turns of i0 and 64 of i1, and 2 warps

A tile is the block of a loop that a program has, `parallel` says how many turns of an outer loop that is, `vectorize`
how many elements of a block a thread has, `unroll` how often the body of a program's loop stands in a row.
Sizes of blocks are powers of two. Invariant: as of `layout`; a step without meaning for a form is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import Nest, loop_name, loop_named
from smelt.codegen.triton.layout import Layout, choose, fits, power_of_two
from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep, Parallel, Stages, Tile, Unroll, Vectorize, Warps

_WARP = 32
_MOST_WARPS, _MOST_STAGES, _MOST_BODIES = 32, 8, 64
_LEAST_DOT = 16
_LARGEST = 2**16
"""Elements of a block: registers hold no more."""


def directed(graph: Graph, steps: Sequence[LoopStep]) -> Layout:
    """The layout of a nest with these steps, taken one after the other.

    Raises: ScheduleError (S0614) for the first that cannot be taken.
    """
    wanted = _Wanted(graph)
    layout = choose(graph)
    for step in steps:
        wanted.take(step)
        layout = wanted.layout()
    return layout


@dataclass
class _Wanted:
    """What was asked for so far: blocks by loop, bodies in a row, elements of a thread, warps, blocks ahead."""

    graph: Graph
    tiles: dict[int, int] = field(default_factory=dict)
    bodies: int = 1
    lanes: int | None = None
    warps: int | None = None
    stages: int | None = None

    def __post_init__(self) -> None:
        self.nest: Nest = self.graph.nest
        self.nouter = len(self.nest.outer)
        self.base = choose(self.graph)

    def take(self, step: LoopStep) -> None:
        """Take one more step. Raises: ScheduleError."""
        match step:
            case Tile(loop=name, size=size):
                self._tile(loop_named(self.nest, name), size)
            case Parallel(loop=name, iterations=turns):
                self._parallel(loop_named(self.nest, name), turns)
            case Vectorize(loop=name, lanes=lanes):
                self._vectorize(loop_named(self.nest, name), lanes)
            case Unroll(loop=name, times=times):
                self._unroll(loop_named(self.nest, name), times)
            case Warps(count=count):
                _check("warps", count, 1, _MOST_WARPS)
                self.warps = count
            case Stages(count=count):
                if not 1 <= count <= _MOST_STAGES:
                    raise _refused(f"{count} blocks cannot be loaded ahead", f"1 to {_MOST_STAGES} can", "take fewer")
                self.stages = count

    def _name(self, loop: int) -> str:
        return f"{loop_name(self.nest, loop)} < {self.nest.sizes[loop]}"

    def _tile(self, loop: int, size: int) -> None:
        _check("a tile", size, 1, _LARGEST)
        if loop in self.tiles:
            raise _refused(f"{self._name(loop)} is tiled already", f"by {self.tiles[loop]}", "leave one of the two out")
        if self.base.form == "dot" and size < _LEAST_DOT:
            raise _refused(
                f"a tile of {size} is too small", f"tensor cores take blocks of {_LEAST_DOT} and more", "take 16"
            )
        self.tiles[loop] = size

    def _parallel(self, loop: int, turns: int | None) -> None:
        if loop >= self.nouter:
            raise _refused(
                f"{self._name(loop)} is combined over", "programs of a kernel share no sums", "spread an outer loop"
            )
        if loop in self.tiles:
            if turns not in (None, 1):
                raise _refused(
                    f"a program has one tile of {self._name(loop)}", f"its tiles have {self.tiles[loop]} iterations",
                    f"tile it by {power_of_two(self.tiles[loop] * (turns or 1))} instead",
                )  # fmt: skip
            return
        self._tile(loop, 1 if turns is None else turns)

    def _vectorize(self, loop: int, lanes: int | None) -> None:
        count = 4 if lanes is None else lanes
        _check("elements of a thread", count, 1, 256)
        if self.warps is not None:
            raise _refused("warps are set already", "elements of a thread follow from them", "leave one of the two out")
        if not self.layout().axes(loop):
            raise _refused(
                f"{self._name(loop)} is no axis of a block", "threads have elements of a block", "tile it first"
            )
        self.lanes = count

    def _unroll(self, loop: int, times: int | None) -> None:
        layout = self.layout()
        if loop < self.nouter or not (layout.is_looped or layout.form == "dot"):
            raise _refused(
                f"no program runs {self._name(loop)} one by one", f"it is whole in a block of the form {layout.form}",
                "tile a loop that is combined over, then unroll it",
            )  # fmt: skip
        count = times if times is not None else prod(self.nest.inner)
        if not 1 <= count <= _MOST_BODIES:
            raise _refused(
                f"{count} bodies in a row are too many", f"a kernel may have {_MOST_BODIES}", "unroll it fewer times"
            )
        self.bodies = count

    # --- the layout

    def layout(self) -> Layout:
        """What the steps so far make. Raises: ScheduleError."""
        made = self._blocks()
        if made.r * made.b * made.k > _LARGEST * _LEAST_DOT or made.r * made.b > _LARGEST:
            raise _refused(
                f"a block of {made.r} x {made.b} elements is too large", f"a program holds {_LARGEST}", "tile by less"
            )
        if made.form != "dot":
            made = replace(made, warps=min(16, max(1, power_of_two(made.r * made.b) // 256)))
        if self.lanes is not None:
            made = replace(made, warps=max(1, min(_MOST_WARPS, made.r * made.b // (_WARP * self.lanes))))
        if self.warps is not None:
            made = replace(made, warps=self.warps)
        if self.stages is not None:
            if not (made.is_looped or made.form == "dot"):
                raise _refused(
                    "nothing is loaded ahead", f"a program of the form {made.form} has no loop", "tile a loop first"
                )
            made = replace(made, stages=self.stages)
        return replace(made, unroll=self.bodies)

    def _blocks(self) -> Layout:
        if not self.tiles:
            return self.base
        if self.base.form == "dot":
            return self._product()
        inner = [k for k in self.tiles if k >= self.nouter]
        outer = [k for k in self.tiles if k < self.nouter]
        if not self.nest.inner:
            return self._points(outer)
        return self._rows(outer, inner)

    def _product(self) -> Layout:
        made = self.base
        inner = tuple(range(self.nouter, len(self.nest.sizes)))
        r, b, k = map(self._on_axis, (made.across, made.along, inner))
        made = replace(made, r=r or made.r, b=b or made.b, k=k or made.k)
        left = [k for k in self.tiles if k in made.grid]
        if left:
            raise _refused(
                f"{self._name(left[0])} has one iteration a program", "it is a batch of products", "tile another loop"
            )
        return made

    def _on_axis(self, loops: Sequence[int]) -> int:
        """The block of an axis; 0 where no step says one. Several loops of an axis have one number."""
        given = [k for k in loops if k in self.tiles]
        if not given:
            return 0
        many = [k for k in loops if self.nest.sizes[k] > 1]
        if len(many) > 1:
            names = ", ".join(loop_name(self.nest, k) for k in many)
            raise _refused(
                f"{self._name(given[0])} is not tiled alone", f"{names} are one axis of a block", "tile another loop"
            )
        return self.tiles[given[0]]

    def _points(self, outer: Sequence[int]) -> Layout:
        """Blocks of one or two outer loops; programs have one iteration of each other."""
        if len(outer) > 2:
            raise _refused(f"{self._name(outer[2])} is a third tile", "a block has two axes", "tile two loops")
        unit = {s.source.index.strides.index(1) for s in self.graph.stores if 1 in s.source.index.strides}
        column = next((k for k in outer if k in unit), outer[-1])
        rows = tuple(k for k in outer if k != column)
        rest = tuple(k for k in range(self.nouter) if k not in (*rows, column))
        r = self.tiles[rows[0]] if rows else 1
        return Layout("tile", rest, rows, (column,), r, self.tiles[column], 4)

    def _rows(self, outer: Sequence[int], inner: Sequence[int]) -> Layout:
        """Blocks of an outer loop, and of what is combined: whole, or in a loop where it is tiled."""
        if len(outer) > 1:
            raise _refused(
                f"{self._name(outer[1])} is a second tile", "the other axis is combined over", "tile one loop"
            )
        every = tuple(range(self.nouter))
        loops = tuple(range(self.nouter, len(self.nest.sizes)))
        across = tuple(outer) or (self.base.across if not inner else ())
        rest = tuple(k for k in every if k not in across)
        r = self.tiles[outer[0]] if outer else self.base.r if across else 1
        form = self.base.form
        b = self._on_axis(loops) if inner else self.base.b
        if inner:
            form = "rows" if b >= prod(self.nest.inner) else "chunk"
        if not fits(self.graph, form):
            raise _refused(
                f"{self._name(loops[0])} cannot be tiled",
                "an iteration loads what another one stores",
                "tile another loop",
            )
        if form == "rows":
            b = power_of_two(prod(self.nest.inner))
        along = () if form == "serial" else loops
        if across and r == 1 and form != "serial":
            rest, across = every, ()
        return Layout(form, rest, across, along, r, b, 4)


def _check(what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most or count & (count - 1):
        raise _refused(
            f"{what} cannot be {count}", f"on a GPU it is a power of two from {least} to {most}",
            f"take {max(least, min(most, power_of_two(max(1, count))))}",
        )  # fmt: skip


def _refused(what: str, why: str, fix: str) -> ScheduleError:
    return ScheduleError(what, why=why, fix=fix, code="S0614")
