"""Loop-invariant nodes move in front of their loop: computed once, and folded where they are static.

    for %i with (%h = %x) { %1 = exp %y; %2 = mul %h, %1; yield %2 }
        ==>   %1 = exp %y; for %i with (%h = %x) { %2 = mul %h, %1; yield %2 }

Invariant: only what is pure and cannot raise moves, for a loop may have no turns; the graph that was given stays as it
is.
"""

from __future__ import annotations

from smelt.codegen.lower.plain import is_plain
from smelt.ir import Graph, Node, Region, TensorType, Value
from smelt.ops.effects import effects


def hoisted(graph: Graph) -> Graph:
    """The graph itself where it has no loops, else a copy in which loops hold only what changes."""
    if not any(node.op in ("for", "while") for node in graph.walk()):
        return graph
    copy = graph.clone()
    _visit(copy.body)
    return copy


def _visit(body: Region) -> None:
    for node in body:
        for region in node.regions:
            # Inner loops first: what leaves them may leave this one, too.
            _visit(region)
        if node.op in ("for", "while"):
            for region in node.regions:
                _empty(region, node, body)


def _empty(region: Region, loop: Node, body: Region) -> None:
    inside: set[Value] = set(region.params)
    for node in region:
        if _may_leave(node) and not any(v in inside for v in node.operands()):
            region.remove(node)
            body.insert(node, before=loop)
        else:
            inside.update(node.results)


def _may_leave(node: Node) -> bool:
    if not is_plain(node) or not node.results or not any(True for _ in node.operands()):
        return False
    found = effects(node)
    return found.is_reproducible and not found.may_throw and isinstance(node.results[0].type, TensorType)
