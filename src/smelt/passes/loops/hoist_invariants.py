"""Compute before a loop what each trip would compute again.

    %r = for ... { %a = exp %w; %b = mul %h %a; yield %b }     ==>     %a = exp %w; %r = for ... { ... }

Only what is pure, of determined content and cannot raise, for the loop may run no trip; nothing whose memory a trip
hands on or anybody writes. What depends on parameters and constants alone leaves branches, too: it is computed once.
"""

from __future__ import annotations

from smelt.analysis import Aliases, alias_analysis, dependence, is_static
from smelt.analysis.dependence import Dependence
from smelt.ir import Graph, Node, Region, Value
from smelt.ops.effects import effects
from smelt.passes.base import Pass, PassContext
from smelt.passes.loops.lifting import inner_yields, lifted, top_of
from smelt.passes.mutation.returned import is_own_container
from smelt.rewrite import Rewriter

_LOOPS = ("for", "while")


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    if not any(node.regions for node in graph.walk()):
        return False
    _Hoister(graph, rewriter).region(graph.body)
    return rewriter.edits > 0


class _Hoister:
    def __init__(self, graph: Graph, rewriter: Rewriter) -> None:
        self.rewriter = rewriter
        self.aliases: Aliases = alias_analysis(graph)
        self.yielded = inner_yields(graph, self.aliases)
        self.found: dict[Value, Dependence] = dependence(graph)

    def region(self, region: Region) -> None:
        """Inner loops first, so that what leaves one may leave the next."""
        for node in list(region):
            for inner in node.regions:
                self.region(inner)
            for inner in node.regions:
                for one in list(inner):
                    self.lift(one, node)

    def lift(self, node: Node, holder: Node) -> None:
        if node.regions or not node.results or not self.may_move(node):
            return
        top = top_of(holder)
        if all(is_static(r, self.found) for r in node.results) and self.is_bound_before(node, top):
            target = top
        elif holder.op in _LOOPS and self.is_bound_before(node, holder):
            target = holder
        else:
            return
        old = list(node.results)
        for before, after in zip(old, lifted(self.rewriter, node, target).results, strict=True):
            self.aliases.roots[after] = frozenset(after if r is before else r for r in self.aliases.of(before))
            self.found[after] = self.found[before]

    def may_move(self, node: Node) -> bool:
        effect = effects(node)
        if not effect.is_reproducible or effect.may_throw or any(map(is_own_container, node.results)):
            return False
        touched = self.aliases.of_all((*node.operands(), *node.results))
        return not touched & self.aliases.written and not self.aliases.of_all(node.results) & self.yielded

    def is_bound_before(self, node: Node, target: Node) -> bool:
        return all(self.rewriter.is_visible(v, target) for v in node.operands())


hoist_invariants = Pass(
    "hoist-invariants",
    "%r = for ... { %a = exp %w; %b = mul %h %a; yield %b }   ==>   %a = exp %w; %r = for ... { ... }",
    _run,
)
