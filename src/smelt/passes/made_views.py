"""Tensors that get another shape in place, as the views that they are.

%a = add %x 1; %b = squeeze_ %a 0; %c = sin %b     ==>     %a = add %x 1; %b = squeeze %a 0; %c = sin %b

Invariant: only where the run made the tensor, in the same region, and knows it by its new shape ever after.
"""

from __future__ import annotations

from smelt.analysis import Aliases, alias_analysis, is_external
from smelt.ir import Graph, Node, Value
from smelt.rewrite import Rewriter

_VIEWS = {
    f"aten.{name}_.{variant}": f"aten.{name}.{variant}"
    for name, variant in (
        ("squeeze", "default"), ("squeeze", "dim"), ("squeeze", "dims"), ("unsqueeze", "default"),
        ("transpose", "int"), ("t", "default"), ("swapaxes", "default"), ("swapdims", "default"),
    )
}  # fmt: skip


def view_made_tensors(rewriter: Rewriter) -> None:
    """Do it for a whole graph."""
    graph: Graph = rewriter.graph
    nodes = [node for node in graph.walk() if node.op in _VIEWS]
    aliases = alias_analysis(graph) if nodes else None
    for node in nodes:
        target = node.args[0]
        if aliases is None or not isinstance(target, Value) or not _is_own(rewriter, node, target, aliases):
            continue
        made = rewriter.insert(_VIEWS[node.op], node.args, (node.result.type,), node.kwargs, before=node)
        made.span, made.scope, made.mode = node.span, node.scope, node.mode
        rewriter.replace_node(node, (made.result,))


def _is_own(rewriter: Rewriter, node: Node, target: Value, aliases: Aliases) -> bool:
    if target.node is None or target.node.parent is not node.parent or any(map(is_external, aliases.of(target))):
        return False
    others = [user for user in target.users if user is not node]
    return all(
        isinstance(user, Node) and user.parent is node.parent and rewriter.is_before(user, node) for user in others
    )
