"""Say `linear` for every product with a static matrix, so that one lowering packs its weight.

    %1 = t %w; %2 = mm %x, %1                      ==>   %2 = linear %x, %w
    %2 = addmm %b, %x, %w      (GPT-2's Conv1D)    ==>   %1 = t %w; %2 = linear %x, %1, %b
    %2 = matmul %x, %w         (%w static, 2-d)    ==>   %1 = t %w; %2 = linear %x, %1

Bit for bit: eager's `linear` transposes its weight and calls the very product that stood here.
"""

from __future__ import annotations

from smelt.analysis import is_static
from smelt.analysis.dependence import Dependence
from smelt.ir import Arg, Graph, Node, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.passes.base import Pass, PassContext, call_of, can_erase, emitter
from smelt.passes.matching import FLOATS, is_autocast, static_tensor
from smelt.rewrite import Match, Rewriter, Rule, apply_rules, op

_LINEAR = "aten.linear.default"
_TRANSPOSES = where(Trait.PERMUTES)


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    found = context.dependence(graph)

    def product(rewriter: Rewriter, match: Match) -> Arg:
        call = call_of(match.root)
        return _spell(rewriter, match.root, call["self"], call.get("mat2", call.get("other")), None, found)

    def sum_and_product(rewriter: Rewriter, match: Match) -> Arg:
        call = call_of(match.root)
        if not _is_one(call["beta"]) or not _is_one(call["alpha"]):
            return None
        return _spell(rewriter, match.root, call["mat1"], call["mat2"], call["self"], found)

    apply_rules(
        rewriter,
        (
            Rule("product", op(("aten.mm.default", "aten.matmul.default"), open_ended=True), product),
            Rule("sum and product", op("aten.addmm.default", open_ended=True), sum_and_product),
        ),
        can_erase=can_erase,
    )
    return rewriter.edits > 0


def _spell(
    rewriter: Rewriter, node: Node, x: Arg, matrix: Arg, bias: Arg, found: dict[Value, Dependence]
) -> Value | None:
    """linear(x, matrix^T, bias) of the node's own type, or None where it is none."""
    left, right = static_tensor(x), static_tensor(matrix)
    if left is None or right is None or len(right.sizes) != 2 or not left.sizes or is_autocast(node):
        return None
    assert isinstance(matrix, Value) and isinstance(x, Value)
    if not is_static(matrix, found) or is_static(x, found) or left.dtype not in FLOATS:
        return None
    if bias is not None and _bias_sizes(bias) != (right.sizes[1],):
        return None
    emit = emitter(rewriter)
    made = emit.call(_LINEAR, x, _transposed(emit, matrix, found), bias)
    return made if made.type == node.result.type else None


def _is_one(arg: Arg) -> bool:
    return isinstance(arg, (int, float)) and arg == 1


def _bias_sizes(bias: Arg) -> tuple[int, ...] | None:
    type_ = static_tensor(bias)
    return None if type_ is None else type_.sizes


def _transposed(emit: GraphEmitter, matrix: Value, found: dict[Value, Dependence]) -> Value:
    """The matrix turned: what it is the transposition of, or a new `t`."""
    node = matrix.node
    if node is not None and node.op in _TRANSPOSES:
        source = next(node.operands())
        before, after = static_tensor(source), static_tensor(matrix)
        if before is not None and after is not None and is_static(source, found) and len(before.sizes) == 2:
            # Of two dimensions only the swap reverses sizes and strides both; where they are equal it changes nothing.
            swapped = before.sizes[::-1] == after.sizes and before.steps[::-1] == after.steps
            if swapped and before.steps != after.steps:
                return source
    return emit.call("aten.t.default", matrix)


spell_linear = Pass("spell-linear", "%1 = t %w; %2 = mm %x, %1   ==>   %2 = linear %x, %w   (%w static)", _run)
