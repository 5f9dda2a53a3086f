"""Which values of a graph autograd would give a history, if some of its inputs or its state require gradients.

    %0 = aten.mul.Tensor(%x, 2)  ["no_grad"]    %x requires grad: %0 has no history
    %1 = aten.mul.Tensor(%0, %x)                %1 has one

Invariant: a history is never missed; where an operator is not known, its float results have one. Reads raw graphs, in
which operators write in place and views are views.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from smelt.analysis.aliases import Aliases, alias_analysis, is_external
from smelt.diag.records import record
from smelt.ir import BOOL, FLOAT, INT, STATE_OPS, Arg, Graph, Node, Region, TensorType, Value, values_in
from smelt.ir.dtypes import DType
from smelt.ops.effects import declared_writes, effects
from smelt.ops.record import Trait
from smelt.ops.registry import schema_of
from smelt.ops.sets import where
from smelt.ops.torch_gradients import GRADIENT

CUTS = where(Trait.NO_GRADIENT) | {
    f"aten.{name}"
    for name in (
        "detach_copy.default", "randint_like.default", "randint_like.low_dtype", "new_empty_strided.default",
    )
}  # fmt: skip
"""Operators whose float results have no history whatever they are given."""


@record
class GradientFlow:
    """outputs: for each output of the graph, whether it has a history that begins at an operator of the graph; what
    comes in and goes out again has none. leaves_some: whether memory that others see gets one."""

    outputs: tuple[bool, ...]
    leaves_some: bool


def gradient_flow(graph: Graph, requires: Callable[[Value], bool], is_enabled: bool) -> GradientFlow:
    """requires: whether an input, or the result of a `param`, `buffer` or `captured` node, requires gradients.
    is_enabled: the caller's grad mode.
    """
    return _Flow(graph, requires, is_enabled).run()


def requiring_values(graph: Graph, requires: Callable[[Value], bool], is_enabled: bool) -> set[Value]:
    """All values that may require gradients; arguments as for `gradient_flow`."""
    flow = _Flow(graph, requires, is_enabled)
    flow.run()
    return {v for node in graph.walk() for v in (*node.operands(), *node.results) if flow.is_requiring(v)}


def enables_grad(graph: Graph) -> bool:
    """Whether a node has a history even where the caller wants none."""
    return any("enable_grad" in node.mode for node in graph.walk())


@dataclass
class _Flow:
    """requiring: values that require gradients. made: those of them that do so by what the graph computes. written:
    roots of memory of which a part was given a history."""

    graph: Graph
    requires: Callable[[Value], bool]
    is_enabled: bool
    requiring: set[Value] = field(default_factory=set)
    made: set[Value] = field(default_factory=set)
    written: set[Value] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.aliases: Aliases = alias_analysis(self.graph)

    def run(self) -> GradientFlow:
        self.requiring.update(value for value in self.graph.inputs if self.requires(value))
        before = -1
        while before != (before := len(self.requiring) + len(self.made) + len(self.written)):
            self._region(self.graph.body)  # again for loops, and for writes that views made before see
        outputs = tuple(any(map(self._is_made, values_in(arg))) for arg in self.graph.outputs)
        return GradientFlow(outputs, any(map(is_external, self.written)))

    def _is_made(self, value: Value) -> bool:
        return value in self.made or (bool(self.written) and not self.written.isdisjoint(self.aliases.of(value)))

    def is_requiring(self, value: Value) -> bool:
        """Whether it may require gradients."""
        return value in self.requiring or self._is_made(value)

    def _region(self, region: Region) -> None:
        for node in region:
            if node.op in STATE_OPS:
                if self.requires(node.result):
                    self.requiring.add(node.result)
            elif node.regions:
                self._control(node)
            elif any(map(self.is_requiring, node.operands())):
                self._computes(node)

    def _computes(self, node: Node) -> None:
        if node.op in CUTS or (node.op == GRADIENT and not node.kwargs.get("create_graph")):
            return
        is_on = is_recorded(node, self.is_enabled)
        if is_on:
            unknown = () if schema_of(node.op) is not None else effects(node).writes
            self.written |= self.aliases.of_all(declared_writes(node) or unknown)
        for result in filter(_may_require, node.results):
            if is_on and not _is_pythons(node):
                self.made.add(result)
            elif _is_pythons(node) or not self.aliases.of(result).isdisjoint(self.aliases.of_all(node.operands())):
                # A view requires gradients where its base does, whatever the mode that it was made in.
                self._pass_on([tuple(node.operands())], [result])

    def _control(self, node: Node) -> None:
        count = len(node.results)
        starts = node.args[len(node.args) - count :] if node.op != "if" else ()
        for region in node.regions:
            yields = region.yields if len(region.yields) == count else ()  # the test of a loop yields a bool
            carried = region.params[len(region.params) - count :] if starts else ()
            for into in (carried, node.results):
                self._pass_on(starts, into)
            self._region(region)
            for into in (node.results, *(r.params[len(r.params) - count :] for r in node.regions if starts)):
                self._pass_on(yields, into)

    def _pass_on(self, args: Sequence[Arg], into: Sequence[Value]) -> None:
        for arg, value in zip(args, into, strict=bool(args)):
            if _may_require(value):
                self.requiring.update([value] if any(map(self.is_requiring, values_in(arg))) else ())
                self.made.update([value] if any(map(self._is_made, values_in(arg))) else ())


def is_recorded(node: Node, callers: bool = True) -> bool:
    """Whether gradients are on around a node. callers: the mode of who calls the program."""
    words = node.mode.replace(";", " ").split()
    if "inference" in words or "no_grad" in words:
        return False
    return callers or "enable_grad" in words


def _is_pythons(node: Node) -> bool:
    """Whether a node only puts values in containers, or takes them out."""
    return node.op.startswith("py.") or node.op == "unpack"


def _may_require(value: Value) -> bool:
    """Whether a value of this type can require gradients."""
    type_ = value.type
    if isinstance(type_, TensorType):
        return not (type_.dtype.is_integral or type_.dtype is DType.BOOL)
    return type_ not in (BOOL, INT, FLOAT)
