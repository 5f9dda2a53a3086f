"""Construction of graphs. Names are made unique here; types are the caller's business (see `smelt.ops.typing`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from smelt.diag import Span
from smelt.ir.graph import Graph
from smelt.ir.nodes import Arg, Node, Region, Value
from smelt.ir.types import Type


class Builder:
    """Appends nodes at an insertion point: the end of a region, or right before a node.

    b = Builder.new("f", {"x": t})
    y = b.add("aten.sin.default", (b.graph.inputs[0],), [t]).result
    b.finish((y,))
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.region: Region = graph.body
        self.before: Node | None = None
        self.span: Span | None = None
        self.scope = ""
        self.mode = ""
        self._counter = 0

    @staticmethod
    def new(name: str, inputs: Mapping[str, Type]) -> Builder:
        """A builder of a new graph with the given inputs."""
        builder = Builder(Graph(name))
        for input_name, type_ in inputs.items():
            builder.add_param(builder.graph.body, input_name, type_)
        return builder

    @cached_property
    def _names(self) -> set[str]:
        """The names that are taken: of values there are, and of those there were when the first name was made."""
        return {v.name for v in self.graph.values()}

    def keep_names(self) -> None:
        """Give no new value the name of one that is there now, and may soon be gone."""
        self._names  # noqa: B018 - they are collected when they are first read

    def fresh_name(self, wish: str = "") -> str:
        """A name that no value of the graph has: the wish, the wish with a suffix, or the next number."""
        if not wish:
            while str(self._counter) in self._names:
                self._counter += 1
            name = str(self._counter)
        else:
            name, n = wish, 1
            while name in self._names:
                name, n = f"{wish}_{n}", n + 1
        self._names.add(name)
        return name

    def reserve(self, names: Iterable[str]) -> None:
        """Give no new value one of these names."""
        self._names.update(names)

    def add_param(self, region: Region, name: str, type_: Type) -> Value:
        """Give a region one more parameter."""
        value = Value(self.fresh_name(name), type_, region)
        region.params.append(value)
        return value

    def add(
        self,
        op: str,
        args: Sequence[Arg],
        result_types: Sequence[Type],
        kwargs: Mapping[str, Arg] | None = None,
        *,
        names: Sequence[str] = (),
    ) -> Node:
        """Insert a node with results of the given types at the insertion point."""
        node = Node(op, tuple(args), kwargs or {}, self.span, self.scope, self.mode)
        for i, type_ in enumerate(result_types):
            node.results.append(Value(self.fresh_name(names[i] if i < len(names) else ""), type_, node))
        self.region.insert(node, self.before)
        return node

    def add_region(self, node: Node) -> Region:
        """Give a node one more, empty, region."""
        region = Region(node)
        node.regions.append(region)
        return region

    def finish(self, outputs: Sequence[Arg]) -> Graph:
        """Set what the current region yields; the graph."""
        self.region.set_yields(tuple(outputs))
        return self.graph

    @contextmanager
    def inside(self, region: Region) -> Iterator[Region]:
        """Insert at the end of another region for a while."""
        saved = self.region, self.before
        self.region, self.before = region, None
        try:
            yield region
        finally:
            self.region, self.before = saved

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Insert right before a node for a while, with its span, scope and mode."""
        saved = self.region, self.before, self.span, self.scope, self.mode
        if node.parent is None:
            raise ValueError(f"{node} stands in no region")
        self.region, self.before = node.parent, node
        self.span, self.scope, self.mode = node.span, node.scope, node.mode
        try:
            yield
        finally:
            self.region, self.before, self.span, self.scope, self.mode = saved
