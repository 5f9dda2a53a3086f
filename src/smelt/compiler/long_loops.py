"""Long loops over ranges in programs that ask nothing of data: recorded turn by turn, and one loop of the graph all the
same where each turn is like the others and nothing but tensors goes from turn to turn.

Why: two hundred turns are two hundred copies of the body to read, to optimize and to compile. What Python keeps on the
way (a list that grows, a number) would depend on data in such a loop, though Python knows it: then the turns stay.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from smelt.capture import Captured
from smelt.capture.reads import ReadLog
from smelt.capture.staging.control import LONG


def with_long_loops(captured: Captured, log: ReadLog | None) -> Captured | None:
    """The capture, with the functions to stage for their loops; None where no line came more than LONG times."""
    if captured.graph is None or log is None or not log.rangers:
        return None
    times = Counter((node.span, node.op) for node in captured.graph.walk() if node.span)
    if max(times.values(), default=0) <= LONG:
        return None
    return replace(captured, rangers=tuple(log.rangers))
