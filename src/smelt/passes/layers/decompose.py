"""Composites in simpler operators.   %1, %2 = unpack split(%x, 2)   ==>   %1 = slice(%x, 0, 0, 2); %2 = slice(...)

Only lowerings that compute bit for bit what the composite does: linear, layer_norm, attention, gelu, softmax,
convolutions and the like stay whole, for backends have better ways. Second names become the first ones.
"""

from __future__ import annotations

from smelt.ir import NONE, Arg, Graph, Node, TensorType, TupleType, Value
from smelt.ops.catalogue import record_of
from smelt.ops.lowering import lower, write
from smelt.ops.record import Lowering
from smelt.passes.base import Pass, PassContext, emitter
from smelt.rewrite import Rewriter


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    pending = list(graph.walk())
    while pending:
        found: list[Node] = []
        for node in pending:
            found.extend(lower_node(rewriter, node))
        pending = found
    return rewriter.edits > 0


def lower_node(rewriter: Rewriter, node: Node, *, exact: bool = True, given: Lowering | None = None) -> list[Node]:
    """Put the catalogue's lowering in a node's place; its nodes, none where it does not fit.

    exact: only a lowering that computes bit for bit what the node computes. given: a lowering in the record's place.
    """
    record = record_of(node.op)
    if given is None and (record is None or record.lower is None or (exact and not record.exact)):
        return []
    if node.parent is None or "autocast" in node.mode:
        # Under autocast an operator's result type depends on its name.
        return []
    if not all(_is_static(v) for v in (*node.operands(), *node.results)):
        return []
    before, edits = node.prev, rewriter.edits
    with rewriter.builder.at(node):
        emit = emitter(rewriter)
        parts = lower(node, emit, exact=exact) if given is None else write(node, emit, given)
    added = _added(node, before)
    if parts is None or not _fits(node, parts):
        for one in reversed(added):
            rewriter.erase(one)
        rewriter.edits = edits
        return []
    _replace(rewriter, node, parts)
    return added


def _is_static(value: Value) -> bool:
    """Whether all is known of a value's sizes; a number that is known at run time only may be one of them.

    What has no elements (sparse, quantized) has other operators, whose results no rule of ours tells.
    """
    types = value.type.elements if isinstance(value.type, TupleType) else (value.type,)
    return all(t.is_static and t.has_elements if isinstance(t, TensorType) else t == NONE for t in types)


def _added(node: Node, before: Node | None) -> list[Node]:
    found = []
    one = node.prev
    while one is not None and one is not before:
        found.append(one)
        one = one.prev
    return found[::-1]


def _fits(node: Node, parts: tuple[Arg, ...]) -> bool:
    """Whether types agree, strides included."""
    types = [r.type for r in node.results]
    if len(types) == 1 and isinstance(types[0], TupleType):
        types = list(types[0].elements)
    return [p.type if isinstance(p, Value) else NONE for p in parts] == types


def _replace(rewriter: Rewriter, node: Node, parts: tuple[Arg, ...]) -> None:
    if not isinstance(node.results[0].type, TupleType):
        rewriter.replace_node(node, parts)
        return
    for user in list(node.results[0].users):
        if isinstance(user, Node) and user.op == "unpack":
            rewriter.replace_node(user, parts)
    rewriter.replace_node(node, (parts,))


decompose = Pass("decompose", "%1, %2 = unpack split(%x, 2)   ==>   %1 = slice(%x, 0, 0, 2); ...", _run)
