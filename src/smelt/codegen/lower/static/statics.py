"""Values known before the run: parameters, buffers, constants, and everything pure that follows from them alone.

Invariant: a value that depends on state which the program writes is never static, so nothing computed here goes stale
within a run; between runs the caller guards `constants`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from time import perf_counter
from typing import Any

import torch

from smelt.codegen.lower.memory.returned_memory import handed_out_in_parts
from smelt.codegen.lower.python.plain import is_plain
from smelt.codegen.lower.result import Lookup, StateName
from smelt.diag import SmeltError
from smelt.ir import STATE_OPS, Arg, Graph, Node, TensorType, Value, values_in
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.convert import bind, dtype_to_torch, dummy_of, strided_copy, type_of
from smelt.ops.effects import alias_of, effects, is_pure
from smelt.ops.evaluate import constant
from smelt.ops.record import Trait
from smelt.ops.registry import overload
from smelt.ops.sets import where

# Their results depend on their first operand's type only, not on its elements.
TYPE_ONLY = where(Trait.TYPE_ONLY)


def state_name(node: Node) -> StateName:
    """The name of the tensor that a `param`, `buffer` or `captured` node stands for."""
    return StateName(node.op, str(node.args[0]))


class Statics:
    """Which values are static, and their tensors, each computed once when first asked for."""

    def __init__(self, graph: Graph, lookup: Lookup) -> None:
        self.graph = graph
        self._lookup = lookup
        self._written = {_state_root(n.args[0]) for n in graph.walk() if n.op == "write"}
        self._handed_out = handed_out_in_parts(graph)
        self._is_static: dict[Value, bool] = {}
        self._tensors: dict[Value, Any] = {}
        self._sources: dict[Value, frozenset[StateName]] = {}
        self._baked: set[StateName] = set()
        self.folded_nbytes = 0
        self.spent_ms = 0.0
        # In program order, so that each answer needs only its operands'.
        for node in graph.walk():
            for value in node.results:
                self.is_static(value)

    @cached_property
    def state_nbytes(self) -> int:
        """Bytes of all parameters, buffers and captured tensors of the program."""
        states = {state_name(node): node.result.type for node in self.graph.walk() if node.op in STATE_OPS}
        sized = [type_ for type_ in states.values() if isinstance(type_, TensorType) and type_.is_static]
        return sum(math.prod(type_.sizes) * dtype_to_torch(type_.dtype).itemsize for type_ in sized)

    def is_static(self, value: Value) -> bool:
        """Whether the value is known before the run."""
        found = self._is_static.get(value)
        if found is None:
            found = self._is_static[value] = self._decide(value)
        return found

    def _decide(self, value: Value) -> bool:
        node = value.node
        if node is None or node.regions:
            return False
        if node.op in STATE_OPS:
            return state_name(node) not in self._written
        if node.op in ("const", "unpack"):
            return is_plain(node) and all(self.is_static(v) for v in node.operands())
        if overload(node.op) is None or not is_pure(node) or not is_plain(node) or value in self._handed_out:
            return False
        if node.parent is not self.graph.body and effects(node).may_throw:
            # It may never run.
            return False
        if current_trace() is not None and is_symbolic((node.args, tuple(node.kwargs.values()), value.type)):
            # Made for sizes that come with each call.
            return False
        if node.op in TYPE_ONLY:
            return True
        return all(self.is_static(v) for v in node.operands())

    def sources(self, value: Value) -> frozenset[StateName]:
        """The state that a static value depends on."""
        if value not in self._sources:
            assert value.node is not None
            # Not by recursion: an unrolled loop is a chain longer than Python's stack is deep.
            for node in needed(value.node, self._sources):
                found: frozenset[StateName] = frozenset()
                if node.op in STATE_OPS:
                    found = frozenset((state_name(node),))
                elif node.op not in TYPE_ONLY:
                    found = found.union(*(self._sources[operand] for operand in node.operands()))
                self._sources.update(dict.fromkeys(node.results, found))
        return self._sources[value]

    def bake(self, value: Value) -> torch.Tensor:
        """The tensor of a static value, whose sources must stay as they are from now on."""
        self._baked |= self.sources(value)
        return self.tensor(value)

    def forget(self, value: Value) -> None:
        """Hold a static value, and what it is a view of, no longer than others do; who asks has it computed again."""
        current: Value | None = value
        while current is not None and current.node is not None and current.node.op not in STATE_OPS:
            self._tensors.pop(current, None)
            current = alias_of(current.node)

    @property
    def baked(self) -> tuple[StateName, ...]:
        """State whose values were used at build time, sorted."""
        return tuple(sorted(self._baked, key=lambda s: (s.kind, s.path)))

    def state(self, name: StateName) -> torch.Tensor:
        """The live tensor of the program's state."""
        return self._lookup(name.kind, name.path)

    def tensor(self, value: Value) -> torch.Tensor:
        """The tensor of a static value, without saying that it stays so."""
        if value not in self._tensors:
            self._compute(value)
        found = self._tensors[value]
        if not isinstance(found, torch.Tensor):
            raise SmeltError(f"%{value.name} is no tensor", code="S0303")
        return found

    def _compute(self, value: Value) -> None:
        node = value.node
        assert node is not None
        start = perf_counter()
        for each in needed(node, self._tensors):
            made = self._run(each)
            results = made if each.op == "unpack" or len(each.results) > 1 else [made]
            self._tensors.update(zip(each.results, results, strict=True))
        self.spent_ms += (perf_counter() - start) * 1000

    def _run(self, node: Node) -> Any:
        if node.op in STATE_OPS:
            tensor = self.state(state_name(node))
            _check_type(node, tensor)
            return tensor
        if node.op == "const":
            return constant(self.graph, node)
        if node.op == "unpack":
            (packed,) = node.operands()
            return self._tensors[packed]
        operands: dict[Value, Any] = {}
        for v in node.operands():
            known = self._tensors.get(v)
            operands[v] = _stand_in(v.type) if known is None and isinstance(v.type, TensorType) else known
        with torch.no_grad():
            result = overload(node.op)(  # type: ignore[misc]
                *(bind(a, operands) for a in node.args), **{k: bind(a, operands) for k, a in node.kwargs.items()}
            )
        result = plain_signed(result)
        if isinstance(result, torch.Tensor) and alias_of(node) is None:
            self.folded_nbytes += result.numel() * result.element_size()
        return result


def plain_signed(result: Any) -> Any:
    """An operator's result; a copy, strided alike, of one whose memory holds the negated elements (`z.conj().imag`)."""
    is_lazy = isinstance(result, torch.Tensor) and result.is_neg()
    return strided_copy(result) if is_lazy else result


def needed(node: Node, known: dict[Value, Any]) -> Iterator[Node]:
    """The nodes that must run for this one, in order, itself last."""
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        current, ready = stack.pop()
        if ready:
            yield current
            continue
        if current in seen or all(r in known for r in current.results):
            continue
        seen.add(current)
        stack.append((current, True))
        if current.op not in TYPE_ONLY:
            stack.extend((v.node, False) for v in reversed(list(current.operands())) if v.node is not None)


def _stand_in(type_: TensorType) -> torch.Tensor:
    """A tensor of a type, of which only the element type counts where sizes come with each call."""
    if is_symbolic((type_.shape, type_.strides)):
        type_ = TensorType(type_.dtype, (1,) * len(type_.sizes), None, type_.device)
    return dummy_of(type_)


def _check_type(node: Node, tensor: torch.Tensor) -> None:
    found = type_of(tensor)
    if found != node.result.type:
        raise SmeltError(
            f"{node.op} {node.args[0]!r} is {found}, the graph expects {node.result.type}",
            where=node.span,
            why="the plan is made for one layout of the state",
            fix="capture the program again",
            code="S0303",
        )
    if tensor.is_neg():
        raise SmeltError(
            f"the memory of {node.op} {node.args[0]!r} holds the negated elements",
            where=node.span,
            why="kernels read memory directly",
            fix="give the program `tensor.resolve_neg()`; until then it runs eagerly",
            code="S0303",
        )


def _state_root(arg: Arg) -> StateName | None:
    """The state that a write's target belongs to, through views and earlier writes; None for an input."""
    for value in values_in(arg):
        current: Value | None = value
        while current is not None and current.node is not None:
            node = current.node
            if node.op in STATE_OPS:
                return state_name(node)
            current = next(iter(values_in(node.args[0])), None) if node.op == "write" else alias_of(node)
    return None
