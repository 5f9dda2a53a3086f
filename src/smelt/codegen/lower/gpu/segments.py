"""Which nodes of a graph become one launch of a GPU, and which torch's operators compute there.

    %1 = mul %x, %w; %2 = sort %1; %3 = exp %2; %4 = sum %3        ==>        [%1], sort, [%3 %4]

Nodes stand in layers: one that kernels compute shares the layer of what it needs, unless an operator of torch's stands
between, which needs what a launch makes. Numbers that the host computes are arguments of a launch.
Invariant: nothing passes a node that writes or acts outside; draws of random numbers keep their order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from smelt.analysis import used_values
from smelt.analysis.devices import devices_at
from smelt.autodiff.halves import extract
from smelt.codegen.fusion.groups import TAKES_NUMBERS, has_numbers
from smelt.codegen.fusion.regions import user_in
from smelt.codegen.lower.gpu.draws import is_draw
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.lower.python.plain import is_number, is_plain, is_plain_type
from smelt.codegen.lower.static.statics import Statics
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Graph, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.python.python_numbers import FITS

_MADE = (*STATE_OPS, "const", "unpack")


@record
class Piece:
    """Nodes of one launch in the graph's order, the values that it takes and those that it makes.

    Of what it takes, tensors stand before numbers.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    def graph(self, whole: Graph, name: str) -> Graph:
        """The nodes as a graph of its own."""
        return extract(whole, name, self.inputs, self.outputs, ())


def may_be_a_kernel(node: Node, device: str) -> bool:
    """Whether a node computes tensors of a device of such, and of numbers, and does nothing besides."""
    if node.op in _MADE or node.regions or view_source(node) is not None:
        return False
    if not (is_plain(node) or _is_plain_with_numbers(node)):
        return False
    types = [v.type for v in (*node.operands(), *node.results)]
    # Of an empty tensor nothing is launched.
    if devices_at(node) != {device} or any(isinstance(t, TensorType) and not t.numel for t in types):
        return False
    found = effects(node)
    return (found.is_pure or is_draw(node)) and not node.mode


def _is_plain_with_numbers(node: Node) -> bool:
    """Whether a node computes plain tensors of such and of numbers that kernels take."""
    return node.op in TAKES_NUMBERS and has_numbers(node) and all(is_plain_type(r.type) for r in node.results)


def pieces(
    graph: Graph, device: str, left_out: Collection[Node], statics: Statics, decided: Collection[Node] = ()
) -> list[Piece]:
    """The launches of a graph.

    left_out: what no kernel computes, and views that none sees through. decided: branches and loops that are nodes like
    others, as all in them has kernels.
    """
    layers: dict[tuple[int, int], list[Node]] = {}
    # A kernel's layer, and that before which another node stands.
    at: dict[Node, int] = {}
    kernels: set[Node] = set()
    epoch = drawn = behind = 0
    before: set[Value] = set()
    for node in graph.body:
        # What is static by its operand's type alone (`ones_like`) still stands behind that operand.
        if node.results and all(map(statics.is_static, node.results)) and before.issuperset(node.operands()):
            before.update(node.results)
            continue
        makers = [v.node for v in used_values(node) if v.node is not None]
        level = max((at.get(maker, 0) for maker in makers), default=0)
        is_view = view_source(node) is not None and node.op != "write"
        if (is_view and node not in left_out) or node.op in _MADE:
            at[node] = level
            if not kernels.isdisjoint(makers):
                kernels.add(node)
            continue
        found = effects(node)
        if node in left_out or not (node in decided or may_be_a_kernel(node, device)):
            # It stands behind the launches that it needs, and before those that need it.
            at[node] = max((at.get(maker, 0) + (maker in kernels) for maker in makers), default=0)
            if found.rng:
                at[node] = drawn = behind = max(at[node], behind)
            if found.writes or found.io or node.op == "write":
                epoch += 1
            continue
        if found.rng:
            level = drawn = max(level, drawn)
            behind = level + 1
        at[node] = level
        kernels.add(node)
        layers.setdefault((epoch, level), []).append(node)
    return [_piece(nodes, left_out, statics) for _, nodes in sorted(layers.items())]


def _piece(nodes: list[Node], left_out: Collection[Node], statics: Statics) -> Piece:
    inside = {result for node in nodes for result in node.results}
    inputs: dict[Value, None] = {}
    for node in nodes:
        for value in used_values(node):
            root = _root(value, left_out, statics)
            if root not in inside:
                inputs[root] = None
    outputs = [value for node in nodes for value in node.results if _is_needed(value, nodes)]
    return Piece(tuple(nodes), tuple(sorted(inputs, key=lambda v: is_number(v.type))), tuple(outputs))


def _root(value: Value, left_out: Collection[Node], statics: Statics) -> Value:
    """What a launch takes for a value: what it is a view of, as far as kernels see through views."""
    node = value.node
    while node is not None and node not in left_out and node.op != "write":
        if node.op == FITS:
            # The host has asked, and the launch is to know that.
            return next(node.operands())
        source = view_source(node)
        if source is None or (statics.is_static(value) and not statics.is_static(source)):
            break
        value, node = source, source.node
    return value


def _is_needed(value: Value, nodes: Sequence[Node]) -> bool:
    """Whether somebody outside needs a value, or a view of it."""
    members, whole = set(nodes), nodes[0].parent
    assert whole is not None
    pending = [value]
    while pending:
        for use in pending.pop().users:
            user = user_in(whole, use)
            if user is None:
                return True
            if user in members:
                continue
            if user.op == "write" or view_source(user) is None:
                return True
            pending += user.results
    return False
