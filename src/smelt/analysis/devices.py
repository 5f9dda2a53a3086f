"""Devices of a graph's tensors: which there are, and the same graph as one of tensors on the CPU.

%1: f32[4]@"cuda:0" = aten.zeros 4, device=cuda:0      ==>      %1: f32[4] = aten.zeros 4, device=cpu
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from smelt.ir import Device, Graph, ListType, Node, TensorType, TupleType, Type, Value, map_values


def devices_of(graph: Graph) -> frozenset[str]:
    """Where the tensors of a graph are, those in its regions included: "cpu", "cuda:0", "meta"."""
    values = [*graph.inputs, *(v for node in graph.walk() for v in node.results)]
    return frozenset(type_.device for value in values for type_ in _tensors(value.type))


def devices_at(node: Node) -> frozenset[str]:
    """Where the tensors are that a node takes and makes."""
    values: list[Value] = [*node.operands(), *node.results]
    return frozenset(type_.device for value in values for type_ in _tensors(value.type))


def _tensors(type_: Type) -> Iterator[TensorType]:
    if isinstance(type_, TensorType):
        yield type_
    elif isinstance(type_, TupleType):
        for element in type_.elements:
            yield from _tensors(element)
    elif isinstance(type_, ListType):
        yield from _tensors(type_.element)


def on_cpu(graph: Graph, *, with_arguments: bool = True) -> Graph:
    """A copy of a graph whose tensors are on the CPU. with_arguments: what its nodes say of devices, too."""
    made = graph.clone()
    for value in [*made.values(), *(v for node in made.walk() for v in node.results)]:
        value.type = _on_cpu(value.type)
    for node in made.walk() if with_arguments else ():
        if any(isinstance(arg, Device) for arg in (*node.args, *node.kwargs.values())):
            args = tuple(_cpu(arg) for arg in node.args)
            node.set_arguments(args, {name: _cpu(arg) for name, arg in node.kwargs.items()})
    return made


def _cpu(arg: Any) -> Any:
    return Device("cpu") if isinstance(arg, Device) else map_values(arg, lambda v: v)


def _on_cpu(type_: Type) -> Type:
    if isinstance(type_, TensorType):
        return replace(type_, device="cpu")
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(_on_cpu, type_.elements)))
    if isinstance(type_, ListType):
        return replace(type_, element=_on_cpu(type_.element))
    return type_
