"""Compute now what depends on no input and no parameter.   %1 = arange(4); %2 = %1 + 1   ==>   %2 = const([1, 2, 3, 4])

Random numbers never; nothing that is written, or that the caller gets to keep; nothing large. Of Python's operators
scalars of literals become literals, as do sizes that types tell; what would raise stays.
"""

from __future__ import annotations

from typing import Any

import torch

from smelt._torch.storage import is_zero
from smelt.analysis import Aliases
from smelt.ir import Arg, Graph, Node, Region, TensorType, Value, clone_node
from smelt.ops.convert import constant_of, dtype_to_torch, type_of
from smelt.ops.effects import alias_of, effects
from smelt.ops.evaluate import constant, evaluate
from smelt.passes.base import Pass, PassContext, erase_dead
from smelt.passes.fold_scalars import fold_scalar
from smelt.rewrite import Rewriter

# Bytes up to which a result is kept as a constant.
MAX_NBYTES = 1 << 20


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    aliases = context.aliases(graph)
    levels = context.dependence(graph)
    known: dict[Value, Any] = {}
    for node in list(graph.walk()):
        if fold_scalar(graph, rewriter, node):
            continue
        if node.op == "const" or not node.results or any(levels[r] != "constant" for r in node.results):
            continue
        if _may_fold(node, aliases):
            _fold(graph, rewriter, node, known)
    return rewriter.edits > 0


def _may_fold(node: Node, aliases: Aliases) -> bool:
    if node.regions or node.op == "unpack" or not effects(node).is_reproducible or len(node.results) != 1:
        return False
    result = node.result
    if aliases.is_written(result) or aliases.reaches_output(result) or _is_yielded_somewhere(result):
        return False
    if not isinstance(result.type, TensorType) or not result.type.is_static or result.type.nbytes > MAX_NBYTES:
        return False
    if result.type.device != "cpu" or not result.type.has_elements:
        return False
    # A view of a large constant would be stored a second time.
    return alias_of(node) is None or result.type.nbytes <= 4096


def _is_yielded_somewhere(value: Value) -> bool:
    return any(isinstance(user, Region) for user in value.users)


def _fold(graph: Graph, rewriter: Rewriter, node: Node, known: dict[Value, Any]) -> None:
    try:
        result = _compute(graph, node, known)
    except Exception:
        # Eager raises here too; it must do so in each call, where the user sees it.
        return
    type_ = node.result.type
    if (
        not isinstance(result, torch.Tensor)
        or is_zero(result)
        or type_of(result) != type_
        or not isinstance(type_, TensorType)
    ):
        return
    if result.dtype != dtype_to_torch(type_.dtype):
        return
    args, large = constant_of(result)
    if large is not None:
        graph.constants[large[0]] = large[1]
    made = rewriter.insert("const", args, (type_,), before=node)
    known[made.result] = result
    operands = [v.node for v in node.operands() if v.node is not None]
    rewriter.replace_node(node, (made.result,))
    erase_dead(rewriter, operands)


def _compute(graph: Graph, node: Node, known: dict[Value, Any]) -> Any:
    """The node's result, by the evaluator, from operands that are constants by now."""
    small = Graph("fold")
    small.constants = graph.constants
    mapping: dict[Value, Arg] = {}
    inputs = []
    for value in dict.fromkeys(node.operands()):
        if value not in known:
            if value.node is None or value.node.op != "const":
                raise LookupError(f"%{value.name} was not folded")
            known[value] = constant(graph, value.node)
        copied = Value(value.name, value.type, small.body)
        small.body.params.append(copied)
        mapping[value] = copied
        inputs.append(known[value])
    copy = clone_node(node, mapping)
    small.body.insert(copy)
    small.body.set_yields(tuple(copy.results))
    with torch.no_grad():
        return evaluate(small, inputs)[0]


fold = Pass("fold", "%1 = arange(4); %2 = %1 + 1   ==>   %2 = const([1, 2, 3, 4])", _run)
