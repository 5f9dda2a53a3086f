"""Branches and loops that a GPU decides: the numbers in them become elements of its memory, so that no host reads them.

    %n: int = aten.item %t                       %2: i64[] = aten.scalar_tensor 0
    for %i: int in (0, %n, 1) with (%h = %x)     %3, %4 = while with (%i = %2, %h = %x) {
      ...                                   ==>    %5 = aten.lt %i, %t; yield %5
                                                 } do { ...; %6 = aten.add %i, 1; yield %6, ... }

A bool, an int and a float are 0-d tensors of bool, i64 and f64. A number that an operator takes is read again where it
lies (`aten.item`, which costs nothing in a kernel); one that is needed outside is read there, by the host.
Invariant: what is rewritten computes what it did. Of a branch or loop for which that cannot be said, or that has no
kernels, nothing is changed, and the reason is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from smelt.analysis import used_values
from smelt.analysis.devices import devices_at, on_cpu
from smelt.autodiff.halves import extract
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.codegen.lower.gpu.planner import ITEM
from smelt.codegen.lower.gpu.program import GpuProgram
from smelt.codegen.lower.python.plain import is_number, is_plain_type
from smelt.diag.records import record
from smelt.ir import (
    BOOL,
    FLOAT,
    INT,
    STATE_OPS,
    Arg,
    Builder,
    Device,
    DType,
    Graph,
    Node,
    Region,
    TensorType,
    TupleType,
    Type,
    Value,
    values_in,
)  # fmt: skip
from smelt.ir.nodes import clone_node
from smelt.ir.python_operators import COMPARISON_NAMES
from smelt.ir.type_order import type_of_arg
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.python.python_numbers import FITS
from smelt.rewrite import Rewriter

CONTROL = ("if", "for", "while")
_READS = (ITEM, "aten._local_scalar_dense.default")
_COMPARED = {f"py.{name}": f"aten.{name}.Tensor" for name in COMPARISON_NAMES}
_JOINED = {f"py.{name}": f"aten.logical_{name.rstrip('_')}.default" for name in ("and_", "or_", "xor")}
_COMPUTED = {f"py.{name}": f"aten.{name}.Tensor" for name in ("add", "sub", "mul")}
_DIVIDED = {"py.mod": "aten.remainder.Scalar", "py.floordiv": "aten.floor_divide.Scalar"}
_FAR: Final = 1 << 31
"""What an int may be moved by in a turn: to pass 64 bits that way takes longer than anybody waits."""

Accepts = Callable[[Graph, Node], str]
"""Why a branch or loop of tensors alone has no kernels; empty where it has."""


class _NoForm(Exception):
    """Why a branch or a loop is left to the host."""


@record
class Decided:
    """graph: the rewritten copy. kept: the values asked for, there. nodes: branches and loops that the GPU decides.
    why: the reason for each other.
    """

    graph: Graph
    kept: tuple[Value, ...]
    nodes: frozenset[Node]
    why: dict[Node, str]


def why_no_kernels(planned: Callable[[Graph], GpuProgram], whole: Graph, node: Node) -> str:
    """Why a branch or loop of tensors alone has no kernels, as they would be planned; empty where it has."""
    inputs = sorted(dict.fromkeys(used_values(node)), key=lambda v: is_number(v.type))
    program = planned(on_cpu(extract(whole, whole.name, inputs, node.results, ())))
    return program.refused[0][1] if program.refused else ""


def with_decided(graph: Graph, device: str, accepts: Accepts, kept: Sequence[Value] = (), refused: str = "") -> Decided:
    """A graph with as many of its branches and loops decided by the GPU as can be.

    kept: values that are needed besides the outputs. refused: why none is, if the GPU has no conditional nodes.
    """
    made = graph.clone()
    names = {value.name: value for value in made.values()}
    outputs = made.outputs
    rewriter = Rewriter(made)
    rewriter.set_yields(made.body, (*outputs, *(names[value.name] for value in kept)))
    writer = _Writer(rewriter, device)
    nodes: list[Node] = []
    why: dict[Node, str] = {}
    for node in list(made.body):
        if node.op not in CONTROL:
            continue
        try:
            if refused:
                raise _NoForm(refused)
            nodes += writer.rewritten(node, accepts)
        except _NoForm as reason:
            why[node] = str(reason)
    values = made.outputs
    rewriter.set_yields(made.body, values[: len(outputs)])
    found = tuple(value for value in values[len(outputs) :] if isinstance(value, Value))
    _drop_unused(rewriter, found)
    return Decided(made, found, frozenset(nodes), why)


def _drop_unused(rewriter: Rewriter, kept: Sequence[Value]) -> None:
    for node in reversed(rewriter.graph.body):
        if node.regions or not node.results or any(r.users or r in kept for r in node.results):
            continue
        found = effects(node)
        is_number_made = all(r.type in NUMBER_TYPES for r in node.results) or node.op == "aten.scalar_tensor.default"
        if is_number_made and found.is_pure and not found.may_throw:
            rewriter.erase(node)


@dataclass(slots=True)
class _Writer:
    """known: of numbers outside of what is rewritten, the tensors that hold them. inside: of what stands in it, what
    stands for each value. anchor: the node before which values are made that all of it needs.
    """

    rewriter: Rewriter
    device: str
    known: dict[Value, Value] = field(default_factory=dict)
    inside: dict[Value, Value] = field(default_factory=dict)
    anchor: Node | None = None
    emitter: GraphEmitter = field(init=False)
    made: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.emitter = GraphEmitter(self.builder, self._added)

    @property
    def builder(self) -> Builder:
        return self.rewriter.builder

    def _added(self, node: Node) -> None:
        if node.parent is self.rewriter.graph.body:
            self.made.append(node)

    def rewritten(self, node: Node, accepts: Accepts) -> list[Node]:
        """Rewrite a branch or a loop of the body; what the GPU decides of it. Raises: _NoForm, with nothing changed."""
        self.anchor, self.made, self.inside = node, [], {}
        known = dict(self.known)
        try:
            with self.builder.at(node):
                found = self._control(node)
            new = self.anchor if self.anchor is not node else None
            if new is not None:
                self._prune(new)
            if new is not None and (why := accepts(self.rewriter.graph, new)):
                raise _NoForm(why)
        except _NoForm:
            self.known = known
            for made in sorted(self.made, key=self._place, reverse=True):
                self.rewriter.erase(made)
            raise
        for old, value in zip(list(node.results), found, strict=True):
            if value is None:
                continue
            if is_number(old.type):
                with self.builder.at(node):
                    read = self._read(value, old.type)
                self.known[read] = value
                value = read
            self.rewriter.replace_all_uses(old, value)
        self.rewriter.erase(node)
        return [] if new is None else [new]

    def _prune(self, node: Node) -> None:
        """Erase what nothing in the regions of a node needs."""
        for region in node.regions:
            for inner in reversed(region):
                found = effects(inner)
                if found.is_pure and not found.may_throw and not any(result.users for result in inner.results):
                    self.rewriter.erase(inner)
                else:
                    self._prune(inner)

    def _place(self, node: Node) -> int:
        return list(self.rewriter.graph.body).index(node)

    # --- branches and loops

    def _control(self, node: Node) -> list[Value | None]:
        """Write a branch or a loop at the builder's place; what stands for its results, None for those unused."""
        if node.mode:
            raise _NoForm(f"it runs under {node.mode}")
        with self._at(node):
            if node.op == "if":
                return self._branch(node)
            return list(self._counted(node) if node.op == "for" else self._loop(node))

    @contextmanager
    def _at(self, node: Node) -> Iterator[None]:
        """Let new nodes have a node's line."""
        builder = self.builder
        saved = builder.span, builder.scope
        builder.span, builder.scope = node.span or builder.span, node.scope
        try:
            yield
        finally:
            builder.span, builder.scope = saved

    def _branch(self, node: Node) -> list[Value | None]:
        used = [k for k, result in enumerate(node.results) if result.users]
        if not used and effects(node).is_pure and not effects(node).may_throw:
            return [None] * len(node.results)
        test = self._truth(node.args[0])
        if not any(len(region) for region in node.regions) and all(self._is_small(node.results[k]) for k in used):
            # A choice between numbers that are there is none of what to run.
            arms = [[self._of(region.yields[k], node.results[k].type) for k in used] for region in node.regions]
            found = [self.emitter.call("aten.where.self", test, a, b) for a, b in zip(*arms, strict=True)]
            return self._spread(node, used, found)
        new = self._opened("if", [test], [self._type(node.results[k]) for k in used])
        for region in node.regions:
            with self.builder.inside(self.builder.add_region(new)) as inner:
                self._body(region, used)
                inner.set_yields(tuple(self._of(region.yields[k], node.results[k].type) for k in used))
        return self._spread(node, used, new.results)

    def _spread(self, node: Node, used: Sequence[int], found: Sequence[Value]) -> list[Value | None]:
        results: list[Value | None] = [None] * len(node.results)
        for k, value in zip(used, found, strict=True):
            results[k] = value
        return results

    def _is_small(self, value: Value) -> bool:
        return is_number(value.type) or (isinstance(value.type, TensorType) and value.type.sizes == ())

    def _loop(self, node: Node) -> Sequence[Value]:
        types = [result.type for result in node.results]
        new = self._opened("while", [self._of(a, t) for a, t in zip(node.args, types, strict=True)],
                           [self._type(result) for result in node.results])  # fmt: skip
        tests, region = node.regions
        with self._region(new, tests.params) as inner:
            self._body(tests)
            inner.set_yields((self._truth(tests.yields[0]),))
        with self._region(new, region.params) as inner:
            self._body(region)
            inner.set_yields(tuple(self._of(a, t) for a, t in zip(region.yields, types, strict=True)))
        return new.results

    def _counted(self, node: Node) -> Sequence[Value]:
        """A loop that counts, as one that carries its counter."""
        start, stop, step = node.args[:3]
        if type(step) is not int or not 0 < abs(step) < _FAR:
            raise _NoForm("it counts by a step that is not written out")
        if abs(step) > 1 and not (type(start) is int and abs(start) < _FAR):
            raise _NoForm("it counts from a number that is not written out, by more than 1")
        (region,) = node.regions
        types = [INT, *(result.type for result in node.results)]
        end = self._of(stop, INT)
        first = [self._of(a, t) for a, t in zip((start, *node.args[3:]), types, strict=True)]
        new = self._opened("while", first, [self._scalar(INT), *(self._type(result) for result in node.results)])
        with self._region(new, region.params) as inner:
            compare = "aten.lt.Tensor" if step > 0 else "aten.gt.Tensor"
            inner.set_yields((self.emitter.call(compare, self.inside[region.params[0]], end),))
        with self._region(new, region.params) as inner:
            counter = self.inside[region.params[0]]
            self._body(region)
            following = self.emitter.call("aten.add.Tensor", counter, self._of(step, INT))
            yielded = (self._of(a, t) for a, t in zip(region.yields, types[1:], strict=True))
            inner.set_yields((following, *yielded))
        return new.results[1:]

    def _opened(self, op: str, args: Sequence[Arg], types: Sequence[Type]) -> Node:
        new = self.builder.add(op, args, types)
        self._added(new)
        if new.parent is self.rewriter.graph.body:
            self.anchor = new
        return new

    @contextmanager
    def _region(self, owner: Node, params: Sequence[Value]) -> Iterator[Region]:
        """A region of a loop, whose parameters stand for others."""
        with self.builder.inside(self.builder.add_region(owner)) as region:
            for param in params:
                self.inside[param] = self.builder.add_param(region, "", self._type(param))
            yield region

    def _body(self, region: Region, used: Sequence[int] | None = None) -> None:
        """Write the nodes of a region that are needed for what it yields. used: of which that is enough."""
        yields = region.yields if used is None else [region.yields[k] for k in used]
        for node in _needed(region, yields):
            with self._at(node):
                self._node(node)

    # --- nodes

    def _node(self, node: Node) -> None:
        """Write a node of a region."""
        if node.op in CONTROL:
            found = self._control(node)
        elif len(node.results) == 1 and is_number(node.result.type):
            found = [self._computed(node)]
        else:
            found = list(self._copied(node).results)
        self.inside.update((old, new) for old, new in zip(node.results, found, strict=True) if new is not None)

    def _copied(self, node: Node) -> Node:
        is_state = node.op in (*STATE_OPS, "const")
        if not is_state:
            self._check(node)
        mapping: dict[Value, Arg] = {value: self._operand(value) for value in node.operands()}
        copy = clone_node(node, mapping)
        for result in copy.results:
            result.name = self.builder.fresh_name()
        if is_state:
            assert self.anchor is not None and self.anchor.parent is not None
            self.anchor.parent.insert(copy, self.anchor)
            self.made.append(copy)
        else:
            self.builder.region.insert(copy, self.builder.before)
        return copy

    def _check(self, node: Node) -> None:
        found, types = effects(node), [v.type for v in (*node.operands(), *node.results)]
        if found.rng:
            raise _NoForm(f"{node.op} in it draws random numbers, as many as the data says")
        if node.mode or node.regions or not found.is_pure or (not node.op.startswith("aten.") and node.op != "unpack"):
            raise _NoForm(f"{node.op} in it is what only the host does")
        plain = all(is_number(t) or is_plain_type(t) for t in types)
        if not plain or not all(t.numel for t in types if isinstance(t, TensorType)):
            raise _NoForm(f"{node.op} in it is of a tensor whose size the data says, that is empty, or of no tensor")
        if devices_at(node) != {self.device}:
            raise _NoForm(f"{node.op} in it needs a tensor of another device")

    def _operand(self, value: Value) -> Arg:
        """What stands for an operand of an operator of torch."""
        if not is_number(value.type):
            return self.inside.get(value, value)
        tensor = self.inside.get(value) or self._outside(value)
        return value if tensor is None else self._read(tensor, value.type)

    def _read(self, tensor: Value, type_: Type) -> Value:
        made = self.builder.add(ITEM, (tensor,), (type_,))
        self._added(made)
        return made.result

    # --- numbers

    def _scalar(self, type_: Type) -> TensorType:
        return TensorType(NUMBER_TYPES[type_], (), device=self.device)

    def _type(self, value: Value) -> Type:
        """The type of what stands for a value."""
        if is_number(value.type):
            return self._scalar(value.type)
        type_ = value.type
        if isinstance(type_, TupleType) or not is_plain_type(type_):
            raise _NoForm(f"it carries or gives {type_}, which is no tensor of known sizes and strides")
        assert isinstance(type_, TensorType)
        if type_.device != self.device or not type_.numel:
            raise _NoForm("it carries or gives a tensor that is empty, or of another device")
        return type_

    def _of(self, arg: Arg, type_: Type) -> Value:
        """A tensor, or the 0-d one that holds a number."""
        if not is_number(type_):
            if not isinstance(arg, Value) or not isinstance(arg.type, TensorType):
                raise _NoForm(f"it carries or gives {type_}, which is no tensor of known sizes and strides")
            return self.inside.get(arg, arg)
        if isinstance(arg, Value) and arg.type == type_:
            return self.inside.get(arg) or self._outside(arg) or self._sent(arg, type_)
        if type_of_arg(arg) != type_ or (type(arg) is int and not -(2**63) <= arg < 2**63):
            raise _NoForm("a number in it is now of one type and now of another")
        return self._filled(arg, type_)

    def _filled(self, arg: Arg, type_: Type) -> Value:
        return self.emitter.call(
            "aten.scalar_tensor.default", arg, dtype=NUMBER_TYPES[type_], device=Device(self.device)
        )

    def _sent(self, value: Value, type_: Type) -> Value:
        """A number of the host's, in the GPU's memory."""
        with self._before_all():
            found = self.known[value] = self._filled(value, type_)
        return found

    @contextmanager
    def _before_all(self) -> Iterator[None]:
        assert self.anchor is not None
        with self.builder.at(self.anchor):
            yield

    def _outside(self, value: Value) -> Value | None:
        """The tensor that holds a number from outside; None for one that the host knows."""
        if value in self.known:
            return self.known[value]
        node = value.node
        if node is None or not _is_read(node, self.device) or node.parent is not self.rewriter.graph.body:
            return None
        saved, self.inside = self.inside, {}
        try:
            with self._before_all(), self._at(node):
                found = self.known[value] = self._computed(node)
        except _NoForm:
            return None  # the host computes it, and sends it
        finally:
            self.inside = saved
        return found

    def _truth(self, arg: Arg) -> Value:
        """A condition as a tensor of one bool."""
        type_ = type_of_arg(arg)
        if isinstance(arg, Value) and isinstance(arg.type, TensorType):
            value = self._element(arg)
        elif is_number(type_):
            value = self._of(arg, type_)
        else:
            raise _NoForm(f"its test is {type_}")
        assert isinstance(value.type, TensorType)
        return value if value.type.dtype is DType.BOOL else self.emitter.call("aten.ne.Scalar", value, 0)

    def _element(self, value: Value) -> Value:
        """A tensor of one element as one of no dimensions."""
        type_ = value.type
        if not isinstance(type_, TensorType) or not is_plain_type(type_) or type_.numel != 1:
            raise _NoForm("it reads a tensor of many elements, or of a size that the data says")
        if type_.device != self.device:
            raise _NoForm("it reads a tensor of another device")
        found = self.inside.get(value, value)
        return self.emitter.call("aten.reshape.default", found, ()) if type_.sizes else found

    def _cast(self, value: Value, type_: Type) -> Value:
        assert isinstance(value.type, TensorType)
        dtype = NUMBER_TYPES[type_]
        return value if value.type.dtype is dtype else self.emitter.call("aten._to_copy.default", value, dtype=dtype)

    def _computed(self, node: Node) -> Value:
        """A number of a node as a tensor, with Python's own meaning."""
        op, args, found = node.op, node.args, node.result.type
        types = [type_of_arg(arg) for arg in args]
        if node.kwargs or not args:
            raise self._no_number(node)
        if isinstance(types[0], TensorType):
            return self._of_tensor(node)
        if not all(map(is_number, types)):
            raise self._no_number(node)
        if op in ("py.bool", "py.not_") and len(args) == 1:
            truth = self._truth(args[0])
            return truth if op == "py.bool" else self.emitter.call("aten.logical_not.default", truth)
        if op in ("py.int", "py.float", "py.pos") and len(args) == 1 and (found == FLOAT or FLOAT not in types):
            return self._cast(self._of(args[0], types[0]), found)
        if op in _COMPARED and len(set(types)) == 1:
            a, b = (self._of(a, t) for a, t in zip(args, types, strict=True))
            return self.emitter.call(_COMPARED[op], a, b)
        if op in _JOINED and set(types) == {BOOL}:
            return self.emitter.call(_JOINED[op], *(self._of(a, BOOL) for a in args))
        if op in _COMPUTED and (found == FLOAT or (op != "py.mul" and self._is_step(args, types))):
            a, b = (self._cast(self._of(a, t), found) for a, t in zip(args, types, strict=True))
            return self.emitter.call(_COMPUTED[op], a, b)
        if op in _DIVIDED and types == [INT, INT] and type(args[1]) is int and 0 < args[1] < _FAR:
            return self.emitter.call(_DIVIDED[op], self._of(args[0], INT), args[1])
        if op in ("py.max", "py.min") and len(args) == 2 and len(set(types)) == 1:
            a, b = (self._of(a, t) for a, t in zip(args, types, strict=True))
            is_second = self.emitter.call("aten.gt.Tensor" if op == "py.max" else "aten.lt.Tensor", b, a)
            return self.emitter.call("aten.where.self", is_second, b, a)
        raise self._no_number(node)

    def _is_step(self, args: Sequence[Arg], types: Sequence[Type]) -> bool:
        """Whether an int is moved by so little that it stays one of 64 bits."""
        written = [arg for arg in args if type(arg) is int]
        return all(t == INT for t in types) and len(written) == 1 and abs(written[0]) < _FAR

    def _no_number(self, node: Node) -> _NoForm:
        return _NoForm(f"{node.op} in it computes a number as only Python does")

    def _of_tensor(self, node: Node) -> Value:
        """A number that is read of a tensor."""
        (value, *rest), found = node.args, node.result.type
        if rest or not isinstance(value, Value) or node.op not in (*_READS, "py.bool", "py.int", "py.float", "py.not_"):
            raise self._no_number(node)
        if node.op in ("py.bool", "py.not_"):
            truth = self._truth(value)
            return truth if node.op == "py.bool" else self.emitter.call("aten.logical_not.default", truth)
        element = self._element(value)
        assert isinstance(element.type, TensorType)
        if element.type.dtype.kind not in ("bool", "int", "uint", "float"):
            raise self._no_number(node)
        if found == INT and element.type.dtype.kind == "float":
            raise self._no_number(node)  # of what is no number, Python raises
        return self._cast(element, found)


def _needed(region: Region, yields: Sequence[Arg]) -> list[Node]:
    """The nodes that some values of a region need, and those that do more than compute."""
    wanted = {value for arg in yields for value in values_in(arg)}
    found = []
    for node in reversed(region):
        if not effects(node).is_pure or effects(node).may_throw or not wanted.isdisjoint(node.results):
            found.append(node)
            wanted.update(used_values(node))
    return found[::-1]


def _is_read(node: Node, device: str) -> bool:
    """Whether a number follows from what is in a GPU's memory."""
    if node.regions or node.op == FITS:
        return False
    for value in node.operands():
        if isinstance(value.type, TensorType):
            if value.type.device == device:
                return True
        elif value.node is not None and _is_read(value.node, device):
            return True
    return False
