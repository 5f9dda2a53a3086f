"""What a pass is: a frozen value with a name, a picture of what it does, and a function that edits a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, TypeVar

from smelt.analysis.aliases import Aliases, alias_analysis
from smelt.analysis.dependence import Dependence, dependence
from smelt.diag.records import record
from smelt.ir import Arg, DType, Graph, Node, TensorType, Value
from smelt.ops.convert import type_of
from smelt.ops.effects import effects
from smelt.ops.evaluate import Lookup, no_state
from smelt.ops.lowering import GraphEmitter
from smelt.ops.registry import arguments_of, schema_of
from smelt.passes.sized import Sizes
from smelt.rewrite import Rewriter
from smelt.rewrite.rewriter import Event, Listener

T = TypeVar("T")
MergingPays = Callable[[int, Sequence[int], int, DType], bool]
NarrowingPays = Callable[[Node], bool]


def always(rows: int, columns: Sequence[int], k: int, dtype: DType) -> bool:
    """The answer where nothing is known of the machine."""
    return True


@record
class Peak:
    """Most bytes alive at once in a region, before and after reordering.

    Counted are tensors made in the region itself from what a call brings: what follows from parameters and constants
    alone is computed once, and kept.
    """

    before: int
    after: int


def each(node: Node) -> bool:
    """The answer of tests and searches that want all of them."""
    return True


class Seen:
    """What analyses found of a graph, forgotten at its next edit; edits: how many there were."""

    __slots__ = ("_found", "edits")

    def __init__(self) -> None:
        self.edits = 0
        self._found: dict[Any, tuple[Graph, Any]] = {}

    def by(self, analysis: Callable[[Graph], T], graph: Graph) -> T:
        """What an analysis says of the graph."""
        known = self._found.get(analysis)
        if known is not None and known[0] is graph:
            found: T = known[1]
            return found
        made = analysis(graph)
        self._found[analysis] = (graph, made)
        return made

    def forget(self, event: Event | None = None) -> None:
        """The graph is another one from now on."""
        self.edits += 1
        self._found.clear()


@record
class PassContext:
    """What passes may know besides the graph.

    lookup: the module's state; asking for a value (not only its type) is remembered in `asked`, because the compiled
    program then holds for that value alone.
    entangled: names of the external values that lie in each other's memory, which no analysis of the graph can tell.
    merging_pays: given rows, each product's columns, their common depth and the element type, whether one product for
    all of them is faster on this machine.
    narrowing_pays: whether an f32 product is faster in bf16 on this machine.
    peaks: the last peak of memory that a pass has found, for its report.
    sizes: the symbols of the graph, if it has some and they are to be numbers meanwhile.
    memory_budget: how much may be kept for a backward pass, as a part of what is where nothing is computed again.
    seen: what was found out of the graph since its last edit.
    """

    lookup: Lookup = no_state
    listeners: tuple[Listener, ...] = ()
    asked: dict[tuple[str, str], Any] = field(default_factory=dict)
    entangled: frozenset[str] = frozenset()
    merging_pays: MergingPays = always
    narrowing_pays: NarrowingPays = each
    peaks: list[Peak] = field(default_factory=list)
    sizes: Sizes | None = None
    memory_budget: float = 1.0

    seen: Seen = field(default_factory=Seen)

    def type(self, kind: str, path: str) -> TensorType:
        """The type of a parameter, buffer or captured tensor."""
        return type_of(self.lookup(kind, path))

    def value(self, kind: str, path: str) -> Any:
        """The tensor itself; the program is bound to it from now on."""
        found = self.lookup(kind, path)
        self.asked[(kind, path)] = found
        return found

    def rewriter(self, graph: Graph) -> Rewriter:
        """The rewriter that a pass edits the graph with."""
        return Rewriter(graph, (*self.listeners, self.seen.forget))

    def aliases(self, graph: Graph) -> Aliases:
        """What shares memory in the graph as it is now; not to be changed."""
        return self.seen.by(alias_analysis, graph)

    def dependence(self, graph: Graph) -> dict[Value, Dependence]:
        """What the values of the graph as it is now depend on; not to be changed."""
        return self.seen.by(dependence, graph)


Run = Callable[[Graph, PassContext], bool]


@record
class Pass:
    """name: what `skip` and the dumps call it. picture: before and after, in one line. run: edits the graph, and tells
    whether it did. rounding: results may differ by rounding of floats; all other passes keep every bit.
    """

    name: str
    picture: str
    run: Run
    rounding: bool = False


def emitter(rewriter: Rewriter) -> GraphEmitter:
    """Adds operators with inferred types where the rewriter's builder stands."""
    return GraphEmitter(rewriter.builder, rewriter.adopt)


def call_of(node: Node) -> dict[str, Arg]:
    """All arguments of an operator by name, defaults filled in; empty for structural and unknown ones."""
    schema = schema_of(node.op)
    if schema is None:
        return {}
    try:
        return arguments_of(schema, node.args, node.kwargs)
    except TypeError:
        return {}


def can_erase(node: Node) -> bool:
    """Whether a node that nobody uses may go: it does nothing else, and data cannot make it raise."""
    found = effects(node)
    return found.is_pure and not found.may_throw


def erase_dead(rewriter: Rewriter, nodes: Sequence[Node]) -> None:
    """Erase nodes that became unused, and what only they used."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node.parent is None or any(r.users for r in node.results) or not can_erase(node):
            continue
        pending.extend(v.node for v in node.operands() if v.node is not None)
        rewriter.erase(node)
