"""What follows from sizes and parameters alone, computed once for each tuple of sizes.

    %0 = arange(%S); %1 = log(%0); %2 = embedding(%table, %1)        ==>     first:  S -> %2, by torch, kept
    %3 = add(%x, %2)                                                         rest:   %x, %2 -> %3

A static graph has such values folded. Only what is more than positions and comparisons is worth keeping, and only where
it is no part of what a call returns: a caller may write there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from smelt.analysis import Aliases, alias_analysis
from smelt.codegen.lower.result import Lookup, StateName
from smelt.codegen.lower.static.statics import state_name
from smelt.codegen.lower.symbolic.substitute import OF_TENSORS, specialize
from smelt.diag.records import distinct_record
from smelt.ir import STATE_OPS, Graph, Node, Region, TensorType, Value, values_in
from smelt.ir.dims import size_of
from smelt.ir.types import type_symbols
from smelt.ops.convert import type_of
from smelt.ops.effects import is_pure, is_reproducible
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Trait
from smelt.ops.sets import where
from smelt.rewrite import Rewriter

KEPT_NBYTES = 1 << 24
"""At sizes where the values are larger, they are computed in each run."""

_COSTLY = where(Trait.COSTLY) | {"aten.cumprod.default", "aten.min.other", "aten.max.other"}


@distinct_record
class Prologue:
    """first: gives the values, of the inputs' sizes alone. rest: the graph that has them as further inputs, the last.

    state: what is baked into the values. inputs: inputs that are numbers and symbols, by position.
    """

    first: Graph
    rest: Graph
    state: tuple[StateName, ...]
    inputs: Mapping[int, str]

    @property
    def count(self) -> int:
        """How many values there are."""
        return len(self.first.outputs)

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the values are small enough at these sizes."""
        total = 0
        for type_ in _types(self.first):
            total += math.prod(size_of(dim, sizes) for dim in type_.shape or ()) * 8
        return total <= KEPT_NBYTES

    def values(self, sizes: Mapping[str, int], lookup: Lookup) -> tuple[torch.Tensor, ...]:
        """The tensors at these sizes. Raises: what torch raises."""
        graph = specialize(self.first, sizes, self.inputs)
        with torch.inference_mode(False), torch.no_grad():
            found = evaluate(graph, [None] * len(graph.inputs), lookup)
        return tuple(map(_as_planned, found, _types(graph)))


def _types(graph: Graph) -> Iterator[TensorType]:
    for output in graph.outputs:
        assert isinstance(output, Value) and isinstance(output.type, TensorType)
        yield output.type


def _as_planned(tensor: torch.Tensor, type_: TensorType) -> torch.Tensor:
    """The tensor in the layout that the plan relies on."""
    if type_of(tensor) == type_:
        return tensor
    return torch.empty_strided(type_.sizes, type_.steps, dtype=tensor.dtype).copy_(tensor)


def prologue_of(graph: Graph, inputs: Mapping[int, str]) -> Prologue | None:
    """The graph taken apart; None where nothing is worth it. inputs: those that are numbers and symbols."""
    aliases = alias_analysis(graph)
    known = {graph.inputs[index] for index in inputs}
    costly: set[Value] = set()
    for node in graph.body:
        if _follows(node, known, aliases):
            known.update(node.results)
            if node.op in _COSTLY or any(value in costly for value in node.operands()):
                costly.update(node.results)
    kept = [value for value in _handed_on(graph, known) if value in costly and _may_be_kept(value, aliases)]
    if not kept:
        return None
    first, rest = graph.clone(), graph.clone()
    place = {value: number for number, value in enumerate(graph.values())}
    numbers = [place[value] for value in kept]
    rewriter = Rewriter(first)
    there = list(first.values())
    rewriter.set_yields(first.body, tuple(there[number] for number in numbers))
    _drop_unused(rewriter, only_values=True)
    state = {state_name(node): None for node in first.walk() if node.op in STATE_OPS}
    rewriter = Rewriter(rest)
    there = list(rest.values())
    for number in numbers:
        value = there[number]
        rewriter.replace_all_uses(value, rewriter.builder.add_param(rest.body, "kept", value.type))
    _drop_unused(rewriter)
    return Prologue(first, rest, tuple(state), inputs)


def _follows(node: Node, known: set[Value], aliases: Aliases) -> bool:
    """Whether a node's results follow from sizes and state that nothing writes."""
    if node.regions or not is_reproducible(node) or any(aliases.is_written(value) for value in node.results):
        return False
    if node.op in STATE_OPS or node.op in OF_TENSORS:
        return True
    return all(value in known for value in node.operands())


def _handed_on(graph: Graph, known: set[Value]) -> Sequence[Value]:
    """Known values that others than nodes of known results use, in order."""
    found = {value for node in graph.walk() if not known.issuperset(node.results) for value in node.operands()}
    found.update(v for node in graph.walk() for region in node.regions for arg in region.yields for v in values_in(arg))
    return [value for value in graph.values() if value in found and value in known]


def _may_be_kept(value: Value, aliases: Aliases) -> bool:
    return (
        isinstance(value.type, TensorType)
        and value.type.layout == "strided"
        and bool(type_symbols(value.type))
        and not aliases.reaches_output(value)
    )


def _drop_unused(rewriter: Rewriter, only_values: bool = False) -> None:
    """Drop what nobody uses. only_values: what acts (prints, checks, writes), too, which is done in each run."""
    used = {value for arg in rewriter.graph.outputs for value in values_in(arg)}
    for node in reversed(list(rewriter.graph.body)):
        if (only_values or is_pure(node)) and used.isdisjoint(node.results):
            rewriter.erase(node)
            continue
        used.update(node.operands())
        for inner in (n for region in node.regions for n in region.walk()):
            used.update(inner.operands())
        used.update(value for region in _regions(node) for arg in region.yields for value in values_in(arg))


def _regions(node: Node) -> Iterator[Region]:
    for region in node.regions:
        yield region
        yield from (deeper for inner in region.walk() for deeper in inner.regions)
