"""Loop-invariant nodes move in front of their loop: computed once, and folded where they are static.

    for %i with (%h = %x) { %1 = exp %y; %2 = mul %h, %1; yield %2 }
        ==>   %1 = exp %y; for %i with (%h = %x) { %2 = mul %h, %1; yield %2 }

Invariant: only what is pure and cannot raise moves, for a loop may have no turns, and nothing whose memory a turn hands
on, as in a list: each has its own there. The graph that was given stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.analysis import alias_analysis
from smelt.codegen.lower.python.plain import is_plain
from smelt.ir import Graph, Node, Region, TensorType, Value
from smelt.ops.effects import effects
from smelt.passes.loops.lifting import inner_yields


def hoisted(graph: Graph) -> Graph:
    """The graph itself where it has no loops, else a copy in which loops hold only what changes."""
    if not any(node.op in ("for", "while") for node in graph.walk()):
        return graph
    copy = graph.clone()
    aliases = alias_analysis(copy)
    kept = inner_yields(copy, aliases)
    _visit(copy.body, lambda node: bool(aliases.of_all(node.results) & kept))
    return copy


def _visit(body: Region, stays: Callable[[Node], bool]) -> None:
    for node in body:
        for region in node.regions:
            # Inner loops first: what leaves them may leave this one, too.
            _visit(region, stays)
        if node.op in ("for", "while"):
            for region in node.regions:
                _empty(region, node, body, stays)


def _empty(region: Region, loop: Node, body: Region, stays: Callable[[Node], bool]) -> None:
    inside: set[Value] = set(region.params)
    for node in region:
        if _may_leave(node) and not any(v in inside for v in node.operands()) and not stays(node):
            region.remove(node)
            body.insert(node, before=loop)
        else:
            inside.update(node.results)


def _may_leave(node: Node) -> bool:
    if not is_plain(node) or not node.results or not any(True for _ in node.operands()):
        return False
    found = effects(node)
    return found.is_reproducible and not found.may_throw and isinstance(node.results[0].type, TensorType)
