"""A graph with its gradient: what it computed before, and for each value asked for its gradient.

    graph f(%x: f32[3]) -> f32[3] {                     graph f(%x: f32[3], %grad_0: f32[3]) -> f32[3], f32[3] {
      %0: f32[3] = aten.sin.default(%x)       ==>         %0: f32[3] = aten.sin.default(%x)
      return %0                                           %1: f32[3] = aten.cos.default(%x)
    }                                                     %2: f32[3] = aten.mul.Tensor(%grad_0, %1)
                                                          return %0, %2
                                                        }

Invariant: the result is a graph like any other, in operators that have gradients, so it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache

from smelt.autodiff.activity import may_depend
from smelt.autodiff.checkpoints import active_in_loops
from smelt.autodiff.control import drop_unused
from smelt.autodiff.kinks import behind_kinks
from smelt.autodiff.presence import is_uncertain
from smelt.autodiff.reverse import Reverse, of_no_tensor
from smelt.autodiff.spelled import spell_norms
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import BOOL, STATE_OPS, Arg, Graph, TensorType, Type, Value
from smelt.rewrite import Rewriter


@record
class Joint:
    """A graph that computes its outputs and then the gradients.

    Its inputs are those of the graph it was made of, then one gradient for each output in `differentiated`. Its outputs
    are the old ones, `count` of them, then one for each of `wrt`: None where nothing depends on it.

    tells: there follows for each output in `differentiated` whether its gradient is there, and for each of `wrt`
    whether autograd would have a gradient of it.
    """

    graph: Graph
    count: int
    differentiated: tuple[int, ...]
    wrt: tuple[str, ...]
    tells: bool = False

    @property
    def given(self) -> int:
        """How many inputs the graph had before."""
        return len(self.graph.inputs) - len(self.differentiated) * (1 + self.tells)


def joint_graph(
    graph: Graph,
    wrt: Sequence[str] | None = None,
    outputs: Collection[int] | None = None,
    *,
    tells: bool = False,
    memory_budget: float = 1.0,
    captured: Collection[str] | None = None,
) -> Joint:
    """The graph with its gradients. wrt: names of inputs and paths of parameters, by default all that can have one.
    outputs: those that have a gradient, by default all that depend on what is asked for. tells: where data decide which
    gradients there are, the graph says so. memory_budget: below 1, gradients of long loops go back from checkpoints.
    captured: of a graph of gradients, the names of the program's own values; where autograd has zeros for the second
    derivative of an operator with kinks, the graph has them, too.

    The graph must be functional, as `Program.graph` is.
    Raises: SmeltError (S0303) where an operator or a name has no gradient.
    """
    graph = graph.clone()
    sources = _sources(graph)
    if wrt is None:
        wrt = tuple(name for name, value in sources.items() if may_depend(value.type))
    for name in wrt:
        if name not in sources:
            raise SmeltError(
                f"{graph.name} has no input, parameter or buffer {name!r}",
                why=f"it has {', '.join(sources)}",
                fix="name one of these",
                code="S0303",
            )
        if not may_depend(sources[name].type):
            raise SmeltError(
                f"{name} is {sources[name].type}", why="only floating-point tensors have gradients", code="S0303"
            )
    wanted = [sources[name] for name in wrt]
    active = active_in_loops(graph, wanted, nests=memory_budget < 1)
    rewriter = Rewriter(graph)
    builder = rewriter.builder
    count = len(graph.outputs)
    is_flat = _kinks(graph, captured)
    found = (
        i
        for i, arg in enumerate(graph.outputs)
        if isinstance(arg, Value) and (arg in active or any(is_flat(arg, value) for value in wanted))
    )
    differentiated = tuple(i for i in found if outputs is None or i in outputs)
    tells = tells and is_uncertain(graph, active, differentiated, wanted)
    reverse = Reverse(rewriter, active, tells=tells)
    reverse.expand(graph.body)
    # State is written last: what follows a write would read what it wrote.
    builder.before = next((node for node in graph.body if node.op == "write"), None)
    results = [output for i in differentiated if isinstance(output := graph.outputs[i], Value)]
    for output in results:
        if not isinstance(output.type, TensorType):
            raise of_no_tensor(output)
    given = [
        builder.add_param(graph.body, f"grad_{i}", _apart(output.type))
        for i, output in zip(differentiated, results, strict=True)
    ]
    there = [builder.add_param(graph.body, f"has_grad_{i}", BOOL) for i in differentiated if tells]
    for output, grad, present in zip(results, given, there or given, strict=True):
        reverse.add(output, grad, present=present)
    reverse.region(graph.body)
    grads: list[Arg] = [_laid_as(reverse, value) for value in wanted]
    for i, value in enumerate(wanted):
        if grads[i] is None and any(is_flat(result, value) for result in results):
            grads[i] = reverse.emitter.call("aten.zeros_like.default", value)
    grads += [reverse.present(value) for value in wanted if tells]
    rewriter.set_yields(graph.body, (*graph.outputs, *grads))
    spell_norms(rewriter, graph)
    drop_unused(rewriter, graph.body)
    return Joint(graph, count, differentiated, tuple(wrt), tells)


def _kinks(graph: Graph, captured: Collection[str] | None) -> Callable[[Arg, Value], bool]:
    """Whether autograd has zeros as the gradient of an output with respect to a value."""
    if captured is None:
        return lambda output, value: False
    nodes = list(graph.body)
    mine = {node for node in graph.walk() if any(result.name in captured for result in node.results)}
    behind = cache(lambda value: behind_kinks(nodes, value, mine.__contains__))
    return lambda output, value: output in behind(value)


def _laid_as(reverse: Reverse, value: Value) -> Value | None:
    """A gradient that lies as its tensor does, where that is row-major, so that autograd keeps it and makes no copy."""
    found, type_ = reverse.gradient(value), value.type
    if found is None or not isinstance(type_, TensorType) or type_.strides is not None:
        return found
    lies = found.type
    if not isinstance(lies, TensorType) or lies.strides is None or lies != _apart(lies):
        return found
    return reverse.emitter.call("aten.contiguous.default", found)


def _apart(type_: Type) -> Type:
    """A result's type, row-major where its elements share memory."""
    if not isinstance(type_, TensorType) or not type_.is_static or type_.strides is None:
        return type_
    shares = any(step == 0 and size > 1 for size, step in zip(type_.sizes, type_.steps, strict=True))
    return TensorType(type_.dtype, type_.shape, None, type_.device) if shares else type_


def _sources(graph: Graph) -> dict[str, Value]:
    """Inputs by their names, parameters and buffers by their paths."""
    found = {value.name: value for value in graph.inputs if isinstance(value.type, TensorType)}
    for node in graph.body:
        if node.op in STATE_OPS:
            found.setdefault(str(node.args[0]), node.result)
    return found
