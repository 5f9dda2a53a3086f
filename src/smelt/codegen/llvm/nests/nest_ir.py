"""A loop nest as a kernel: LLVM text with its constant words, its work items and what they cost."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, replace
from functools import lru_cache

from smelt.codegen.kernels.graph import Graph, operand_dtype
from smelt.codegen.kernels.nest import Buffer, Nest, Op
from smelt.codegen.kernels.operations import DTYPES
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.kernels.sizes import at_most
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import is_supported
from smelt.codegen.llvm.nests.nest_directed import directed
from smelt.codegen.llvm.nests.nest_frame import Frame
from smelt.codegen.llvm.nests.nest_loops import Loops
from smelt.codegen.llvm.nests.nest_schedule import Schedule, plan
from smelt.codegen.llvm.nests.nest_text import scheduled_text
from smelt.codegen.llvm.nests.nest_values import scratch_row
from smelt.codegen.llvm.nests.nest_variants import plans
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag import InternalError, ScheduleError
from smelt.diag.loops import LoopStep
from smelt.diag.records import record
from smelt.ir.sizes import MARK, Trace, current_trace, to_words

__all__ = ["EmittedKernel", "emit_nest", "emit_nests", "loops_text", "simplify_nest", "unsupported"]

# Rows of scratch beyond a core's own cache cost more than computing again.
_SCRATCH_LIMIT = 512 * 1024
_ONLY_WHAT_MUST = float("inf")


@record
class EmittedKernel:
    """A nest's kernel: the text, the words after the buffers' addresses, and how it is to be launched.

    `buffers` of the launch are the nest's, in order. `item_ns` estimates one work item on one thread.
    """

    source: KernelSource
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int = 0
    externals: tuple[str, ...] = ()


def unsupported(nest: Nest, isa: Isa) -> str | None:
    """Why a nest cannot be emitted for an instruction set; None if it can."""
    return _obstacle(Graph(nest), isa)


def _obstacle(graph: Graph, isa: Isa) -> str | None:
    for buffer in graph.nest.buffers:
        if buffer.dtype not in DTYPES:
            return f"%{buffer.name} has elements of {buffer.dtype}"
    if graph.scans and len(graph.nest.inner) > 1:
        return "a scan runs along a single inner loop"
    for value in graph.values:
        if value.dtype not in DTYPES:
            return f"there is no vector code for {value.dtype}"
        if isinstance(value.source, Op) and not is_supported(value.source.op, operand_dtype(value), isa):
            return f"there is no vector code for {value.source.op} of {operand_dtype(value)}"
    return None


def emit_nest(nest: Nest, isa: Isa) -> EmittedKernel:
    """The kernel of a nest; one that differs from an earlier nest in its buffers' names only is that one's.

    Raises: InternalError if the nest holds something that `unsupported` names.
    """
    (kernel,) = emit_nests(nest, isa)
    return kernel


def emit_nests(nest: Nest, isa: Isa, steps: Sequence[LoopStep] = ()) -> tuple[EmittedKernel, ...]:
    """The kernels of a nest, of which one has items: several only where sizes are known at run time (`nest_variants`).

    steps: on its loops, as `loops_text` shows them. Raises: InternalError if the nest holds something that
    `unsupported` names; ScheduleError (S0614) for steps that cannot be taken.
    """
    nameless = replace(nest, buffers=tuple(Buffer(f"b{i}", b.dtype) for i, b in enumerate(nest.buffers)))
    asked = _Asked(repr(nameless), nest)
    if steps:
        _check_known(asked.text)
        return (_emitted_directed(asked, isa, tuple(steps)),)
    return _emitted_in_trace(asked, isa) if MARK in asked.text else (_emitted(asked, isa),)


@record
class _Asked:
    """A nest as a key: by its text, since Python says 1 == 1.0 == True and 0.0 == -0.0."""

    text: str
    nest: Nest = field(compare=False)


class _Known(threading.local):
    """The kernels of one trace: their words are its sizes, and mean nothing in another."""

    trace: Trace | None = None
    kernels: dict[tuple[_Asked, Isa], tuple[EmittedKernel, ...]]


_known = _Known()


def _emitted_in_trace(asked: _Asked, isa: Isa) -> tuple[EmittedKernel, ...]:
    trace = current_trace()
    if _known.trace is not trace:
        _known.trace, _known.kernels = trace, {}
    key = (asked, isa)
    if key not in _known.kernels:
        nest = simplify_nest(asked.nest)
        _known.kernels[key] = tuple(
            _made(Graph(nest), schedule, runs, isa) for schedule, runs in plans(_emittable(nest, isa), isa)
        )
    return _known.kernels[key]


@lru_cache(maxsize=256)
def _emitted(asked: _Asked, isa: Isa) -> EmittedKernel:
    graph = _emittable(simplify_nest(asked.nest), isa)
    return _made(graph, plan(graph, isa), 1, isa)


@lru_cache(maxsize=256)
def _emitted_directed(asked: _Asked, isa: Isa, steps: tuple[LoopStep, ...]) -> EmittedKernel:
    graph = _emittable(simplify_nest(asked.nest), isa)
    return _made(graph, directed(graph, isa, steps), 1, isa)


def loops_text(nest: Nest, isa: Isa, steps: Sequence[LoopStep] = ()) -> str:
    """The loops of a nest of known sizes as they run, with these steps taken, as text.

    Raises: as of `emit_nests`.
    """
    _check_known(repr(nest))
    nest = simplify_nest(nest)
    graph = _emittable(nest, isa)
    return scheduled_text(nest, directed(graph, isa, steps) if steps else plan(graph, isa))


def _check_known(text: str) -> None:
    if MARK in text:
        raise ScheduleError(
            "the loops of a kernel of free sizes run as they do",
            why="steps on loops are checked for sizes that are known",
            fix="compile for one tuple of sizes (dynamic=False)", code="S0614",
        )  # fmt: skip


def _emittable(nest: Nest, isa: Isa) -> Graph:
    graph = Graph(nest)
    reason = _obstacle(graph, isa)
    if reason is not None:
        raise InternalError(f"a nest cannot be emitted: {reason}", notes=(str(nest),))
    return graph


def _made(graph: Graph, schedule: Schedule, runs: int, isa: Isa) -> EmittedKernel:
    """A schedule's kernel, which has items where `runs` is 1, and none where it is 0."""
    frame = Frame(graph, schedule, isa)
    if at_most(_SCRATCH_LIMIT + 1, _scratch_nbytes(frame)):
        graph.keep(_ONLY_WHAT_MUST)
    Loops(frame).kernel()
    source = KernelSource.of(frame.finish())
    items, scratch = schedule.items * runs, _scratch_nbytes(frame) * runs
    return EmittedKernel(source, to_words(frame.words), items, schedule.item_ns, scratch)


def _scratch_nbytes(frame: Frame) -> int:
    return sum(scratch_row(frame, value) for value in frame.graph.kept)
