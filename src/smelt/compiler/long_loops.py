"""Long loops over ranges in programs that ask nothing of data: recorded unrolled, and one loop of the graph all the
same where its iterations are alike and Python knows behind it what it knew.

Why: two hundred iterations are two hundred copies of the body to read, to optimize and to compile. A loop is long where
there are many iterations, or where they are many operators: those of a model that is run again and again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

from smelt.capture import Captured
from smelt.capture.reads.reads import ReadLog
from smelt.capture.staging.flow.loop_statements import LARGE, LONG, SHORT
from smelt.ir import STATE_OPS, Node
from smelt.passes.loops.unroll import MOST, MOST_TRIPS


def with_long_loops(captured: Captured, log: ReadLog | None, *, to_run: bool = False) -> Captured | None:
    """The capture, with the functions to stage for their loops; None where there seems to be no long one.

    to_run: None also where a pass would unroll the loop again, so that staging it gave the same code later.
    """
    if captured.graph is None or log is None or not log.rangers:
        return None
    nodes = [node for node in captured.graph.walk() if node.span]
    times = max(Counter((node.span, node.op) for node in nodes).values(), default=0)
    if not _has_long(nodes, times) or (to_run and len(nodes) <= MOST and times <= MOST_TRIPS):
        return None
    return replace(captured, rangers=tuple(log.rangers))


def _has_long(nodes: Sequence[Node], times: int) -> bool:
    """Whether a line was recorded so often, `times` at most, that a loop may be long.

    Layers of a model are no iterations of one loop: each has parameters of its own, at the same line.
    """
    if times > LONG:
        return True
    if len(nodes) <= LARGE:
        return False
    again = Counter((node.span, node.op, _states(node)) for node in nodes)
    of_lines = Counter((span, op) for span, op, states in again if states)
    has_layers = max(of_lines.values(), default=0) > 1
    return any(count >= SHORT and (states or not has_layers) for (_, _, states), count in again.items())


def _states(node: Node) -> tuple[Hashable, ...]:
    """The parameters and buffers that a node uses."""
    return tuple(v.name for v in node.operands() if v.node is not None and v.node.op in STATE_OPS)
