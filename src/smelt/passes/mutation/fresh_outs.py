"""Results written into tensors that were empty until then.

%0: f32[0] = empty [0]; %1: f32[4] = add.out %x, 1, out=%0      ==>      %1 = add %x, 1

torch gives such a tensor the size of the result. Its memory is its own, nobody else looks at it, so the operator may as
well make it; where its result would be laid out otherwise, the node stays.
"""

from __future__ import annotations

from smelt.ir import STATE_OPS, TensorType, Value
from smelt.ops.effects import aliases, effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import schema_of
from smelt.passes.mutation.mutations import functional_call, types_of
from smelt.rewrite import Rewriter


def fill_fresh_outs(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Make the results of such operators by their functional counterparts."""
    for node in list(rewriter.graph.walk()):
        schema = schema_of(node.op)
        if schema is None or not any(a.is_out for a in schema.arguments):
            continue
        found = functional_call(node, schema)
        if found is None or len(found.targets) != len(node.results) or not any(map(_is_resized, found.targets)):
            continue
        if not all(_is_its_own(target) for target in found.targets):
            continue
        types = [r.type for r in node.results]
        if types_of(found.op, found.args, found.kwargs) != types:
            continue
        with rewriter.builder.at(node):
            made = emit.node(found.op, found.args, found.kwargs)
        rewriter.replace_node(node, tuple(made.results))


def _is_resized(target: Value) -> bool:
    return isinstance(target.type, TensorType) and target.type.is_static and 0 in target.type.sizes


def _is_its_own(target: Value) -> bool:
    """Whether it was made for this one use, and is nobody's state."""
    node = target.node
    if node is None or node.op in (*STATE_OPS, "const") or len(target.users) != 1 or effects(node).rng:
        return False
    return not node.regions and not any(aliases(node))
