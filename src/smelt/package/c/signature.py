"""What an entry point takes and gives, as C code names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from smelt.ir import Graph, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.package.c.addresses import DTYPES
from smelt.package.c.tables import refused
from smelt.package.names import input_names, output_names
from smelt.runtime.ingot.manifest import InputType, Method


@dataclass(frozen=True, slots=True)
class Kind:
    """An input or an output. sizes: -1 where it depends on the data; strides: None where elements lie row by row."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...] | None
    is_written: bool = False

    def __str__(self) -> str:
        sizes = ", ".join("?" if n < 0 else str(n) for n in self.sizes)
        return f"{self.name}: {DTYPES[self.dtype][1].lower()}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Signature:
    """An entry point; outputs: by the number that they have among the graph's."""

    name: str
    inputs: tuple[Kind, ...]
    outputs: dict[int, Kind]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.inputs))}) -> {', '.join(map(str, self.outputs.values()))}"


def signature_of(
    name: str, method: Method, graph: Graph, given: Sequence[int], sizes: Mapping[str, int]
) -> Signature:  # fmt: skip
    """The signature; given: the numbers of the outputs that C has values for; sizes: the values of free ones.

    Raises: PackageError (S0704).
    """
    written = _written_inputs(graph)
    names = input_names(method)
    inputs = tuple(
        _input(name, label, type_, i in written, sizes)
        for i, (label, type_) in enumerate(zip(names, method.inputs, strict=True))
    )
    labels = output_names(method, given)
    outputs = {i: _output(name, label, graph.outputs[i]) for i, label in zip(given, labels, strict=True)}
    return Signature(name, inputs, outputs)


def _input(entry: str, name: str, type_: InputType, is_written: bool, sizes: Mapping[str, int]) -> Kind:
    _check_dtype(entry, name, type_.dtype)
    return Kind(name, type_.dtype, *type_.at(sizes), is_written)


def _output(entry: str, name: str, value: object) -> Kind:
    type_ = value.type if isinstance(value, Value) else None
    if isinstance(type_, TensorType):
        if type_.shape is None:
            raise refused(entry, f"{name} has an unknown number of dimensions", "return a tensor of a known rank")
        dtype = dtype_to_torch(type_.dtype)
        _check_dtype(entry, name, dtype)
        sizes = tuple(n if isinstance(n, int) else -1 for n in type_.shape)
        steps = None if type_.strides is None else tuple(s if isinstance(s, int) else -1 for s in type_.strides)
        return Kind(name, dtype, sizes, None if steps is None or -1 in steps else steps)
    label = str(type_) if type_ is not None else type(value).__name__
    number = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}.get(label)
    if number is None:
        raise refused(entry, f"{name} is {label}, no tensor and no number", "return tensors and numbers")
    return Kind(name, number, (), None)


def _check_dtype(entry: str, name: str, dtype: torch.dtype) -> None:
    if dtype not in DTYPES:
        raise refused(entry, f"{name} has dtype {dtype}", f"use one of {', '.join(map(str, DTYPES))}")


def _written_inputs(graph: Graph) -> set[int]:
    """The numbers of the inputs that the program writes to."""
    numbers = {id(value): i for i, value in enumerate(graph.inputs)}
    targets = [node.args[0] for node in graph.walk() if node.op == "write"]
    return {numbers[id(target)] for target in targets if id(target) in numbers}
