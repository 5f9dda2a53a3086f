"""Which nodes of a nest are computed for all their elements: what may raise has to be, whoever needs its result.

    %1 = index %t, [%i]; %2 = add %1, 1; %3 = select %2, 0, 3        ==>        of %1 and %2 one element, for %3

Invariant: never said of a node of which an element may be left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.fusion.groups import Facts
from smelt.codegen.fusion.regions import user_in
from smelt.ir import Node, TensorType, Value
from smelt.ir.sizes import equals
from smelt.ops.record import Trait
from smelt.ops.sets import bases_where, is_by_elements

_READING_ALL = bases_where(Trait.READS_ALL) | {
    "_log_softmax", "count_nonzero", "cummax", "cummin", "cumprod", "native_layer_norm",
}  # fmt: skip
"""Operators, not by elements, of whose results all elements together need all of each operand."""


def left_out(facts: Facts, nodes: Sequence[Node], roots: Sequence[Value]) -> frozenset[Node]:
    """Those of a nest's nodes that data may make raise, and that are not computed whole when these are stored."""
    if facts.raising.isdisjoint(nodes):
        return frozenset()
    members, stored = set(nodes), set(roots)
    whole: set[Node] = set()
    found: set[Node] = set()
    for node in reversed(nodes):
        if any(result in stored or _is_read(facts, result, members, whole) for result in node.results):
            whole.add(node)
        elif node in facts.raising:
            found.add(node)
            whole.add(node)  # stored, then
    return frozenset(found)


def _is_read(facts: Facts, result: Value, members: set[Node], whole: set[Node]) -> bool:
    """Whether a node that is computed whole reads all of a value, be it through views."""
    pending = [result]
    while pending:
        current = pending.pop()
        for where in current.users:
            user = user_in(facts.graph.body, where)
            if user is None:
                continue
            seen = [r for r in user.results if facts.through.get(r) is current]
            pending += [view for view in seen if _has_all(user, view, current)]
            if not seen and user in members and user in whole and _reads_all(user):
                return True
    return False


def _reads_all(node: Node) -> bool:
    return node.op.startswith("aten.") and (is_by_elements(node.op) or node.op.split(".")[1] in _READING_ALL)


def _has_all(node: Node, view: Value, source: Value) -> bool:
    if node.op in ("aten.expand.default", "aten.expand_as.default"):
        return True
    a, b = view.type, source.type
    return isinstance(a, TensorType) and isinstance(b, TensorType) and equals(a.numel, b.numel)
