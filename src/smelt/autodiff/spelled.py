"""Results of batch norms by the moments that their gradients read, too.

    %0, %1, %2, .. = _native_batch_norm_legit_functional(%x, %w, %b, ..)     ==>     %3 = (%x - %1) * (%2 * %w) + %b
    uses of %0                                                                       uses of %3

Invariant: done when the gradients are there, so that these are those of the whole. What is saved of a norm is then its
operand: each element of its result is computed again from that and two numbers of its channel.
"""

from __future__ import annotations

from smelt.ir import Graph, TensorType
from smelt.ops.catalogue.by_channel import BATCH_NORM, normalised_by_channel
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter


def spell_norms(rewriter: Rewriter, graph: Graph) -> None:
    """Write the results of all batch norms in training by their moments, where no dtype is in the way."""
    builder = rewriter.builder
    emitter = GraphEmitter(builder, rewriter.adopt)
    for node in [n for n in graph.walk() if n.op == BATCH_NORM and not n.mode]:
        schema = schema_of(node.op)
        assert schema is not None
        call = arguments_of(schema, node.args, node.kwargs)
        result = node.results[0]
        alike = {v.type.dtype for v in (*node.operands(), *node.results[:3]) if isinstance(v.type, TensorType)}
        if call["training"] is not True or len(alike) != 1 or not result.users or node.next is None:
            continue
        saved = builder.span, builder.scope
        with builder.at(node.next):
            builder.span, builder.scope = node.span, node.scope
            made = normalised_by_channel(emitter, call, node.results[1], node.results[2])
            builder.span, builder.scope = saved
        if made.type == result.type:
            rewriter.replace_all_uses(result, made)
