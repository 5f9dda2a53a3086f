"""Drop what nobody uses.   %1 = sin %x; %2 = cos %x; return %2   ==>   %2 = cos %x; return %2

Effects stay: writes, random draws (eager advances the generator too), outside effects, and what data may make raise.
"""

from __future__ import annotations

from smelt.ir import Graph, Region
from smelt.passes.base import Pass, PassContext, can_erase
from smelt.rewrite import Rewriter


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    _sweep(graph.body, rewriter)
    return rewriter.edits > 0


def _sweep(region: Region, rewriter: Rewriter) -> None:
    """Backwards, so that one walk finds everything that becomes dead."""
    for node in reversed(region):
        for inner in node.regions:
            _sweep(inner, rewriter)
        if not any(r.users for r in node.results) and can_erase(node):
            rewriter.erase(node)


dce = Pass("dce", "%1 = sin %x; %2 = cos %x; return %2   ==>   %2 = cos %x; return %2", _run)
