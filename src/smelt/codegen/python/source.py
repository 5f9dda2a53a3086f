"""A graph as Python that runs: imports only torch and what the program itself calls of Python's own modules, one
function a module, each line with its type and source; branches and loops as statements that a debugger steps through.

    def encoder_layer_0(state, x):
        v1 = aten.linear.default(x, state["encoder.layer.0.weight"])  # f32[8, 16]  model.py:4
        return v1

    def forward(state, x):
        v2 = encoder_layer_0(state, x)
        return (v2,)

`state` maps the names of parameters, buffers, captured tensors and large constants (`sha256:...`) to tensors.
Modules become functions by the nodes' scopes: each unbroken run of nodes below one module path is one call of it.
"""

from __future__ import annotations

import builtins
import keyword
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from smelt.codegen.python.expressions import calls, expression, helpers, modules
from smelt.ir import Arg, Device, DType, Graph, Layout, MemoryFormat, Node, Region, TensorType, Value, values_in
from smelt.ops.modes import context_texts
from smelt.ops.ranks.collective_ops import NAMESPACE

_DTYPES = {
    DType.BOOL: "bool", DType.U8: "uint8", DType.U16: "uint16", DType.U32: "uint32", DType.U64: "uint64",
    DType.I8: "int8", DType.I16: "int16", DType.I32: "int32", DType.I64: "int64", DType.F16: "float16",
    DType.BF16: "bfloat16", DType.F32: "float32", DType.F64: "float64", DType.C32: "complex32",
    DType.C64: "complex64", DType.C128: "complex128", DType.F8E4M3FN: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz", DType.F8E5M2FNUZ: "float8_e5m2fnuz", DType.F8E8M0FNU: "float8_e8m0fnu",
    DType.QI8: "qint8", DType.QU8: "quint8", DType.QI32: "qint32",
}  # fmt: skip
_SPACES = {"dist": NAMESPACE}
_NAMES_TAKEN = frozenset((*keyword.kwlist, *dir(builtins), "torch", "state", "inf", "nan", "forward"))


def python_source(graph: Graph, heading: str = "") -> str:
    """The graph as a Python module with a function `forward(state, *inputs) -> tuple`.

    heading: a first comment, e.g. where the program came from.
    """
    return _Writer(graph).module(heading)


@dataclass
class _Function:
    """A function being written: its name, and the values that it is given by name."""

    name: str
    lines: list[str] = field(default_factory=list)


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set(_NAMES_TAKEN)
        self.functions: list[_Function] = []
        called = list(calls(graph.walk()))
        self.namespaces = sorted({_namespace(n.op) for n in called if "." in n.op} - {"py"})
        self.modules, self.helpers = modules(called), helpers(called)
        self.taken.update((*self.namespaces, *self.modules, *self.helpers))
        for value in graph.values():
            self.names[value] = self.fresh(value.name)

    def fresh(self, wish: str) -> str:
        name = re.sub(r"\W", "_", wish)
        name = name if name and not name[0].isdigit() else f"v{name}"
        unique, n = name, 1
        while unique in self.taken:
            unique, n = f"{name}_{n}", n + 1
        self.taken.add(unique)
        return unique

    def module(self, heading: str) -> str:
        forward = _Function("forward")
        inputs = "".join(f", {self.names[v]}" for v in self.graph.inputs)
        self.write_body(list(self.graph.body), "", forward)
        outputs = "".join(f"{self.arg(a)}, " for a in self.graph.outputs).rstrip(" ")
        head = [f"# {line}" for line in heading.splitlines()]
        head += [*(f"import {name}" for name in self.modules), *([""] if self.modules else [])]
        head += ["import torch", "from torch import inf, nan", ""]
        head += [f"{space} = torch.ops.{_SPACES.get(space, space)}" for space in self.namespaces]
        parts = ["\n".join(head), *self.helpers.values()]
        parts += ["\n".join(f.lines) for f in self.functions]
        parts.append("\n".join([f"def forward(state{inputs}):", *forward.lines, f"    return ({outputs})"]))
        return "\n\n\n".join(parts) + "\n"

    # --- modules as functions

    def write_body(self, nodes: Sequence[Node], scope: str, into: _Function) -> None:
        """Write nodes; each unbroken run of nodes below one child module becomes a call of a function of its own."""
        for child, run in _runs(nodes, scope):
            if child is not None:
                self.write_call(run, child, into)
                continue
            self.write_nodes(run, into, 1)

    def write_call(self, run: list[Node], scope: str, into: _Function) -> None:
        inside = {r for n in run for r in n.results}
        reads = [v for v in _reads(run) if v not in inside]
        inputs = list(dict.fromkeys(reads))
        members = set(run)
        outputs = [r for n in run for r in n.results if any(not _is_within(u, members) for u in r.users)]
        function = _Function(self.fresh(scope.replace(".", "_")))
        given = "".join(f", {self.names[v]}" for v in inputs)
        function.lines.append(f"def {function.name}(state{given}):")
        self.write_body(run, scope, function)
        returned = ", ".join(self.names[v] for v in outputs)
        function.lines.append(f"    return {returned}" if outputs else "    return None")
        self.functions.append(function)
        target = f"{returned} = " if outputs else ""
        into.lines.append(f"    {target}{function.name}(state{given})")

    # --- nodes

    def write_nodes(self, nodes: Sequence[Node], into: _Function, depth: int) -> None:
        """Nodes in order, those that follow one another under the same modes in one `with`."""
        for mode, run in groupby(nodes, key=lambda node: node.mode):
            contexts = ", ".join(context_texts(mode))
            if contexts:
                into.lines.append(f"{'    ' * depth}with {contexts}:")
            for node in run:
                self.write_node(node, into, depth + bool(contexts))

    def write_node(self, node: Node, into: _Function, depth: int) -> None:
        pad = "    " * depth
        match node.op:
            case "if":
                self.write_if(node, into, depth)
            case "for":
                self.write_for(node, into, depth)
            case "while":
                self.write_while(node, into, depth)
            case _:
                into.lines.append(f"{pad}{self.targets(node)}{self.expression(node)}{_comment(node)}")

    def targets(self, node: Node) -> str:
        if not node.results:
            return ""
        names = ", ".join(self.names[r] for r in node.results)
        # `unpack` of one element must take the tuple apart.
        return f"{names}, = " if node.op == "unpack" and len(node.results) == 1 else f"{names} = "

    def expression(self, node: Node) -> str:
        match node.op, node.args:
            case (("param" | "buffer" | "captured"), (str() as name,)):
                return f"state[{name!r}]"
            case "const", (str() as digest,):
                return f"state[{digest!r}]"
            case "const", (data,):
                return self.constant(node, data)
            case "unpack", (value,):
                return self.arg(value)
            case "write", (target, value):
                return f"{self.arg(target)}.copy_({self.arg(value)})"
            case "expect", (value, literal):
                # As text, in which NaN is NaN, and 0 neither -0.0 nor False.
                item = ".item()" if isinstance(value, Value) and isinstance(value.type, TensorType) else ""
                return f"assert repr({self.arg(value)}{item}) == {repr(literal)!r}"
        return expression(node, self.arg)

    def constant(self, node: Node, data: Arg) -> str:
        type_ = node.result.type
        shape = getattr(type_, "shape", ())
        dtype = self.arg(getattr(type_, "dtype", DType.F32))
        if 0 in shape:  # nested lists cannot say how wide an empty tensor is
            return f"torch.empty({list(shape)}, dtype={dtype})"
        return f"torch.tensor({self.arg(data)}, dtype={dtype})"

    def arg(self, arg: Arg) -> str:
        match arg:
            case Value():
                return self.names[arg]
            case tuple():
                return "[" + ", ".join(map(self.arg, arg)) + "]"
            case DType():
                return f"torch.{_DTYPES[arg]}"
            case Device():
                return f"torch.device({arg.name!r})"
            case Layout():
                return f"torch.{arg.name}"
            case MemoryFormat():
                return f"torch.{_memory_format(arg)}"
            case _:
                return repr(arg)

    # --- control flow

    def write_region(self, region: Region, into: _Function, depth: int) -> None:
        self.write_nodes(list(region), into, depth)

    def assign(self, targets: Iterable[Value], args: Iterable[Arg], into: _Function, depth: int) -> None:
        left = ", ".join(self.names[t] for t in targets)
        right = ", ".join(self.arg(a) for a in args)
        if left:
            into.lines.append(f"{'    ' * depth}{left} = {right}")

    def write_if(self, node: Node, into: _Function, depth: int) -> None:
        pad = "    " * depth
        into.lines.append(f"{pad}if {self.arg(node.args[0])}:{_comment(node)}")
        for i, region in enumerate(node.regions):
            if i:
                into.lines.append(f"{pad}else:")
            start = len(into.lines)
            self.write_region(region, into, depth + 1)
            self.assign(node.results, region.yields, into, depth + 1)
            if len(into.lines) == start:
                into.lines.append(f"{pad}    pass")

    def write_for(self, node: Node, into: _Function, depth: int) -> None:
        (body,) = node.regions
        bounds = ", ".join(self.arg(a) for a in node.args[:3])
        self.assign(body.params[1:], node.args[3:], into, depth)
        into.lines.append(f"{'    ' * depth}for {self.names[body.params[0]]} in range({bounds}):{_comment(node)}")
        start = len(into.lines)
        self.write_region(body, into, depth + 1)
        self.assign(body.params[1:], body.yields, into, depth + 1)
        if len(into.lines) == start:
            into.lines.append(f"{'    ' * (depth + 1)}pass")
        self.assign(node.results, body.params[1:], into, depth)

    def write_while(self, node: Node, into: _Function, depth: int) -> None:
        test, body = node.regions
        inner = "    " * (depth + 1)
        self.assign(test.params, node.args, into, depth)
        into.lines.append(f"{'    ' * depth}while True:{_comment(node)}")
        self.write_region(test, into, depth + 1)
        into.lines.append(f"{inner}if not {self.arg(test.yields[0])}:")
        into.lines.append(f"{inner}    break")
        self.assign(body.params, test.params, into, depth + 1)
        self.write_region(body, into, depth + 1)
        self.assign(test.params, body.yields, into, depth + 1)
        self.assign(node.results, test.params, into, depth)


def _namespace(op: str) -> str:
    return op.split(".", 1)[0]


def _memory_format(literal: MemoryFormat) -> str:
    return {"contiguous": "contiguous_format", "preserve": "preserve_format"}.get(literal.name, literal.name)


def _comment(node: Node) -> str:
    types = ", ".join(str(r.type) for r in node.results)
    where = f"{os.path.basename(node.span.file)}:{node.span.line}" if node.span is not None else ""
    text = "  ".join(part for part in (types, where) if part)
    return f"  # {text}" if text else ""


def _child(node: Node, scope: str) -> str | None:
    """The path of the module one level below `scope` that the node belongs to, None for `scope` itself."""
    prefix = f"{scope}." if scope else ""
    if not node.scope or not node.scope.startswith(prefix) or node.scope == scope:
        return None
    return prefix + node.scope[len(prefix) :].split(".", 1)[0]


def _runs(nodes: Sequence[Node], scope: str) -> Iterator[tuple[str | None, list[Node]]]:
    run: list[Node] = []
    current: str | None = None
    for node in nodes:
        child = _child(node, scope)
        if run and child != current:
            yield current, run
            run = []
        current = child
        run.append(node)
    if run:
        yield current, run


def _reads(nodes: Iterable[Node]) -> Iterator[Value]:
    """Values that the nodes read, those read in their regions included, those defined in them left out."""
    for node in nodes:
        yield from node.operands()
        for region in node.regions:
            inner = set(region.params) | {r for n in region.walk() for r in n.results}
            inner |= {p for n in region.walk() for r in n.regions for p in r.params}
            found = [*_reads(region), *(v for a in region.yields for v in values_in(a))]
            yield from (v for v in found if v not in inner)


def _is_within(user: Node | Region, members: set[Node]) -> bool:
    """Whether a user is one of the nodes, or stands in a region of one."""
    node: Node | None = user if isinstance(user, Node) else user.owner if isinstance(user.owner, Node) else None
    while node is not None:
        if node in members:
            return True
        parent = node.parent
        node = parent.owner if parent is not None and isinstance(parent.owner, Node) else None
    return False
