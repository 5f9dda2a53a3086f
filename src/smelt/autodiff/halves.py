"""A joint graph as two: a forward one, which also gives what the backward one needs, and that.

What is saved is the smallest cut between what is there and what the gradients need: the fewest bytes, where anything
cheap may be computed again instead, and norms and sums for a price. Products are done twice only where a budget of
memory asks for it; what draws random numbers, acts or loops never is.
Invariant: both graphs compute what the joint graph computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from smelt.analysis import alias_analysis, cost, used_by, used_values
from smelt.autodiff.flow import INFINITE, Network
from smelt.autodiff.joint import Joint
from smelt.autodiff.versions import Watched
from smelt.diag import SmeltError, Span
from smelt.ir import (
    BOOL,
    FLOAT,
    INT,
    STATE_OPS,
    Arg,
    Graph,
    Node,
    TensorType,
    Type,
    Value,
    map_values,
    values_in,
)  # fmt: skip
from smelt.ir.nodes import clone_node
from smelt.ops.catalogue import record_of
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.record import Trait
from smelt.ops.registry import tags_of
from smelt.ops.sets import where
from smelt.ops.torch_gradients import NAME
from smelt.rewrite import Rewriter

_CHEAP_TRAITS = (Trait.BY_ELEMENTS, Trait.SAME_VALUES, Trait.RESHAPES, Trait.TYPE_ONLY, Trait.CONSTANT_FILL)
_CHEAP_KINDS = frozenset().union(*map(where, _CHEAP_TRAITS))
_PASSES = where(Trait.KEPT_IN_F32)


@dataclass(frozen=True, slots=True)
class Halves:
    """forward: gives the old outputs, `count` of them, then the values in `saved`. backward: takes inputs of the joint
    graph (`kept`, by number), then `saved`, then what the joint graph takes of gradients; gives what that gives.

    saved: copies of inputs among it. nbytes: of what is saved.
    """

    forward: Graph
    backward: Graph
    count: int
    kept: tuple[int, ...]
    saved: tuple[str, ...]
    nbytes: int


def halves(
    joint: Joint, budget: float = 1.0, recomputed: Collection[Span] = (), watched: Watched | None = None
) -> Halves:
    """The two graphs of a joint graph without state (`state_as_inputs`). Raises: SmeltError (S0303).

    budget: how much may be saved, as a part of what would be if nothing were computed again. recomputed: the lines of
    what is to be computed again, products too (checkpoints). watched: what is refused where somebody writes to it
    between the halves, by default all inputs and outputs; of others the backward half takes copies.
    """
    graph = joint.graph
    primals, cotangents = graph.inputs[: joint.given], graph.inputs[joint.given :]
    outputs = graph.outputs[: joint.count]
    behind = _behind(graph, cotangents)
    open_ = _open_to_writes(graph, primals, joint, watched)
    is_there = {value for value in primals if value not in open_}
    saved_for = partial(_saved, graph, primals, behind, joint, open_)
    nodes, total = list(graph.body), partial(_total_nbytes, is_there)
    chosen = _within(budget, nodes, lambda price: saved_for(_free_at(recomputed, price)), total)
    kept = [i for i, value in enumerate(primals) if value in chosen and value in is_there]
    saved = [value for value in chosen if value not in is_there]
    done = [node for node in graph.body if node not in behind and _acts(node)]
    forward = extract(graph, f"{graph.name}_forward", primals, (*outputs, *saved), done)
    _copy_outputs(forward, [joint.count + i for i, value in enumerate(saved) if value in open_])
    backward_inputs = [*(primals[i] for i in kept), *saved, *cotangents]
    backward = extract(graph, f"{graph.name}_backward", backward_inputs, graph.outputs[joint.count :], ())
    names = tuple(value.name for value in saved)
    return Halves(forward, backward, joint.count, tuple(kept), names, sum(map(_nbytes, saved)))


def _open_to_writes(graph: Graph, primals: Sequence[Value], joint: Joint, watched: Watched | None) -> set[Value]:
    """The values that have to be copied to be saved: others have their memory, and may write to it."""
    if watched is None:
        return set()
    found = {v for v in primals if isinstance(v.type, TensorType) and v.name not in watched.inputs}
    outputs = [arg for i, arg in enumerate(graph.outputs[: joint.count]) if i not in watched.outputs]
    aliases = alias_analysis(graph)
    roots = found | aliases.of_all(v for arg in outputs for v in values_in(arg))
    return found | {v for node in graph.body for v in node.results if not roots.isdisjoint(aliases.of(v))}


def _copy_outputs(graph: Graph, numbers: Collection[int]) -> None:
    """Give copies of these outputs."""
    if not numbers:
        return
    rewriter = Rewriter(graph)
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    outputs = list(graph.outputs)
    for i in numbers:
        outputs[i] = emitter.call("aten.clone.default", outputs[i])
    rewriter.set_yields(graph.body, tuple(outputs))


def _total_nbytes(is_there: Collection[Value], saved: Iterable[Value]) -> int:
    """Bytes of what is saved, of inputs that are there all the same none."""
    return sum(_nbytes(value) for value in saved if value not in is_there)


def _acts(node: Node) -> bool:
    found = effects(node)
    return not found.is_pure or found.may_throw or node.op in ("write", "expect")


def _behind(graph: Graph, cotangents: Iterable[Value]) -> set[Node]:
    """All nodes that need a gradient."""
    values, nodes = set(cotangents), set[Node]()
    for node in graph.body:
        if not values.isdisjoint(used_by(node)):
            nodes.add(node)
            values.update(node.results)
    return nodes


def _saved(
    graph: Graph,
    primals: Sequence[Value],
    behind: set[Node],
    joint: Joint,
    open_: Collection[Value],
    price: Callable[[Node], int],
) -> dict[Value, None]:
    """What the backward half takes, inputs among it, in order.

    open_: what has to be copied to be saved. price: of computing a node again, in bytes saved.
    """
    net = Network()
    source, sink = net.vertex(), net.vertex()
    # What the forward half writes to has other numbers behind it.
    lasting = set(primals).difference(v for n in graph.body if n.op == "write" for v in values_in(n.args[0]))
    given = set(primals)
    entry: dict[Value, tuple[int, int]] = {}

    def cost_of(value: Value) -> int:
        if value in given and value not in lasting:
            return INFINITE
        return _cost(value) + 1 if value in open_ else 1 if value in given else _cost(value)

    def ends(value: Value) -> tuple[int, int]:
        if value not in entry:
            entry[value] = net.vertex(), net.vertex()
            net.edge(*entry[value], cost_of(value))
        return entry[value]

    for value in primals:
        net.edge(source, ends(value)[0], INFINITE)
    for node in graph.body:
        if node in behind:
            for value in dict.fromkeys(used_values(node)):
                if value in entry:
                    net.edge(ends(value)[1], sink, INFINITE)
            continue
        again = net.vertex()
        if paid := price(node):
            net.edge(source, again, paid)
        for operand in dict.fromkeys(used_values(node)):
            net.edge(ends(operand)[1], again, INFINITE)
        for result in node.results:
            net.edge(again, ends(result)[0], INFINITE)
    for arg in graph.outputs[joint.count :]:
        for value in values_in(arg):
            if value in entry:
                net.edge(ends(value)[1], sink, INFINITE)
    total, side = net.cut(source, sink)
    if total >= INFINITE:
        raise SmeltError("what the gradient needs cannot be put aside", why="it is no tensor", code="S0303")
    return {value: None for value, (a, b) in entry.items() if a in side and b not in side}


def _within(
    budget: float,
    nodes: Sequence[Node],
    saved: Callable[[Callable[[Node], int]], dict[Value, None]],
    total: Callable[[Iterable[Value]], int],
) -> dict[Value, None]:
    """What is saved if it may be so much of what would be saved if nothing were computed again. total: in bytes.

    Products are done again as far as it takes: the price of their operations is lowered until the rest fits, the last
    step for as many nodes as need it (equal layers have equal prices). Where nothing fits, the least is saved.
    """
    chosen = saved(_price)
    if budget >= 1:
        return chosen
    most = budget * total(saved(_no_price))
    if total(chosen) <= most:
        return chosen
    chosen, low, high = saved(_price_by_work(0.0)), _LEAST_RATE, _LARGEST_RATE
    if total(chosen) > most:
        return chosen
    for _ in range(_TRIES):
        middle = (low + high) / 2
        found = saved(_price_by_work(2.0**middle))
        if total(found) <= most:
            chosen, low = found, middle
        else:
            high = middle
    fits, spares = _price_by_work(2.0**low), _price_by_work(2.0**high)
    number = {node: i for i, node in enumerate(nodes)}
    few, many = 0, len(nodes)
    for _ in range(_TRIES):
        part = (few + many) // 2
        found = saved(_by_place(number, part, fits, spares))
        if total(found) <= most:
            chosen, many = found, part
        else:
            few = part
    return chosen


def _by_place(
    number: Mapping[Node, int], part: int, first: Callable[[Node], int], rest: Callable[[Node], int]
) -> Callable[[Node], int]:
    return lambda node: first(node) if number[node] < part else rest(node)


_LEAST_RATE, _LARGEST_RATE, _TRIES = -24.0, 0.0, 8
"""Powers of two between which the bytes lie that are saved for an operation, and how many are tried."""


def _price(node: Node) -> int:
    """Of computing a node again: nothing where it is cheap, a part of what it moves where it goes over its operands."""
    if is_cheap(node):
        return 0
    return cost(node).nbytes // _MOVED if _is_pass(node) else INFINITE


_MOVED = 8
"""Bytes that are moved once more for one byte that is saved: written, kept while all of forward runs, and read."""


def _price_by_work(rate: float) -> Callable[[Node], int]:
    """The same where products may be done again. rate: bytes to save for one of their operations."""

    def price(node: Node) -> int:
        found = _price(node)
        if found < INFINITE or node.regions or not _is_repeatable(node) or not node.op.startswith("aten."):
            return found
        work = cost(node)
        return int(rate * work.flops) + int(rate > 0) * work.nbytes // _MOVED + 1

    return price


def _free_at(lines: Collection[Span], price: Callable[[Node], int]) -> Callable[[Node], int]:
    """The same price, but next to none for what these lines compute, as far as it can be computed again."""
    if not lines:
        return price

    def least(node: Node) -> int:
        if node.span not in lines or node.regions or not _is_repeatable(node) or not node.op.startswith("aten."):
            return price(node)
        return min(price(node), 1)

    return least


def _no_price(node: Node) -> int:
    """Nothing is computed again but what takes no time or cannot be saved."""
    is_free = is_cheap(node) and (_is_view(node) or not all(_can_be_saved(r.type) for r in node.results))
    return 0 if is_free else INFINITE


def _is_pass(node: Node) -> bool:
    """Whether a node goes over its operands once, and each run gives the same."""
    is_one = "reduction" in tags_of(node.op) or node.op in _PASSES
    return is_one and not node.regions and _is_repeatable(node)


def _cost(value: Value) -> int:
    """What it takes to save a value: bytes, and one more: of equal cuts the one of fewer tensors is taken."""
    if not _can_be_saved(value.type):
        return INFINITE
    if not isinstance(value.type, TensorType):
        return 1
    if value.node is not None and _is_view(value.node):
        return INFINITE
    return _nbytes(value) + 1


def _can_be_saved(type_: Type) -> bool:
    """Whether a plan takes it."""
    return type_ in (INT, FLOAT, BOOL) or (isinstance(type_, TensorType) and type_.is_static)


def _nbytes(value: Value) -> int:
    type_ = value.type
    return type_.numel * type_.dtype.itemsize if isinstance(type_, TensorType) and type_.is_static else 0


def is_cheap(node: Node) -> bool:
    """Whether a node may be computed again in place of saving what it gives."""
    if not _is_repeatable(node) or node.op in ("expect", NAME):
        return False
    if node.regions:
        # What a loop of an unknown number of iterations leaves cannot be put aside: the loop runs again.
        return not all(_can_be_saved(result.type) for result in node.results)
    if (
        effects(node).arbitrary
        or node.op in ("unpack", "const")
        or node.op.startswith("py.")
        or node.op.startswith("aten.sym_")
    ):
        return True
    return _is_view(node) or "pointwise" in tags_of(node.op) or node.op in _CHEAP_KINDS


def _is_repeatable(node: Node) -> bool:
    """Whether a second run gives the same: that of a `while`, too, which has ended once."""
    if node.regions:
        return all(_is_repeatable(inner) for region in node.regions for inner in region)
    return effects(node).is_pure  # of `empty` nothing is read before it is written


def _is_view(node: Node) -> bool:
    source = node.args[0] if node.op == "unpack" else None
    if isinstance(source, Value) and source.node is not None:
        return _is_view(source.node)
    record = record_of(node.op)
    return record is not None and record.alias == "view"


# --- parts of graphs


def extract(graph: Graph, name: str, inputs: Sequence[Value], outputs: Sequence[Arg], also: Sequence[Node]) -> Graph:
    """The part of a graph that computes outputs from inputs, and does what some nodes do besides."""
    given = set(inputs)
    needed: set[Node] = set()
    pending = [v for arg in outputs for v in values_in(arg)]
    for node in also:
        needed.add(node)
        pending += used_by(node)
    while pending:
        value = pending.pop()
        owner = value.node
        if value in given or owner is None or owner in needed:
            continue
        needed.add(owner)
        pending += used_by(owner)
    made = Graph(name)
    made.constants = dict(graph.constants)
    mapping: dict[Value, Arg] = {}
    for value in inputs:
        param = Value(value.name, value.type, made.body)
        made.body.params.append(param)
        mapping[value] = param
    for node in graph.body:
        if node in needed:
            kept = {v: mapping[v] for v in node.results if v in given}
            made.body.insert(clone_node(node, mapping))
            mapping.update(kept)
    made.body.set_yields(tuple(map_values(arg, lambda v: mapping[v]) for arg in outputs))
    return made


def state_as_inputs(graph: Graph) -> tuple[Graph, tuple[tuple[str, str], ...]]:
    """A copy that takes what it reads of state as further inputs; kind and path of each."""
    made = graph.clone()
    rewriter = Rewriter(made)
    places: dict[tuple[str, str], Value] = {}
    for node in list(made.walk()):
        if node.op not in STATE_OPS:
            continue
        key = node.op, str(node.args[0])
        if key not in places:
            places[key] = rewriter.builder.add_param(made.body, f"state_{len(places)}", node.result.type)
        rewriter.replace_node(node, (places[key],))
    return made, tuple(places)
