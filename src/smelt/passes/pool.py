"""Keep one of equal constants and of equal reads of state.   %1 = const(2); %2 = const(2)   ==>   %1 = const(2)

Constants whose memory is written or returned stay apart: each stands for a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Hashable

from smelt.analysis import alias_analysis
from smelt.ir import Graph, Node
from smelt.passes.base import Pass, PassContext
from smelt.passes.keys import arg_key

_STATE = ("param", "buffer", "captured")


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    aliases = alias_analysis(graph)
    first: dict[Hashable, Node] = {}
    for node in list(graph.body):
        if node.op not in (*_STATE, "const"):
            continue
        result = node.result
        if node.op == "const" and (aliases.is_written(result) or aliases.reaches_output(result)):
            continue
        key = (node.op, arg_key(node.args), result.type)
        if key in first:
            rewriter.replace_node(node, (first[key].result,))
        else:
            first[key] = node
    used = {str(n.args[0]) for n in graph.walk() if n.op == "const"}
    for name in [n for n in graph.constants if n not in used]:
        del graph.constants[name]
    return rewriter.edits > 0


pool = Pass("pool", "%1 = const(2); %2 = const(2); %3 = %1 + %2   ==>   %1 = const(2); %3 = %1 + %1", _run)
