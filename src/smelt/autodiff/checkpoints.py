"""Long loops whose gradient is to need little memory: loops of loops, each with about the root of the iterations.

    %h = for %i in (0, 100, 1) with (%c = %h0) { ...%i, %c...; yield %d }
        ==>   %h = for %q in (0, 10, 1) with (%c = %h0) {
                %m = for %r in (0, 10, 1) with (%e = %c) { %i = q * 10 + r; ...%i, %e...; yield %d }
                yield %m }

What the gradient of a loop puts aside is what each iteration began with. Of the outer loop that is every tenth state of
the old one; its gradient runs the inner loop once more, from such a checkpoint on, and goes back through that.
Invariant: the iterations, their order and so all values are those of the loop before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt

from smelt.autodiff.activity import active_values
from smelt.autodiff.lists import lists_as_tensors
from smelt.autodiff.loops import number_at
from smelt.ir import INT, Arg, Graph, Node, TensorType, Value
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.rewrite import Rewriter, copy_nodes, known_range

_LEAST = 16
"""Iterations of a loop that is worth it: of fewer, twice the root is hardly less."""


def active_in_loops(graph: Graph, wanted: Sequence[Value], *, nests: bool) -> set[Value]:
    """The values that depend on what is wanted, in a graph whose loops have the form that gradients need: what they
    gather in lists is one tensor. nests: long ones are to need little memory.
    """
    active = active_values(graph, wanted)
    changed = lists_as_tensors(graph, active)
    if nests:
        nest_loops(graph)
    return active_values(graph, wanted) if changed or nests else active


def nest_loops(graph: Graph) -> None:
    """Make two loops of each long counted one that carries tensors, so that gradients can go back from checkpoints."""
    rewriter = Rewriter(graph)
    for node in list(graph.body):
        numbers = known_range(node)
        if numbers is not None and len(numbers) >= _LEAST and _may_run_again(node):
            _nest(rewriter, node, numbers)


def _may_run_again(loop: Node) -> bool:
    (body,) = loop.regions
    carries = any(isinstance(param.type, TensorType) for param in body.params[1:])
    return carries and not any(effects(node).rng or effects(node).io for node in body.walk())


def _nest(rewriter: Rewriter, loop: Node, numbers: range) -> None:
    inner = isqrt(len(numbers))
    outer = len(numbers) // inner
    emitter = GraphEmitter(rewriter.builder, rewriter.adopt)
    builder = emitter.builder
    types = [result.type for result in loop.results]
    with builder.at(loop):
        made = builder.add("for", (0, outer, 1, *loop.args[3:]), types)
        around = builder.add_region(made)
        q = builder.add_param(around, "q", INT)
        carried = [builder.add_param(around, "", param.type) for param in loop.regions[0].params[1:]]
        with builder.inside(around):
            within = builder.add("for", (0, inner, 1, *carried), types)
            body = builder.add_region(within)
            r = builder.add_param(body, "r", INT)
            now = [builder.add_param(body, "", param.type) for param in carried]
            with builder.inside(body):
                number = emitter.call("py.add", emitter.call("py.mul", q, inner), r)
                yields = _again(rewriter, loop, (number_at(emitter, number, numbers.start, numbers.step), *now))
            rewriter.set_yields(body, yields)
        rewriter.set_yields(around, tuple(within.results))
        results = list(made.results)
        if rest := numbers[outer * inner :]:
            last = builder.add("for", (rest.start, rest.stop, rest.step, *results), types)
            body = builder.add_region(last)
            params = [builder.add_param(body, "", param.type) for param in loop.regions[0].params]
            with builder.inside(body):
                yields = _again(rewriter, loop, params)
            rewriter.set_yields(body, yields)
            results = list(last.results)
    rewriter.replace_node(loop, results)


def _again(rewriter: Rewriter, loop: Node, params: Sequence[Arg]) -> tuple[Arg, ...]:
    (body,) = loop.regions
    return copy_nodes(rewriter.builder, body, dict(zip(body.params, params, strict=True)), rewriter.adopt)
