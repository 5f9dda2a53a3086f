"""`as_strided`: a view that names places in memory instead of elements.

%v = as_strided(%b, [3, 4, 8], [16, 8, 1]), then %b becomes %n   ==>   %v becomes as_strided(%n, [3, 4, 8], [16, 8, 1])

Invariant: only where each place is an element of the operand, which fills its stretch of memory without gaps. Then
every tensor of the operand's type has the same elements at these places, wherever in its storage it begins.
"""

from __future__ import annotations

from smelt.ir import Node, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.shapes.pointwise import is_dense
from smelt.ops.shapes.views import Layout
from smelt.passes.base import call_of

AS_STRIDED = "aten.as_strided.default"


def is_placed(node: Node) -> bool:
    """Whether a node is of the kind whose result depends on where its operand's elements lie."""
    return "as_strided" in node.op


def can_place_again(node: Node) -> bool:
    """Whether the view may be taken of another tensor of the operand's type, for the same elements of that one."""
    call = call_of(node) if node.op == AS_STRIDED else {}
    base, view = call.get("self"), node.results[0].type
    # An offset would count from the start of the storage, which another tensor has elsewhere.
    if not isinstance(base, Value) or call["storage_offset"] is not None or not isinstance(view, TensorType):
        return False
    if not (isinstance(base.type, TensorType) and _is_plain(base.type) and _is_plain(view)):
        return False
    return base.type.dtype is view.dtype and is_dense(Layout.of(base.type)) and _reach(view) <= base.type.numel


def placed(b: GraphEmitter, whole: Value, new: Value, node: Node) -> Value:
    """The operand with the view's elements replaced; an inverse as in `view_inverses`."""
    call = call_of(node)
    return b.call("aten.as_strided_scatter.default", whole, new, call["size"], call["stride"])


def _is_plain(type_: TensorType) -> bool:
    return type_.is_static and type_.layout == "strided"


def _reach(type_: TensorType) -> int:
    """Elements of memory from a tensor's first to past its last one."""
    if type_.numel == 0:
        return 0
    return 1 + sum((n - 1) * t for n, t in zip(type_.sizes, type_.steps, strict=True))
