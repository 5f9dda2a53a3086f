"""Memory that the caller gets in several pieces where nobody can tell beforehand which: cut at a number of the run, or
in a list or a dictionary. All that leaves shares one call's memory, as in eager; what is known before the run is made
anew at each call.
"""

from __future__ import annotations

from collections import Counter

from smelt.codegen.lower.memory.sharing import sources_of
from smelt.ir import STATE_OPS, Graph, Node, TensorType, Value, values_in
from smelt.ir.type_order import may_hold_tensor
from smelt.ops.registry import overload
from smelt.rewrite import Rewriter


def handed_out_in_parts(graph: Graph) -> set[Value]:
    """The tensors whose memory leaves so: the first of each chain of views."""
    chains = [sources_of(v) for arg in graph.outputs for v in values_in(arg)]
    cut = {chain[-1] for chain in chains if any(map(_is_cut_by_a_run, chain))}
    held = [sources_of(v) for node in graph.walk() if _makes_a_container(node) for v in node.operands()]
    cut.update(chain[-1] for chain in held)
    counts = Counter(chain[-1] for chain in (*chains, *held))
    return {root for root in cut if counts[root] > 1}


def _is_cut_by_a_run(value: Value) -> bool:
    return value.node is not None and any(not isinstance(v.type, TensorType) for v in value.node.operands())


def _makes_a_container(node: Node) -> bool:
    if overload(node.op) is not None or node.regions or node.op in STATE_OPS:
        return False
    return any(not isinstance(v.type, TensorType) and may_hold_tensor(v.type) for v in node.results)


def with_own_constants(graph: Graph) -> Graph:
    """The graph itself where no constant leaves so, else a copy that copies such constants at each call."""
    if not any(map(_is_constant, handed_out_in_parts(graph))):
        return graph
    copy = graph.clone()
    rewriter = Rewriter(copy)
    for value in filter(_is_constant, handed_out_in_parts(copy)):
        node = value.node
        assert node is not None
        held = rewriter.insert("const", node.args, (value.type,), node.kwargs, before=node)
        made = rewriter.insert("aten.clone.default", (held.result,), (value.type,), before=node)
        rewriter.replace_node(node, (made.result,))
    return copy


def _is_constant(value: Value) -> bool:
    return value.node is not None and value.node.op == "const"
