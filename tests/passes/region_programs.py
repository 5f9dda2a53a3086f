"""Random graphs with nested `if`, `for` and `while`: views, in-place writes on inner and outer tensors, scalars, lists.

`write(choose)` makes one with any way to choose from a sequence: hypothesis's, so that finds shrink, or a random
generator's, for long runs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.ir import BOOL, FLOAT, INT, Arg, Builder, Graph, ListType, Node, TensorType, Value
from smelt.ops.convert import type_of
from smelt.ops.registry import normalize
from smelt.ops.typing import infer
from smelt.passes.mutation.mutations import holds

Choose = Callable[[Sequence[Any]], Any]
SHAPES = ((3, 4), (4,), (4,), (2, 3), ())
UNARY = ("sin", "neg", "relu", "clone", "sigmoid", "abs")
BINARY = ("add.Tensor", "mul.Tensor", "sub.Tensor", "maximum.default")
IN_PLACE = ("neg_", "zero_", "sin_", "relu_")
IN_PLACE_BINARY = ("add_.Tensor", "mul_.Tensor", "copy_.default", "sub_.Tensor")
PY_BINARY = ("add", "sub", "mul", "min", "max")
PY_TESTS = ("lt", "le", "eq", "ge")
NUMBERS = (0, 1, 2, -1, 3)
KINDS = (
    "unary", "binary", "view", "view", "in_place", "in_place", "in_place", "reduce", "scalar", "scalar", "list", "if",
    "if", "for", "while", "number", "print", "throw", "const", "state",
)  # fmt: skip
MOST_NODES = 60
_FRESH = frozenset((*(f"aten.{n}.default" for n in UNARY), *(f"aten.{n}" for n in BINARY), "aten.sum.default", "const"))


@dataclass(frozen=True)
class RegionProgram:
    graph: Graph
    inputs: list[Any]
    state: dict[str, torch.Tensor]


class RegionWriter:
    """Adds chosen nodes; `values` are those that may be used where the builder stands."""

    def __init__(self, choose: Choose) -> None:
        self.choose = choose
        self.builder = Builder(Graph("random"))
        self.values: list[Value] = []
        self.inputs: list[Any] = []
        self.state = {"s": torch.arange(4.0) - 1.5}
        self.nodes = 0

    def add_input(self) -> None:
        shape = self.choose(SHAPES)
        tensor = torch.linspace(-2.0, 3.0, max(1, int(torch.Size(shape).numel()))).reshape(shape)
        if self.choose((False, True)) and len(shape) == 2:
            tensor = tensor.t().contiguous().t()
        self.declare(tensor, type_of(tensor))

    def declare(self, value: Any, type_: Any) -> None:
        self.inputs.append(value)
        name = f"x{len(self.inputs)}"
        self.values.append(self.builder.add_param(self.builder.graph.body, name, type_))

    # --- choices

    def of(self, kind: Any) -> list[Value]:
        return [v for v in self.values if (isinstance(v.type, kind) if isinstance(kind, type) else v.type == kind)]

    def tensor(self) -> Value:
        return self.choose(self.of(TensorType)[-8:])

    def integer(self) -> Arg:
        return self.choose([*self.of(INT)[-4:], *NUMBERS])

    def condition(self) -> Arg:
        return self.choose([*self.of(BOOL)[-4:], *self.of(BOOL)[-4:], True, False])

    # --- steps

    def emit(self, op: str, *args: Any) -> Node | None:
        try:
            positional, named = normalize(op, args, {})
            types = infer(op, positional, named)
        except (InternalError, TypeError):
            return None
        node = self.builder.add(op, positional, types, named)
        self.values.extend(node.results)
        self.nodes += 1
        return node

    def steps(self, count: int, depth: int) -> None:
        for _ in range(count):
            kind = self.choose(KINDS)
            if self.nodes < MOST_NODES and (depth or kind not in ("if", "for", "while")):
                add = getattr(self, f"add_{kind}")
                add(depth) if kind in ("if", "for", "while") else add()

    def add_unary(self) -> None:
        self.emit(f"aten.{self.choose(UNARY)}.default", self.tensor())

    def add_binary(self) -> None:
        self.emit(f"aten.{self.choose(BINARY)}", self.tensor(), self.tensor())

    def add_number(self) -> None:
        self.emit(f"aten.{self.choose(BINARY[:3])}", self.tensor(), self.integer())

    def add_const(self) -> None:
        data, type_ = self.choose([((1.0, -0.0, 2.0, 3.0), TensorType.of(type_of(torch.ones(1)).dtype, (4,)))])
        self.values.append(self.builder.add("const", (data,), (type_,)).result)

    def add_state(self) -> None:
        body = self.builder.graph.body
        if self.builder.region is body and any(n.op == "buffer" for n in body):
            # A capture reads a name once.
            return
        self.values.append(self.builder.add("buffer", ("s",), (type_of(self.state["s"]),)).result)

    def add_reduce(self) -> None:
        self.emit("aten.sum.default", self.tensor())

    def add_view(self) -> None:
        x = self.tensor()
        sizes = x.type.sizes if isinstance(x.type, TensorType) else ()
        match self.choose(("select", "slice", "transpose", "flat", "alias", "index")):
            case "select" if sizes:
                self.emit("aten.select.int", x, 0, self.choose(range(sizes[0])))
            case "index" if sizes and self.of(INT):
                self.emit_select(x, sizes)
            case "slice" if sizes:
                self.emit("aten.slice.Tensor", x, 0, 0, self.choose((1, 2)))
            case "transpose" if len(sizes) == 2:
                self.emit("aten.t.default", x)
            case "flat":
                self.emit("aten.reshape.default", x, (-1,))
            case "alias":
                self.emit("aten.alias.default", x)

    def emit_select(self, x: Value, sizes: tuple[int, ...]) -> None:
        """A row that a value says."""
        node = self.emit("py.mod", self.choose(self.of(INT)), sizes[0])
        made = self.emit("aten.select.int", x, 0, 0)
        if node is not None and made is not None:
            made.set_arguments((x, 0, node.result))

    def add_in_place(self) -> None:
        target = self.tensor()
        if not holds(target.type):
            return
        if self.choose((False, True)):
            op, rest = f"aten.{self.choose(IN_PLACE)}.default", ()
        else:
            op = f"aten.{self.choose(IN_PLACE_BINARY)}"
            other = self.tensor()
            # What overlaps the target otherwise than whole is undefined in eager.
            is_fresh = other.node is not None and other.node.op in _FRESH
            rest = (other if is_fresh and self.choose((False, True)) else self.integer(),)
            if "copy_" in op and not isinstance(rest[0], Value):
                rest = (1.5,)
            if "copy_" in op and rest[0].__class__ is Value and not isinstance(rest[0].type, TensorType):
                return
        try:
            (made,) = infer(op.replace("_.", ".", 1), (target, *rest))
        except (InternalError, TypeError):
            return
        if not isinstance(made, TensorType) or made.shape != target.type.shape or made.dtype != target.type.dtype:
            return
        self.values.append(self.builder.add(op, (target, *rest), (target.type,)).result)
        self.nodes += 1

    def add_scalar(self) -> None:
        match self.choose(("item", "size", "arithmetic", "test", "test", "not", "tensor_test", "division", "len")):
            case "item":
                made = self.emit("aten.sum.default", self.tensor())
                if made is not None:
                    found = self.emit("aten.item.default", made.result)
                    if found is not None and found.result.type == FLOAT:
                        self.emit("py.gt", found.result, self.choose((0.0, 1.5, -3.0)))
            case "size":
                x = self.tensor()
                if isinstance(x.type, TensorType) and x.type.rank:
                    self.emit("aten.sym_size.int", x, 0)
            case "arithmetic":
                self.emit(f"py.{self.choose(PY_BINARY)}", self.integer(), self.integer())
            case "test":
                self.emit(f"py.{self.choose(PY_TESTS)}", self.integer(), self.integer())
            case "division":
                self.emit(f"py.{self.choose(('floordiv', 'mod'))}", self.integer(), self.integer())
            case "not":
                self.emit("py.not_", self.condition())
            case "tensor_test":
                made = self.emit("aten.sum.default", self.tensor())
                if made is not None:
                    made = self.emit("aten.gt.Scalar", made.result, self.choose((0, 1.5)))
                if made is not None:
                    self.emit("py.bool", made.result)
            case "len" if self.of(ListType):
                self.emit("py.len", self.choose(self.of(ListType)))

    def add_list(self) -> None:
        lists = self.of(ListType)
        what = self.choose(("new", "append", "getitem", "pop", "setitem", "concat"))
        if what == "new" or not lists:
            x = self.tensor()
            same = [v for v in self.of(TensorType) if v.type == x.type]
            self.emit("py.list", x, self.choose(same))
            return
        items = self.choose(lists)
        fitting = [v for v in self.values if v.type == items.type.element]
        match what:
            case "append" if fitting:
                self.emit("py.append", items, self.choose(fitting))
            case "getitem":
                self.emit("py.getitem", items, self.choose((0, 1, -1)))
            case "pop":
                self.emit("py.pop", items)
            case "setitem" if fitting:
                self.emit("py.setitem", items, self.choose((0, -1)), self.choose(fitting))
            case "concat":
                same = [v for v in lists if v.type == items.type]
                self.emit("py.concat", items, self.choose(same))

    def add_print(self) -> None:
        self.builder.add("py.print", (self.choose(("a", "b")), self.integer()), (), {"end": "."})

    def add_throw(self) -> None:
        """Rarely: what raises hides what follows."""
        if self.choose(range(4)) or not self.of(BOOL):
            return
        self.builder.add("py.assert", (self.choose(self.of(BOOL)), "fails"), ())

    # --- regions

    def body(self, node: Node, params: list[tuple[str, Any]], depth: int, most: int = 4) -> tuple[Any, list[Value]]:
        """A region with chosen nodes, without yields; and the values that may be yielded."""
        region = self.builder.add_region(node)
        outer = list(self.values)
        with self.builder.inside(region):
            self.values = outer + [self.builder.add_param(region, name, type_) for name, type_ in params]
            self.steps(self.choose(range(1, most + 1)), depth - 1)
        visible, self.values = self.values, outer
        return region, visible

    def add_if(self, depth: int) -> None:
        node = self.builder.add("if", (self.condition(),), ())
        arms = [self.body(node, [], depth) for _ in range(2)]
        yields: list[list[Value]] = [[], []]
        for _ in range(self.choose((0, 1, 1, 2))):
            one = self.choose(arms[0][1])
            same = [v for v in arms[1][1] if v.type == one.type]
            if same:
                yields[0].append(one)
                yields[1].append(self.choose(same[-6:]))
        for (region, _), found in zip(arms, yields, strict=True):
            region.set_yields(tuple(found))
        self.results(node, [v.type for v in yields[0]])

    def results(self, node: Node, types: list[Any]) -> None:
        for type_ in types:
            node.results.append(Value(self.builder.fresh_name(), type_, node))
        self.values.extend(node.results)

    def carried(self) -> list[Value]:
        return [self.choose(self.values) for _ in range(self.choose((0, 1, 1, 2)))]

    def add_for(self, depth: int) -> None:
        inits = self.carried()
        stop = self.choose([0, 1, 2, 3, *self.of(INT)[-2:]])
        if isinstance(stop, Value):
            node = self.emit("py.min", stop, 3)
            stop = 2 if node is None else node.result
        loop = self.builder.add("for", (0, stop, self.choose((1, 1, 2)), *inits), ())
        region, visible = self.body(loop, [("i", INT), *(("c", v.type) for v in inits)], depth)
        self.yield_carried(loop, region, visible, [v.type for v in inits])

    def yield_carried(self, loop: Node, region: Any, visible: list[Value], types: list[Any]) -> None:
        region.set_yields(tuple(self.choose([v for v in visible if v.type == t][-6:]) for t in types))
        self.results(loop, types)

    def add_while(self, depth: int) -> None:
        """Counted by a carried int, that it ends."""
        inits = self.carried()
        loop = self.builder.add("while", (0, *inits), ())
        params = [("n", INT), *(("c", v.type) for v in inits)]
        test, visible = self.body(loop, params, 1, 2)
        with self.builder.inside(test):
            more = self.builder.add("py.lt", (test.params[0], self.choose((0, 1, 2, 3))), (BOOL,)).result
            flags = [v for v in visible if v.type == BOOL and v not in self.values]
            if flags and self.choose((False, True)):
                more = self.builder.add("py.and_", (more, self.choose(flags)), (BOOL,)).result
            test.set_yields((more,))
        region, visible = self.body(loop, params, depth)
        with self.builder.inside(region):
            following = self.builder.add("py.add", (region.params[0], 1), (INT,)).result
        types = [v.type for v in inits]
        self.yield_carried(loop, region, visible, types)
        region.set_yields((following, *region.yields))
        loop.results.insert(0, Value(self.builder.fresh_name(), INT, loop))
        self.values.append(loop.results[0])


def write(choose: Choose) -> RegionProgram:
    """A graph, and what to run it on."""
    writer = RegionWriter(choose)
    for _ in range(choose((1, 2))):
        writer.add_input()
    writer.declare(choose((0, 1, 2, 5)), INT)
    writer.declare(choose((False, True)), BOOL)
    writer.steps(choose(range(3, 10)), 2)
    outputs = tuple(choose(writer.values[-10:]) for _ in range(choose((1, 2, 3))))
    return RegionProgram(writer.builder.finish(outputs), writer.inputs, writer.state)


def random_program(seed: int) -> RegionProgram:
    """The graph of a number."""
    return write(random.Random(seed).choice)
