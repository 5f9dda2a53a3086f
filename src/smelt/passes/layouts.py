"""Put a value with other strides in another's place.   %1 = matmul ...; %2 = transpose %1; %3 = contiguous %2
==>   %1: strided = attention ...; %2: now row-major = transpose %1; %3 = contiguous %2

Invariant: whatever reaches an output, an inner region or a write keeps its type, and no two outputs come to share
memory, or cease to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.diag import InternalError
from smelt.ir import MemoryFormat, Node, Region, TensorType, TupleType, Type, Value, map_values
from smelt.ops.effects import aliases, effects
from smelt.ops.record import Emitter
from smelt.ops.registry import schema_of
from smelt.ops.typing import infer
from smelt.passes.base import emitter
from smelt.rewrite import Rewriter

# Nodes that the change of one value may reach before it is given up.
_REACH = 64
# Operators that address memory themselves instead of elements.
_ADDRESSING = ("aten.as_strided.default", "aten.as_strided_copy.default", "aten.as_strided_scatter.default")


def plan_layouts(changes: Mapping[Value, TensorType]) -> list[Node] | None:
    """The nodes whose results get other strides if these values had these types; None where that is not allowed."""
    types: dict[Value, Type] = {old: type_ for old, type_ in changes.items() if old.type != type_}
    if not all(_only_strides_differ(old.type, type_) for old, type_ in types.items()):
        return None
    homes = {old.node.parent for old in types if old.node is not None}
    changed: dict[Node, None] = {}
    pending = [user for old in types for user in old.users]
    steps = 0
    while pending:
        node = pending.pop(0)
        steps += 1
        if steps > _REACH * len(changes) or not isinstance(node, Node) or not _takes_any_strides(node):
            return None
        found = _types_with(node, types) if {node.parent} == homes else None
        if found is None:
            return None
        for result, new in zip(node.results, found, strict=True):
            if new == types.get(result, result.type):
                continue
            if not _only_strides_differ(result.type, new):
                return None
            types[result] = new
            changed[node] = None
            pending.extend(result.users)
    return list(changed)


def set_layouts(rewriter: Rewriter, changes: Mapping[Value, Value], nodes: Sequence[Node]) -> None:
    """Use the new values for the old everywhere and write the nodes of a plan again with the types they now have."""
    for old, new in changes.items():
        rewriter.replace_all_uses(old, new)
    for node in _in_order(rewriter, nodes):
        again = rewriter.insert(node.op, node.args, _types(node), node.kwargs, before=node)
        rewriter.replace_node(node, list(again.results))


def replace_result(rewriter: Rewriter, node: Node, made: Value) -> None:
    """Erase a node and use a value of another memory layout for its result, of a static type; where readers need its
    own, a copy.
    """
    result = node.result
    assert isinstance(made.type, TensorType)
    plan = plan_layouts({result: made.type})
    if plan is None:
        assert isinstance(result.type, TensorType)
        with rewriter.builder.at(node):
            made = copied_like(emitter(rewriter), made, result.type)
    set_layouts(rewriter, {result: made}, plan or [])
    rewriter.erase(node)


def copied_like(emit: Emitter, made: Value, like: TensorType) -> Value:
    """A copy of a value in the memory layout of a static type of its sizes: dense, dimensions in any order."""
    strides = [stride if isinstance(stride, int) else 0 for stride in like.strides or ()]
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    is_row_major = order == sorted(order)
    if not is_row_major:
        made = emit.call("aten.permute.default", made, tuple(order))
    made = emit.call("aten.clone.default", made, memory_format=MemoryFormat("contiguous_format"))
    if not is_row_major:
        made = emit.call("aten.permute.default", made, tuple(order.index(dim) for dim in range(len(order))))
    return made


def _in_order(rewriter: Rewriter, nodes: Sequence[Node]) -> list[Node]:
    """Nodes of one region in program order."""
    return sorted(nodes, key=lambda node: sum(other is not node and rewriter.is_before(other, node) for other in nodes))


def _only_strides_differ(a: Type, b: Type) -> bool:
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return len(a.elements) == len(b.elements) and all(map(_only_strides_differ, a.elements, b.elements))
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    return (a.dtype, a.shape, a.device, a.layout) == (b.dtype, b.shape, b.device, b.layout)


def _takes_any_strides(node: Node) -> bool:
    """Whether a node computes the same elements whatever the strides of its operands."""
    if node.regions or node.op in _ADDRESSING:
        return False
    if node.op == "unpack":
        return True
    return schema_of(node.op) is not None and effects(node).is_reproducible


def _types(node: Node) -> tuple[Type, ...]:
    """What a node's results are for the operands it has. Raises: InternalError where it cannot be applied to them."""
    if node.op == "unpack":
        (packed,) = node.operands()
        if not isinstance(packed.type, TupleType):
            raise InternalError("unpack takes a tuple", node.span)
        return packed.type.elements
    return infer(node.op, node.args, node.kwargs)


def _types_with(node: Node, types: Mapping[Value, Type]) -> tuple[Type, ...] | None:
    """The result types of a node for operands of other types; None where it could not run, or would share otherwise."""
    standins: dict[Value, Value] = {}

    def standin(value: Value) -> Value:
        if value not in standins:
            standins[value] = Value(value.name, types.get(value, value.type), value.owner)
        return standins[value]

    copy = Node(
        node.op, tuple(map_values(a, standin) for a in node.args),
        {k: map_values(a, standin) for k, a in node.kwargs.items()}, node.span, node.scope, node.mode,
    )  # fmt: skip
    try:
        found = _types(copy)
    except InternalError:
        # The operator does not take these strides, as `view` may not.
        return None
    copy.results = [Value(r.name, t, copy) for r, t in zip(node.results, found, strict=True)]
    for old, now, result in zip(aliases(node), aliases(copy), node.results, strict=True):
        if bool(old) != bool(now) and escapes(result):
            return None
    return found


def escapes(value: Value) -> bool:
    """Whether the memory of a value may be yielded by a region or written."""
    for user in value.users:
        if isinstance(user, Region):
            return True
        if user.regions or value in effects(user).writes:
            return True
        for result, shared in zip(user.results, aliases(user), strict=True):
            if value in shared and escapes(result):
                return True
    return False
