"""The whole program: a named region with inputs, outputs and the data of large constants."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from smelt.diag.notebook import text_box
from smelt.ir.nodes import Arg, Node, Region, Value, clone_region, region_key
from smelt.ir.parser import read_graph
from smelt.ir.printer import print_graph


class Graph:
    """A whole program: named inputs (`body.params`), nodes, and outputs (`body.yields`).

    constants: large tensor constants by content hash (`sha256:...`); the graph's text holds only the hash.
    """

    __slots__ = ("__weakref__", "body", "constants", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.body = Region(self)
        self.constants: dict[str, Any] = {}

    @property
    def inputs(self) -> list[Value]:
        """The graph's parameters in order."""
        return self.body.params

    @property
    def outputs(self) -> tuple[Arg, ...]:
        """What the graph returns, flat, in order."""
        return self.body.yields

    def walk(self) -> Iterator[Node]:
        """All nodes of the graph, inner regions included."""
        return self.body.walk()

    def values(self) -> Iterator[Value]:
        """All values: inputs, then results and inner parameters in program order."""
        yield from self.body.params
        for node in self.walk():
            yield from node.results
            for region in node.regions:
                yield from region.params

    def __eq__(self, other: object) -> bool:
        """Equal in everything the text shows: names, types, ops, arguments, regions, spans, scopes, modes."""
        if not isinstance(other, Graph):
            return NotImplemented
        return graph_key(self) == graph_key(other)

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return print_graph(self)

    def __repr__(self) -> str:
        return f"<Graph {self.name}: {sum(1 for _ in self.walk())} nodes>"

    def _repr_html_(self) -> str:
        return text_box(repr(self), str(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        # Linked nodes would be walked by recursion; the text says it all.
        return (parse, (str(self), self.constants))

    def take(self, other: Graph) -> None:
        """Become what another graph is, which is empty then: for rewrites that build a graph anew."""
        self.body, self.constants, other.body = other.body, other.constants, Region(other)
        self.body.owner = self

    def clone(self) -> Graph:
        """A deep copy with the same names; constants are shared."""
        copy = Graph(self.name)
        copy.constants = dict(self.constants)
        clone_region(self.body, copy.body, {})
        return copy


def graph_key(graph: Graph) -> Hashable:
    """Everything that graph equality compares, as nested tuples."""
    return (graph.name, region_key(graph.body))


def parse(text: str, constants: Mapping[str, Any] | None = None) -> Graph:
    """The graph that a text describes: `parse(str(g)) == g`, in any process.

    constants: data of large constants by content hash, as in `Graph.constants`; needed to run the graph only.
    Raises: TextError (S0201) with line and column.
    """
    graph = read_graph(text, Graph)
    graph.constants.update(constants or {})
    return graph
