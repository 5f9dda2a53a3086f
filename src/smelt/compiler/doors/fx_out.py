"""A captured program as a `torch.fx.GraphModule` that runs with torch alone.

Operators are the overloads of the graph, `if` becomes `torch.ops.higher_order.cond`, `while` and `for` become
`while_loop`, Python's scalars and containers calls of builtins. The module is called like the program, and its
parameters and buffers are the program's own.

Invariant: nodes stand in the order of the graph, so writes and other effects happen in the program's order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from smelt._torch.library.fx import assert_that, take_structures
from smelt._torch.library.pytree import tree_flatten
from smelt.capture.structure.tree import rebuild
from smelt.compiler.doors.fx_checks import Head, same_number
from smelt.compiler.doors.fx_python import emit_python
from smelt.diag import CaptureError, InternalError
from smelt.ir import BOOL, FLOAT, INT, STATE_OPS, Arg, Graph, Node, Region, TensorType, Type, Value, values_in
from smelt.ops.convert import strided_copy, to_torch
from smelt.ops.evaluate import constant
from smelt.ops.modes import contexts
from smelt.ops.registry import overload

if TYPE_CHECKING:
    from smelt.compiler.unit import Unit


def graph_module(unit: Unit) -> GraphModule:
    """The program of a unit. Raises: CaptureError (S0108) for what torch.fx has no form for."""
    signature = unit.signature
    if signature.puts is not None:
        _refuse(
            "the side effects of the program on the containers in its arguments",
            "torch's pytree passes on their elements alone",
        )
    given, made = ([_Mark(i) for i in range(len(part))] for part in (signature.inputs, unit.graph.outputs))
    args, kwargs = rebuild(signature.args, given), rebuild(signature.kwargs, given)
    leaves, in_spec = tree_flatten((args, kwargs))
    found, out_spec = tree_flatten(signature.rebuild(made, args, kwargs))
    emitter = _Emitter(unit.graph, unit.lookup)
    emitter.inputs(leaves, unit)
    results = dict(zip(made, emitter.region(unit.graph.body), strict=True))
    # A container of the arguments that is returned has their marks.
    results.update((mark, emitter.values[unit.graph.inputs[mark.index]]) for mark in given)
    emitter.fx.output([results[leaf] if isinstance(leaf, _Mark) else _leaf(leaf) for leaf in found])
    names = [f"arg_{i}" for i in range(len(args))] + list(kwargs)
    take_structures(emitter.fx, names, in_spec, out_spec)
    return GraphModule(emitter.root, emitter.fx, class_name=unit.captured.name.replace(".", "_") or "Program")


_FIXED = (
    bool, int, float, complex, str, Enum, slice, range, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
"""Of what class an argument is that the graph has as a constant, and that is compared by its value."""


class _Mark:
    """Stands for a tensor in a structure."""

    def __init__(self, index: int) -> None:
        self.index = index


def _leaf(value: Any) -> Any:
    """A value that the program returns whatever its inputs are."""
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype | torch.device):
        return value
    _refuse(f"a {type(value).__qualname__} in the program's result", "torch.fx has no constant of this class")


class _Emitter:
    """Makes one `torch.fx` graph; regions get an emitter each over the same state."""

    def __init__(self, graph: Graph, lookup: Callable[[str, str], torch.Tensor]) -> None:
        self.graph, self.lookup = graph, lookup
        self.fx = FxGraph()
        self.root: dict[str, Any] = {}
        self.values: dict[Value, Any] = {}

    def inputs(self, leaves: Sequence[Any], unit: Unit) -> None:
        """A placeholder for each leaf of the arguments, then assertions of what the graph holds for."""
        made = [self.fx.placeholder(f"input_{i}") for i in range(len(leaves))]
        head = Head(self.fx)
        for leaf, node in zip(leaves, made, strict=True):
            if isinstance(leaf, _Mark):
                value = self.graph.inputs[leaf.index]
                first = self.values.setdefault(value, node)
                if first is not node:
                    head.one(first, node, (value.type, value.type), are_one=True)
            elif _has_marks(leaf):
                _refuse(f"an argument of class {type(leaf).__qualname__}", "torch's pytree does not know the class")
            elif leaf is None or isinstance(leaf, _FIXED):
                head.fixed(node, leaf)
        self.checks(head, unit)

    def checks(self, head: Head, unit: Unit) -> None:
        """Assert what the graph holds for, of its inputs."""
        symbols = {} if unit.captured.sizes is None else unit.captured.sizes.symbols
        tensors = {}
        for i, (value, place) in enumerate(zip(self.graph.inputs, unit.signature.inputs, strict=True)):
            names = {origin.dim: name for name, origin in symbols.items() if origin.input == i}
            if isinstance(value.type, TensorType):
                head.tensor(self.values[value], value.type, place, names)
                tensors[value] = value.type, place
            else:
                head.number(self.values[value], value.type, place, names.get(None))
        try:
            for value, (type_, place) in tensors.items():
                head.extents(self.values[value], type_, place)
            for check in unit.checks:
                head.check(check)
        except InternalError as error:
            _refuse("what the sizes of its inputs must fulfil", error.reason)
        written = {node.args[0] for node in self.graph.walk() if node.op == "write"}
        for a, b in combinations(tensors, 2):
            if not written.isdisjoint((a, b)):
                head.one(self.values[a], self.values[b], (a.type, b.type), are_one=False)

    def region(self, region: Region) -> list[Any]:
        """The values that a region yields, its nodes appended."""
        for node in region:
            results = self.node(node)
            self.values.update(zip(node.results, results, strict=True))
        return [self.bind(arg) for arg in region.yields]

    def bind(self, arg: Arg) -> Any:
        """An argument with nodes for values."""
        if isinstance(arg, Value):
            return self.values[arg]
        if isinstance(arg, tuple):
            return [self.bind(item) for item in arg]
        return to_torch(arg)

    def node(self, node: Node) -> list[Any]:
        """The results of a node."""
        if node.op in STATE_OPS:
            path = str(node.args[0])
            return [self.attribute(path, self.lookup(node.op, path))]
        special = _SPECIAL.get(node.op)
        if special is not None:
            return special(self, node)
        args = [self.bind(arg) for arg in node.args]
        kwargs = {name: self.bind(arg) for name, arg in node.kwargs.items()}
        if node.op == "py.bool":
            return [self.truth(node.args[0])]
        if node.op == "py.pop":
            return self.pop(args)
        if node.op.startswith("py."):
            results = emit_python(self.fx, node.op, args, kwargs)
            if results is None:
                _refuse(f"{node.op}", "there is no function of Python's or torch's that does it", node)
            return results
        target = overload(node.op)
        if target is None:
            _refuse(f"{node.op}", "torch's registry has no operator of that name", node)
        with_mode = self.modes(node)
        made = self.fx.call_function(target, tuple(args), kwargs)
        for leave in with_mode:
            leave()
        if len(node.results) == 1:
            return [made]
        return [self.fx.call_function(operator.getitem, (made, i)) for i in range(len(node.results))]

    def modes(self, node: Node) -> list[Callable[[], Any]]:
        """Switch on what the node's mode names; what switches it off again."""
        leave: list[Callable[[], Any]] = []
        for context in contexts(node.mode) if node.mode else ():
            if isinstance(context, torch.autocast):
                made = self.fx.call_function(
                    torch.autocast, (context.device, context.fast_dtype, context._enabled, context._cache_enabled)
                )
                self.fx.call_method("__enter__", (made,))
                leave.insert(0, partial(self.fx.call_method, "__exit__", (made, None, None, None)))
            else:
                before = self.fx.call_function(torch.is_grad_enabled)
                self._call(torch.set_grad_enabled, isinstance(context, torch.enable_grad))
                leave.insert(0, partial(self._call, torch.set_grad_enabled, before))
        return leave

    def _call(self, target: Any, *args: Any) -> None:
        self.fx.call_function(target, args)

    def truth(self, arg: Arg) -> Any:
        """Python's truth of an argument, without asking Python: torch.fx traces a module again to unpickle it."""
        value = self.bind(arg)
        if not isinstance(arg, Value):
            return bool(value)
        if isinstance(arg.type, TensorType):
            return self.fx.call_function(torch.ops.aten.is_nonzero.default, (value,))
        if arg.type == BOOL:
            return value
        if arg.type in (INT, FLOAT):
            return self.fx.call_function(operator.ne, (value, 0))
        return self.fx.call_function(bool, (value,))

    def attribute(self, path: str, value: Any) -> FxNode:
        """A node for a tensor or function that the module holds under a path."""
        name = "".join(c if c.isalnum() or c in "._" else "_" for c in path)
        while name in self.root and self.root[name] is not value:
            name += "_"
        self.root[name] = value
        return self.fx.get_attr(name)

    # ---------------------------------------------------------------- operations of the graph's own

    def constant(self, node: Node) -> list[Any]:
        data = self.attribute(f"constant_{node.result.name}", strided_copy(constant(self.graph, node)))
        # The graph may write to it in place.
        return [self.fx.call_function(torch.ops.aten.clone.default, (data,))]

    def unpack(self, node: Node) -> list[Any]:
        whole = self.bind(node.args[0])
        return [self.fx.call_function(operator.getitem, (whole, i)) for i in range(len(node.results))]

    def write(self, node: Node) -> list[Any]:
        target, value = (self.bind(arg) for arg in node.args)
        before = self.fx.call_function(torch.is_grad_enabled)
        self._call(torch.set_grad_enabled, False)
        made = self.fx.call_function(torch.ops.aten.copy_.default, (target, value))
        self._call(torch.set_grad_enabled, before)
        return [made] if node.results else []

    def expect(self, node: Node) -> list[Any]:
        value, wanted = self.bind(node.args[0]), to_torch(node.args[1])
        call = self.fx.call_function
        if isinstance(node.args[0], Value) and isinstance(node.args[0].type, TensorType):
            value = call(torch.ops.aten.item.default, (value,))
        holds = same_number(self.fx, value, wanted)
        call(assert_that, (holds, f"the graph holds only where {wanted!r} is found here ({node.span})"))
        return []

    def pop(self, args: list[Any]) -> list[Any]:
        made = self.fx.call_function(list, (args[0],))
        return [made, self.fx.call_method("pop", (made, *args[1:]))]

    def branch(self, node: Node) -> list[Any]:
        outer = _outer_values(node)
        _check_types(node, [value.type for value in outer])
        then, other = (self.function(region, [], outer) for region in node.regions)
        operands = tuple(self.values[value] for value in outer)
        call = self.fx.call_function
        test = self.bind(node.args[0])
        made = call(torch.ops.higher_order.cond, (test, then, other, operands))
        return [call(operator.getitem, (made, i)) for i in range(len(node.results))]

    def repeated(self, node: Node) -> list[Any]:
        outer = _outer_values(node)
        _check_types(node, [value.type for value in (*outer, *node.results)])
        test, body = node.regions
        carried = tuple(self.bind(arg) for arg in node.args)
        return self._loop(
            self.function(test, test.params, outer, is_test=True), self.function(body, body.params, outer), carried,
            outer, len(node.results),
        )  # fmt: skip

    def counted(self, node: Node) -> list[Any]:
        start, _, step = (self.bind(arg) for arg in node.args[:3])
        if not isinstance(step, int):
            _refuse("a loop over a range whose step is computed", "while_loop needs to know its direction", node)
        outer = _outer_values(node)
        (body,) = node.regions
        _check_types(node, [value.type for value in (*outer, *node.results)])
        test = _Emitter(self.graph, self.lookup)
        names = [test.fx.placeholder(f"carried_{i}") for i in range(len(body.params))]
        for i, value in enumerate(outer):
            test.values[value] = test.fx.placeholder(f"outer_{i}")
        end = test.bind(node.args[1])
        test.fx.output(test.fx.call_function(operator.lt if step > 0 else operator.gt, (names[0], end)))
        carried = (start, *(self.bind(arg) for arg in node.args[3:]))
        after = self.function(body, body.params, outer, step=step)
        found = self._loop(
            self.attribute(self._free("test"), GraphModule({}, test.fx)), after, carried, outer, len(carried)
        )
        return found[1:]

    def _loop(
        self, test: FxNode, body: FxNode, carried: Sequence[Any], outer: Sequence[Value], count: int
    ) -> list[Any]:
        more = tuple(self.values[value] for value in outer)
        made = self.fx.call_function(torch.ops.higher_order.while_loop, (test, body, tuple(carried), more))
        return [self.fx.call_function(operator.getitem, (made, i)) for i in range(count)]

    def function(
        self, region: Region, params: Sequence[Value], outer: Sequence[Value], *, is_test: bool = False, step: int = 0
    ) -> FxNode:
        """A module of a region that takes its parameters, then what it uses from outside; step: of a counted loop,
        whose next index stands first in what it gives."""
        inner = _Emitter(self.graph, self.lookup)
        for i, value in enumerate((*params, *outer)):
            inner.values[value] = inner.fx.placeholder(f"value_{i}")
        yields = inner.region(region)
        if step:
            yields.insert(0, inner.fx.call_function(operator.add, (inner.values[params[0]], step)))
        inner.fx.output(inner.truth(region.yields[0]) if is_test else tuple(yields))
        return self.attribute(self._free("region"), GraphModule(inner.root, inner.fx))

    def _free(self, name: str) -> str:
        return next(f"{name}_{i}" for i in range(len(self.root) + 1) if f"{name}_{i}" not in self.root)


_SPECIAL: dict[str, Callable[[_Emitter, Node], list[Any]]] = {
    "const": _Emitter.constant, "unpack": _Emitter.unpack, "write": _Emitter.write, "expect": _Emitter.expect,
    "if": _Emitter.branch, "while": _Emitter.repeated, "for": _Emitter.counted,
}  # fmt: skip


def _outer_values(node: Node) -> list[Value]:
    """What a node's regions, and its bounds, use that is defined outside of it."""
    inside: set[Value] = set()
    used: dict[Value, None] = {}
    if node.op == "for":
        used.update(dict.fromkeys(values_in(node.args[1])))
    for region in node.regions:
        inside.update(region.params)
        for inner in region.walk():
            inside.update(inner.results)
            for part in inner.regions:
                inside.update(part.params)
                used.update(dict.fromkeys(v for arg in part.yields for v in values_in(arg)))
            used.update(dict.fromkeys(inner.operands()))
        used.update(dict.fromkeys(v for arg in region.yields for v in values_in(arg)))
    return [value for value in used if value not in inside]


def _check_types(node: Node, types: Sequence[Type]) -> None:
    for type_ in types:
        if not (isinstance(type_, TensorType) or type_ in (INT, BOOL)):
            name = "cond" if node.op == "if" else "while_loop"
            why = f"torch.ops.higher_order.{name} takes tensors, ints and bools"
            _refuse(f"a {type_} used or carried by {node.op!r}", why, node)


def _has_marks(value: Any) -> bool:
    return any(isinstance(part, _Mark) for part in getattr(value, "__dict__", {}).values())


def _refuse(what: str, why: str, node: Node | None = None) -> NoReturn:
    raise CaptureError(
        f"to_fx cannot express {what}",
        None if node is None else node.span,
        why=why,
        fix="use p.code, which is Python of any kind that imports only torch",
        code="S0108",
    )
