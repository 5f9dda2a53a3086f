"""Random numbers of a graph: which draws its nodes are, and what each moves the generator by."""

from __future__ import annotations

from typing import Final

from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.lower.memory.geometry import Geometry, row_major
from smelt.codegen.triton.random import DRAWN, Draw
from smelt.ir import Node, TensorType, Value
from smelt.ops.registry import arguments_of, schema_of

_KINDS: Final = {
    "aten.rand.default": "uniform", "aten.rand_like.default": "uniform",
    "aten.randn.default": "normal", "aten.randn_like.default": "normal",
}  # fmt: skip
_BERNOULLI, _DROPOUT = "aten.bernoulli.p", "aten.dropout.default"
DRAWS: Final = (*_KINDS, _BERNOULLI, _DROPOUT)
"""Operators that draw numbers which a kernel has a form for: dropout in training."""


def is_draw(node: Node) -> bool:
    """Whether a node draws numbers that a kernel has a form for."""
    return node.op in DRAWS and (node.op != _DROPOUT or (len(node.args) > 2 and node.args[2] is True))


def draw_of(node: Node, operand: Geometry | None, offset: int) -> tuple[Draw, tuple[Value, ...]]:
    """The draw of a node, and the tensors that it reads. operand: how its operand lies. Raises: Unfusible."""
    schema, type_ = schema_of(node.op), node.result.type
    assert schema is not None
    call = arguments_of(schema, node.args, node.kwargs)
    if not isinstance(type_, TensorType) or not type_.is_static or not type_.numel or type_.dtype not in DRAWN:
        raise Unfusible(f"random numbers of {type_}")
    if type_.steps != row_major(type_.sizes).strides or call.get("generator") is not None:
        raise Unfusible("random numbers in another order than that of memory, or of a generator of their own")
    count, dtype = type_.numel, type_.dtype
    if node.op in (_BERNOULLI, _DROPOUT):
        p = call["p"]
        if not isinstance(p, int | float) or not 0 < p < 1:
            raise Unfusible("a probability that is no number between 0 and 1")
        if node.op == _BERNOULLI:
            return Draw("bernoulli", count, dtype, offset, float(p)), ()
        source = call["input"]
        is_dense = operand is not None and operand.strides == row_major(operand.sizes).strides
        if not isinstance(source, Value) or operand is None or not is_dense:
            raise Unfusible("dropout of a tensor that is not contiguous")
        return Draw("dropout", count, dtype, offset, 1.0 - float(p), operand.offset), (source,)
    return Draw("uniform" if _KINDS[node.op] == "uniform" else "normal", count, dtype, offset), ()
