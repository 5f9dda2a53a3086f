"""A run of nodes on tensors of unknown sizes: one call, compiled for the sizes that come often.

    block(values) -> the values that later nodes use

The first call with given sizes that raises nothing runs operator by operator; the second one compiles the run for
these sizes, and later calls with them run natively. Invariant: both give what the nodes give one by one, and nothing
that is given shares memory with what a later instruction of the plan around writes over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from smelt.codegen.lower.python.plain import has_memory, is_plain_type
from smelt.codegen.lower.python.python_steps import function_of, steps_of
from smelt.diag import InternalError, SmeltError
from smelt.ir import FLOAT, Arg, Builder, Graph, Node, TensorType, TupleType, Value, values_in
from smelt.ops.convert import bind, type_of
from smelt.ops.typing import infer

Run = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the values that a run of nodes uses, gives those that are used behind it."""

Compile = Callable[[Graph], Run]
"""Compiles a graph of known sizes."""


class SizesUnknown(Exception):
    """Even with the sizes of all operands known, those of a result are not."""


def not_compiled(graph: Graph) -> Run:
    """A compiler that refuses. Raises: SizesUnknown."""
    raise SizesUnknown(graph.name)


COMPILED = 32  # tuples of sizes that one run of nodes is compiled for
SEEN = 4 * COMPILED  # tuples of sizes after which nothing more is compiled: they hardly ever come again


class SizedBlock:
    """One run of nodes. uses: the values it takes, in order; gives: those it is asked for."""

    def __init__(
        self, name: str, nodes: Sequence[Node], uses: Sequence[Value], gives: Sequence[Value], compiler: Compile
    ) -> None:
        self.name, self._nodes, self._uses, self._gives = name, tuple(nodes), tuple(uses), tuple(gives)
        self._compiler = compiler
        self._steps = steps_of(self._nodes, self._gives)
        self._seen: set[Hashable] = set()
        self._compiled: dict[Hashable, Run] = {}
        self._lock = threading.Lock()

    @property
    def compiled_for(self) -> int:
        """How many tuples of sizes it is compiled for."""
        return len(self._compiled)

    def __call__(self, found: Sequence[Any]) -> Sequence[Any]:
        key = tuple(map(_key, found))
        run = self._compiled.get(key)
        if run is None:
            run = self._next(key, found)
        return run(found)

    def take(self, values: dict[Value, Any]) -> None:
        """Compute what is given from the values so far."""
        values.update(zip(self._gives, self([values[value] for value in self._uses]), strict=True))

    def _next(self, key: Hashable, found: Sequence[Any]) -> Run:
        """What to run for sizes that nothing is compiled for yet."""
        if key not in self._seen:
            return partial(self._first, key)
        if len(self._compiled) >= COMPILED or not all(map(_is_plain, found)) or not self._lock.acquire(blocking=False):
            return self._one_by_one
        try:
            self._compiled[key] = self._compile(found)
            return self._compiled[key]
        finally:
            self._lock.release()

    def _first(self, key: Hashable, found: Sequence[Any]) -> Sequence[Any]:
        """Run for sizes that are new. Those that an operator refuses stay new, for compiled code asks no sizes."""
        given = self._one_by_one(found)
        if len(self._seen) < SEEN:
            self._seen.add(key)
        return given

    def _compile(self, found: Sequence[Any]) -> Run:
        try:
            return self._compiler(specialised(self.name, self._nodes, self._uses, found, self._gives))
        except (SizesUnknown, SmeltError, InternalError, TypeError, ValueError, RuntimeError):
            # An operator that refuses these sizes says so itself when it runs.
            return self._one_by_one

    def _one_by_one(self, found: Sequence[Any]) -> Sequence[Any]:
        values: dict[Value, Any] = dict(zip(self._uses, found, strict=True))
        for step in self._steps:
            step.take(values)
        return [values[value] for value in self._gives]


def _key(value: Any) -> Hashable:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if type(value) is float:
        return float  # floats are arguments of what is compiled
    return type(value), value


def _is_plain(value: Any) -> bool:
    """Whether compiled code takes it: a strided tensor as it lies in memory, or a number."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, bool | float) or (type(value) is int and -(2**63) <= value < 2**63)
    is_strided = value.layout == torch.strided and has_memory(value.device.type)
    is_tracked = value.requires_grad and torch.is_grad_enabled()
    is_exact = type(value) in (torch.Tensor, torch.nn.Parameter)
    return is_strided and is_exact and not (value.is_conj() or value.is_neg() or is_tracked)


def specialised(
    name: str, nodes: Sequence[Node], uses: Sequence[Value], found: Sequence[Any], gives: Sequence[Value]
) -> Graph:
    """The nodes as a graph for the very sizes and integers found; its inputs are `uses` without the integers.

    Raises: SizesUnknown; what typing raises where an operator refuses its operands.
    """
    builder = Builder.new(name, {})
    values: dict[Value, Any] = {}
    for value, given in zip(uses, found, strict=True):
        if isinstance(given, torch.Tensor):
            values[value] = builder.add_param(builder.graph.body, value.name, type_of(given))
        elif type(given) is float:
            values[value] = builder.add_param(builder.graph.body, value.name, FLOAT)
        else:
            values[value] = given
    for node in nodes:
        builder.span, builder.scope, builder.mode = node.span, node.scope, node.mode
        args = tuple(_replaced(arg, values) for arg in node.args)
        kwargs = {key: _replaced(arg, values) for key, arg in node.kwargs.items()}
        if node.op.startswith("py.") and not any(True for arg in args for _ in values_in(arg)):
            values[node.result] = function_of(node.op)(*[bind(arg, {}) for arg in args])
            continue
        if node.op == "unpack":
            assert isinstance(args[0], Value) and isinstance(args[0].type, TupleType)
            types = args[0].type.elements
        else:
            types = infer(node.op, args, kwargs)
        size = _size(node, args)
        if size is not None:
            values[node.result] = size
            continue
        if not all(map(is_plain_type, types)):
            raise SizesUnknown(node.op)
        made = builder.add(node.op, args, types, kwargs, names=[r.name for r in node.results])
        values.update(zip(node.results, made.results, strict=True))
    return builder.finish([values[value] for value in gives])


def _replaced(arg: Arg, values: Mapping[Value, Any]) -> Arg:
    match arg:
        case Value():
            found: Arg = values[arg]
            return found
        case tuple():
            return tuple(_replaced(item, values) for item in arg)
    return arg


SIZE_READS = ("aten.sym_size.int", "aten.sym_stride.int", "aten.sym_numel.default", "aten.dim.default")


def _size(node: Node, args: Sequence[Arg]) -> int | None:
    """What an operator that reads sizes gives; None for other operators."""
    if node.op not in SIZE_READS:
        return None
    (source, *rest) = args
    assert isinstance(source, Value) and isinstance(source.type, TensorType)
    type_ = source.type
    if node.op == "aten.sym_numel.default":
        return type_.numel
    if node.op == "aten.dim.default":
        return len(type_.sizes)
    (dim,) = rest
    assert isinstance(dim, int)
    return (type_.sizes if node.op == "aten.sym_size.int" else type_.steps)[dim]
