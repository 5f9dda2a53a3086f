"""Passes over graphs whose sizes are symbols: meanwhile the symbols are numbers of a trace.

    %b = sym_size.int(%x, 0); %v = view(%x, (%b, 768)): f32[B, 768]         at rest
    %v = view(%x, (⟨B⟩, 768)): f32[⟨B⟩, 768]                                while passes run

So a pass computes with sizes and compares them as with integers. Of a comparison that is not the same at all sizes the
recorded call's outcome decides, and a guard remembers it. Afterwards sizes that are arguments become nodes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from smelt.diag.records import record
from smelt.ir import FLOAT, INT, Arg, Dim, Graph, Region, Sym, SymExpr, Value, type_of_arg
from smelt.ir.dims import dim_of
from smelt.ir.python_operators import BINARY
from smelt.ir.size_trace import FloatExpr, Guard, Range, Trace
from smelt.ir.sizes import Evaluation, Size, SizeFloat, current_trace, tracing
from smelt.ir.types import type_symbols
from smelt.ops.shapes.calls import at_rest, in_trace, number_of
from smelt.rewrite import Rewriter

_OPERATORS = {**{o.symbol: f"py.{o.name}" for o in BINARY}, "max": "py.max", "min": "py.min"}


@record
class SizeCondition:
    """A comparison of sizes that a pass relied on. check: whether it holds for values of the symbols by name."""

    text: str
    check: Callable[[Mapping[str, int | float]], bool]
    outcome: bool = True
    span: None = None

    def __str__(self) -> str:
        return self.text if self.outcome else f"not ({self.text})"


@record
class Sizes:
    """The symbols of a graph.

    symbols: their values at the recorded call, and what they may be. origins: the graph's input that each is read of,
    with the dimension, None for an input that is the number itself. conditions: what passes came to rely on.
    """

    symbols: Mapping[str, tuple[int | float, Range]]
    origins: Mapping[str, tuple[int, int | None]]
    conditions: list[SizeCondition] = field(default_factory=list)


def has_symbols(graph: Graph) -> bool:
    """Whether some type has a symbolic size."""
    return any(type_symbols(value.type) for value in graph.values())


@contextmanager
def sized(graph: Graph, sizes: Sizes | None) -> Iterator[None]:
    """Let the graph's symbols be numbers. Nothing changes where it has none, or where nothing is known of them."""
    if sizes is None or current_trace() is not None or not has_symbols(graph):
        yield
        return
    with tracing(sizes.symbols) as trace:
        _enter(graph, trace, sizes)
        try:
            yield
        finally:
            _leave(graph, trace, sizes)
    sizes.conditions.extend(_condition(trace, guard) for guard in trace.guards)


def _condition(trace: Trace, guard: Guard) -> SizeCondition:
    return SizeCondition(guard.text, lambda values: Evaluation(trace, values).holds(guard))


def _enter(graph: Graph, trace: Trace, sizes: Sizes) -> None:
    for value in graph.values():
        value.type = in_trace(value.type, trace.symbols)
    rewriter = Rewriter(graph)
    for name, (index, dim) in sizes.origins.items():
        if dim is None and type(trace.symbols[name]) is Size:
            # The caller's own number is returned as such.
            outputs = graph.outputs
            rewriter.replace_all_uses(graph.inputs[index], trace.symbols[name])
            rewriter.set_yields(graph.body, outputs)
    for node in list(graph.walk()):
        if len(node.results) == 1 and node.result.type == INT:
            number = number_of(node.result, trace)
            if number is not None:
                rewriter.replace_node(node, (number,))


def _leave(graph: Graph, trace: Trace, sizes: Sizes) -> None:
    numbers = _Numbers(graph, trace, sizes)
    for region in _regions(graph):
        for node in list(region):
            args = tuple(map(numbers.placed, node.args))
            kwargs = {k: numbers.placed(v) for k, v in node.kwargs.items()}
            if numbers.has_placed:
                numbers.rewriter.set_arguments(node, args, kwargs)
                numbers.has_placed = False
        yields = tuple(map(numbers.placed, region.yields))
        if numbers.has_placed:
            numbers.rewriter.set_yields(region, yields)
            numbers.has_placed = False
    for value in graph.values():
        value.type = at_rest(value.type)


def _regions(graph: Graph) -> list[Region]:
    return [graph.body, *(region for node in graph.walk() for region in node.regions)]


class _Numbers:
    """Nodes, in front of all others, that compute the sizes that are arguments."""

    def __init__(self, graph: Graph, trace: Trace, sizes: Sizes) -> None:
        self.graph, self.trace, self.sizes = graph, trace, sizes
        self.rewriter = Rewriter(graph)
        self.first = graph.body.first
        self.has_placed = False
        self._known: dict[Any, Arg] = {}

    def placed(self, arg: Arg) -> Arg:
        """An argument with values in place of sizes."""
        if isinstance(arg, tuple):
            return tuple(map(self.placed, arg))
        if type(arg) is Size:
            self.has_placed = True
            return self._dim(dim_of(arg))
        if type(arg) is SizeFloat:
            self.has_placed = True
            return self._float(arg.expr)
        return arg

    def _dim(self, dim: Dim) -> Arg:
        if isinstance(dim, int):
            return dim
        found = self._known.get(dim)
        if found is None:
            found = self._known[dim] = self._new(dim)
        return found

    def _new(self, dim: Dim) -> Arg:
        if isinstance(dim, Sym):
            index, axis = self.sizes.origins[dim.name]
            source = self.graph.inputs[index]
            return source if axis is None else self._node("aten.sym_size.int", source, axis)
        assert isinstance(dim, SymExpr)
        return self._node(_OPERATORS[dim.op], self._dim(dim.left), self._dim(dim.right))

    def _float(self, expr: FloatExpr) -> Arg:
        match expr:
            case ("float", number):
                return number
            case ("size", poly):
                return self._dim(dim_of(Size(self.trace, poly, 0)) if poly else 0)
            case ("atom", _):
                name = self.trace.float_text(expr)
                index, _ = self.sizes.origins[name]
                return self.graph.inputs[index]
        found = self._known.get(expr)
        if found is None:
            operator, left, right = expr
            found = self._known[expr] = self._node(_OPERATORS[operator], self._float(left), self._float(right))
        return found

    def _node(self, op: str, *args: Arg) -> Value:
        is_float = op in ("py.truediv", "py.pow") or any(type_of_arg(a) == FLOAT for a in args)
        type_ = FLOAT if is_float else INT
        if self.first is None:
            node = self.rewriter.insert(op, args, (type_,), end_of=self.graph.body)
        else:
            node = self.rewriter.insert(op, args, (type_,), before=self.first)
        return node.result
