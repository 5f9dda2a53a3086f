"""A functional graph as an ONNX model: inputs, weights, state, free sizes, outputs around the nodes.

Invariant: every output depends on all that must hold for the graph to be the program: where it does not hold, the run
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.diag.packages import VERSION
from smelt.diag.records import record
from smelt.ir import STATE_OPS, DType, Graph, ListType, Node, TensorType, Type, Value
from smelt.ops.catalogue.onnx.base import compared, reshape
from smelt.ops.convert import dtype_from_torch
from smelt.ops.record import NoOnnxForm, OnnxValue
from smelt.package.onnx.protobuf import IR_VERSION, OPSET, Protobuf
from smelt.package.onnx.regions import RegionWriter, needless
from smelt.package.onnx.writer import Refusal
from smelt.runtime.ingot.free_sizes import Expr, FreeSizes, shown


@record
class Weight:
    """A tensor that was there before the program. key: equal for tensors that are tied; is_written: calls change it."""

    name: str
    tensor: torch.Tensor
    key: Any
    is_written: bool = False


Weights = Callable[[str, str], Weight]
"""The weight of a kind ("param", "buffer", "captured") and a path."""


@dataclass
class Model:
    """A model as it is made. inputs: a name for each of the graph's; outputs: for each of those that are values.

    state: (input, output) of each tensor that calls write to. refused: what ONNX cannot say.
    """

    protobuf: Protobuf
    graph: Graph
    weights: Weights
    input_names: Sequence[str]
    output_names: Sequence[str]
    free: FreeSizes | None = None
    state: list[tuple[str, str]] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    outputs: list[tuple[OnnxValue, Any]] = field(default_factory=list)
    _taken: dict[Any, OnnxValue] = field(default_factory=dict)
    _defaults: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.writer = RegionWriter(self.protobuf, self.graph, needless(self.graph.body))
        # What is declared is called so; values within go out of its way.
        self.input_names, self.output_names = (
            [self.writer.name(name) for name in names] for names in (self.input_names, self.output_names)
        )
        self._take_inputs()
        if self.free is not None:
            self._check_sizes(self.free)
        writes = []
        for node in self.graph.body:
            if node.op in STATE_OPS:
                self._take_state(node)
            elif node.op == "write":
                writes.append(node)
                self.writer.values[node.result] = self.writer.found(node.args[1])
            elif node not in self.writer.needless:
                self._take_inner_state(node)
                self.writer.write(node)
        values = [output for output in self.graph.outputs if isinstance(output, Value)]
        for name, output in zip(self.output_names, values, strict=True):
            self._give(name, output, output.type)
        for node in writes:
            self._give_state(node)

    @property
    def refused(self) -> list[Refusal]:
        """What ONNX cannot say."""
        return self.writer.refused

    # --- inputs and sizes

    def _take_inputs(self) -> None:
        for value, name in zip(self.graph.inputs, self.input_names, strict=True):
            assert isinstance(value.type, TensorType)
            self.writer.values[value] = OnnxValue(name, value.type.dtype)
            try:
                self.inputs.append(self.protobuf.declared(name, value.type))
            except NoOnnxForm as why:
                self.refused.append(Refusal(f"the input {name}", None, str(why)))

    def _check_sizes(self, free: FreeSizes) -> None:
        """Free sizes as numbers, and what must hold of them."""
        writer = self.writer
        for symbol in free.symbols:
            x = writer.value(self.graph.inputs[symbol.input])
            size = writer.op("Shape", x, dtype=DType.I64, start=symbol.dim, end=symbol.dim + 1)
            writer.sizes[symbol.name] = reshape(writer, size, [])
        for symbol in free.symbols:
            bounds = [("GreaterOrEqual", ">=", symbol.low)]
            bounds += [] if symbol.high is None else [("LessOrEqual", "<=", symbol.high)]
            for kind, sign, bound in bounds:
                holds = compared(writer, kind, writer.sizes[symbol.name], writer.constant(bound, DType.I64))
                writer.require(holds, f"{symbol.name} {sign} {bound}")
        for expr, outcome in free.checks:
            holds = self._truth(expr)
            writer.require(holds if outcome else writer.op("Not", holds), f"{'' if outcome else 'not '}{shown(expr)}")

    def _truth(self, expr: Expr) -> OnnxValue:
        found = self._evaluated(expr)
        return found if found.dtype is DType.BOOL else self.writer.op("Cast", found, dtype=DType.BOOL, to=DType.BOOL)

    def _evaluated(self, expr: Expr) -> OnnxValue:
        """An expression over free sizes."""
        writer = self.writer
        if isinstance(expr, str):
            return writer.sizes[expr]
        if isinstance(expr, int):
            return writer.constant(expr, DType.I64)
        name, *own = expr
        if name == "not":
            return writer.op("Not", self._truth(own[0]))
        operands = [self._evaluated(each) for each in own]
        if name in _COMPARED:
            return writer.op(_COMPARED[name], *operands, dtype=DType.BOOL)
        if name == "!=":
            return writer.op("Not", writer.op("Equal", *operands, dtype=DType.BOOL))
        if name in ("//", "ceil_div"):
            first, second = operands
            first = writer.op("Neg", first) if name == "ceil_div" else first
            found = writer.op("Div", writer.op("Sub", first, writer.op("Mod", first, second)), second)
            return writer.op("Neg", found) if name == "ceil_div" else found
        return writer.op(_NUMERIC[name], *operands)

    # --- state

    def _take_inner_state(self, node: Node) -> None:
        """Tensors that a region reads stand outside of it."""
        for region in node.regions:
            for inner in region.walk():
                if inner.op in STATE_OPS:
                    self._take_state(inner)

    def _take_state(self, node: Node) -> None:
        weight = self.weights(node.op, str(node.args[0]))
        if weight.key not in self._taken:
            self._taken[weight.key] = self._stored(weight)
        self.writer.values[node.result] = self._taken[weight.key]

    def _stored(self, weight: Weight) -> OnnxValue:
        """A weight is an initializer; one that calls write to is an input, whose default it is."""
        tensor = weight.tensor.detach().contiguous()
        dtype, name = dtype_from_torch(tensor.dtype), self.writer.name(weight.name)
        try:
            found = self.writer.initializer(name, tensor, dtype)
        except NoOnnxForm as why:
            self.refused.append(Refusal(f"the weight {name}", None, str(why)))
            return OnnxValue(name, dtype)
        if weight.is_written:
            self._defaults.add(name)
            self.inputs.append(self.protobuf.declared(name, TensorType.of(dtype, tuple(tensor.shape))))
        return found

    def _give_state(self, node: Node) -> None:
        """What a call leaves in state, or in an argument, is a further output."""
        target, value = node.args
        assert isinstance(target, Value)
        found = self.writer.value(target)
        name = self.writer.name(f"{found.name}.next")
        self._give(name, value, target.type)
        self.state.append((found.name, name))

    # --- outputs

    def _give(self, name: str, value: Any, type_: Type) -> None:
        writer = self.writer
        if not isinstance(type_, (TensorType, ListType)) and str(type_) not in ("int", "float", "bool"):
            self.refused.append(Refusal(f"the output {name}", None, f"ONNX has no outputs of type {type_}"))
            return
        try:
            ((found, kind),) = writer.flat(value, type_)
            self.outputs.append((found, self.protobuf.declared(name, kind)))
        except NoOnnxForm as why:
            self.refused.append(Refusal(f"the output {name}", None, str(why)))

    def _tied(self) -> None:
        """Every output depends on all checks: their sum, which is zero, is added to its sizes."""
        writer, check = self.writer, self.writer.checked(self.writer.scope)
        for found, declared in self.outputs:
            if check is None:
                writer.add("Identity", [found.name], [declared.name])
                continue
            if found.is_sequence:
                # One element more at the front, which is taken out again where the sum says.
                first = writer.constant(0, DType.I64)
                longer = writer.op("SequenceInsert", found, writer.constant(0, found.dtype), first)
                at = reshape(writer, check, [])
                writer.add("SequenceErase", [longer.name, at.name], [declared.name])
                continue
            sizes = writer.op("Add", writer.op("Shape", found, dtype=DType.I64), check)
            writer.add("Reshape", [found.name, sizes.name], [declared.name], allowzero=1)

    # --- the message

    def message(self, properties: Mapping[str, str], text: str = "") -> Any:
        """The model as `onnx` has it."""
        self._tied()
        helper = self.protobuf.helper
        names = {declared.name for _, declared in self.outputs}
        nodes = _used(self.writer.scope.nodes, names)
        read = {name for node in nodes for name in _reads(node)} | self._defaults
        graph = helper.make_graph(
            nodes, self.graph.name, self.inputs, [declared for _, declared in self.outputs],
            [tensor for name, tensor in self.writer.initializers.items() if name in read],
            value_info=self._types(nodes, names), doc_string=text,
        )  # fmt: skip
        model = helper.make_model(
            graph, producer_name="smelt", producer_version=VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
        )
        model.ir_version = IR_VERSION
        helper.set_model_props(model, dict(properties))
        return model

    def _types(self, nodes: list[Any], declared: set[str]) -> list[Any]:
        """What is known of values between operators, for viewers.

        Nothing in a graph that holds for some data only: types are of a run that fulfils its checks, and a runtime
        would compute by them whether they are fulfilled.
        """
        if any(node.op == "expect" for node in self.graph.walk()):
            return []
        made = {name for node in nodes for name in node.output} - declared
        found = []
        for value, x in self.writer.values.items():
            if isinstance(x, OnnxValue) and x.name in made and isinstance(value.type, TensorType):
                made.discard(x.name)
                found.append(self.protobuf.declared(x.name, value.type))
        return found


_COMPARED = {"==": "Equal", "<": "Less", "<=": "LessOrEqual", ">": "Greater", ">=": "GreaterOrEqual"}
_NUMERIC = {"+": "Add", "-": "Sub", "*": "Mul", "%": "Mod", "neg": "Neg", "abs": "Abs", "max": "Max", "min": "Min"}


def _used(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """The nodes that outputs need."""
    needed, found = set(wanted), []
    for node in reversed(nodes):
        if needed & set(node.output):
            found.append(node)
            needed |= _reads(node)
    return found[::-1]


def _reads(node: Any) -> set[str]:
    """The names that a node reads, those of its nested graphs included."""
    found = set(node.input)
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                found |= _reads(inner)
            found |= {output.name for output in attribute.g.output}
    return found
