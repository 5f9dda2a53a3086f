"""A program prepared for searching: nodes by what they compute, and the calls of its modules.

Invariant: reads the graph only. A module's call is a run of nodes in program order that its path, or a path below,
stands on; two calls of torch's own layers in a row are told apart by their operators, those of other modules are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from smelt.ir import Graph, Node, Region, Value
from smelt.ir.type_order import may_hold_tensor
from smelt.scheduling.finding.forms import STATE, is_arithmetic, is_check, key_of
from smelt.scheduling.finding.terms import Terms

_NOT_COMPUTED = STATE | {"const", "write"}


@dataclass(eq=False, slots=True)
class Call:
    """One call of a module: its nodes in order, the tensors from outside in order of use, what others use of it.

    writes: what it leaves in its buffers, which stands at the end of the program.
    """

    path: str
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)
    writes: list[Node] = field(default_factory=list)


class Target:
    """The graph of a module at `prefix`, with its index.

    root: of the graph of one module's own forward, which steps edit: the graph as it was captured.
    """

    def __init__(
        self, graph: Graph, prefix: str, modules: Mapping[str, torch.nn.Module], root: Graph | None = None
    ) -> None:
        self.graph, self.prefix, self.modules, self.root = graph, prefix, modules, root
        self.nodes = list(graph.walk())
        self.position = {node: i for i, node in enumerate(self.nodes)}
        self.terms = Terms(self.nodes)
        self.by_key: dict[str, list[Node]] = {}
        for node in self.nodes:
            if not is_arithmetic(node):
                self.by_key.setdefault(key_of(node), []).append(node)
        self.calls: list[Call] = []
        self.calls_of: dict[Node, list[Call]] = {}
        self._find_calls()

    def path_of(self, node: Node) -> str:
        """The path of the module that a node belongs to, from the schedule's root."""
        return join(self.prefix, node.scope)

    def module(self, path: str) -> torch.nn.Module | None:
        """The module at a path, None where there is none."""
        return self.modules.get(path)

    def _find_calls(self) -> None:
        open_: dict[str, Call] = {}
        for node in self.nodes:
            if node.op in _NOT_COMPUTED:
                continue
            chain = list(_ancestors(self.path_of(node)))
            for path in [path for path in open_ if path not in chain]:
                del open_[path]
            for path in chain:
                call = open_.get(path)
                if call is None or self._is_again(call, node):
                    call = open_[path] = Call(path)
                    self.calls.append(call)
                call.nodes.append(node)
                self.calls_of.setdefault(node, []).append(call)
        for call in self.calls:
            _connect(call)

    def _is_again(self, call: Call, node: Node) -> bool:
        module = self.module(call.path)
        if module is None or not type(module).__module__.startswith("torch.nn.") or any(module.children()):
            return False
        if isinstance(module, torch.nn.RNNBase) or is_check(node):
            return False
        return any(other.op == node.op for other in call.nodes)


def join(prefix: str, path: str) -> str:
    """Two dotted paths as one; either may be empty."""
    return f"{prefix}.{path}" if prefix and path else prefix or path


def _ancestors(path: str) -> Iterator[str]:
    parts = path.split(".") if path else []
    yield ""
    for i in range(len(parts)):
        yield ".".join(parts[: i + 1])


def _connect(call: Call) -> None:
    inside = set(call.nodes)
    own = {result for node in call.nodes for result in node.results}
    seen: set[Value] = set()
    last: Value | None = None
    for node in call.nodes:
        for value in node.operands():
            made_by = value.node
            if value in own or value in seen or not may_hold_tensor(value.type):
                continue
            seen.add(value)
            if made_by is None or made_by.op not in _NOT_COMPUTED:
                call.inputs.append(value)
        for result in node.results:
            if may_hold_tensor(result.type):
                last = result
                outside = [user for user in result.users if user not in inside and not _is_in(user, inside)]
                writes = [user for user in outside if isinstance(user, Node) and user.op == "write"]
                call.writes.extend(writes)
                if len(outside) > len(writes):
                    call.outputs.append(result)
    if not call.outputs and last is not None:
        call.outputs.append(last)


def _is_in(user: Node | Region, nodes: set[Node]) -> bool:
    return isinstance(user, Region) and isinstance(user.owner, Node) and user.owner in nodes
