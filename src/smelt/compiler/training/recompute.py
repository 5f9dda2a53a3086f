"""The pass that computes again, in a program that goes back through what it computed, what is cheaper than to keep.

%1 = gelu(%0); ...; %8 = mm(%7, %1)   ==>   %1 = gelu(%0); ...; %3 = gelu(%0); %8 = mm(%7, %3)
"""

from __future__ import annotations

from smelt import autodiff
from smelt.ir import Graph
from smelt.passes.base import Pass, PassContext, Peak
from smelt.passes.order import peak


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    if not autodiff.recompute(rewriter, context.aliases(graph), context.dependence(graph), context.memory_budget):
        return False
    context.peaks[:] = [
        Peak(one.before, peak(graph, context.aliases(graph), context.dependence(graph))) for one in context.peaks
    ]
    return True


recompute = Pass(
    "recompute",
    "%1 = gelu(%0); ...; %8 = mm(%7, %1)   ==>   %1 = gelu(%0); ...; %3 = gelu(%0); %8 = mm(%7, %3)",
    _run,
)
