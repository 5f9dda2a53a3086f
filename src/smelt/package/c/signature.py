"""What an entry point takes and gives, as C code names it.

args[0], kwargs['mask']  ==>  x0, mask          out, out.hidden[1]  ==>  out, hidden_1
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from smelt.ir import Graph, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.package.c.addresses import DTYPES
from smelt.package.c.tables import refused
from smelt.runtime.ingot.manifest import InputType, Method
from smelt.runtime.ingot.structure import Leaf, Mapping_, Sequence_, Shared, Structure

_KEYWORDS = (
    "alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do "
    "double else enum explicit export extern false float for friend goto if inline int long mutable namespace new "
    "noexcept nullptr operator or private protected public register restrict return short signed sizeof static struct "
    "switch template this throw true try typedef typeid typename typeof union unsigned using virtual void volatile "
    "while xor not main context result errno"
)


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
    names = unique([_input_name(place) for place in method.places])
    inputs = tuple(
        _input(name, label, type_, i in written, sizes)
        for i, (label, type_) in enumerate(zip(names, method.inputs, strict=True))
    )
    paths = dict(_paths(method.result, "out"))
    labels = unique([_output_name(paths.get(i, f"out[{i}]")) for i in given])
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


# --- names ------------------------------------------------------------------------------------------------------------


def identifier(text: str) -> str:
    """A text as a name of C."""
    made = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "_"
    return f"{made}_" if made in _KEYWORDS.split() else f"_{made}" if made[0].isdigit() else made


def unique(names: Sequence[str]) -> list[str]:
    """The names, numbered where two are the same."""
    taken: dict[str, None] = {}
    for name in names:
        found, number = name, 1
        while found in taken:
            number += 1
            found = f"{name}_{number}"
        taken[found] = None
    return list(taken)


def _input_name(place: str) -> str:
    if place.startswith("kwargs['"):
        return identifier(place.removeprefix("kwargs"))
    inner = place.removeprefix("args[").removesuffix("]")
    return f"x{inner}" if inner.isdecimal() else f"x{identifier(place.removeprefix('args'))}"


def _output_name(path: str) -> str:
    inner = path.removeprefix("out")
    return "out" if not inner else identifier(inner) if not inner.startswith("[") else identifier(f"out{inner}")


def _paths(structure: Structure, path: str) -> Iterator[tuple[int, str]]:
    """Where each tensor stands in a result."""
    match structure:
        case Leaf(index=index):
            yield index, path
        case Sequence_(items=items, fields=names):
            for i, item in enumerate(items):
                yield from _paths(item, f"{path}.{names[i]}" if names else f"{path}[{i}]")
        case Mapping_(keys=keys, items=items):
            for key, item in zip(keys, items, strict=True):
                yield from _paths(item, f"{path}.{key}")
        case Shared(made=made) if made is not None:
            yield from _paths(made, path)
