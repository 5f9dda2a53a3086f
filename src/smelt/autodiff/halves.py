"""A joint graph as two: a forward one, which also gives what the backward one needs, and that.

What is saved is the smallest cut between what is there and what the gradients need (`cut`).
Invariant: both graphs compute what the joint graph computes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from smelt.analysis import alias_analysis, used_by
from smelt.autodiff.cut import free_at, saved_nbytes, saving_cost, smallest_cut, within
from smelt.autodiff.flow import INFINITE
from smelt.autodiff.joint import Joint
from smelt.autodiff.versions import Watched
from smelt.diag import Span
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Graph, Node, TensorType, Value, map_values, values_in
from smelt.ir.nodes import clone_node
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.rewrite import Rewriter


@record
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
    chosen = within(budget, nodes, lambda price: saved_for(free_at(recomputed, price)), total)
    kept = [i for i, value in enumerate(primals) if value in chosen and value in is_there]
    saved = [value for value in chosen if value not in is_there]
    done = [node for node in graph.body if node not in behind and _acts(node)]
    forward = extract(graph, f"{graph.name}_forward", primals, (*outputs, *saved), done)
    _copy_outputs(forward, [joint.count + i for i, value in enumerate(saved) if value in open_])
    backward_inputs = [*(primals[i] for i in kept), *saved, *cotangents]
    backward = extract(graph, f"{graph.name}_backward", backward_inputs, graph.outputs[joint.count :], (), behind)
    names = tuple(value.name for value in saved)
    return Halves(forward, backward, joint.count, tuple(kept), names, sum(map(saved_nbytes, saved)))


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
    return sum(saved_nbytes(value) for value in saved if value not in is_there)


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
    # What the forward half writes to has other numbers behind it.
    lasting = set(primals).difference(v for n in graph.body if n.op == "write" for v in values_in(n.args[0]))
    given = set(primals)

    def cost_of(value: Value) -> int:
        if value in given and value not in lasting:
            return INFINITE
        return saving_cost(value) + 1 if value in open_ else 1 if value in given else saving_cost(value)

    wanted = [v for arg in graph.outputs[joint.count :] for v in values_in(arg)]
    return smallest_cut(graph.body, primals, behind, wanted, cost_of, price)


# --- parts of graphs


def extract(
    graph: Graph, name: str, inputs: Sequence[Value], outputs: Sequence[Arg], also: Sequence[Node],
    first: Collection[Node] | None = None,
) -> Graph:  # fmt: skip
    """The part of a graph that computes outputs from inputs, and does what some nodes do besides.

    first: the nodes that keep their places; others stand right before those that use them. By default all keep them.
    """
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
    nodes = [node for node in graph.body if node in needed]
    for node in nodes if first is None else _late(nodes, first):
        kept = {v: mapping[v] for v in node.results if v in given}
        made.body.insert(clone_node(node, mapping))
        mapping.update(kept)
    made.body.set_yields(tuple(map_values(arg, lambda v: mapping[v]) for arg in outputs))
    return made


def _late(nodes: Sequence[Node], first: Collection[Node]) -> Iterator[Node]:
    """The nodes with those that are not among the first right before what uses them, as far as they may move."""
    waiting: dict[Node, None] = {}
    for node in nodes:
        if node not in first and not _acts(node):
            waiting[node] = None
            continue
        wanted, pending = set[Node](), [node]
        while pending:
            makers = {v.node for v in used_by(pending.pop()) if v.node in waiting}
            pending += makers - wanted
            wanted |= makers
        for one in [one for one in waiting if one in wanted] if wanted else ():
            del waiting[one]
            yield one
        yield node
    yield from waiting


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
