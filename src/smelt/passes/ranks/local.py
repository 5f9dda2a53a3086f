"""What a rank's graph becomes once its gradients are written: what sends nothing is ordinary code.

%1 = dist.enter(%0, "tp")                        %0
%2 = dist.shard(%0, 0, [4, 4], 1, 1, "tp")       aten.slice.Tensor(%0, 0, 4, 8), cloned
"""

from __future__ import annotations

from smelt.ir import Graph, Node, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import shard_of
from smelt.rewrite import Rewriter


def localize(graph: Graph) -> None:
    """Write what sends nothing in operators that kernels can be made of."""
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    for node in list(graph.walk()):
        if node.op == dist.ENTER:
            with rewriter.builder.at(node):
                rewriter.replace_node(node, (as_typed(emitter, node),))
        elif node.op == dist.SHARD:
            with rewriter.builder.at(node):
                rewriter.replace_node(node, (_sliced(emitter, node),))


def as_typed(b: GraphEmitter, node: Node) -> Value:
    """A node's operand in the memory layout that the node's users count on."""
    source = node.args[0]
    assert isinstance(source, Value)
    return source if source.type == node.result.type else b.call("aten.contiguous.default", source)


def _sliced(b: GraphEmitter, node: Node) -> Value:
    shard, rank = shard_of(node.args), node.args[4]
    assert isinstance(rank, int)
    pieces = [b.call("aten.slice.Tensor", node.args[0], shard.dim, start, end) for start, end in shard.ranges(rank)]
    if len(pieces) > 1:
        return b.call("aten.cat.default", tuple(pieces), shard.dim)
    made = b.call("aten.clone.default", pieces[0])
    return made if made.type == node.result.type else b.call("aten.contiguous.default", made)
