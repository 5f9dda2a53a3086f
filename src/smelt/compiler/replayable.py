"""What a run did outside that its graph does, too: it prints, warns, and draws numbers from global generators.

Invariant: a graph is asked only where nobody else did these things: a staged run prints and draws nothing itself, and
has no graph where it would have to.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from smelt.capture.reads.reads import Effect, ReadLog
from smelt.capture.reads.reads_effects import PRINTS, SHOWS_WARNING, WARNS
from smelt.ir import Graph, Node

_STREAMS = frozenset(("sys.stdout", "sys.stderr"))
_WARNINGS = (WARNS, SHOWS_WARNING)
_ADDRESS = re.compile(r" at 0x[0-9a-f]")  # an object made anew at each call says where it lies


def acts_repeatably(log: ReadLog) -> bool:
    """Whether a run printed or drew numbers, and did nothing else outside that a replay would not."""
    return bool(log.effects) and all(map(is_repeatable, log.effects)) and not log.mutations


def without_repeated(log: ReadLog, graph: Graph) -> ReadLog:
    """The log without those effects that the graph has."""
    nodes = list(graph.walk())
    shown = [node for node in nodes if node.op == "py.print"]
    if any(isinstance(arg, str) and _ADDRESS.search(arg) for node in shown for arg in node.args):
        return log
    printed = _lines_of(shown)
    warned = _lines_of(node for node in nodes if node.op == "py.warn")
    drawn = {str(node.args[0]).rpartition(".")[0] for node in nodes if node.op == "py.draw"}

    def is_left(effect: Effect) -> bool:
        if effect.generator:
            return effect.generator not in drawn
        if effect.span is None or not is_repeatable(effect):
            return True
        return (effect.span.file, effect.span.line) not in (warned if effect.what in _WARNINGS else printed)

    return ReadLog(log.reads, [effect for effect in log.effects if is_left(effect)], log.mutations)


def is_repeatable(effect: Effect) -> bool:
    """Whether a graph of all ways can do this, too."""
    return bool(effect.generator) or effect.what in _WARNINGS or _prints(effect)


def _lines_of(nodes: Iterable[Node]) -> set[tuple[str, int]]:
    return {(node.span.file, node.span.line) for node in nodes if node.span is not None}


def _prints(effect: Effect) -> bool:
    # The streams themselves may be named (`file=sys.stderr`): what else was done with them is an effect of its own.
    return effect.what == PRINTS or effect.name in _STREAMS
