"""Random small programs for property tests: views, in-place writes through them, reductions, dtypes, empty, NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from smelt.diag import InternalError
from smelt.ir import Builder, Graph, TensorType, Value
from smelt.ops.convert import type_of
from smelt.ops.registry import normalize
from smelt.ops.typing import infer
from smelt.passes.mutation.mutations import holds

SHAPES = ((3, 4), (4,), (2, 2, 3), (), (0, 3), (1, 4))
DTYPES = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.bool)
ELEMENTS = (0.0, -0.0, 1.0, -1.5, 2.0, math.nan, math.inf, 0.25, 7.0)

UNARY = ("sin", "neg", "abs", "relu", "exp", "clone", "square", "sigmoid")
BINARY = ("add.Tensor", "mul.Tensor", "sub.Tensor", "div.Tensor", "maximum.default")
IN_PLACE_UNARY = ("neg_", "zero_", "sin_", "relu_")
IN_PLACE_BINARY = ("add_.Tensor", "mul_.Tensor", "copy_.default", "sub_.Tensor")
STEPS = 10
NUMBERS = (0, 1, 2, 1.0, -0.0, 0.5)


@dataclass(frozen=True)
class Program:
    graph: Graph
    inputs: list[torch.Tensor]


class Writer:
    """Adds drawn nodes to a graph; a drawn node that eager would refuse is left out."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = Builder(Graph("random"))
        self.values: list[Value] = []
        self.inputs: list[torch.Tensor] = []

    def add_input(self) -> None:
        shape = self.draw(st.sampled_from(SHAPES))
        dtype = self.draw(st.sampled_from(DTYPES))
        count = max(1, math.prod(shape))
        elements = self.draw(st.lists(st.sampled_from(ELEMENTS), min_size=count, max_size=count))
        data = torch.tensor(elements, dtype=torch.float64)[: math.prod(shape)]
        if not dtype.is_floating_point:
            data = data.nan_to_num(3.0, 5.0, -5.0)
        tensor = data.to(dtype).reshape(shape)
        if self.draw(st.booleans()) and len(shape) >= 2:
            tensor = tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
        self.inputs.append(tensor)
        name = f"x{len(self.inputs)}"
        self.values.append(self.builder.add_param(self.builder.graph.body, name, type_of(tensor)))

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.values))

    def emit(self, op: str, *args: object) -> None:
        try:
            positional, named = normalize(op, args, {})  # type: ignore[arg-type]
            types = infer(op, positional, named)
        except (InternalError, TypeError):
            return
        node = self.builder.add(op, positional, types, named)
        self.values.extend(node.results)

    def in_place(self, op: str, target: Value, *rest: object) -> None:
        """Only where the target keeps its type, as eager demands."""
        if not holds(target.type):
            return
        functional = op.replace("_.", ".", 1)
        try:
            (made,) = infer(functional, (target, *rest))  # type: ignore[arg-type]
        except (InternalError, TypeError):
            return
        if not isinstance(made, TensorType) or not isinstance(target.type, TensorType):
            return
        if made.shape != target.type.shape or not torch.can_cast(
            getattr(torch, _torch_name(made)), getattr(torch, _torch_name(target.type))
        ):
            return
        node = self.builder.add(op, (target, *rest), (target.type,))  # type: ignore[arg-type]
        self.values.append(node.result)

    def step(self) -> None:
        kind = self.draw(
            st.sampled_from(("unary", "binary", "number", "view", "view", "in_place", "in_place", "reduce"))
        )
        getattr(self, f"add_{kind}")()

    def add_unary(self) -> None:
        self.emit(f"aten.{self.draw(st.sampled_from(UNARY))}.default", self.pick())

    def add_binary(self) -> None:
        self.emit(f"aten.{self.draw(st.sampled_from(BINARY))}", self.pick(), self.pick())

    def add_number(self) -> None:
        op = self.draw(st.sampled_from(BINARY[:4]))
        self.emit(f"aten.{op}", self.pick(), self.draw(st.sampled_from(NUMBERS)))

    def add_in_place(self) -> None:
        target = self.pick()
        if self.draw(st.booleans()):
            self.in_place(f"aten.{self.draw(st.sampled_from(IN_PLACE_UNARY))}.default", target)
        else:
            op = self.draw(st.sampled_from(IN_PLACE_BINARY))
            other = self.pick() if self.draw(st.booleans()) else self.draw(st.sampled_from(NUMBERS[:5]))
            if not isinstance(other, Value) or not _overlap(target, other):
                self.in_place(f"aten.{op}", target, other)

    def add_reduce(self) -> None:
        x = self.pick()
        if self.draw(st.booleans()):
            self.emit("aten.sum.default", x)
        else:
            self.emit("aten.sum.dim_IntList", x, (-1,), self.draw(st.booleans()))

    def add_view(self) -> None:
        x = self.pick()
        rank = len(x.type.sizes) if isinstance(x.type, TensorType) else 0
        dim = self.draw(st.integers(-rank, rank - 1)) if rank else 0
        match self.draw(
            st.sampled_from(("select", "slice", "transpose", "flat", "unsqueeze", "contiguous", "to", "split"))
        ):
            case "select" if rank and isinstance(x.type, TensorType) and x.type.sizes[dim]:
                self.emit("aten.select.int", x, dim, self.draw(st.integers(0, x.type.sizes[dim] - 1)))
            case "slice" if rank:
                self.emit("aten.slice.Tensor", x, dim, self.draw(st.integers(-2, 2)), self.draw(st.integers(1, 5)),
                          self.draw(st.integers(1, 2)))  # fmt: skip
            case "transpose" if rank:
                self.emit("aten.transpose.int", x, dim, -1)
            case "flat":
                self.emit(self.draw(st.sampled_from(("aten.reshape.default", "aten.view.default"))), x, (-1,))
            case "unsqueeze":
                self.emit("aten.unsqueeze.default", x, 0)
            case "contiguous":
                self.emit("aten.contiguous.default", x)
            case "to":
                self.emit("aten.type_as.default", x, self.pick())
            case "split" if rank:
                self.split(x, dim)

    def split(self, x: Value, dim: int) -> None:
        before = len(self.values)
        self.emit("aten.split.Tensor", x, 2, dim)
        for value in self.values[before:]:
            self.values.remove(value)
            elements = value.type.elements  # type: ignore[union-attr]
            self.values.extend(self.builder.add("unpack", (value,), elements).results)


def _torch_name(kind: TensorType) -> str:
    return {"f32": "float32", "f64": "float64", "i64": "int64", "bf16": "bfloat16", "bool": "bool"}[kind.dtype.label]


def _overlap(target: Value, other: Value) -> bool:
    """Whether eager might refuse, or leave undefined, a write to memory that it also reads elsewhere."""

    def root(value: Value) -> Value:
        # The first operand of everything that can be a view is what it views; going further is only cautious.
        while value.node is not None and (operand := next(value.node.operands(), None)) is not None:
            value = operand
        return value

    return other is not target and root(target) is root(other)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A program with some inputs, and the tensors to run it on."""
    writer = Writer(draw)
    for _ in range(draw(st.integers(1, 2))):
        writer.add_input()
    for _ in range(draw(st.integers(1, STEPS))):
        writer.step()
    outputs = draw(st.lists(st.sampled_from(writer.values), min_size=1, max_size=3))
    writer.builder.finish(tuple(outputs))
    return Program(writer.builder.graph, writer.inputs)
