"""Tensors that are cut at a number, and leave the program as what is left: as it lies, or copied together.

%5 = aten.slice.Tensor(%4, 1, None, %n);  %6 = aten.clone(%5, memory_format=contiguous);  return %6
"""

from __future__ import annotations

from smelt.codegen.lower.plain import is_plain_type
from smelt.ir import INT, Graph, MemoryFormat, Node, TensorType, Value

_DENSE = {"memory_format": MemoryFormat("contiguous_format")}


def cuts_of(graph: Graph) -> dict[Node, Value]:
    """The cuts of which nothing but the caller sees the results, with what each cuts, and the copies of such cuts."""
    found: dict[Node, Value] = {}
    for node in graph.body:
        if len(node.results) != 1 or node.result.users != {graph.body: 1}:
            continue
        if _is_cut(node):
            found[node] = next(node.operands())
        elif is_copy(node):
            (cut,) = node.operands()
            if cut.node is not None and cut.users == {node: 1} and cut.node.parent is graph.body and _is_cut(cut.node):
                source = next(cut.node.operands())
                if isinstance(source.type, TensorType) and source.type.strides is None:
                    found[cut.node], found[node] = source, cut
    return found


def is_copy(node: Node) -> bool:
    """Whether a node copies a tensor together."""
    return node.op == "aten.clone.default" and len(node.args) == 1 and node.kwargs == _DENSE


def _is_cut(node: Node) -> bool:
    """Whether a node is `slice(x, dim, None, n)` of a tensor of known size."""
    if node.op != "aten.slice.Tensor" or len(node.args) != 4 or node.kwargs:
        return False
    source, dim, start, end = node.args
    type_ = node.result.type
    if start is not None or type(dim) is not int or not (isinstance(end, Value) and end.type == INT):
        return False
    is_known = isinstance(source, Value) and isinstance(source.type, TensorType) and is_plain_type(source.type)
    return is_known and isinstance(type_, TensorType) and not type_.is_static
