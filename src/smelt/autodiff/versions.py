"""Writes to what autograd keeps for a gradient. On the way back eager finds another version, and raises.

%1 = aten.exp.default(%0)
%2 = aten.add_.Tensor(%1, 1)       the gradient of %1 needs what it was
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from smelt.analysis.aliases import alias_analysis
from smelt.analysis.gradients import is_recorded, requiring_values
from smelt.ir import Graph, Node, Region, Value
from smelt.ops.dry_calls import saved_values
from smelt.ops.effects import declared_writes


def overwritten(raw: Graph, requires: Callable[[Value], bool]) -> Node | None:
    """A node of a raw capture that may write to what autograd keeps.

    requires: whether an input, or the result of a `param`, `buffer` or `captured` node, requires gradients.
    """
    nodes = [node for node in raw.walk() if not node.regions]
    if not any(map(declared_writes, nodes)):
        return None
    aliases = alias_analysis(raw)
    writes = [(i, node, aliases.of_all(found)) for i, node in enumerate(nodes) if (found := declared_writes(node))]
    written = frozenset().union(*(roots for _, _, roots in writes))
    requiring = requiring_values(raw, requires, True)
    for i, node in enumerate(nodes):
        values = {*node.operands(), *node.results}
        if not is_recorded(node) or requiring.isdisjoint(values) or written.isdisjoint(aliases.of_all(values)):
            continue
        later = [(w, roots) for j, w, roots in writes if w is not node and (j > i or _is_in_one_loop(node, w, roots))]
        later = [(w, roots) for w, roots in later if not _are_apart(node, w)]
        is_writer = any(w is node for _, w, _ in writes)
        if not is_writer and not any(roots & aliases.of_all(values) for _, roots in later):
            continue
        saved = saved_values(node, requiring.__contains__)
        if saved is None:
            return node
        kept = aliases.of_all(saved)
        for w, roots in later:
            if roots & kept:
                return w
    return None


def _around(node: Node) -> Iterator[tuple[Node, Region]]:
    """The nodes with regions that a node stands in, and in which of their regions, the innermost first."""
    region = node.parent
    while region is not None and isinstance(region.owner, Node):
        yield region.owner, region
        region = region.owner.parent


def _is_in_one_loop(a: Node, b: Node, roots: frozenset[Value]) -> bool:
    """Whether b runs again after a, in a loop that does not make what it writes to."""
    around = {holder for holder, _ in _around(b) if holder.op != "if"}
    return any(holder in around and any(not _is_made_in(root, holder) for root in roots) for holder, _ in _around(a))


def _is_made_in(root: Value, holder: Node) -> bool:
    owner = root.owner if root.node is None else root.node.parent
    while isinstance(owner, Region):
        if owner in holder.regions:
            return True
        owner = owner.owner.parent if isinstance(owner.owner, Node) else None
    return False


def _are_apart(a: Node, b: Node) -> bool:
    """Whether two nodes are never both run: they stand in two arms of one branch, and in no loop together."""
    regions = dict(_around(b))
    for holder, region in _around(a):
        if holder in regions:
            if holder.op == "if" and regions[holder] is not region:
                return all(outer.op == "if" for outer, _ in _around(holder))
            return False
    return False
