"""Gradients that a program computes itself, `py.gradient`, written out in its graph.

    %0 = aten.sin.default(%w)                                  %0 = aten.sin.default(%w)
    %1: (f32[3],) = py.gradient([%0], [%g], [%w])     ==>      %1 = aten.cos.default(%w)
    %2 = unpack %1                                             %2 = aten.mul.Tensor(%g, %1)

Invariant: the graph is functional, so what stands before such a node is what autograd has gone back through.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import takewhile

from smelt.autodiff.activity import certain_values, may_depend
from smelt.autodiff.checkpoints import active_in_loops
from smelt.autodiff.control import drop_unused
from smelt.autodiff.kinks import behind_kinks
from smelt.autodiff.reverse import Reverse
from smelt.autodiff.spelled import spell_norms
from smelt.diag import SmeltError
from smelt.ir import Arg, Graph, Node, TensorType, Value
from smelt.ops.lowering import GraphEmitter
from smelt.ops.torch_gradients import GRADIENT
from smelt.rewrite import Rewriter


def computes_gradients(graph: Graph) -> bool:
    """Whether a program computes gradients itself."""
    return any(node.op == GRADIENT for node in graph.walk())


def write_gradients(graph: Graph, *, memory_budget: float = 1.0) -> tuple[Value, ...]:
    """Write out all gradients that a functional graph computes; the values by which going back begins.

    memory_budget: below 1, those of long loops go back from checkpoints.
    Raises: SmeltError (S0303) where one has no graph.
    """
    captured = set(graph.walk())
    found = [node for node in graph.walk() if node.op == GRADIENT]
    rewriter, begun = Rewriter(graph), list[Value]()
    for number, node in enumerate(found):
        # Once: the loops that a gradient has been written as are short, and not to be nested again.
        begun += _write(rewriter, node, captured, nests=memory_budget < 1 and number == 0)
    if found:
        spell_norms(rewriter, graph)
        drop_unused(rewriter, graph.body)
    return tuple(begun)


def _write(rewriter: Rewriter, node: Node, captured: Collection[Node], *, nests: bool) -> list[Value]:
    begun: list[Value] = []
    region = node.parent
    assert region is not None
    roots, grads, wrt = node.args
    assert isinstance(roots, tuple) and isinstance(grads, tuple) and isinstance(wrt, tuple)
    wanted = [value for value in wrt if isinstance(value, Value)]
    active = active_in_loops(rewriter.graph, wanted, nests=nests)
    _check_certain(rewriter.graph, node, roots, wanted)
    reverse = Reverse(rewriter, active)
    reverse.expand(region)
    builder = reverse.emitter.builder
    with builder.at(node):
        for root, grad in zip(roots, grads, strict=True):
            assert isinstance(root, Value)
            if root in active:
                begun.append(_first(reverse.emitter, root, grad))
                reverse.add(root, begun[-1])
        reverse.region(region)
        made = [_result(reverse, node, value, captured) for value in wanted]
    for user in list(node.result.users):
        if not isinstance(user, Node) or user.op != "unpack":
            raise _lost(node, "its gradients are handed on as a list")
        for old, new in zip(user.results, made, strict=True):
            rewriter.replace_all_uses(old, _laid_out(reverse.emitter, user, new, old))
        rewriter.erase(user)
    rewriter.erase(node)
    return begun


def _check_certain(graph: Graph, node: Node, roots: Sequence[Arg], wanted: Sequence[Value]) -> None:
    """Raises: SmeltError where autograd gives a gradient on some paths only, and None, or an error, on others."""
    if not any(one.regions for one in graph.body):
        return
    for value in wanted:
        certain = certain_values(graph, [value])
        if not any(isinstance(root, Value) and root in certain for root in roots):
            raise _lost(node, f"whether there is a gradient of %{value.name} depends on the path")


def _is_zero(node: Node, value: Value, captured: Collection[Node]) -> bool:
    region, roots = node.parent, node.args[0]
    assert region is not None and isinstance(roots, tuple)
    behind = behind_kinks(takewhile(lambda one: one is not node, region), value, captured.__contains__)
    return any(isinstance(root, Value) and root in behind for root in roots)


def _first(b: GraphEmitter, root: Value, grad: Arg) -> Value:
    if isinstance(grad, Value):
        return grad
    return b.call("aten.ones_like.default", root)


def _result(reverse: Reverse, node: Node, value: Value, captured: Collection[Node]) -> Value:
    found = reverse.gradient(value) if may_depend(value.type) else None
    if found is None and _is_zero(node, value, captured):
        found = reverse.emitter.call("aten.zeros_like.default", value)
    if found is None:
        raise _lost(node, f"autograd found a gradient of %{value.name}, and the graph has none")
    if node.kwargs.get("create_graph"):
        return found
    return reverse.emitter.call("aten.detach.default", found)


def _laid_out(b: GraphEmitter, user: Node, new: Value, old: Value) -> Value:
    """A gradient in the memory layout that autograd gave it."""
    if new.type == old.type:
        return new
    if not isinstance(old.type, TensorType) or not old.type.is_static:
        raise _lost(user, f"a gradient is {new.type}, not {old.type}")
    with b.builder.at(user):
        room = b.call("aten.new_empty_strided.default", new, old.type.sizes, old.type.steps)
        return b.call("aten.copy.default", room, new)


def _lost(node: Node, why: str) -> SmeltError:
    return SmeltError(
        "the program computes gradients that no graph says",
        node.span,
        why=why,
        fix="take the gradient outside the captured program",
        code="S0303",
    )
