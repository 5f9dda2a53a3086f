"""Copies of nodes whose operands lie otherwise in memory than the program's: their results' types follow from that.

Native code reads memory as types say, so a stale stride is a wrong number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.analysis import used_by
from smelt.diag import SmeltError
from smelt.ir import Arg, Node, Type, Value, clone_node
from smelt.ops.python.python_ops import NAMESPACES
from smelt.ops.registry import schema_of
from smelt.ops.typing import infer


def clone_with_types(node: Node, mapping: dict[Value, Arg]) -> Node:
    """As `clone_node`. Raises: SmeltError (S0641) for a branch or loop that uses what lies otherwise."""
    changed = [v for v in used_by(node) if isinstance(new := mapping.get(v), Value) and new.type != v.type]
    made = clone_node(node, mapping)
    if changed:
        if node.regions:
            raise SmeltError(
                f"%{changed[0].name} of {changed[0].type} would reach {node.op} from another stage", node.span,
                why="what other stages send has no gaps in memory, and a branch or loop expects other strides",
                fix="end the stages behind other modules, or use a copy (contiguous())", code="S0641",
            )  # fmt: skip
        for result, type_ in zip(made.results, types_of(made, made.args, made.kwargs), strict=True):
            result.type = type_
    return made


def types_of(node: Node, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> Sequence[Type]:
    """The types of a node's results with these arguments."""
    if node.op == "unpack":
        source = args[0]
        assert isinstance(source, Value)
        return source.type.elements  # type: ignore[union-attr]
    if node.op == "write":
        target = args[0]
        assert isinstance(target, Value)
        return [target.type]
    if schema_of(node.op) is None and not node.op.startswith(NAMESPACES):
        return [result.type for result in node.results]
    return infer(node.op, args, kwargs)
