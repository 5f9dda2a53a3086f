"""Ask what a graph holds for as early as possible, before work that a miss would waste.

    %1 = linear %x; %2 = sum %m; expect(%2, 3)   ==>   %2 = sum %m; expect(%2, 3); %1 = linear %x

Random draws keep their order among themselves, and so do outside effects; all else that an expectation does not need
comes after it. Numbers that may be wrong (of a step count, say) are asked for as early: what stands behind the last of
these questions may be written where it belongs at once.
"""

from __future__ import annotations

from smelt.analysis import used_by
from smelt.ir import BOOL, FLOAT, INT, STATE_OPS, Graph, Node, TensorType, Value
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
    # Where something is done that is seen, an error behind it is to stay there.
    moves_numbers = not any(effect.io for effect in found.values())
    for node in source:
        is_number = moves_numbers and node.op.startswith("py.") and found[node].may_throw
        if node.op != "expect" and not is_number:
            continue
        needed, pending = {node}, [node]
        while pending:
            more = [n for n in before[pending.pop()] if n not in needed and n not in done]
            needed.update(more)
            pending.extend(more)
        if node.op == "expect" or all(_is_light(one) for one in needed):
            done.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
    done.update(dict.fromkeys(source))
    return list(done)


def _is_light(node: Node) -> bool:
    """Whether a node computes numbers, on tensors of one element at most."""
    return not node.regions and (node.op in STATE_OPS or all(_is_one(result) for result in node.results))


def _is_one(value: Value) -> bool:
    type_ = value.type
    return type_ in (INT, FLOAT, BOOL) or (isinstance(type_, TensorType) and type_.rank == 0)


def _run(graph: Graph, context: PassContext) -> bool:
    if not any(node.op == "expect" or node.op.startswith("py.") for node in graph.body):
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
