"""Take apart what was only put together.   %l = (%a, %b); %1, %2 = unpack %l   ==>   use %a for %1, %b for %2

Also a branch whose test is known, and a counted loop that runs no times or once, become their bodies.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir import Arg, Graph, Node, Region, Value
from smelt.passes.base import Pass, PassContext
from smelt.rewrite import Rewriter, copy_nodes, known_range


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    changed = True
    while changed:
        before = rewriter.edits
        for node in list(graph.walk()):
            if _stands(node, graph):
                take_apart(rewriter, node)
        changed = rewriter.edits > before
    return rewriter.edits > 0


def _stands(node: Node, graph: Graph) -> bool:
    """Whether a node is still in the graph, and not in a region that went with its node."""
    region = node.parent
    while region is not None and region is not graph.body:
        region = region.owner.parent if isinstance(region.owner, Node) else None
    return region is graph.body


def take_apart(rewriter: Rewriter, node: Node) -> None:
    """Replace one node by what it is made of, where that is known."""
    if node.op == "unpack" and isinstance(node.args[0], tuple) and len(node.args[0]) == len(node.results):
        rewriter.replace_node(node, node.args[0])
    elif node.op == "if" and isinstance(node.args[0], bool):
        splice(rewriter, node, node.regions[0 if node.args[0] else 1], ())
    elif (numbers := known_range(node)) is not None:
        if len(numbers) == 0:
            rewriter.replace_node(node, node.args[3:])
        elif len(numbers) == 1:
            splice(rewriter, node, node.regions[0], (numbers[0], *node.args[3:]))


def splice(rewriter: Rewriter, node: Node, region: Region, arguments: Sequence[Arg]) -> None:
    """Put a region's nodes in its node's place; its parameters become the arguments, its yields the results."""
    mapping: dict[Value, Arg] = dict(zip(region.params, arguments, strict=True))
    with rewriter.builder.at(node):
        results = copy_nodes(rewriter.builder, region, mapping, rewriter.adopt)
    rewriter.replace_node(node, results)


inline = Pass("inline", "%1, %2 = unpack (%a, %b)   ==>   use %a for %1 and %b for %2", _run)
