"""Which free sizes and numbers a plan has to be made for, and which may come in with each run.

Those in types decide sizes, and those that say where a returned view begins decide what the caller gets: a plan holds
these as numbers. All else computes with numbers as it does with tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from smelt.ir import DictType, Graph, ListType, Node, OptionalType, TensorType, TupleType, Type, Value, values_in
from smelt.ir.dims import symbols
from smelt.ir.type_order import may_hold_tensor
from smelt.ops.effects import aliases, effects


def names_in_types(graph: Graph) -> set[str]:
    """The symbols in the types of all values."""
    return {name for value in graph.values() for name in _in_type(value.type)}


def _in_type(type_: Type) -> Iterator[str]:
    match type_:
        case TensorType(shape=shape, strides=strides):
            for dim in (*(shape or ()), *(strides or ())):
                yield from symbols(dim)
        case TupleType(elements=elements):
            for element in elements:
                yield from _in_type(element)
        case ListType(element=element) | OptionalType(element=element):
            yield from _in_type(element)
        case DictType(key=key, value=value):
            yield from _in_type(key)
            yield from _in_type(value)


def inputs_of_views(graph: Graph) -> set[int]:
    """The inputs, numbers all, on which it depends where the views lie that a call returns."""
    numbers = (number for node in _returned_views(graph) for number in node.operands() if _is_number(number))
    position = {value: i for i, value in enumerate(graph.inputs)}
    return {position[value] for value in _sources(numbers) if value in position and _is_number(value)}


def _returned_views(graph: Graph) -> Iterator[Node]:
    """The nodes that make returned values out of memory that is there already."""
    for value in _reached(v for out in graph.outputs for v in values_in(out)):
        node = value.node
        if node is not None and not node.regions and any(aliases(node)):
            yield node


def _reached(start: Iterable[Value]) -> set[Value]:
    stack, seen = list(start), set()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        node = value.node
        if node is None:
            continue
        if node.regions:
            stack.extend(v for region in node.regions for out in region.yields for v in values_in(out))
        else:
            stack.extend(found for group in aliases(node) for found in group)
    return seen


def _sources(start: Iterable[Value]) -> set[Value]:
    """All values that these are computed from."""
    stack, seen = list(start), set()
    while stack:
        value = stack.pop()
        if value not in seen:
            seen.add(value)
            if value.node is not None:
                stack.extend(value.node.operands())
    return seen


def _is_number(value: Value) -> bool:
    return not may_hold_tensor(value.type)


def is_plain(graph: Graph) -> bool:
    """Whether it is one straight line that writes to no memory that is there already."""
    return not any(node.regions or effects(node).writes for node in graph.walk())
