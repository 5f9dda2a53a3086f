"""Drop what nobody uses.   %1 = sin %x; %2 = cos %x; return %2   ==>   %2 = cos %x; return %2

Effects stay: writes, random draws (eager advances the generator too), outside effects, and what data may make raise.
Of branches and loops the results that nobody uses go, with all that only they need, and what is carried only for
itself; a branch whose test is known, and a loop of no trip or one, become their bodies.
"""

from __future__ import annotations

from smelt.analysis import used_by
from smelt.ir import Graph, Node, Region, Value, values_in
from smelt.passes.base import Pass, PassContext, can_erase
from smelt.passes.inline import take_apart
from smelt.rewrite import Rewriter, carried_params, drop_results

_LOOPS = ("for", "while")


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    _sweep(graph.body, rewriter)
    return rewriter.edits > 0


def _sweep(region: Region, rewriter: Rewriter) -> None:
    """Backwards, so that one walk finds everything that becomes dead."""
    for node in reversed(region):
        if node.regions:
            _trim(node, rewriter)
        for inner in node.regions:
            _sweep(inner, rewriter)
        if not any(r.users for r in node.results) and can_erase(node):
            rewriter.erase(node)
        elif node.regions:
            before = node.prev
            take_apart(rewriter, node)
            if node.parent is None:
                _sweep_between(before, region, rewriter)


def _sweep_between(before: Node | None, region: Region, rewriter: Rewriter) -> None:
    """What came out of a node: some of it may be of no use outside."""
    at = region.last
    while at is not None and at is not before:
        previous = at.prev
        if not at.regions and not any(r.users for r in at.results) and can_erase(at):
            rewriter.erase(at)
        at = previous


def _trim(node: Node, rewriter: Rewriter) -> None:
    """Take the results out that nobody needs."""
    unused = [i for i, result in enumerate(node.results) if not result.users]
    if node.op == "if":
        gone = unused
    elif node.op in _LOOPS:
        gone = _carried_for_nothing(node, unused)
    else:
        return
    if gone:
        drop_results(rewriter, node, gone)


def _carried_for_nothing(node: Node, unused: list[int]) -> list[int]:
    """Of the unused results of a loop those whose values nothing else in the loop needs, from trip to trip."""
    body = node.regions[-1]
    dead = set(unused)
    param_of = {param: i for i in unused for param in carried_params(node, i)}
    needed: set[Value] = set()
    pending = [v for i, arg in enumerate(body.yields) if i not in dead for v in values_in(arg)]
    if node.op == "while":
        pending += [v for arg in node.regions[0].yields for v in values_in(arg)]
    for region in node.regions:
        for inner in region:
            if not can_erase(inner):
                pending += used_by(inner)
    while pending:
        value = pending.pop()
        if value in needed:
            continue
        needed.add(value)
        index = param_of.get(value)
        if index in dead:
            dead.discard(index)
            pending += values_in(body.yields[index])
        if value.node is not None and value.node.parent in node.regions:
            pending += used_by(value.node)
    return sorted(dead)


dce = Pass("dce", "%1 = sin %x; %2 = cos %x; return %2   ==>   %2 = cos %x; return %2", _run)
