"""Attention reads heads where the projection left them.   %1 = clone (transpose %x, 1, 2); %2 = attention %q, %1, %v
==>   %1 = transpose %x, 1, 2; %2 = attention %q, %1, %v

A row of a head is dense in both; a copy of all rows, which only attention reads, gains nothing. Where the result's
memory layout follows that of the queries, what reads it is told, and copies behind it may become copies of nothing.
"""

from __future__ import annotations

from smelt.ir import Graph, Node, Value
from smelt.passes.base import Pass, PassContext, call_of
from smelt.passes.layouts import plan_layouts, set_layouts
from smelt.passes.matching import Disturbances, is_autocast, static_tensor
from smelt.rewrite import Rewriter

_ATTENTION = "aten.scaled_dot_product_attention.default"
_HEADS = ("query", "key", "value")


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    disturbances = Disturbances(graph)
    for node in [n for n in graph.walk() if n.op == "aten.clone.default"]:
        source = node.args[0]
        if isinstance(source, Value) and _is_read_by_attention(rewriter, node, source, disturbances):
            plan = plan_layouts({node.result: source.type})  # type: ignore[dict-item]
            if plan is not None:
                set_layouts(rewriter, {node.result: source}, plan)
                rewriter.erase(node)
    return rewriter.edits > 0


def _is_read_by_attention(rewriter: Rewriter, copy: Node, source: Value, disturbances: Disturbances) -> bool:
    """Whether a copy of rows that are dense is read as heads of attention, and by nothing else."""
    made, lies = static_tensor(copy.result), static_tensor(source)
    if made is None or lies is None or len(lies.sizes) != 4 or lies.steps[-1] != 1 or 0 in lies.steps[:-1]:
        return False
    if (made.dtype, made.device) != (lies.dtype, lies.device) or is_autocast(copy) or not copy.result.users:
        return False
    for user in copy.result.users:
        if not isinstance(user, Node) or user.op != _ATTENTION or is_autocast(user) or user.parent is not copy.parent:
            return False
        call = call_of(user)
        if sum(call[name] is copy.result for name in _HEADS) != copy.result.users[user]:
            return False
        if disturbances.between(rewriter, copy, user):
            return False
    return True


strided_operands = Pass(
    "strided-operands",
    "%1 = clone (transpose %x, 1, 2); %2 = attention %q, %1, %v   ==>   %2 = attention %q, (transpose %x, 1, 2), %v",
    _run,
    rounding=True,
)
