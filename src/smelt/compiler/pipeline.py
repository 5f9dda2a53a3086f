"""The only place where passes are put in order.

FUNCTIONAL makes the raw capture the graph that people read; OPTIMIZED makes that the graph that runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.diag import Options, SmeltError
from smelt.ir import Graph
from smelt.ops.evaluate import Lookup
from smelt.passes.base import Pass, PassContext
from smelt.passes.cse import cse
from smelt.passes.dce import dce
from smelt.passes.fold import fold
from smelt.passes.functionalize import functionalize
from smelt.passes.inline import inline
from smelt.passes.manager import PassReport, run_passes
from smelt.passes.pool import pool

FUNCTIONAL: tuple[Pass, ...] = (
    inline,
    # Mutation and aliasing end here: every later pass may move, merge and drop pure nodes.
    functionalize,
)

OPTIMIZED: tuple[Pass, ...] = (dce, fold, pool, cse, dce)

# Off unless asked for by `enable`: measured no faster than three packed products on the CPUs tried.
_OPTIONAL: frozenset[str] = frozenset()


def pass_names() -> tuple[str, ...]:
    """The names that `options={"skip": [...]}` takes, in order of first use."""
    return tuple(dict.fromkeys(p.name for p in (*FUNCTIONAL, *OPTIMIZED)))


def functional_graph(raw: Graph, options: Options) -> tuple[Graph, Sequence[PassReport]]:
    """A functional copy of a raw capture.

    Raises: SmeltError (S0301 for an unknown pass in an option, S0901 where a pass fails).
    """
    _check_skip(options)
    graph = raw.clone()
    # Nothing downstream understands a graph that still mutates in place, so this part is never cut short.
    reports = run_passes(graph, FUNCTIONAL, PassContext(), check=options.verify, dump=options.dump)
    return graph, reports


def optimized_graph(graph: Graph, options: Options, lookup: Lookup) -> tuple[Graph, Sequence[PassReport]]:
    """An optimized copy of a functional graph. Raises: SmeltError (S0901 a failing pass)."""
    result = graph.clone()
    passes = [p for p in OPTIMIZED if p.name not in options.skip and p.name not in _OPTIONAL - set(options.enable)]
    reports = run_passes(
        result,
        passes,
        PassContext(lookup),
        check=options.verify,
        dump=f"{options.dump}/optimize" if options.dump else "",
        stop_after=options.stop_after,
    )
    return result, reports


def _check_skip(options: Options) -> None:
    for option in ("skip", "enable"):
        for name in getattr(options, option):
            if name not in pass_names():
                raise SmeltError(
                    f"there is no pass {name!r} to {option}",
                    why=f"the passes are {', '.join(pass_names())}",
                    fix="correct the name",
                    code="S0301",
                )
