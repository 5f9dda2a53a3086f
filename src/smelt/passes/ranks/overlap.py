"""When a rank's sums over ranks are sent: gradients while what waits for no sum is computed, small ones together.

    %3 = dist.all_reduce(%2, "sum", "tp")        %3t = dist.start_all_reduce(%2, "sum", 0, "tp")
    %4 = aten.mm.default(%3, %w)                 %9 = aten.mm.default(%g, %x)       a weight's gradient, meanwhile
    %9 = aten.mm.default(%g, %x)                 %3 = dist.wait(%3t, [8, 64], 0, "tp")
                                                 %4 = aten.mm.default(%3, %w)

What no sum waits for (gradients of weights, and in a whole step of training their updates) is computed behind the start
of the next sum: the longer that takes, the less a rank waits for one that comes later. Sums of few bytes share one
message, as long as nothing uses them.

Invariant: starts stand in the order in which the sums stood, on every rank the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from smelt.analysis import nbytes, used_by
from smelt.ir import Graph, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks import collectives as dist
from smelt.rewrite import Rewriter

SMALL, MESSAGE = 1 << 18, 1 << 22
"""Bytes: of a gradient that others share a message with, and of such a message."""


def overlap(graph: Graph, gradients: Collection[Value]) -> None:
    """Send sums of backward while it goes on. gradients: the inputs by which backward begins."""
    late = _reached(graph, gradients)
    if not any(node.op == dist.ALL_REDUCE for node in late):
        return
    _share_messages(graph, late)
    starts = _begun(graph, _reached(graph, gradients))
    made = _Order(graph, _reached(graph, gradients), starts).made()
    for node in made:
        graph.body.remove(node)
    for node in made:
        graph.body.insert(node)


def sign(graph: Graph) -> None:
    """Have ranks compare, with what they compare anyway, which messages they are about to exchange along each axis: one
    that runs operator by operator, or another graph, exchanges others."""
    rewriter, sent = Rewriter(graph), dict[str, list[str]]()
    nodes = [node for node in graph.walk() if node.op in dist.COLLECTIVES]
    for node in nodes:
        if node.op != dist.AGREE:
            sent.setdefault(dist.own_name(str(node.args[-1])), []).append(_message(node))
    for agree in nodes:
        if agree.op == dist.AGREE:
            tensor, said, axis = agree.args
            lines = [f"{name}: {len(m)} exchanges ({zlib.crc32(' '.join(m).encode()):08x})" for name, m in sent.items()]
            rewriter.set_arguments(agree, (tensor, "\n".join([f"{said} by one graph", *lines]), axis))


def _message(node: Node) -> str:
    """What a message is, in words that are the same on all ranks of its axis."""
    source = node.args[0]
    assert isinstance(source, Value) and isinstance(source.type, TensorType)
    is_sum = node.op in (dist.ALL_REDUCE, dist.START)
    how = source.type.sizes if is_sum else [arg for arg in node.args[1:] if isinstance(arg, tuple)]
    return f"{node.op} {source.type.dtype} {how} {node.args[1] if is_sum else ''}"


def _reached(graph: Graph, values: Collection[Value]) -> dict[Node, None]:
    """The nodes of a body that depend on some values, in order."""
    known, found = set(values), dict[Node, None]()
    for node in graph.body:
        if any(value in known for value in used_by(node)):
            found[node] = None
            known.update(node.results)
    return found


# --- small ones together


def _share_messages(graph: Graph, late: Collection[Node]) -> None:
    """Let sums of few bytes that nothing has used yet share a message with the next ones."""
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in list(late):
        used = set(used_by(node))
        for group in groups.values():
            if any(one.result in used for one in group):
                _shared(rewriter, emitter, group)
                group.clear()
        if node.op != dist.ALL_REDUCE or node.args[1] != "sum" or nbytes(node.result) > SMALL:
            continue
        source = node.args[0]
        assert isinstance(source, Value) and isinstance(source.type, TensorType)
        group = groups.setdefault((source.type.dtype, *node.args[1:]), [])
        if group and sum(nbytes(one.result) for one in group) + nbytes(node.result) > MESSAGE:
            _shared(rewriter, emitter, group)
            group.clear()
        group.append(node)
    for group in groups.values():
        _shared(rewriter, emitter, group)


def _shared(rewriter: Rewriter, b: GraphEmitter, group: Sequence[Node]) -> None:
    """One sum for several, where the last of them stands."""
    if len(group) < 2:
        return
    last = group[-1]
    with rewriter.builder.at(last):
        flat = []
        for node in group:
            source = node.args[0]
            assert isinstance(source, Value)
            flat.append(b.call("aten.reshape.default", source, (-1,)))
        total = b.call(dist.ALL_REDUCE, b.call("aten.cat.default", tuple(flat)), *last.args[1:])
        start, parts = 0, []
        for node in group:
            type_ = node.result.type
            assert isinstance(type_, TensorType)
            part = b.call("aten.slice.Tensor", total, 0, start, start + type_.numel)
            parts.append(b.call("aten.clone.default", b.call("aten.view.default", part, type_.sizes)))
            start += type_.numel
    for node, part in zip(group, parts, strict=True):
        rewriter.replace_node(node, (part,))


# --- the order


def _begun(graph: Graph, late: Collection[Node]) -> set[Node]:
    """Make a start and a wait of each sum; the starts."""
    rewriter, found = Rewriter(graph), set[Node]()
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    for node in [n for n in late if n.op == dist.ALL_REDUCE]:
        type_ = node.result.type
        assert isinstance(type_, TensorType)
        number, (source, op, axis) = len(found), node.args
        with rewriter.builder.at(node):
            begun = emitter.call(dist.START, source, op, number, axis)
            rewriter.replace_node(node, (emitter.call(dist.WAIT, begun, type_.sizes, number, axis),))
        assert begun.node is not None
        found.add(begun.node)
    return found


@dataclass(slots=True)
class _Order:
    """late: what belongs to backward. fillers: what is to be computed beside a sum, each with the number of writes
    before it."""

    graph: Graph
    late: Collection[Node]
    starts: Collection[Node]
    done: list[Node] = field(default_factory=list)
    seen: set[Node] = field(default_factory=set)
    fillers: list[tuple[int, Node]] = field(default_factory=list)

    def made(self) -> list[Node]:
        """All nodes of the body: each wait where its sum is first used, or at the end."""
        nodes = list(self.graph.body)
        self.fillers = self._free(nodes)
        free, writes = {node for _, node in self.fillers}, 0
        for node in nodes:
            if node in free or node.op == dist.WAIT:
                continue
            if effects(node).writes:
                for number, one in self.fillers:  # what it writes to may be what they read
                    if number == writes:
                        self._add(one)
                writes += 1
            self._add(node)
            if node in self.starts:
                self._fill(writes)
        for node in nodes:
            self._add(node)
        return self.done

    def _free(self, nodes: Sequence[Node]) -> list[tuple[int, Node]]:
        """What no start depends on, and does nothing but give its results; what stands before them all stays there."""
        needed = set(self.starts)
        for node in reversed(nodes):
            if node in needed:
                needed.update(value.node for value in used_by(node) if value.node is not None)
        found, writes, has_begun = list[tuple[int, Node]](), 0, False
        for node in nodes:
            does = effects(node)
            writes += bool(does.writes)
            has_begun = has_begun or node in self.late
            # An update's numbers (of its step) fail on all ranks, or on none.
            is_safe = not does.may_throw or not any(isinstance(r.type, TensorType) for r in node.results)
            is_free = does.is_pure and is_safe and node.op not in (dist.START, dist.WAIT)
            if has_begun and is_free and node not in needed:
                found.append((writes, node))
        return found

    def _fill(self, writes: int) -> None:
        """Compute beside a sum what is there to be computed."""
        left = []
        for number, node in self.fillers:
            if node in self.seen:
                continue
            if number <= writes and all(self._is_there(value) for value in used_by(node)):
                self._put(node)
            else:
                left.append((number, node))
        self.fillers = left

    def _is_there(self, value: Value) -> bool:
        return value.node is None or value.node in self.seen or value.node.parent is not self.graph.body

    def _add(self, node: Node) -> None:
        """A node, behind what it needs."""
        if node in self.seen:
            return
        for value in used_by(node):
            if value.node is not None and value.node.parent is self.graph.body:
                self._add(value.node)
        self._put(node)

    def _put(self, node: Node) -> None:
        self.seen.add(node)
        self.done.append(node)
