"""Nodes of a graph as calls of Python that are ready to be made: what never changes about a call is bound once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import Arg, Node, Value
from smelt.ir.sizes import is_symbolic
from smelt.ops.convert import bind, has_values, to_torch
from smelt.ops.modes import entered
from smelt.ops.python.python_ops import python_op
from smelt.ops.registry import overload

Values = dict[Value, Any]


@record
class Bound:
    """An argument: a value, looked up; or what holds values; or a literal as torch takes it."""

    value: Value | None
    arg: Arg
    literal: Any

    @staticmethod
    def of(arg: Arg) -> Bound:
        """The form of an argument."""
        if isinstance(arg, Value):
            return Bound(arg, None, None)
        return Bound(None, arg, None) if has_values(arg) or is_symbolic(arg) else Bound(None, None, to_torch(arg))

    def get(self, values: Values) -> Any:
        """The argument at this point of the run."""
        if self.value is not None:
            return values[self.value]
        return self.literal if self.arg is None else bind(self.arg, values)


@record
class Step:
    """One node, ready to be called. last: values that nothing uses any more behind it."""

    run: Callable[..., Any]
    args: tuple[Bound, ...]
    kwargs: Mapping[str, Bound]
    mode: str
    results: tuple[Value, ...]
    last: tuple[Value, ...]

    def take(self, values: Values) -> None:
        """Compute the node's results from the values so far."""
        args = [arg.get(values) for arg in self.args]
        kwargs = {name: arg.get(values) for name, arg in self.kwargs.items()}
        if self.mode:
            with entered(self.mode):
                result = self.run(*args, **kwargs)
        else:
            result = self.run(*args, **kwargs)
        if len(self.results) == 1:
            values[self.results[0]] = result
        elif self.results:
            values.update(zip(self.results, result, strict=True))
        for value in self.last:
            del values[value]


def step_of(node: Node, last: Sequence[Value] = ()) -> Step:
    """A node as a call. Raises: InternalError (S0202) for an operator that there is none of."""
    args = tuple(map(Bound.of, node.args))
    kwargs = {name: Bound.of(arg) for name, arg in node.kwargs.items()}
    # One result is what the call gives, and of a sequence of one it is the element.
    run = _only if node.op == "unpack" and len(node.results) == 1 else function_of(node.op)
    return Step(run, args, kwargs, node.mode, tuple(node.results), tuple(last))


def _only(items: Sequence[Any]) -> Any:
    (item,) = items
    return item


def steps_of(nodes: Sequence[Node], gives: Sequence[Value]) -> tuple[Step, ...]:
    """Nodes as calls; what is not given further is dropped behind its last use."""
    last: dict[Node, list[Value]] = {node: [] for node in nodes}
    made = {value: node for node in nodes for value in node.results}
    for node in nodes:
        for value in node.operands():
            if value in made:
                made[value] = node
    for value, node in made.items():
        if value not in gives:
            last[node].append(value)
    return tuple(step_of(node, last[node]) for node in nodes)


def function_of(op: str) -> Callable[..., Any]:
    """What computes an operator of torch's, or of Python's. Raises: InternalError (S0202)."""
    if op == "unpack":
        return tuple
    found: Any = overload(op)
    if found is None:
        python = python_op(op)
        found = None if python is None else python.run
    if found is None:
        raise InternalError(f"there is no operator {op}", code="S0202")
    run: Callable[..., Any] = found
    return run


def is_true(value: Any) -> bool:
    """The truth of a condition: a bool, or a tensor with one element."""
    return bool(value.item() if isinstance(value, torch.Tensor) else value)
