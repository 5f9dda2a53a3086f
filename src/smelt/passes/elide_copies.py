"""Copies and arithmetic that give the operand back.   %1 = clone %x; %2 = mul %1 1; %3 = sin %2   ==>   %3 = sin %x

Only where type and every bit stay (x + 0 is not x for -0.0, x * 1 is not x for a bool), and where nobody can tell one
memory from two: neither is written, no place is counted from the start of the copy's storage, and the result is not
returned unless the operand is nobody else's.
"""

from __future__ import annotations

from smelt.analysis import Aliases, is_external
from smelt.ir import Arg, Graph, Node, TensorType, Value, values_in
from smelt.ops.effects import alias_of
from smelt.ops.lazy_bits import bits
from smelt.passes.base import Pass, PassContext, erase_dead
from smelt.passes.mutation.placed_views import can_place_again, is_placed


def _run(graph: Graph, context: PassContext) -> bool:
    rewriter = context.rewriter(graph)
    memory = _Memory(graph, context.aliases(graph))
    for node in list(graph.walk()):
        source = _source(node)
        if source is None or not memory.may_join(node.result, source):
            continue
        memory.join(node.result, source)
        operands = [v.node for v in node.operands() if v.node is not None and v is not source]
        rewriter.replace_node(node, (source,))
        erase_dead(rewriter, operands)
    return rewriter.edits > 0


def _source(node: Node) -> Value | None:
    """The value that a node's result equals bit for bit, or None."""
    rule = _RULES.get(node.op)
    source = rule(node) if rule is not None else None
    if source is None or source.type != node.result.type or "autocast" in node.mode:
        return None
    # A copy has neither of torch's bits, which a caller sees.
    return None if any(bits(source, alias_of)) else source


def _value(arg: Arg) -> Value | None:
    return arg if isinstance(arg, Value) else None


def _clone(node: Node) -> Value | None:
    return _value(node.args[0])


def _is_one(arg: Arg) -> bool:
    return type(arg) in (int, float) and arg == 1


def _times_one(node: Node) -> Value | None:
    first, second = node.args[:2]
    if _is_one(second):
        return _value(first)
    return _value(second) if _is_one(first) else None


def _over_one(node: Node) -> Value | None:
    return _value(node.args[0]) if _is_one(node.args[1]) else None


def _plus_zero(node: Node) -> Value | None:
    x = _value(node.args[0])
    is_zero = type(node.args[1]) is int and node.args[1] == 0
    # -0.0 + 0 is 0.0, so this holds for integers only.
    return x if is_zero and x is not None and isinstance(x.type, TensorType) and x.type.dtype.is_integral else None


def _minus_zero(node: Node) -> Value | None:
    x, other = _value(node.args[0]), node.args[1]
    if node.kwargs or not (type(other) is int and other == 0):
        return None
    return x


def _twice_negated(node: Node) -> Value | None:
    inner = _value(node.args[0])
    if inner is None or inner.node is None or inner.node.op != node.op:
        return None
    return _value(inner.node.args[0])


_RULES = {
    "aten.clone.default": _clone,
    "aten.mul.Tensor": _times_one,
    "aten.div.Tensor": _over_one,
    "aten.add.Tensor": _plus_zero,
    "aten.sub.Tensor": _minus_zero,
    "aten.neg.default": _twice_negated,
}


class _Memory:
    """Which memories are written, kept by the caller or seen as places in a storage, as joins go on."""

    def __init__(self, graph: Graph, aliases: Aliases) -> None:
        self.aliases = aliases
        self.joined: dict[Value, frozenset[Value]] = {}
        self.kept = set(aliases.outputs)
        self.placed: set[Value] = set()
        for node in graph.walk():
            if is_placed(node) and not can_place_again(node):
                self.placed |= aliases.of_all(node.operands())
            for region in node.regions:
                self.kept |= aliases.of_all(v for arg in region.yields for v in values_in(arg))

    def roots(self, value: Value) -> frozenset[Value]:
        found: set[Value] = set()
        pending = list(self.aliases.of(value))
        while pending:
            root = pending.pop()
            if root in self.joined:
                pending.extend(self.joined[root])
            else:
                found.add(root)
        return frozenset(found)

    def may_join(self, result: Value, source: Value) -> bool:
        a, b = self.roots(result), self.roots(source)
        if (a | b) & self.aliases.written or a & self.placed:
            return False
        if not a & self.kept:
            return True
        return not (b & self.kept) and all(_is_private(root) for root in b)

    def join(self, result: Value, source: Value) -> None:
        if self.roots(result) & self.kept:
            self.kept |= self.roots(source)
        self.joined[result] = self.roots(source)


def _is_private(root: Value) -> bool:
    """Whether memory is made by the graph itself, anew in each call."""
    return not is_external(root) and root.node is not None and root.node.op != "const"


elide_copies = Pass("elide-copies", "%1 = clone %x; %2 = mul %1 1; %3 = sin %2   ==>   %3 = sin %x", _run)
