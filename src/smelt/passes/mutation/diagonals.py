"""`fill_diagonal_`, which has no functional counterpart, as a view that is filled.

%b = fill_diagonal_ %a 3.0; %c = sin %b     ==>     %d = diagonal %a; %e = fill_ %d 3.0; %c = sin %a

Of more dimensions it is a diagonal of diagonals. Invariant: only where this is all that it writes; matrices that may be
filled further down (`wrap`) stay as they are.
"""

from __future__ import annotations

from smelt.ir import Arg, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.rewrite import Rewriter


def fill_diagonals(rewriter: Rewriter, emit: GraphEmitter) -> None:
    """Do it for a whole graph."""
    for node in list(rewriter.graph.walk()):
        if node.op != "aten.fill_diagonal_.default":
            continue
        schema = schema_of(node.op)
        assert schema is not None
        call = arguments_of(schema, node.args, node.kwargs)
        target = call["self"]
        if isinstance(target, Value) and isinstance(target.type, TensorType) and _is_all(target.type, call["wrap"]):
            with rewriter.builder.at(node):
                diagonal = target
                for _ in range(len(target.type.shape or ()) - 1):
                    diagonal = emit.call("aten.diagonal.default", diagonal)
                emit.call("aten.fill_.Scalar", diagonal, call["fill_value"])
            rewriter.replace_node(node, (target,))


def _is_all(type_: TensorType, wrap: Arg) -> bool:
    """Whether the main diagonal is all that is filled of a tensor of this type."""
    if type_.rank is None or type_.rank < 2:
        return False
    if type_.rank > 2:
        return type_.is_static and len(set(type_.sizes)) == 1
    return wrap is False or (type_.is_static and type_.sizes[0] <= type_.sizes[1] + 1)
