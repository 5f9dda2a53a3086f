"""Recurrent layers as one product of all inputs and a loop over the steps, which one kernel runs.

    %y, %h, %c = lstm(%x, ...)   ==>   %g = linear %x, %w, %b; %y, %h, %c = rnn.lstm(%g, ...)

Left out where there are no own kernels, for the steps would run one by one.
"""

from __future__ import annotations

from smelt.ir import Graph
from smelt.ops.catalogue.recurrent import RECURRENT_LAYERS
from smelt.passes.base import Pass, PassContext
from smelt.passes.layers.decompose import lower_node


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    for node in [n for n in graph.walk() if n.op in RECURRENT_LAYERS]:
        lower_node(rewriter, node, exact=False)
    return rewriter.edits > 0


expand_recurrent = Pass(
    "expand-recurrent",
    "%y, %h, %c = lstm(%x, ...)   ==>   %g = linear %x, %w, %b; %y, %h, %c = rnn.lstm(%g, ...)",
    _run,
    rounding=True,
)
