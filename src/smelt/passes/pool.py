"""Keep one of equal constants and of equal reads of state.   %1 = const(2); %2 = const(2)   ==>   %1 = const(2)

Constants whose memory is written or returned stay apart: each stands for a tensor of its own. Those inside branches and
loops come before them, so that no trip makes them again.
"""

from __future__ import annotations

from collections.abc import Hashable

from smelt.ir import STATE_OPS, Graph, Node
from smelt.passes.base import Pass, PassContext
from smelt.passes.keys import arg_key
from smelt.passes.loops.lifting import inner_yields, lifted, top_of


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    aliases = context.aliases(graph)
    first: dict[Hashable, Node] = {}
    yielded = inner_yields(graph, aliases)
    for node in list(graph.walk()):
        if node.op not in (*STATE_OPS, "const"):
            continue
        result = node.result
        if node.op == "const" and (aliases.is_written(result) or aliases.reaches_output(result)):
            continue
        if node.op == "const" and aliases.of(result) & yielded:
            continue
        key = (node.op, arg_key(node.args), result.type)
        there = first.get(key)
        if there is None and node.parent is not graph.body:
            there = lifted(rewriter, node, top_of(node))
            first[key] = there
        elif there is None:
            first[key] = node
        elif rewriter.is_visible(there.result, node):
            rewriter.replace_node(node, (there.result,))
    used = {str(n.args[0]) for n in graph.walk() if n.op == "const"}
    for name in [n for n in graph.constants if n not in used]:
        del graph.constants[name]
    return rewriter.edits > 0


pool = Pass("pool", "%1 = const(2); %2 = const(2); %3 = %1 + %2   ==>   %1 = const(2); %3 = %1 + %1", _run)
