"""Add a static bias inside the product.   %1 = linear %x, %w; %2 = add %1, %b   ==>   %2 = linear %x, %w, %b

Only a bias of one number a column, in either order, with alpha = 1 and the product's dtype, and a product that nothing
else uses.
"""

from __future__ import annotations

from smelt.analysis import is_static
from smelt.analysis.dependence import Dependence
from smelt.ir import Arg, Graph, Node, Value
from smelt.passes.base import Pass, PassContext, call_of, can_erase, emitter
from smelt.passes.matching import Disturbances, is_autocast, sole_node, static_tensor
from smelt.rewrite import Match, Rewriter, Rule, apply_rules, op

_LINEAR = "aten.linear.default"


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    found = context.dependence(graph)
    disturbances = Disturbances(graph)

    def build(rewriter: Rewriter, match: Match) -> Arg:
        node = match.root
        call = call_of(node)
        if call["alpha"] != 1:
            return None
        for product, bias in ((call["self"], call["other"]), (call["other"], call["self"])):
            linear = sole_node(product, _LINEAR)
            if linear is not None and not disturbances.between(rewriter, linear, node):
                fused = _fuse(rewriter, node, linear, bias, found)
                if fused is not None:
                    return fused
        return None

    apply_rules(rewriter, (Rule("bias", op("aten.add.Tensor", open_ended=True), build),), can_erase=can_erase)
    return rewriter.edits > 0


def _fuse(rewriter: Rewriter, node: Node, linear: Node, bias: Arg, found: dict[Value, Dependence]) -> Value | None:
    call = call_of(linear)
    kind, result = static_tensor(bias), static_tensor(linear.result)
    if call["bias"] is not None or kind is None or result is None or not isinstance(bias, Value):
        return None
    weight = static_tensor(call["weight"])
    if weight is None or len(weight.sizes) != 2 or linear.mode != node.mode or is_autocast(node):
        return None
    columns = weight.sizes[0]
    is_row = kind.sizes[-1:] == (columns,) and kind.numel == columns and len(kind.sizes) <= len(result.sizes)
    if not is_row or kind.dtype is not result.dtype or node.result.type != result or not is_static(bias, found):
        return None
    emit = emitter(rewriter)
    row = bias if len(kind.sizes) == 1 else emit.call("aten.reshape.default", bias, (columns,))
    made = emit.call(_LINEAR, call["input"], call["weight"], row)
    return made if made.type == result else None


fuse_bias = Pass("fuse-bias", "%1 = linear %x, %w; %2 = add %1, %b   ==>   %2 = linear %x, %w, %b", _run, rounding=True)
