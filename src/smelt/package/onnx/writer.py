"""A graph as nodes of ONNX: each operator by the form in its record, or by the simpler operators that it is lowered to.

    %2: f32[3] = aten.relu.default(%1)   ==>   v2 = Relu(v1)        named "layers.0/relu", with the source line

Invariant: values keep their names where ONNX takes them, constants stand once, and a nested graph reads from outside
what it uses, as regions do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt.diag import Span
from smelt.diag.records import record
from smelt.ir import (
    NONE,
    STATE_OPS,
    Arg,
    Dim,
    DType,
    Graph,
    ListType,
    Node,
    Sym,
    SymExpr,
    TensorType,
    TupleType,
    Type,
    Value,
)
from smelt.ops.catalogue import onnx_form, record_of
from smelt.ops.catalogue.onnx.base import cast, compared, dtype_of, operand
from smelt.ops.catalogue.onnx.python import empty_sequence
from smelt.ops.convert import dtype_to_torch, element_bytes
from smelt.ops.effects import aliases
from smelt.ops.evaluate import constant as constant_of_node
from smelt.ops.record import NoOnnxForm, OnnxItems, OnnxValue, as_torch_does
from smelt.ops.registry import arguments_of, normalize, schema_of
from smelt.ops.shapes.composites import FollowsTorch
from smelt.ops.typing import infer
from smelt.package.onnx.protobuf import Protobuf


@record
class Gathered:
    """A list that a loop filled: its tensors along a first dimension."""

    stacked: OnnxValue


Found = OnnxValue | tuple[OnnxValue, ...] | Gathered


@dataclass
class Scope:
    """The nodes of one graph, the outermost or a nested one. checks: zeros, which only a run gives that may go on.

    runs: a bool that is true wherever this graph runs; None for the outermost.
    """

    runs: OnnxValue | None = None
    nodes: list[Any] = field(default_factory=list)
    made: set[str] = field(default_factory=set)
    checks: list[OnnxValue] = field(default_factory=list)


@record
class Refusal:
    """What ONNX cannot say."""

    op: str
    span: Span | None
    why: str


class Writer:
    """Writes nodes; the emitter of forms."""

    def __init__(self, protobuf: Protobuf, graph: Graph) -> None:
        self.protobuf, self.graph = protobuf, graph
        self.scopes = [Scope()]
        self.values: dict[Value, Found] = {}
        self.initializers: dict[str, Any] = {}
        self.refused: list[Refusal] = []
        self.sizes: dict[str, OnnxValue] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[Any, OnnxValue] = {}
        self._node: Node | None = None

    # --- names

    def name(self, wish: str) -> str:
        """A name that nothing else has."""
        wish = f"v{wish}" if wish[:1].isdigit() else wish
        count = self._names.get(wish, 0)
        self._names[wish] = count + 1
        return self.name(f"{wish}_{count}") if count else wish

    def _node_name(self, kind: str) -> str:
        node = self._node
        scope = f"{node.scope}/" if node is not None and node.scope else ""
        return self.name(f"{scope}{kind}")

    # --- the emitter of forms

    @property
    def scope(self) -> Scope:
        """Where nodes are added."""
        return self.scopes[-1]

    def op(self, kind: str, *operands: Value | OnnxValue | None, dtype: DType | None = None, **how: Any) -> OnnxValue:
        """As `OnnxEmitter.op`."""
        if dtype is None:
            first = operands[0]
            dtype = (first if isinstance(first, OnnxValue) else self.value(first)).dtype
        return self.ops(kind, (dtype,), *operands, **how)[0]

    def ops(
        self, kind: str, dtypes: tuple[DType, ...], *operands: Value | OnnxValue | None, **how: Any
    ) -> tuple[OnnxValue, ...]:
        """As `OnnxEmitter.ops`."""
        given = [None if x is None else x if isinstance(x, OnnxValue) else self.value(x) for x in operands]
        if kind not in _MOVING and any(x is not None and x.dtype is DType.BF16 for x in given):
            return self._widened(kind, dtypes, given, how)
        names = ["" if x is None else x.name for x in given]
        is_sequence = kind in _SEQUENCES
        results = tuple(OnnxValue(self._result_name(), dtype, is_sequence) for dtype in dtypes)
        if kind == "SequenceEmpty":
            how["dtype"] = dtypes[0]
        self.add(kind, names, [result.name for result in results], **how)
        return results

    def _widened(
        self, kind: str, dtypes: tuple[DType, ...], given: Sequence[OnnxValue | None], how: Mapping[str, Any]
    ) -> tuple[OnnxValue, ...]:  # fmt: skip
        """bf16 is computed with in f32 and rounded, which is what torch does; runtimes have no kernels for it."""
        wide = [x if x is None else cast(self, x, DType.F32) if x.dtype is DType.BF16 else x for x in given]
        inner = tuple(DType.F32 if dtype is DType.BF16 else dtype for dtype in dtypes)
        found = self.ops(kind, inner, *wide, **how)
        return tuple(cast(self, x, dtype) for x, dtype in zip(found, dtypes, strict=True))

    def _result_name(self) -> str:
        results = [] if self._node is None else self._node.results
        return self.name(f"{results[0].name}.t" if results else "t")

    def add(self, kind: str, operands: Sequence[str], results: Sequence[str], *, name: str = "", **how: Any) -> None:
        """Add a node; attributes that are element types become ONNX's numbers."""
        how = {k: self.protobuf.element_type(v) if isinstance(v, DType) else v for k, v in how.items()}
        operands = list(operands)
        while operands and not operands[-1] and kind != "Loop":  # of which the first two stand even if left out
            operands.pop()
        where = "" if self._node is None or self._node.span is None else str(self._node.span)
        made = self.protobuf.helper.make_node(
            kind, operands, list(results), name=self.name(name) if name else self._node_name(kind), doc_string=where,
            **how,
        )  # fmt: skip
        self.scope.nodes.append(made)
        self.scope.made.update(results)

    def constant(self, data: Any, dtype: DType) -> OnnxValue:
        """As `OnnxEmitter.constant`."""
        tensor = torch.as_tensor(data, dtype=dtype_to_torch(dtype)).contiguous()
        key = dtype, tuple(tensor.shape), element_bytes(tensor)
        if key not in self._constants:
            self._constants[key] = self.initializer(self.name("c"), tensor, dtype)
        return self._constants[key]

    def initializer(self, name: str, tensor: torch.Tensor, dtype: DType) -> OnnxValue:
        """A tensor that is there before the run."""
        self.initializers[name] = self.protobuf.tensor(name, tensor)
        return OnnxValue(name, dtype)

    def value(self, arg: Any) -> OnnxValue:
        """As `OnnxEmitter.value`."""
        if isinstance(arg, OnnxValue):
            return arg
        if isinstance(arg, Value):
            found = self.values[arg]
            if isinstance(found, OnnxValue):
                return found
            raise NoOnnxForm(f"ONNX has no value of type {arg.type} here")
        for kind, dtype in ((bool, DType.BOOL), (int, DType.I64), (float, DType.F64)):
            if isinstance(arg, kind):
                return self.constant(arg, dtype)
        raise NoOnnxForm(f"ONNX has no values of type {type(arg).__name__}")

    def items(self, arg: Arg) -> OnnxItems | OnnxValue:
        """As `OnnxEmitter.items`."""
        if isinstance(arg, tuple):
            return tuple(self.value(item) for item in arg)
        if not isinstance(arg, Value):
            raise NoOnnxForm(f"ONNX has no values of type {type(arg).__name__}")
        found = self.values[arg]
        if isinstance(found, Gathered):
            return self.op("SplitToSequence", found.stacked, axis=0, keepdims=0)
        if isinstance(found, OnnxValue) and not found.is_sequence:
            raise NoOnnxForm(f"ONNX has no list of the elements of a value of type {arg.type}")
        return found

    def stacked(self, arg: Arg) -> OnnxValue | None:
        """As `OnnxEmitter.stacked`."""
        found = self.values.get(arg) if isinstance(arg, Value) else None
        return found.stacked if isinstance(found, Gathered) else None

    def size(self, dim: Dim) -> OnnxValue | None:
        """As `OnnxEmitter.size`."""
        match dim:
            case int():
                return self.constant(dim, DType.I64)
            case Sym(name=name):
                return self.sizes.get(name)
            case SymExpr(op=op, left=left, right=right):
                operands = self.size(left), self.size(right)
                if None in operands:
                    return None
                return self.op(_SIZE_OPS[op], *operands)
        return None

    def owns_memory(self, x: Value) -> bool:
        """As `OnnxEmitter.owns_memory`."""
        return x.node is not None and x.node.op not in STATE_OPS and not any(aliases(x.node))

    def require(self, holds: OnnxValue, what: str) -> None:
        """As `OnnxEmitter.require`: a tensor of one element has no second, and a node that reads it is an error."""
        index = self.op("Cast", self.op("Not", holds), dtype=DType.I64, to=DType.I64)
        place = "" if self._node is None or self._node.span is None else f" at {self._node.span}"
        found = OnnxValue(self.name("check"), DType.I64)
        zero = self.constant([0], DType.I64)
        self.add("Gather", [zero.name, index.name], [found.name], axis=0, name=f"must hold: {what}{place}")
        self.scope.checks.append(found)

    # --- nodes

    def write(self, node: Node) -> None:
        """Add what computes a node's results; what ONNX cannot say is noted, and something stands for it."""
        before, self._node = self._node, node
        start = len(self.scope.nodes)
        try:
            results = self._named(node, self._results(node), start)
        except NoOnnxForm as why:
            self.refused.append(Refusal(node.op, node.span, str(why)))
            results = [self._anything(value.type) for value in node.results]
        finally:
            self._node = before
        self.values.update(zip(node.results, results, strict=True))

    def _named(self, node: Node, results: Sequence[Found], start: int) -> Sequence[Found]:
        """The results under the names that the graph has for them, where nodes from `start` on compute them."""
        if node.parent is None:  # of a lowering: the node that is lowered has the name
            return results
        new: dict[str, str] = {}
        named: list[Found] = []
        made = {name for added in self.scope.nodes[start:] for name in added.output}
        for value, found in zip(node.results, results, strict=True):
            if isinstance(found, OnnxValue) and found.name in made and found.name not in new:
                new[found.name] = self.name(value.name)
                found = OnnxValue(new[found.name], found.dtype, found.is_sequence)
            named.append(found)
        for added in self.scope.nodes[start:] if new else ():
            for names in (added.input, added.output):
                names[:] = [new.get(name, name) for name in names]
        self.scope.made.update(new.values())
        return named

    def _anything(self, type_: Type) -> Found:
        if isinstance(type_, TupleType):
            return tuple(OnnxValue("refused", DType.F32) for _ in type_.elements)
        dtype = type_.dtype if isinstance(type_, TensorType) else DType.I64
        return OnnxValue("refused", dtype, is_sequence=isinstance(type_, ListType))

    def _results(self, node: Node) -> Sequence[Found]:
        """Raises: NoOnnxForm."""
        if node.op == "const":
            return [self._const(node)]
        if node.op == "unpack":
            items = self.items(node.args[0])
            if isinstance(items, OnnxValue):
                raise NoOnnxForm("how many elements a list has is not known before the run")
            return items
        if node.op == "expect":
            self._expect(node)
            return []
        if node.op == "py.raise":
            self._raise(node)
            return []
        if node.op in STATE_OPS or node.op in ("if", "for", "while", "write"):
            raise NoOnnxForm("such a node cannot stand here")
        return self._by_form(node)

    def _by_form(self, node: Node) -> Sequence[Found]:
        form = onnx_form(node.op)
        call = self._call(node)
        types = tuple(result.type for result in node.results)
        found = None if form is None else form(self, call, types)
        if found is None:
            return self._by_lowering(node, call)
        if isinstance(found, OnnxValue):
            return [found]
        if len(types) == 1:
            return [tuple(item for item in found if item is not None)]
        return [item if item is not None else self._anything(t) for item, t in zip(found, types, strict=True)]

    def _call(self, node: Node) -> Mapping[str, Any]:
        if node.op.startswith("py."):
            return {"args": node.args, **node.kwargs}
        schema = schema_of(node.op)
        if schema is None:
            raise NoOnnxForm("there is no operator of this name in torch's registry")
        return arguments_of(schema, node.args, node.kwargs)

    def _by_lowering(self, node: Node, call: Mapping[str, Any]) -> Sequence[Found]:
        record = record_of(node.op)
        lowering = None if node.op.startswith("py.") else as_torch_does(node.op)
        if record is not None and record.lower is not None:
            lowering = record.lower
        parts = None if lowering is None else lowering(_Lowered(self, node), call)
        if parts is None:
            raise NoOnnxForm("ONNX has no operator for it, and Smelt cannot spell it with others")
        if isinstance(node.results[0].type, TupleType):
            return [tuple(map(self.value, parts if isinstance(parts, tuple) else (parts,)))]
        return [self.found(part) for part in (parts if isinstance(parts, tuple) else (parts,))]

    def found(self, arg: Arg) -> Found:
        """What stands for a value of the graph, or for a number."""
        return self.values[arg] if isinstance(arg, Value) else self.value(arg)

    def _const(self, node: Node) -> OnnxValue:
        type_ = node.result.type
        assert isinstance(type_, TensorType)
        tensor = constant_of_node(self.graph, node).detach().contiguous()
        if tensor.numel() <= 1:
            return self.constant(tensor, type_.dtype)
        return self.initializer(self.name(f"const_{node.result.name}"), tensor, type_.dtype)

    def _expect(self, node: Node) -> None:
        """The graph holds for one outcome of a test."""
        found, wanted = node.args
        x = self.value(found)
        if isinstance(found, Value) and isinstance(found.type, TensorType) and found.type.shape != ():
            x = self.op("Reshape", x, self.constant(torch.empty(0), DType.I64))
        if not isinstance(wanted, (bool, int, float)):
            raise NoOnnxForm("ONNX compares numbers only")
        if isinstance(wanted, bool) and x.dtype is DType.BOOL:
            holds = x if wanted else self.op("Not", x)
        elif isinstance(wanted, float) and wanted != wanted:
            holds = self.op("IsNaN", x, dtype=DType.BOOL)
        else:
            holds = compared(self, "Equal", x, operand(self, wanted, x.dtype))
        self.require(holds, f"the value that the program was captured for, {wanted}")

    def _raise(self, node: Node) -> None:
        """A run that comes here is an error."""
        if self.scope.runs is None:
            raise NoOnnxForm("the program raises whatever its inputs are")
        self.require(self.op("Not", self.scope.runs), f"no {str(node.args[0]).removeprefix('builtins.')}")

    # --- nested graphs

    def nested(self, runs: OnnxValue, write: Callable[[], list[tuple[OnnxValue, Type]]]) -> Nested:
        """What `write` adds, as a graph of its own."""
        self.scopes.append(Scope(runs))
        try:
            outputs = write()
            return Nested(self.scopes[-1], outputs)
        finally:
            self.scopes.pop()

    def checked(self, scope: Scope) -> OnnxValue | None:
        """One zero for all checks of a scope."""
        if not scope.checks:
            return None
        total = scope.checks[0]
        for check in scope.checks[1:]:
            total = self.op("Add", total, check)
        return total

    def own(self, x: OnnxValue, wish: str) -> OnnxValue:
        """A value under a name of its own, computed in this scope."""
        made = OnnxValue(self.name(wish), x.dtype, x.is_sequence)
        self.add("Identity", [x.name], [made.name])
        return made

    def flat(self, arg: Arg, type_: Type) -> list[tuple[OnnxValue, Type]]:
        """A value as ONNX passes it into and out of nested graphs: tuples by element, lists as sequences."""
        match type_:
            case TupleType(elements=elements):
                items = self.items(arg)
                if isinstance(items, OnnxValue):
                    raise NoOnnxForm("ONNX has no tuples")
                return [(cast(self, x, dtype_of((t,))), t) for x, t in zip(items, elements, strict=True)]
            case ListType(element=element):
                items = self.items(arg)
                if isinstance(items, OnnxValue):
                    return [(items, type_)]
                if not items:
                    return [(empty_sequence(self, element), type_)]
                return [(self.op("SequenceConstruct", *items, dtype=items[0].dtype), type_)]
        return [] if type_ == NONE else [(operand(self, arg, dtype_of((type_,))), type_)]

    def unflat(self, type_: Type, values: list[OnnxValue]) -> Found:
        """A value from what stands for it, which is taken from the list's front; nothing for None."""
        if isinstance(type_, TupleType):
            return tuple(values.pop(0) for _ in type_.elements)
        return () if type_ == NONE else values.pop(0)


@record
class Nested:
    """A nested graph's nodes and what it gives."""

    scope: Scope
    outputs: list[tuple[OnnxValue, Type]]


class _Lowered(FollowsTorch):
    """The emitter of lowerings: each node that it is asked for is written at once."""

    def __init__(self, writer: Writer, node: Node) -> None:
        self.writer, self.origin = writer, node

    def _made(self, op: str, args: tuple[Arg, ...], kwargs: Mapping[str, Arg]) -> Node:
        record = record_of(op)
        if record is not None and record.uninitialised:
            # Torch's code fills it behind the dispatcher, where nobody sees with what.
            raise NoOnnxForm("ONNX has no operator for it, and torch's code for it is not made of operators")
        positional, named = normalize(op, args, kwargs)
        made = Node(op, positional, named, self.origin.span, self.origin.scope)
        for type_ in infer(op, positional, named):
            made.results.append(Value(self.origin.results[0].name, type_, made))
        refused = len(self.writer.refused)
        self.writer.write(made)
        made.drop_arguments()
        if len(self.writer.refused) > refused:
            why = self.writer.refused.pop()
            raise NoOnnxForm(f"{why.op}: {why.why}" if why.op != self.origin.op else why.why)
        return made

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """As `Emitter.call`."""
        return self._made(op, args, kwargs).result

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        """As `Emitter.calls`."""
        made = self._made(op, args, kwargs)
        if len(made.results) > 1 or not isinstance(made.result.type, TupleType):
            return tuple(made.results)
        items = self.writer.items(made.result)
        parts = tuple(Value(made.result.name, element, made) for element in made.result.type.elements)
        assert isinstance(items, tuple)
        self.writer.values.update(zip(parts, items, strict=True))
        return parts


_SEQUENCES = frozenset(
    ("SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase", "SplitToSequence")
)  # fmt: skip
_MOVING = _SEQUENCES | frozenset(
    (
        "Cast", "Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Concat", "Gather", "Shape", "Size",
        "Split", "SequenceAt", "SequenceLength", "ConcatFromSequence",
    )
)  # fmt: skip
"""Operators that compute nothing."""
_SIZE_OPS = {"+": "Add", "-": "Sub", "*": "Mul", "//": "Div", "%": "Mod", "max": "Max", "min": "Min"}
