"""Writes to what autograd keeps for a gradient. On the way back eager finds another version, and raises.

%1 = aten.exp.default(%0)
%2 = aten.add_.Tensor(%1, 1)       the gradient of %1 needs what it was

The program may do so itself (`overwritten`), or whoever calls it, between forward and backward (`watched`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from smelt.analysis.aliases import alias_analysis
from smelt.analysis.gradients import is_recorded, requiring_values
from smelt.diag.records import record
from smelt.ir import Graph, Node, Region, Value, values_in
from smelt.ops.dry_calls import SavedValues
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
    kept_by = SavedValues(requiring.__contains__)
    for i, node in enumerate(nodes):
        values = {*node.operands(), *node.results}
        if not is_recorded(node) or requiring.isdisjoint(values) or written.isdisjoint(aliases.of_all(values)):
            continue
        later = [(w, roots) for j, w, roots in writes if w is not node and (j > i or _is_in_one_loop(node, w, roots))]
        later = [(w, roots) for w, roots in later if not _are_apart(node, w)]
        is_writer = any(w is node for _, w, _ in writes)
        if not is_writer and not any(roots & aliases.of_all(values) for _, roots in later):
            continue
        saved = kept_by.of(node)
        if saved is None:
            return node
        kept = aliases.of_all(saved)
        for w, roots in later:
            if roots & kept:
                return w
    return None


@record
class Watched:
    """What autograd keeps of that which the caller of a program has, too: where the caller writes to it between forward
    and backward, backward raises; a write to anything else changes no gradient.

    inputs: by name. outputs: by number.
    """

    inputs: frozenset[str]
    outputs: frozenset[int]


def watched(graph: Graph, requires: Callable[[Value], bool], unseen: Collection[str] = ()) -> Watched:
    """Of a functional graph that reads no state but its inputs.

    requires: whether an input requires gradients. unseen: inputs that the program writes to without telling autograd.
    """
    aliases = alias_analysis(graph)
    requiring = requiring_values(graph, requires, True)
    kept_by = SavedValues(requiring.__contains__)
    writes = [node for node in graph.body if node.op == "write"]
    shared = frozenset(graph.inputs) | aliases.outputs | aliases.of_all(v for node in writes for v in node.operands())
    kept = set[Value]()
    for node in graph.walk():
        values = {*node.operands(), *node.results}
        if node.regions or node.op == "write" or not is_recorded(node) or requiring.isdisjoint(values):
            continue
        if not shared.isdisjoint(aliases.of_all(values)):
            saved = kept_by.of(node)
            kept |= aliases.of_all(values if saved is None else saved)
    for node in writes:
        if not kept.isdisjoint(aliases.of_all(values_in(node.args[1]))):
            kept |= aliases.of_all(values_in(node.args[0]))
    inputs = frozenset(value.name for value in graph.inputs if value in kept and value.name not in unseen)
    outputs = (i for i, arg in enumerate(graph.outputs) if not kept.isdisjoint(aliases.of_all(values_in(arg))))
    return Watched(inputs, frozenset(outputs))


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
