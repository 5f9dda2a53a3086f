"""Steps on the loops of a kernel of `fuse`: `tile`, `vectorize`, `unroll`, `parallel`; on a GPU `warps`, `stages`.

    for i0 < 64, i1 < 256                 for i0 < 64 in tiles of 16, parallel
                               ==>          for i1 < 256 in tiles of 32
                                              for i0 in its tile, for i1 in its tile, in vectors of 8

Each is checked against the kernel's loops (`codegen.llvm.nests.nest_directed`, `codegen.triton.directed`) for the
example inputs. Where a call is of other sizes, so that a step does not fit its kernel, the kernel runs without steps on
its loops, with a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from smelt.diag import ScheduleError
from smelt.diag.loops import LoopStep, Parallel, Stages, Tile, Unroll, Vectorize, Warps
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.match import Match
from smelt.scheduling.graphs.editing import Editor, GraphStep
from smelt.scheduling.graphs.kernels import Kernel, named
from smelt.scheduling.graphs.regions import NativeRegion
from smelt.scheduling.primitives import Primitive, Steps
from smelt.scheduling.steps import user_span


class KernelPrimitive(Primitive):
    """A step on a loop of the kernels of a name: of each region of that name one kernel.

    make: the step on the loop, of a kernel's number, the loop's name and the amount.
    """

    on_graphs = True
    make: ClassVar[Callable[..., LoopStep]]

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Check the step for each of the kernels, then take it on the graphs that they are in."""
        given = dict(arguments)
        kernel, loop = given.pop("kernel"), given.pop("loop", None)
        on = () if loop is None else (loop,)
        kernels = named(draft.root, draft.scheduled, draft.scope, [at.path], kernel)
        for path in dict.fromkeys(found.path for found in kernels):
            here = [found for found in kernels if found.path == path]
            _check_one_each(kernel, here)
            wanted = {found.region: type(self).make(found.number, *on, **given) for found in here}
            for found in here:
                found.check(wanted[found.region])
            draft.take_on_graph(path, GraphStep(self.name, _take, None, {"wanted": wanted}, self.keeps_meaning))
            amount = "".join(f" {value}" for value in given.values() if value is not None)
            what = f"{loop or ''}{amount}".strip()
            draft.note(path, f"{self.name} of {', '.join(found.name for found in here)}: {what}")


def _take(editor: Editor, matches: Sequence[Match], wanted: Mapping[str, LoopStep]) -> None:
    """Put regions with the steps in the place of those that an earlier step made."""
    for name, step in wanted.items():
        region = editor.calls.get(name)
        assert isinstance(region, NativeRegion), "an earlier step made it"
        editor.calls[name] = again = region.with_loops(step)
        editor.regions[:] = [(n, again if r is region else r, types) for n, r, types in editor.regions]


def _check_one_each(name: str, kernels: Sequence[Kernel]) -> None:
    for kernel in kernels:
        alike = [other for other in kernels if other.region == kernel.region]
        if len(alike) > 1:
            raise ScheduleError(
                f"{name!r} is several kernels", why=f"{kernel.region} runs as {', '.join(k.name for k in alike)}",
                fix=f"name one of them, such as {alike[0].name!r}; print(s.kernels({name!r})) shows them", code="S0614",
            )  # fmt: skip


class TileLoop(KernelPrimitive):
    """A loop in blocks."""

    name, make = "tile", Tile


class VectorizeLoop(KernelPrimitive):
    """The loop that vectors go along."""

    name, make = "vectorize", Vectorize


class UnrollLoop(KernelPrimitive):
    """A loop's body several times in a row."""

    name, make = "unroll", Unroll


class ParallelLoop(KernelPrimitive):
    """The loop that is spread over threads."""

    name, make = "parallel", Parallel


class SetWarps(KernelPrimitive):
    """Warps of a program."""

    name, make = "warps", Warps


class SetStages(KernelPrimitive):
    """Blocks under way at once."""

    name, make = "stages", Stages


class KernelSteps(Steps):
    """The typed methods of this module's primitives. A kernel is one of `s.kernels()`, or its name."""

    def tile(self, kernel: Kernel | str, loop: str, size: int) -> Self:
        """Run a loop of a kernel in blocks of `size` iterations; the loop over the blocks goes around all loops there
        are.

        before:  for i0 < 64:                         after:  for i0 < 64 in tiles of 16:
                   for i1 < 256:                                for i1 < 256:
                     %out[..] = ..                                for i0 in its tile:
                                                                    %out[..] = ..
        Tiles of several loops nest in the order of the steps. A last tile may be smaller; along the vectorized loop
        the size is a multiple of the vectors' lanes. Unless `parallel` says otherwise, threads claim whole tiles. Of a
        loop that is summed over (j0), the sums of tiles are added up. Elsewhere called: tile, split + reorder (Halide,
        TVM).
        Raises: ScheduleError (S0614) for a kernel or loop that there is not, a loop that is tiled already or spread
            over threads, a size that tears vectors apart, and where another order would give another result (points
            that write to one element in order; the first of equal elements over several loops).
        """
        return self._on_kernel("tile", kernel, loop, size=size)

    def vectorize(self, kernel: Kernel | str, loop: str, lanes: int | None = None) -> Self:
        """Let the vectors of a kernel go along a loop; lanes: of each, a power of two, 1 for no vectors at all.

        before:  for i0 < 64:                         after:  for i0 < 64, in vectors of 8:
                   for j0 < 256 in vectors of 8                 for j0 < 256 one by one
        By default vectors are whole registers. Along a loop that is summed over, each lane has a sum of its own, and
        these are added at the end. More vectors at once: `unroll` the loop. Elsewhere called: vectorize (Halide, TVM).
        Raises: ScheduleError (S0614) for a kernel or loop that there is not, more lanes than a register has, a loop
            that carries a scan, writes to one element or to elements that depend on data, and where vectors go along
            another.
        """
        return self._on_kernel("vectorize", kernel, loop, lanes=lanes)

    def unroll(self, kernel: Kernel | str, loop: str, times: int | None = None) -> Self:
        """Write a loop's body `times` times in a row, or for all of its iterations.

        before:  for j0 < 9:                          after:  for j0 < 9, unrolled 3 times:
                   s += %x[j0]                                  s += %x[j0];  s += %x[j0 + 1];  s += %x[j0 + 2]
        Iterations that are left over run in a loop of their own. The order stays, but along the vectorized loop: there
        so many vectors are computed at once, and sums in as many partial sums. Elsewhere called: unroll (Halide, TVM).
        Raises: ScheduleError (S0614) for a kernel or loop that there is not, more bodies than the loop has iterations,
            or than a kernel may have (64), and vectors at once that are no power of two.
        """
        return self._on_kernel("unroll", kernel, loop, times=times)

    def parallel(self, kernel: Kernel | str, loop: str, iterations: int | None = None) -> Self:
        """Spread a loop of a kernel over threads, `iterations` of it as one work item; of a tiled loop, its tiles.

        before:  for i0 < 64:                         after:  parallel for i1 < 256 in tiles of 32:     # 8 items
                   for i1 < 256:                                for i0 < 64:
                                                                  for i1 in its tile:
        The loop goes outside of all that are not spread; several are spread together, in the order of the steps. As
        many iterations as the loop has make one work item, which one thread runs. Elsewhere called: parallel (Halide,
        TVM).
        Raises: ScheduleError (S0614) for a kernel or loop that there is not, a loop that is combined over (j0), points
            that write to one element in order, and work items that tear vectors or unrolled bodies apart.
        """
        return self._on_kernel("parallel", kernel, loop, iterations=iterations)

    def warps(self, kernel: Kernel | str, count: int) -> Self:
        """Give each program of a kernel on a GPU so many warps of 32 threads.

        before:  64 programs of 4 warps               after:  64 programs of 8 warps
        A power of two, up to 32. More threads share a block, so that each has fewer elements and registers. Elsewhere
        called: num_warps (Triton), bind (TVM).
        Raises: ScheduleError (S0614) for a kernel that there is not, another number, and a kernel for a CPU.
        """
        return self._on_kernel("warps", kernel, None, count=count)

    def stages(self, kernel: Kernel | str, count: int) -> Self:
        """Load so many blocks ahead in the loop of a kernel on a GPU.

        before:  a block is loaded, then multiplied   after:  while one is multiplied, the next ones are loaded
        1 to 8; each takes shared memory. Elsewhere called: num_stages (Triton), software pipelining (TVM).
        Raises: ScheduleError (S0614) for a kernel that there is not, or that has no loop, another number, and a kernel
            for a CPU.
        """
        return self._on_kernel("stages", kernel, None, count=count)

    def _on_kernel(self, primitive: str, kernel: Kernel | str, loop: str | None, **amount: int | None) -> Self:
        name = kernel.name if isinstance(kernel, Kernel) else kernel
        if isinstance(name, Match):
            raise ScheduleError(
                f"{primitive} is applied to a kernel, not to a Match", user_span(),
                why="a loop belongs to a kernel that fuse made; a loop of the program has a node an iteration or, "
                "where their number depends on data, no graph that steps apply to",
                fix=f's.fuse(match, name="mine", keep=True), then s.{primitive}("mine", "i0", ...)', code="S0607",
            )  # fmt: skip
        if not isinstance(name, str):
            raise ScheduleError(
                f"{primitive} is applied to a kernel, not to a {type(name).__name__}", user_span(),
                why="a loop belongs to a kernel that fuse made", code="S0607",
                fix=f's.fuse(match, name="mine", keep=True), then s.{primitive}("mine", "i0", ...)',
            )  # fmt: skip
        return self.take(primitive, {"kernel": name, **({} if loop is None else {"loop": loop}), **amount})
