"""Nodes taken out of regions: put before what holds them."""

from __future__ import annotations

from smelt.analysis import Aliases
from smelt.ir import Graph, Node, Region, Value, values_in
from smelt.rewrite import Rewriter


def lifted(rewriter: Rewriter, node: Node, before: Node) -> Node:
    """A node with its origin and mode in front of another, in a region around it, in place of where it stood."""
    made = rewriter.insert(node.op, node.args, [r.type for r in node.results], node.kwargs, before=before)
    made.span, made.scope, made.mode = node.span, node.scope, node.mode
    rewriter.replace_node(node, list(made.results))
    return made


def top_of(node: Node) -> Node:
    """The node of the graph's body that a node stands in, itself if it stands there."""
    at = node
    while at.parent is not None and isinstance(at.parent.owner, Node):
        at = at.parent.owner
    return at


def inner_yields(graph: Graph, aliases: Aliases) -> frozenset[Value]:
    """The memory that inner regions hand on: each trip and each branch has tensors of its own there."""
    regions: list[Region] = [region for node in graph.walk() for region in node.regions]
    return aliases.of_all(v for region in regions for arg in region.yields for v in values_in(arg))
