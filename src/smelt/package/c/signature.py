"""What an entry point takes and gives, as C code names it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from smelt.diag import PackageError
from smelt.diag.records import record
from smelt.ir import Graph, TensorType, Value
from smelt.ir.dims import Dim
from smelt.ops.convert import dtype_to_torch
from smelt.package.c.addresses import DTYPES
from smelt.package.c.errors import refused
from smelt.package.c.expressions import magnitude
from smelt.package.names import identifier, input_names, output_names, unique
from smelt.package.sizes import dimension
from smelt.runtime.ingot.errors import broken
from smelt.runtime.ingot.free_sizes import Expr, shown, symbols_in
from smelt.runtime.ingot.manifest import InputType, Method

UNKNOWN = -1
"""A size that depends on the data."""
_MOST = 64
_LIMIT = 1 << 63


@record
class Kind:
    """An input or an output. sizes: UNKNOWN where it depends on data; strides: None where elements lie row by row."""

    name: str
    dtype: torch.dtype
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...] | None
    is_written: bool = False

    def __str__(self) -> str:
        sizes = ", ".join("?" if n == UNKNOWN else size_text(n) for n in self.sizes)
        return f"{self.name}: {DTYPES[self.dtype][1].lower()}[{sizes}]"


def size_text(size: Expr) -> str:
    """A size for people."""
    text = shown(size)
    return text[1:-1] if text.startswith("(") else text


@record
class FreeSize:
    """A size that callers choose. name: in the program; label: in C; low, high: what it may be, both included."""

    name: str
    label: str
    input: int
    dim: int
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.name} = {self.low}..{self.high}"


@record
class Signature:
    """An entry point; outputs: by the number that they have among the graph's."""

    name: str
    inputs: tuple[Kind, ...]
    outputs: dict[int, Kind]
    free: tuple[FreeSize, ...] = ()

    def __str__(self) -> str:
        text = f"{self.name}({', '.join(map(str, self.inputs))}) -> {', '.join(map(str, self.outputs.values()))}"
        return f"{text}, {', '.join(map(str, self.free))}" if self.free else text


def signature_of(
    name: str, method: Method, graph: Graph, given: Sequence[int], sizes: Mapping[str, int],
    bounds: Sequence[tuple[int, int]] = (),
) -> Signature:  # fmt: skip
    """The signature; given: the numbers of the outputs that C has values for; sizes: the values of free ones; bounds:
    the least and the most of each where callers choose them.

    Raises: PackageError (S0704).
    """
    written = _written_inputs(graph)
    names = input_names(method)
    inputs = tuple(
        _input(name, label, type_, i in written, None if bounds else sizes)
        for i, (label, type_) in enumerate(zip(names, method.inputs, strict=True))
    )
    labels = output_names(method, given)
    free = _free(method, names, bounds)
    chosen = frozenset(each.name for each in free)
    outputs = {i: _output(name, label, graph.outputs[i], chosen) for i, label in zip(given, labels, strict=True)}
    return Signature(name, inputs, outputs, free)


def check_numbers(signature: Signature, conditions: Sequence[Expr]) -> None:
    """Raises: PackageError (S0704) where a number that C computes of sizes may be beyond 64 bits."""
    most = {each.name: each.high for each in signature.free}
    for kind in signature.inputs if most else ():
        count = prod(max(magnitude(size, most), 1) for size in kind.sizes)
        numbers = (count, *(magnitude(each, most) for each in kind.strides or ()))
        if max(numbers) >= _LIMIT:
            why = f"{kind.name} may have more elements than 64 bits count"
            raise refused(signature.name, why, "save the program for smaller ranges")
    if any(magnitude(each, most) >= _LIMIT for each in conditions):
        why = "a condition on its sizes has numbers beyond 64 bits"
        raise refused(signature.name, why, "save the program for smaller ranges")


def _free(method: Method, names: Sequence[str], bounds: Sequence[tuple[int, int]]) -> tuple[FreeSize, ...]:
    if method.free is None or not bounds:
        return ()
    symbols = method.free.symbols
    if any(each.dim >= len(method.inputs[each.input].sizes) for each in symbols) or len(symbols) > _MOST:
        raise broken("manifest.json", "its sizes are of dimensions that its inputs do not have")
    labels = unique([*names, *(identifier(symbol.name) for symbol in symbols)])[len(names) :]
    return tuple(
        FreeSize(each.name, label, each.input, each.dim, low, high)
        for each, label, (low, high) in zip(symbols, labels, bounds, strict=True)
    )


def _input(entry: str, name: str, type_: InputType, is_written: bool, sizes: Mapping[str, int] | None) -> Kind:
    _check_dtype(entry, name, type_.dtype)
    if sizes is None:
        return Kind(name, type_.dtype, type_.sizes, type_.strides, is_written)
    return Kind(name, type_.dtype, *type_.at(sizes), is_written)


def _size(dim: Dim | None, names: frozenset[str]) -> Expr:
    """A size of an output; names: of the sizes that callers choose."""
    try:
        found = UNKNOWN if dim is None else dimension(dim)
    except PackageError:  # it has no form in a file
        return UNKNOWN
    return found if symbols_in(found) <= names else UNKNOWN


def _output(entry: str, name: str, value: object, free: frozenset[str]) -> Kind:
    type_ = value.type if isinstance(value, Value) else None
    if isinstance(type_, TensorType):
        if type_.shape is None:
            raise refused(entry, f"{name} has an unknown number of dimensions", "return a tensor of a known rank")
        dtype = dtype_to_torch(type_.dtype)
        _check_dtype(entry, name, dtype)
        sizes = tuple(_size(n, free) for n in type_.shape)
        steps = None if type_.strides is None else tuple(_size(n, free) for n in type_.strides)
        return Kind(name, dtype, sizes, None if steps is None or UNKNOWN in steps else steps)
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
