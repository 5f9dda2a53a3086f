"""Ask what a graph holds for as early as possible, before work that a miss would waste.

    %1 = linear %x; %2 = sum %m; expect(%2, 3)   ==>   %2 = sum %m; expect(%2, 3); %1 = linear %x

Random draws keep their order among themselves, and so do outside effects; all else that an expectation does not need
comes after it.
"""

from __future__ import annotations

from smelt.analysis import used_by
from smelt.ir import Graph, Node
from smelt.ops.effects import effects
from smelt.passes.base import Pass, PassContext


def expects_first(graph: Graph) -> list[Node]:
    """The body's nodes in the new order; the old one where nodes write in place."""
    source = list(graph.body)
    found = {node: effects(node) for node in source}
    if any(effect.writes and node.op != "write" for node, effect in found.items()):
        return source
    before: dict[Node, list[Node]] = {}
    last: dict[str, Node] = {}
    for node in source:
        before[node] = [v.node for v in used_by(node) if v.node is not None and v.node.parent is graph.body]
        for kind, counts in (("rng", found[node].rng), ("io", found[node].io)):
            if counts:
                if kind in last:
                    before[node].append(last[kind])
                last[kind] = node
    place = {node: i for i, node in enumerate(source)}
    done: dict[Node, None] = {}
    for expect in source:
        if expect.op == "expect":
            needed, pending = {expect}, [expect]
            while pending:
                more = [n for n in before[pending.pop()] if n not in needed and n not in done]
                needed.update(more)
                pending.extend(more)
            done.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
    done.update(dict.fromkeys(source))
    return list(done)


def _run(graph: Graph, context: PassContext) -> bool:
    if not any(node.op == "expect" for node in graph.body):
        return False
    rewriter = context.rewriter(graph)
    following: Node | None = None
    for node in reversed(expects_first(graph)):
        if node.next is not following:
            rewriter.move(node, following)
        following = node
    return rewriter.edits > 0


early_expects = Pass(
    "early-expects",
    "%1 = linear %x; %2 = sum %m; expect(%2, 3)   ==>   %2 = sum %m; expect(%2, 3); %1 = linear %x",
    _run,
)
