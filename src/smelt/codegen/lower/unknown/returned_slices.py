"""Tensors that are cut at a number, and leave the program as what is left: as it lies, or copied together.

%5 = aten.slice.Tensor(%4, 0, None, %n);  %6 = aten.clone(%5, memory_format=contiguous)
%7 = aten.as_strided(%6, [%n, 2], [5, 1], 3);  return %6, %7
"""

from __future__ import annotations

from smelt.codegen.lower.python.plain import is_plain_type
from smelt.ir import INT, Graph, MemoryFormat, Node, TensorType, Value

_DENSE = {"memory_format": MemoryFormat("contiguous_format")}


def cuts_of(graph: Graph) -> dict[Node, Value]:
    """The cuts of which nothing but the caller sees the results, with what each cuts, and the copies of such cuts."""
    found: dict[Node, Value] = {}
    for node in graph.body:
        if len(node.results) != 1:
            continue
        is_seen = node.result.users == {graph.body: 1}
        if is_seen and _is_cut(node):
            found[node] = next(node.operands())
        elif is_copy(node) and (is_seen or _is_seen_by_views(node, graph)):
            (cut,) = node.operands()
            if cut.node is not None and cut.users == {node: 1} and cut.node.parent is graph.body and _is_cut(cut.node):
                source = next(cut.node.operands())
                if isinstance(source.type, TensorType) and source.type.strides is None:
                    found[cut.node], found[node] = source, cut
                    found.update((user, node.result) for user in node.result.users if isinstance(user, Node))
    return found


def is_copy(node: Node) -> bool:
    """Whether a node copies a tensor together."""
    return node.op == "aten.clone.default" and len(node.args) == 1 and node.kwargs == _DENSE


def is_view(node: Node) -> bool:
    """Whether a node is a view of a copy, of a size that the run tells, in a place that is known."""
    if node.op != "aten.as_strided.default" or len(node.args) != 4 or node.kwargs:
        return False
    _, sizes, strides, offset = node.args
    if not isinstance(sizes, tuple) or not isinstance(strides, tuple):
        return False
    is_sized = all(type(size) is int or (isinstance(size, Value) and size.type == INT) for size in sizes)
    return is_sized and all(type(number) is int for number in (*strides, offset))


def _is_seen_by_views(node: Node, graph: Graph) -> bool:
    """Whether nothing but the caller sees a copy, itself or views of it."""
    for user, times in node.result.users.items():
        is_output = user is graph.body and times == 1
        if not is_output and not (isinstance(user, Node) and is_view(user) and user.result.users == {graph.body: 1}):
            return False
    return bool(node.result.users)


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
