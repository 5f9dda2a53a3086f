"""Whether a run with symbols did what the native run did: the same operators on the same values, in the same order.

A size that is no plain int can be told from one (`n is other`), and the program may then go another
way without any question that leaves a guard. Where neither run has control flow of its own the graphs must agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

from smelt.capture.dynamic.spec import SizeFacts
from smelt.capture.result import Captured
from smelt.ir import (
    NONE,
    STATE_OPS,
    Dim,
    Graph,
    Node,
    ScalarType,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
    Value,
    contiguous_strides,
)
from smelt.ir.dims import size_of
from smelt.ops.torch_gradients import GRADIENT

_MADE_BEFORE = (*STATE_OPS, "const")
_NUMBERS = ("py.", "aten.sym_")
# A number in the place of a tensor of one element, as torch makes them where it knows the number; a slice that at this
# size is all there is.
_SAME = {
    "aten.fill_.Scalar": ("aten.fill_.Tensor", "aten.copy_.default"),
    "aten.scalar_tensor.default": ("aten.clone.default", "aten.lift_fresh_copy.default"),
    "aten.slice.Tensor": ("aten.alias.default",),
}


class Difference(NamedTuple):
    """Where two runs differ, in words; op: the operator both called alike whose results do."""

    text: str
    op: str = ""


def disagreement(native: Graph, symbolic: Graph, hints: Mapping[str, int | float]) -> Difference | None:
    """The first operator that differs, or None."""
    if not (is_straight(native) and is_straight(symbolic)):
        return _laid_otherwise(native, symbolic, hints)
    ours, theirs = list(_operators(native)), list(_operators(symbolic))
    if any(node.op == "aten.scalar_tensor.default" for node in theirs) and len(ours) != len(theirs):
        # Tensors are made of sizes, one by one, where the native run made them of a list.
        return None
    numbers = _Numbers()
    for a, b in zip(symbolic.inputs, native.inputs, strict=False):
        numbers.pair(b, a)
    for one, other in zip(ours, theirs, strict=False):
        if one.op != other.op and not (one.op in _SAME.get(other.op, ()) and _is_of_number(one, other)):
            return Difference(f"{other.op}, where {one.op} was called")
        if other.op == one.op and not (
            numbers.agree(one.args, other.args)
            and numbers.agree(tuple(one.kwargs.items()), tuple(other.kwargs.items()))
        ):
            return Difference(f"{other.op} with other arguments")
        for value, found in zip(one.results, other.results, strict=True):
            if not _fits(value.type, found.type, hints):
                return Difference(f"{other.op} gives {found.type}, where it gave {value.type}", other.op)
            numbers.pair(value, found)
    if len(ours) != len(theirs):
        return Difference(f"{len(theirs)} operators, where {len(ours)} were called")
    return None


def sizes_of_recorded(native: Captured, facts: SizeFacts, places: Sequence[str]) -> dict[str, int | float] | None:
    """The values of a graph's symbols in another call, which was recorded; None where the graph does not hold there.

    places: of the inputs of the graph with symbols.
    """
    assert native.graph is not None and native.signature is not None
    types = {place: value.type for place, value in zip(native.signature.inputs, native.graph.inputs, strict=True)}
    values: dict[str, int | float] = {}
    for name, origin in facts.symbols.items():
        place = places[origin.input]
        if origin.dim is None:
            number = native.signature.constants.get(place)
            if type(number) is not int and type(number) is not float:
                return None
            values[name] = number
            continue
        type_ = types.get(place)
        if not isinstance(type_, TensorType) or not type_.is_static or origin.dim >= len(type_.sizes):
            return None
        values[name] = type_.sizes[origin.dim]
    return values if facts.holds(values) else None


def _is_of_number(one: Node, other: Node) -> bool:
    """Whether what the native run copied is a number that it knew, where the other one makes it of the number."""
    if one.op not in ("aten.copy_.default", "aten.clone.default", "aten.lift_fresh_copy.default"):
        return True
    source = one.args[1] if one.op == "aten.copy_.default" else one.args[0]
    return isinstance(source, Value) and source.node is not None and source.node.op == "const"


def _laid_otherwise(native: Graph, symbolic: Graph, hints: Mapping[str, int | float]) -> Difference | None:
    """The same of graphs with branches and loops: the first operator of those that one line calls once in both whose
    result lies otherwise, or None."""
    ours, theirs = _called_once(native), _called_once(symbolic)
    for place, one in ours.items():
        other = theirs.get(place)
        for value, found in zip(one.results, () if other is None else other.results, strict=False):
            if not _lies_alike(value.type, found.type, hints):
                return Difference(f"{one.op} gives {found.type}, where it gave {value.type}", one.op)
    return None


def _called_once(graph: Graph) -> dict[tuple[str, object], Node]:
    nodes = [node for node in _operators(graph) if node.span is not None]
    times = Counter((node.op, node.span) for node in nodes)
    return {(node.op, node.span): node for node in nodes if times[node.op, node.span] == 1}


def _lies_alike(native: Type, symbolic: Type, hints: Mapping[str, int | float]) -> bool:
    if not isinstance(native, TensorType) or not isinstance(symbolic, TensorType):
        return (native == NONE) == (symbolic == NONE)
    if native.shape is None or symbolic.shape is None or len(native.shape) != len(symbolic.shape):
        return True
    # What an operator gives in another turn, or on another way, may have other sizes.
    sizes = [_at_hints(d, hints) for d in symbolic.shape]
    return sizes != list(native.shape) or _lies_so(native, symbolic, hints)


def is_straight(graph: Graph) -> bool:
    """Whether every run of a graph calls the same operators."""
    return not any(node.regions or node.op == "expect" or node.op in ("py.raise", "py.assert") for node in graph.walk())


def _operators(graph: Graph) -> Iterator[Node]:
    for node in graph.walk():
        if node.op == GRADIENT or (node.op not in _MADE_BEFORE and not node.op.startswith(_NUMBERS)):
            yield node


class _Numbers:
    """Which value of one graph is which of the other."""

    def __init__(self) -> None:
        self.pairs: dict[Value, Value] = {}

    def pair(self, native: Value, symbolic: Value) -> None:
        self.pairs[native] = symbolic

    def agree(self, a: object, b: object) -> bool:
        """Whether an argument of the native run is that of the other; a number that is computed is let through."""
        if isinstance(b, Value) and isinstance(b.type, ScalarType):
            return not isinstance(a, Value)
        if isinstance(a, Value) and isinstance(b, Value):
            if a in self.pairs:
                return self.pairs[a] is b
            return _made_of(a) == _made_of(b)
        if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
            return len(a) == len(b) and all(map(self.agree, a, b))
        return not isinstance(b, Value) and type(a) is type(b) and repr(a) == repr(b)


def _made_of(value: Value) -> object:
    """What a value of state is made of; the value itself for any other."""
    node = value.node
    return (node.op, node.args) if node is not None and node.op in _MADE_BEFORE else value


def _fits(native: Type, symbolic: Type, hints: Mapping[str, int | float]) -> bool:
    if isinstance(native, TensorType) and isinstance(symbolic, TensorType):
        if native.dtype != symbolic.dtype or native.shape is None or symbolic.shape is None:
            return native == symbolic
        if len(native.shape) != len(symbolic.shape):
            return False
        sizes = [_at_hints(d, hints) for d in symbolic.shape]
        if any(found is not None and found != size for size, found in zip(native.shape, sizes, strict=True)):
            return False
        return _lies_so(native, symbolic, hints)
    if isinstance(native, TupleType) and isinstance(symbolic, TupleType):
        return len(native.elements) == len(symbolic.elements) and all(
            _fits(a, b, hints) for a, b in zip(native.elements, symbolic.elements, strict=True)
        )
    return (native == NONE) == (symbolic == NONE)


def _lies_so(native: TensorType, symbolic: TensorType, hints: Mapping[str, int | float]) -> bool:
    """Whether a tensor lies as torch's own kernel laid it: those that take symbols may lay it otherwise."""
    if symbolic.strides is None and native.strides is None:
        return True
    if not native.is_static or 0 in native.sizes:
        return True
    dims = symbolic.strides
    steps = contiguous_strides(native.sizes) if dims is None else [_at_hints(d, hints) for d in dims]
    return all(
        found is None or found == step or size == 1
        for found, step, size in zip(steps, native.steps, native.sizes, strict=True)
    )


def _at_hints(dim: Dim, hints: Mapping[str, int | float]) -> int | None:
    """A size at these values; None where it is not known."""
    return None if isinstance(dim, UnknownDim) else size_of(dim, cast(Mapping[str, int], hints))
