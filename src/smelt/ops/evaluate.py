"""The reference evaluator: runs any graph with torch, op by op, in order. The oracle of every pass test.

Invariant: nothing is assumed about the graph beyond what the verifier checks: raw graphs with in-place ops and
aliasing views, functional ones with `write`, and regions all run as they stand.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt.diag import InternalError, Miss, SmeltError
from smelt.ir import ANY, Graph, Node, Region, TensorType, Value, print_node, values_in
from smelt.ops.convert import bind, strided_copy, tensor_of_literal
from smelt.ops.modes import entered
from smelt.ops.python.called import as_called
from smelt.ops.python.index_words import words_of_brackets
from smelt.ops.python.python_ops import python_op
from smelt.ops.registry import overload
from smelt.ops.torch_gradients import GRADIENT

Lookup = Callable[[str, str], Any]
"""Takes "param", "buffer" or "captured" and a dotted path; gives the tensor."""

Observe = Callable[[Node, Sequence[Any]], None]


def no_state(kind: str, path: str) -> Any:
    """The lookup of graphs that have no parameters."""
    raise SmeltError(f"the graph reads {kind} {path!r}, and no state was passed", code="S0203")


def evaluate(
    graph: Graph,
    inputs: Sequence[Any],
    lookup: Lookup = no_state,
    *,
    observe: Observe | None = None,
    silent: bool = False,
    as_written: bool = False,
) -> list[Any]:
    """The outputs of a graph for inputs given in order; inputs and state are mutated where the graph says so.

    observe: called after each node with its results. silent: nothing is printed, and no warning given.
    as_written: inference mode makes inference tensors, which fits raw graphs only: passes mix what was made in it and
    what was not.
    Raises: SmeltError (S0107 wrong number of inputs, or another kind of value than the graph is of, S0203 missing
    constant or state), Miss where an `expect` fails, and what torch raises.
    """
    if len(inputs) != len(graph.inputs):
        raise SmeltError(
            f"graph {graph.name} takes {len(graph.inputs)} inputs, not {len(inputs)}",
            why=f"its inputs are {', '.join(map(repr, graph.inputs))}",
            code="S0107",
        )
    with no_autocast():
        return list(_Run(graph, lookup, observe, silent, as_written).region(graph.body, inputs))


def same_number(a: Any, b: Any) -> bool:
    """Whether two plain values are the same: type by type, floats bit by bit except that NaN is NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a != a if b != b else (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
    if isinstance(a, complex):
        return same_number(a.real, b.real) and same_number(a.imag, b.imag)
    return bool(a == b)


def constant(graph: Graph, node: Node) -> torch.Tensor:
    """The data of a `const` node; large ones are the graph's own tensor, not a copy. Raises: SmeltError (S0203)."""
    literal, type_ = node.args[0], node.result.type
    if isinstance(literal, str):
        if literal not in graph.constants:
            raise SmeltError(
                f"the data of constant %{node.result.name} ({literal}) is not at hand",
                node.span,
                why="a graph's text holds only the hash of a large constant",
                fix="parse the text with constants={hash: tensor}",
                code="S0203",
            )
        found: torch.Tensor = graph.constants[literal]
        return found
    if not isinstance(type_, TensorType):
        raise InternalError(f"constant %{node.result.name} is no tensor", node.span)
    return tensor_of_literal(literal, type_)


class _Run:
    """One evaluation: the values so far, each dropped after its last use."""

    def __init__(self, graph: Graph, lookup: Lookup, observe: Observe | None, silent: bool, as_written: bool) -> None:
        self.silent = silent
        self.as_written = as_written
        self.graph = graph
        self.lookup = lookup
        self.observe = observe
        self.values: dict[Value, Any] = {}
        # What the program makes and takes gradients by: a raw graph does not say when it became a leaf of autograd.
        gradients = (node for node in graph.walk() if node.op == GRADIENT)
        self.leaves = {v for node in gradients for v in values_in(node.args[2]) if v.node is not None}

    def region(self, region: Region, arguments: Sequence[Any]) -> list[Any]:
        for param, argument in zip(region.params, arguments, strict=True):
            self.values[param] = argument
        remaining = _uses_by_node(region)
        for node in region:
            results = self.node(node)
            if len(results) != len(node.results):
                raise InternalError(f"{node.op} gave {len(results)} results for {len(node.results)}", node.span)
            for value, result in zip(node.results, results, strict=True):
                self.values[value] = result
                if value in self.leaves and isinstance(result, torch.Tensor) and result.is_leaf:
                    result.requires_grad_()
            if self.observe is not None:
                self.observe(node, results)
            self.release(node, region, remaining)
        return [bind(arg, self.values) for arg in region.yields]

    def release(self, node: Node, region: Region, remaining: Counter[Value]) -> None:
        """Drop the values of this region that no later node of it needs."""
        for value in set(_all_operands(node)):
            remaining[value] -= 1
            if remaining[value] == 0 and _home(value) is region:
                del self.values[value]
        for value in node.results:
            if remaining[value] == 0:
                del self.values[value]

    def node(self, node: Node) -> Sequence[Any]:
        run = _STRUCTURAL.get(node.op)
        if run is not None:
            return run(self, node)
        if self.silent and node.op in ("py.print", "py.warn"):
            return ()
        found: Any = overload(node.op)
        if found is None:
            python = python_op(node.op)
            found = None if python is None else python.run
        if found is None:
            raise SmeltError(
                f"there is no operator {node.op}",
                node.span,
                why=f"torch's registry has none of that name; at {print_node(node).splitlines()[0]}",
                fix="import the package that registers it",
                code="S0202",
            )
        args = [bind(arg, self.values) for arg in node.args]
        kwargs = {name: bind(arg, self.values) for name, arg in node.kwargs.items()}
        found, args = as_called(node.op, found, args)
        try:
            if node.mode:
                with entered(node.mode, self.as_written):
                    result = found(*args, **kwargs)
            else:
                result = found(*args, **kwargs)
        except IndexError:
            text = _as_brackets_say(node, args)
            if not text:
                raise
            raise IndexError(text) from None
        except RuntimeError as error:
            kind = next((type(v).__name__ for v in self._of_any_kind(node) if not isinstance(v, torch.Tensor)), None)
            if kind is None or _NO_TENSOR not in str(error):
                raise
            raise SmeltError(
                f"{node.op} takes a tensor, and it receives a {kind}",
                node.span,
                why="a value of unknown kind is used as a tensor; the graph holds for tensors alone",
                fix="annotate the program's parameters, or use smelt.compile",
                code="S0107",
            ) from error
        return self.results(node, result)

    def _of_any_kind(self, node: Node) -> list[Any]:
        """The operands of which only a run tells what they are."""
        return [self.values[value] for arg in node.args for value in values_in(arg) if value.type == ANY]

    def results(self, node: Node, result: Any) -> Sequence[Any]:
        if len(node.results) == 1:
            return (result,)
        if not node.results:
            return ()
        return tuple(result)

    def const(self, node: Node) -> Sequence[Any]:
        data = constant(self.graph, node)
        # A copy with the same strides, because the graph may write to it in place.
        return (strided_copy(data),)

    def state(self, node: Node) -> Sequence[Any]:
        return (self.lookup(node.op, str(node.args[0])),)

    def unpack(self, node: Node) -> Sequence[Any]:
        return tuple(bind(node.args[0], self.values))

    def write(self, node: Node) -> Sequence[Any]:
        target, value = (bind(arg, self.values) for arg in node.args)
        with torch.no_grad():
            target.copy_(value)
        return (target,)

    def expect(self, node: Node) -> Sequence[Any]:
        found = bind(node.args[0], self.values)
        if isinstance(found, torch.Tensor):
            found = found.item()
        if not same_number(found, node.args[1]):
            raise Miss(node.args[1], found, node.span)
        return ()

    def branch(self, node: Node) -> Sequence[Any]:
        then, other = node.regions
        return self.region(then if bool(bind(node.args[0], self.values)) else other, ())

    def counted(self, node: Node) -> Sequence[Any]:
        start, stop, step = (operator.index(bind(arg, self.values)) for arg in node.args[:3])
        carried: Sequence[Any] = [bind(arg, self.values) for arg in node.args[3:]]
        for index in range(start, stop, step):
            carried = self.region(node.regions[0], [index, *carried])
        return carried

    def repeated(self, node: Node) -> Sequence[Any]:
        test, body = node.regions
        carried: Sequence[Any] = [bind(arg, self.values) for arg in node.args]
        while bool(self.region(test, carried)[0]):
            carried = self.region(body, carried)
        return carried


_STRUCTURAL: dict[str, Callable[[_Run, Node], Sequence[Any]]] = {
    "param": _Run.state,
    "buffer": _Run.state,
    "captured": _Run.state,
    "const": _Run.const,
    "unpack": _Run.unpack,
    "write": _Run.write,
    "expect": _Run.expect,
    "if": _Run.branch,
    "for": _Run.counted,
    "while": _Run.repeated,
}


_NO_TENSOR = "Expected a value of type 'Tensor'"  # torch's words for a number, say, where an operator takes a tensor
_SELECT_CALL = re.compile(r"\bselect\(")


def _as_brackets_say(node: Node, args: Sequence[Any]) -> str:
    """What `x[9]` says that is out of bounds, which is not what its `select` says; empty for all else."""
    line = node.span.text if node.span is not None else ""
    is_select = node.op == "aten.select.int" and len(args) == 3 and isinstance(args[0], torch.Tensor)
    if not is_select or "[" not in line or _SELECT_CALL.search(line):
        return ""
    indexed, source = 0, node.args[0]
    # `x[0, 9]` counts the dimensions of x, `x[0][9]` those of the row.
    while "][" not in line and isinstance(source, Value) and source.node is not None:
        if source.node.op != node.op or source.node.span != node.span:
            break
        indexed, source = indexed + 1, source.node.args[0]
    return words_of_brackets(args[0], args[1], args[2], indexed)


def _home(value: Value) -> Region | None:
    return value.owner.parent if isinstance(value.owner, Node) else value.owner


def _all_operands(node: Node) -> list[Value]:
    """Operands of a node and everything that its regions use from outside or inside."""
    found = list(node.operands())
    for region in node.regions:
        for inner in region.walk():
            found.extend(inner.operands())
            for nested in inner.regions:
                found.extend(v for arg in nested.yields for v in values_in(arg))
        found.extend(v for arg in region.yields for v in values_in(arg))
    return found


def _uses_by_node(region: Region) -> Counter[Value]:
    """In how many nodes of the region each value is used; what the region yields counts once more."""
    counts: Counter[Value] = Counter()
    for node in region:
        counts.update(set(_all_operands(node)))
    counts.update({v for arg in region.yields for v in values_in(arg)})
    return counts
