"""What is rewritten of an optimized graph before it is lowered, in order: what a plan has no form for gets one.

    prepared(graph, options)      ==>   graph of known sizes, number of each output that may be another's memory, ...

These are passes like those of `compiler.pipeline`, but none can be left out, and the graph that was passed stays as it
is: a rewrite gives the graph itself where it has nothing to do, else a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.memory.output_choices import Choice, refuse_shared, with_choices
from smelt.codegen.lower.memory.returned_memory import with_own_constants
from smelt.codegen.lower.python.accumulators import with_rows
from smelt.codegen.lower.python.indexed_writes import with_parts
from smelt.codegen.lower.static.hoist import hoisted
from smelt.codegen.lower.unknown import padded
from smelt.diag import Options, SmeltError
from smelt.diag.records import record
from smelt.ir import Graph, verify
from smelt.ops.check import check
from smelt.passes.base import Pass, PassContext
from smelt.passes.manager import dump_graph


@dataclass(slots=True)
class Prepared:
    """A graph as it is lowered. chosen: for each output that may be memory from outside, how a run tells; stages: what
    each rewrite took, in milliseconds."""

    graph: Graph
    options: Options
    chosen: Mapping[int, Choice] = field(default_factory=dict)
    stages: list[tuple[str, float]] = field(default_factory=list)


@record
class Preparation:
    """One rewrite. name, picture, rounding: as of a `Pass`. run: gives the graph itself, or a rewritten copy."""

    name: str
    picture: str
    run: Callable[[Graph, Prepared], Graph]
    rounding: bool = False

    def as_pass(self, options: Options) -> Pass:
        """The same as a pass, which edits the graph itself; one that cannot be lowered stays as it is."""

        def run(graph: Graph, context: PassContext) -> bool:
            try:
                made = self.run(graph, Prepared(graph, options))
            except SmeltError:
                return False
            if made is graph:
                return False
            graph.take(made)
            context.seen.forget()
            return True

        return Pass(self.name, self.picture, run, self.rounding)


def _pad(graph: Graph, state: Prepared) -> Graph:
    options = state.options
    layers = options.own_kernels and host_isa() is not None and options.numerics != "eager-library"
    made = padded(graph, layers=layers)
    if made is not graph:
        # Memory that is longer than what it holds is each value's own, so that this is not seen any more.
        refuse_shared(graph)
    return made


def _tell_choices(graph: Graph, state: Prepared) -> Graph:
    made, state.chosen = with_choices(graph)
    return made


rows_of_lists = Preparation(
    "rows-of-lists",
    "for ... { %l = py.append %l, %x }   ==>   a tensor of as many rows, and for ... { write row i }",
    lambda graph, _: with_rows(graph),
)
pad_sizes = Preparation("pad-sizes", "%1: f32[_] = index %x, [%mask]   ==>   %1: f32[18], %n: int", _pad, rounding=True)
own_constants = Preparation(
    "own-constants",
    "%1 = const; if %c { yield %1 }   ==>   %1 = clone (const)",
    lambda graph, _: with_own_constants(graph),
)
hoist_loops = Preparation(
    "hoist-loops", "for { %1 = exp %y; ... }   ==>   %1 = exp %y; for { ... }", lambda graph, _: hoisted(graph)
)
writes_at_numbers = Preparation(
    "writes-at-numbers",
    "%1 = select_scatter %x, %v, 0, %i   ==>   %1 = index_put %x, [%i], %v",
    lambda graph, _: with_parts(graph),
)
tell_choices = Preparation(
    "tell-choices",
    "%1 = if %c { yield %x } else { yield %2 }   ==>   also %which = if %c { yield 0 } else { yield 1 }",
    _tell_choices,
)

PREPARED: tuple[Preparation, ...] = (
    # Before sizes are padded, for a list of rows is one more tensor of unknown size.
    rows_of_lists,
    pad_sizes,
    # All below is about memory, which padding makes anew.
    own_constants,
    hoist_loops,
    writes_at_numbers,
    # Last: it names values of the graph that is lowered.
    tell_choices,
)


def prepared(graph: Graph, options: Options) -> Prepared:
    """The graph that is lowered; verified and dumped after each rewrite where the options say so.

    Raises: SmeltError (S0303) where two results may share memory on some paths only.
    """
    state = Prepared(graph, options)
    for number, one in enumerate(PREPARED, 1):
        start = perf_counter()
        made = one.run(state.graph, state)
        if made is not state.graph:
            state.graph = made
            if options.verify:
                verify(made, check)
            dump_graph(made, options.dump and f"{options.dump}/prepare", number, one.name)
        state.stages.append((one.name, round((perf_counter() - start) * 1000, 3)))
    return state
