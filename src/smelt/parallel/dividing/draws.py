"""Random numbers apart from what is computed with them.

    before:  %1 = dropout(%0, 0.1)      after:  %2 = dropout(ones, 0.1)   %1 = mul(%0, %2)

So numbers depend on no parameter, and can be drawn for a whole batch before its microbatches are computed.
"""

from __future__ import annotations

from typing import Any

from smelt.autodiff.shapes import laid_as
from smelt.ir import Graph, Node, TensorType, Value
from smelt.ops.catalogue.gradients.attention import products
from smelt.ops.catalogue.sharding.terms import is_known, ones_in_order
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter

_DROPOUT = "aten.dropout.default"
_ATTENTION = "aten.scaled_dot_product_attention.default"


def spell_dropout(graph: Graph) -> None:
    """Write dropout as a product with numbers that are drawn by themselves: the same that it would draw. Attention with
    dropout inside is written out for that."""
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    for node in list(graph.walk()):
        if node.op == _ATTENTION and effects(node).rng and is_known(node):
            with rewriter.builder.at(node):
                rewriter.replace_node(node, (laid_as(emitter, _written_out(emitter, node), node.result.type),))
    for node in list(graph.walk()):
        if node.op != _DROPOUT or not effects(node).rng:
            continue
        call = _call(node)
        type_ = node.result.type
        assert isinstance(type_, TensorType)
        with rewriter.builder.at(node):
            noise = emitter.call(_DROPOUT, ones_in_order(emitter, type_), call["p"], True)
            rewriter.replace_node(node, (emitter.call("aten.mul.Tensor", call["input"], noise),))


def _written_out(emitter: GraphEmitter, node: Node) -> Value:
    call = _call(node)
    return products(emitter, call, lambda weights: emitter.call(_DROPOUT, weights, call["dropout_p"], True))


def _call(node: Node) -> dict[str, Any]:
    schema = schema_of(node.op)
    assert schema is not None
    return dict(arguments_of(schema, node.args, node.kwargs))
