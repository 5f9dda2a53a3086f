"""Compute equal things once.   %1 = sin %x; %2 = sin %x; return %1 + %2   ==>   %1 = sin %x; return %1 + %1

Never for random or effectful nodes, nor across a write to what they read; and never where two outputs that are
separate in eager would come to share memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from smelt.analysis import Aliases
from smelt.ir import Arg, Graph, Node, Region, Value, values_in
from smelt.ops.effects import effects
from smelt.passes.base import Pass, PassContext
from smelt.passes.keys import arg_key
from smelt.passes.mutation.returned import is_own_container, is_returned
from smelt.rewrite import Rewriter


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    _Merger(rewriter, context.aliases(graph)).region(graph.body, {})
    return rewriter.edits > 0


class _Merger:
    def __init__(self, rewriter: Rewriter, aliases: Aliases) -> None:
        self.rewriter = rewriter
        self.aliases = aliases
        self.writes: Counter[Value] = Counter()
        # Roots that an output, or anything a region yields, lies in.
        self.kept = set(aliases.outputs)
        for node in rewriter.graph.walk():
            for region in node.regions:
                self.kept |= aliases.of_all(v for arg in region.yields for v in values_in(arg))

    def region(self, region: Region, outer: dict[Hashable, Node]) -> None:
        seen = dict(outer)
        for node in region:
            effect = effects(node)
            if node.regions:
                # Inside a loop a write may come before a read that stands above it.
                self._count(effect.writes)
                for inner in node.regions:
                    self.region(inner, seen)
                self._count(effect.writes)
                continue
            self._count(effect.writes)
            if node.op == "expect":
                key = self.key(node)
                if key in seen:
                    # The run is still here, so that it holds.
                    self.rewriter.erase(node)
                seen[key] = node
                continue
            if not effect.is_reproducible or not node.results:
                continue
            key = self.key(node)
            first = seen.get(key)
            if first is None:
                seen[key] = node
            elif self.may_merge(first, node):
                self.merge(first, node)

    def _count(self, written: tuple[Value, ...]) -> None:
        for value in written:
            self.writes.update(self.aliases.of(value))

    def key(self, node: Node) -> Hashable:
        """Everything that decides a node's results: operator, arguments, mode, and how often its memory was written."""

        def value_key(value: Value) -> Hashable:
            roots = self.aliases.of(value) & self.aliases.written
            return (id(value), frozenset((id(r), self.writes[r]) for r in roots))

        def key(arg: Arg) -> Hashable:
            return arg_key(arg, value_key)

        args = tuple(key(a) for a in node.args)
        kwargs = tuple(sorted((k, key(a)) for k, a in node.kwargs.items()))
        types = tuple(r.type for r in node.results)
        return (node.op, args, kwargs, types, node.mode)

    def merge(self, first: Node, second: Node) -> None:
        """Let the first stand for both; where the second was returned, the first now is."""
        for a, b in zip(first.results, second.results, strict=True):
            if self.aliases.of(b) & self.kept:
                self.kept |= self.aliases.of(a)
        self.rewriter.replace_node(second, list(first.results))

    def may_merge(self, first: Node, second: Node) -> bool:
        """Whether nobody could tell one memory from two: not both returned, and neither written."""
        for a, b in zip(first.results, second.results, strict=True):
            if is_own_container(a) and is_own_container(b):
                return False
            roots_a, roots_b = self.aliases.of(a), self.aliases.of(b)
            if roots_a != roots_b:
                if (roots_a | roots_b) & self.aliases.written:
                    return False
                if roots_a & self.kept and roots_b & self.kept:
                    return False
            elif is_returned(a) and is_returned(b):
                # Two views of one memory are two tensor objects.
                return False
        return True


cse = Pass("cse", "%1 = sin %x; %2 = sin %x; return %1 + %2   ==>   %1 = sin %x; return %1 + %1", _run)
