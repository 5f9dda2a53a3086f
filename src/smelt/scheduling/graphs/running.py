"""An edited graph as a Python function over torch's operators, which autograd and an outer capture see as any code.

    def forward(inputs, state, calls):
        x, = inputs
        v0 = op0(x, state["fc1.weight"], state["fc1.bias"])      # aten.linear.default
        v1, = calls["Identity_0"](v0)                             # smelt_step.call.default
        del v0
        return (v1,)

Invariant: operators run in the graph's order under the modes of their nodes; a value is dropped after its last use.
Only straight graphs: no branch, no loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.ir import Arg, Graph, Node, Value, values_in
from smelt.ops.convert import strided_copy, to_torch
from smelt.ops.evaluate import constant
from smelt.ops.modes import entered
from smelt.ops.registry import overload
from smelt.rewrite import Rewriter

CALL = "smelt_step.call.default"
"""A module, a function or a kernel that a step put into a graph: `call("name", [operands])` gives a list."""
FUNCTIONAL_NORM = "aten._native_batch_norm_legit_functional.default"
_NORM = "aten.batch_norm.default"
Forward = Callable[[Sequence[Any], Mapping[str, Any], Mapping[str, Callable[..., Any]]], tuple[Any, ...]]


def function_of(graph: Graph) -> Forward:
    """The function `(inputs, state, calls) -> outputs` of a straight graph. Raises: InternalError for another one."""
    writer = _Writer(_as_eager(graph))
    source = writer.source()
    exec(compile(source, f"<smelt schedule of {graph.name}>", "exec"), writer.globals)
    made: Forward = writer.globals["forward"]
    return made


def write_back(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """What a `write` does."""
    with torch.no_grad():
        return target.copy_(value)


def write_statistics(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """The `write` of what a batch norm tells of its input: as eager's, it is no new version of the buffer.

    The norm has kept the buffer for its gradient, which does not depend on it.
    """
    target.data.copy_(value)
    return target


def overwritten(old: torch.Tensor, new: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`old.copy_(new)` as a value, with the gradients of that: torch's functional form of it has none."""
    is_watched = torch.is_grad_enabled() and old.requires_grad
    return (old.clone() if is_watched else torch.empty_like(old)).copy_(new, non_blocking)


def _as_eager(graph: Graph) -> Graph:
    """The graph with batch norms that update their statistics themselves, as in eager mode.

    Apart, the update would come behind the norm, which has kept the statistics for its gradient.
    """
    if not any(node.op == FUNCTIONAL_NORM for node in graph.body):
        return graph
    graph = graph.clone()
    rewriter = Rewriter(graph)
    for node in [node for node in graph.body if node.op == FUNCTIONAL_NORM]:
        result, _, _, mean, var = node.results
        writes = [_only_write(value) for value in (mean, var)]
        if None in writes or any(r.users for r in node.results[1:3]):
            continue
        again = rewriter.insert(
            _NORM, (*node.args, torch.backends.cudnn.enabled), [result.type], before=node, names=[result.name]
        )
        for write in writes:
            assert write is not None
            rewriter.replace_node(write, (write.args[0],))
        rewriter.replace_all_uses(result, again.result)
        rewriter.erase(node)
    return graph


def _only_write(value: Value) -> Node | None:
    """The write of a value to the place that it is the next content of, where nothing else uses it."""
    (user, *more) = value.users or (None,)
    node = value.node
    if more or not isinstance(user, Node) or user.op != "write" or user.results[0].users or node is None:
        return None
    return user if user.args[0] is node.args[3 if value is node.results[3] else 4] else None


_DIFFERENTIABLE: Mapping[str, Callable[..., Any]] = MappingProxyType({"aten.copy.default": overwritten})


def is_statistics(arg: Arg) -> bool:
    """Whether a value is the running statistics that a batch norm gives."""
    node = arg.node if isinstance(arg, Value) else None
    return node is not None and node.op == FUNCTIONAL_NORM and arg in node.results[3:]


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Value, str] = {}
        self.globals: dict[str, Any] = {
            "write": write_back,
            "note": write_statistics,
            "entered": entered,
            "copied": strided_copy,
        }
        self.known: dict[Any, str] = {}

    def source(self) -> str:
        nodes = list(self.graph.body)
        last = {value: node for node in nodes for value in node.operands()}
        kept = {value for arg in self.graph.outputs for value in values_in(arg)}
        rows = ["def forward(inputs, state, calls):"]
        inputs = "".join(f"{self.name(value)}, " for value in self.graph.inputs)
        rows += [f"    {inputs}= inputs"] if inputs else []
        for mode, run in _runs(nodes):
            pad = "    "
            if mode:
                rows.append(f"    with entered({mode!r}):")
                pad = "        "
            for node in run:
                rows.append(pad + self.line(node))
                dead = [v for v in dict.fromkeys(node.operands()) if last[v] is node and v not in kept]
                dead += [v for v in node.results if v not in last and v not in kept]
                if dead:
                    rows.append(f"{pad}del {', '.join(map(self.name, dead))}")
        rows.append(f"    return ({''.join(f'{self.arg(arg)}, ' for arg in self.graph.outputs)})")
        return "\n".join(rows)

    def line(self, node: Node) -> str:
        targets = "".join(f"{self.name(result)}, " for result in node.results)
        single = f"{self.name(node.results[0])} = " if len(node.results) == 1 else f"{targets}= " if targets else ""
        match node.op:
            case "param" | "buffer" | "captured":
                return f"{single}state[{node.args[0]!r}]"
            case "const":
                return f"{single}copied({self.object(constant(self.graph, node))})"
            case "unpack":
                return f"{targets}= {self.arg(node.args[0])}"
            case "write":
                name = "note" if is_statistics(node.args[1]) else "write"
                return f"{single}{name}({self.arg(node.args[0])}, {self.arg(node.args[1])})"
        if node.op == CALL:
            operands = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
            return f"{single}calls[{node.args[0]!r}]({', '.join(map(self.arg, operands))})    # {node.op}"
        found = overload(node.op)
        if found is None or node.regions:
            raise InternalError(f"{node.op} has no form in a schedule's code", node.span)
        given = [self.arg(arg) for arg in node.args] + [f"{k}={self.arg(v)}" for k, v in node.kwargs.items()]
        called = self.object(_DIFFERENTIABLE.get(node.op, found))
        return f"{single}{called}({', '.join(given)})    # {node.op}"

    def name(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = f"v{len(self.names)}"
        return self.names[value]

    def arg(self, arg: Arg) -> str:
        if isinstance(arg, Value):
            return self.name(arg)
        if isinstance(arg, tuple):
            return f"[{', '.join(map(self.arg, arg))}]"
        if arg is None or isinstance(arg, bool | int | str):
            return repr(arg)
        return self.object(to_torch(arg))

    def object(self, thing: Any) -> str:
        key = id(thing) if not isinstance(thing, float | complex) else (type(thing), repr(thing))
        if key not in self.known:
            self.known[key] = f"o{len(self.known)}"
            self.globals[self.known[key]] = thing
        return self.known[key]


def _runs(nodes: Sequence[Node]) -> Iterator[tuple[str, list[Node]]]:
    run: list[Node] = []
    for node in nodes:
        if run and node.mode != run[-1].mode:
            yield run[-1].mode, run
            run = []
        run.append(node)
    if run:
        yield run[-1].mode, run
