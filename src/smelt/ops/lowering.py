"""Writes what a catalogue lowering asks for into a graph, each node's types inferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smelt.diag import InternalError
from smelt.ir import NONE, Arg, Builder, Node, TupleType, Value
from smelt.ops.catalogue import record_of
from smelt.ops.record import Lowering
from smelt.ops.registry import arguments_of, normalize, schema_of
from smelt.ops.shapes.composites import FollowsTorch
from smelt.ops.typing import infer


class GraphEmitter(FollowsTorch):
    """The `Emitter` of lowerings: adds nodes at a builder's insertion point and tells of them."""

    def __init__(self, builder: Builder, on_add: Callable[[Node], None] | None = None) -> None:
        self.builder = builder
        self.on_add = on_add

    def node(self, op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg] | None = None) -> Node:
        """Add a node in the graph's one spelling, with inferred result types."""
        positional, named = normalize(op, args, kwargs or {})
        made = self.builder.add(op, positional, infer(op, positional, named), named)
        if self.on_add is not None:
            self.on_add(made)
        return made

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """Add a node with one result; the result."""
        return self.node(op, args, kwargs).result

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        """Add a node with several results, or one list that is unpacked; the results."""
        made = self.node(op, args, kwargs)
        if len(made.results) == 1 and isinstance(made.result.type, TupleType):
            unpacked = self.builder.add("unpack", (made.result,), made.result.type.elements)
            if self.on_add is not None:
                self.on_add(unpacked)
            return tuple(unpacked.results)
        return tuple(made.results)


def lower(node: Node, emitter: GraphEmitter, *, exact: bool = False) -> tuple[Arg, ...] | None:
    """Write the lowering of a node at the emitter's place; what stands for its results, or None where there is none.

    exact: only lowerings that compute bit for bit what the node computes. A list result comes as its elements.
    Raises: InternalError where the lowering's types are not those of the node.
    """
    record = record_of(node.op)
    if record is None or record.lower is None or (exact and not record.exact):
        return None
    return write(node, emitter, record.lower)


def write(node: Node, emitter: GraphEmitter, lowering: Lowering) -> tuple[Arg, ...] | None:
    """The same by a lowering that is given."""
    schema = schema_of(node.op)
    if schema is None:
        return None
    lowered = lowering(emitter, arguments_of(schema, node.args, node.kwargs))
    if lowered is None:
        return None
    parts = lowered if isinstance(lowered, tuple) else (lowered,)
    _check(node, parts)
    return parts


def _check(node: Node, parts: tuple[Arg, ...]) -> None:
    expected = [r.type for r in node.results]
    if len(expected) == 1 and isinstance(expected[0], TupleType):
        expected = list(expected[0].elements)
    found = [p.type if isinstance(p, Value) else NONE for p in parts]
    if [_without_strides(t) for t in found] != [_without_strides(t) for t in expected]:
        raise InternalError(
            f"the lowering of {node.op} gives {', '.join(map(str, found))} for {', '.join(map(str, expected))}",
            node.span,
            why="a lowering keeps dtypes and sizes",
        )


def _without_strides(type_: object) -> object:
    return (type_.dtype, type_.shape) if hasattr(type_, "dtype") and hasattr(type_, "shape") else type_
