"""Symbols of a graph replaced by numbers: plain ones, or the sizes of a trace.

%n = sym_size.int(%x, 0): int       %x: f32[B, 4]              ==>   %x: f32[8, 4]     with B = 8
%m = py.mul(%n, 4); view(%x, (%m,)): f32[(B * 4)]                    view(%x, (32,)): f32[32]

What computes a number of numbers alone is computed, so that no node is left of it; what needs tensors or numbers that
are no symbols stays.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from smelt.ir import (
    Arg,
    DictType,
    Graph,
    ListType,
    Node,
    OptionalType,
    TensorType,
    TupleType,
    Type,
    Value,
    values_in,
)
from smelt.ir.dims import Dim, UnknownDim, dim_of, size_of
from smelt.ir.sizes import Size, SizeFloat, is_symbolic, size_max, size_min
from smelt.ops.convert import to_torch
from smelt.ops.python.python_ops import python_op
from smelt.rewrite import Rewriter

OF_TENSORS = frozenset(
    f"aten.{name}"
    for name in ("sym_size.int", "size.int", "sym_stride.int", "stride.int", "sym_numel.default", "numel.default")
)
_NUMBERS = (int, float)  # bools are ints


def substituted(graph: Graph, symbols: Mapping[str, int], inputs: Mapping[int, str] | None = None) -> Graph:
    """A copy of a graph with these numbers in the place of symbols.

    inputs: inputs of the graph that are numbers and symbols, by position: their uses become numbers, too.
    Raises: KeyError for a symbol without a number.
    """
    copy = graph.clone()
    # Types of a copy that nobody has seen yet: no edit that a listener could want to know of.
    types: dict[Type, Type] = {}
    for value in copy.values():
        found = types.get(value.type)
        if found is None:
            found = types[value.type] = _retyped(value.type, lambda dim: size_of(dim, symbols))
        value.type = found
    rewriter = Rewriter(copy)
    for index, name in (inputs or {}).items():
        _put_number(rewriter, copy.inputs[index], symbols[name])
    for node in list(copy.walk()):
        number = _number_of(node)
        if number is not None:
            rewriter.replace_node(node, (number,))
    return copy


def specialize(graph: Graph, sizes: Mapping[str, int], inputs: Mapping[int, str] | None = None) -> Graph:
    """The graph for these sizes alone: no symbol is left. See `substituted`."""
    return substituted(graph, sizes, inputs)


def symbolized(graph: Graph) -> None:
    """Turn the sizes of a trace in a graph's types and arguments into symbols and expressions of them, in place.

    Raises: TypeError for a size that has no expression in a type, or that is an argument.
    """
    for value in graph.values():
        value.type = _retyped(value.type, _symbolic_dim)


def _symbolic_dim(dim: Dim) -> Dim:
    return dim_of(dim) if type(dim) is Size else dim


def _retyped(type_: Type, dim_for: Callable[[Dim], Dim]) -> Type:
    def dims(old: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
        return None if old is None else tuple(d if isinstance(d, UnknownDim) else dim_for(d) for d in old)

    match type_:
        case TensorType(shape=shape, strides=strides):
            if all(type(d) is int for d in (*(shape or ()), *(strides or ()))):
                return type_
            found = replace(type_, shape=dims(shape), strides=dims(strides))
            if found.strides is None or not all(type(d) is int for d in (*(found.shape or ()), *found.strides)):
                return found
            # Strides that are written out as they depend on sizes may be row-major ones at these.
            return TensorType.of(found.dtype, found.sizes, found.steps, found.device, found.layout)
        case TupleType(elements=elements):
            return TupleType(tuple(_retyped(t, dim_for) for t in elements))
        case ListType(element=element):
            return ListType(_retyped(element, dim_for))
        case OptionalType(element=element):
            return OptionalType(_retyped(element, dim_for))
        case DictType(key=key, value=value):
            return DictType(_retyped(key, dim_for), _retyped(value, dim_for))
    return type_


def _put_number(rewriter: Rewriter, value: Value, number: int) -> None:
    """Use a number in the place of an input, but for outputs: they are the caller's own object."""
    yields = rewriter.graph.outputs
    rewriter.replace_all_uses(value, number)
    rewriter.set_yields(rewriter.graph.body, yields)


def _number_of(node: Node) -> int | float | None:
    """The number that a node gives, if it follows from types and numbers alone."""
    if len(node.results) != 1 or node.regions:
        return None
    if node.op in OF_TENSORS:
        return _of_tensor(node)
    if node.kwargs or any(True for arg in node.args for _ in values_in(arg)):
        return None
    python = python_op(node.op)
    if python is None or not python.is_pure or python.results != 1:
        return None
    if any(map(is_symbolic, node.args)):
        return _computed(node.op, node.args)
    try:
        found = python.run(*map(to_torch, node.args))
    except Exception:
        # Python raises here too, in each call, where the user sees it.
        return None
    return found if isinstance(found, _NUMBERS) else None


def _of_tensor(node: Node) -> int | None:
    source = node.args[0]
    type_ = source.type if isinstance(source, Value) else None
    if not isinstance(type_, TensorType) or not type_.is_static:
        return None
    if "numel" in node.op:
        return type_.numel
    axis = node.args[1]
    if type(axis) is not int or not -len(type_.sizes) <= axis < len(type_.sizes):
        return None
    return (type_.steps if "stride" in node.op else type_.sizes)[axis]


# --- Python's operators on sizes --------------------------------------------------------------------------------------


def _divided(divide: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def rule(a: Any, b: Any) -> Any:
        # Division by zero is left to the run, which raises what Python raises.
        return None if b == 0 else divide(a, b)

    return rule


def _extreme(of_sizes: Callable[..., int], plain: Callable[..., Any]) -> Callable[..., Any]:
    def rule(*numbers: Any) -> Any:
        return (of_sizes if all(isinstance(n, int) for n in numbers) else plain)(*numbers)

    return rule


def _int(number: Any) -> Any:
    return math.trunc(number) if type(number) is SizeFloat else number


_ROUNDINGS: dict[str, Callable[[Any], int]] = {
    "math.floor": math.floor, "math.ceil": math.ceil, "math.trunc": math.trunc,
}  # fmt: skip


def _call(name: Any, *numbers: Any) -> Any:
    rule = _ROUNDINGS.get(name)
    return None if rule is None or len(numbers) != 1 else rule(numbers[0])


_ON_SIZES: dict[str, Callable[..., Any]] = {
    "py.add": operator.add, "py.sub": operator.sub, "py.mul": operator.mul, "py.pow": operator.pow,
    "py.floordiv": _divided(operator.floordiv), "py.mod": _divided(operator.mod),
    "py.truediv": _divided(operator.truediv), "py.lshift": operator.lshift, "py.rshift": operator.rshift,
    "py.and_": operator.and_, "py.neg": operator.neg, "py.pos": operator.pos, "py.abs": abs,
    "py.eq": operator.eq, "py.ne": operator.ne, "py.lt": operator.lt, "py.le": operator.le, "py.gt": operator.gt,
    "py.ge": operator.ge, "py.not_": operator.not_, "py.bool": bool, "py.int": _int,
    "py.float": lambda number: number * 1.0, "py.round": round, "py.call": _call,
    "py.min": _extreme(size_min, min), "py.max": _extreme(size_max, max),
}  # fmt: skip


def _computed(op: str, args: tuple[Arg, ...]) -> int | float | None:
    rule = _ON_SIZES.get(op)
    return None if rule is None or not all(isinstance(a, (*_NUMBERS, str)) for a in args) else rule(*args)
