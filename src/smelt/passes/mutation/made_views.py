"""Tensors that get another shape in place, as the views that they are.

%a = add %x 1; %b = squeeze_ %a 0; %c = sin %b     ==>     %a = add %x 1; %b = squeeze %a 0; %c = sin %b

Invariant: only where the run made the tensor, in the same region, and knows it by its new shape ever after.
"""

from __future__ import annotations

from smelt.analysis import Aliases, alias_analysis, is_external
from smelt.ir import Arg, Graph, Node, TensorType, Value, contiguous_strides
from smelt.ops.in_place_views import view_of
from smelt.rewrite import Rewriter

_RESIZING = frozenset(("aten.resize_.default", "aten.resize_as_.default"))


def view_made_tensors(rewriter: Rewriter) -> None:
    """Do it for a whole graph."""
    graph: Graph = rewriter.graph
    found = [node for node in graph.walk() if node.op in _RESIZING or view_of(node.op) is not None]
    aliases = alias_analysis(graph) if found else None
    for node in found:
        target = node.args[0]
        if not isinstance(target, Value):
            continue
        if node.op in _RESIZING and node.result.type == target.type:
            rewriter.replace_node(node, (target,))
            continue
        call = _as_view(node, target)
        if call is None or aliases is None or not _is_own(rewriter, node, target, aliases):
            continue
        op, args = call
        made = rewriter.insert(op, args, (node.result.type,), node.kwargs if args is node.args else {}, before=node)
        made.span, made.scope, made.mode = node.span, node.scope, node.mode
        rewriter.replace_node(node, (made.result,))


def _as_view(node: Node, target: Value) -> tuple[str, tuple[Arg, ...]] | None:
    """The view that a node makes of its operand; None where it needs more memory than that has."""
    if node.op not in _RESIZING:
        view = view_of(node.op)
        return None if view is None else (view, node.args)
    old, new = target.type, node.result.type
    if not (isinstance(old, TensorType) and isinstance(new, TensorType) and old.is_static and new.is_static):
        return None
    if tuple(old.steps) != contiguous_strides(old.sizes) or new.numel > old.numel:
        return None
    return "aten.as_strided.default", (target, new.sizes, tuple(new.steps))


def _is_own(rewriter: Rewriter, node: Node, target: Value, aliases: Aliases) -> bool:
    if target.node is None or target.node.parent is not node.parent or any(map(is_external, aliases.of(target))):
        return False
    others = [user for user in target.users if user is not node]
    return all(
        isinstance(user, Node) and user.parent is node.parent and rewriter.is_before(user, node) for user in others
    )
