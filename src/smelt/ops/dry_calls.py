"""What autograd does with one call, found by the call on tensors without data: what it keeps, what gets a gradient.

    %2 = aten.mul.Tensor(%0, %1)     keeps %1 where %0 requires gradients, %0 where %1 does
    %3 = aten.exp.default(%0)        keeps %3
    %4 = aten.add.Tensor(%0, %1)     keeps nothing

What it keeps it checks the version of on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt._torch.seen.fake import fake_tensors
from smelt._torch.storage import storage_key
from smelt.ir import Arg, Node, TensorType, TupleType, Type, Value, map_values
from smelt.ir.nodes import fill_leaves
from smelt.ops.convert import dummy_of, to_torch
from smelt.ops.registry import overload

_CHOOSE_BY_DEVICE = frozenset(("aten.scaled_dot_product_attention.default",))
"""Operators that on the device itself are other ones than on `meta`."""


class SavedValues:
    """`saved_values` of the nodes of a graph: what was found for one is known of all that are like it."""

    def __init__(self, requires: Callable[[Value], bool]) -> None:
        self._requires = requires
        self._known: dict[Any, list[int] | None] = {}

    def of(self, node: Node) -> set[Value] | None:
        """As `saved_values`."""
        values = list(dict.fromkeys((*node.operands(), *node.results)))
        number = {value: i for i, value in enumerate(values)}
        key = (
            node.op,
            repr(map_values(node.args, lambda v: ("%", number[v]))),
            repr(map_values(tuple(node.kwargs.items()), lambda v: ("%", number[v]))),
            tuple((value.type, self._requires(value)) for value in values),
        )
        if key not in self._known:
            saved = saved_values(node, self._requires)
            self._known[key] = None if saved is None else [number[value] for value in saved]
        found = self._known[key]
        return None if found is None else {values[i] for i in found}


def saved_values(node: Node, requires: Callable[[Value], bool]) -> set[Value] | None:
    """The operands and results that autograd keeps; all of them where that cannot be found out.

    requires: whether an operand requires gradients. None: it writes to what it keeps itself.
    """
    everything = {*node.operands(), *node.results}
    if overload(node.op) is None:
        return set() if node.op.startswith("py.") or node.op == "unpack" else everything
    try:
        operands, results = _called(node, requires)
        made = [*operands.items(), *zip(node.results, results, strict=False)]
        owners: dict[int, Value] = {}
        for value, tensors in made:
            for tensor in _tensors(tensors):
                owners.setdefault(storage_key(tensor), value)
        kept = {storage_key(tensor) for tensor in _kept([tensors for _, tensors in made])}
    except Exception as error:  # torch raises every kind of error where data are asked for
        return None if "modified by an inplace operation" in str(error) else everything
    return {owners[key] for key in kept if key in owners}


def without_gradient(node: Node, active: Callable[[Value], bool], grads: Sequence[Value | None]) -> set[Value]:
    """The operands that autograd has no gradient for, though others have one: it leaves None there.

    active: whether an operand requires gradients. grads: of the results, those that there are.
    """
    if overload(node.op) is None:
        return set()
    try:
        operands, results = _called(node, active)
        flat = list(_tensors(results))
        pairs = [(r, torch.ones_like(r)) for r, g in zip(flat, grads, strict=True) if g is not None and r.requires_grad]
        wanted = [(value, t) for value, made in operands.items() for t in _tensors(made) if t.requires_grad]
        outputs, cotangents = zip(*pairs, strict=True)
        with no_autocast():
            found = torch.autograd.grad(outputs, [t for _, t in wanted], cotangents, allow_unused=True)
    except Exception:  # as above
        return set()
    there = {value for (value, _), grad in zip(wanted, found, strict=True) if grad is not None}
    return {value for value, _ in wanted} - there


def _called(node: Node, requires: Callable[[Value], bool]) -> tuple[dict[Value, Any], list[Any]]:
    """The operands that stand for a node's values, and the results. Raises whatever torch raises."""
    made: dict[Value, Any] = {}
    device: str | None = "meta"

    def leaf(arg: Any) -> Any:
        if not isinstance(arg, Value):
            return to_torch(arg)
        if arg not in made:
            made[arg] = _made(arg.type, requires(arg), device)
        return made[arg]

    def operand(arg: Arg) -> Any:
        return fill_leaves(arg, leaf)

    found = overload(node.op)
    with torch.enable_grad(), no_autocast(), ExitStack() as stack:
        if node.op in _CHOOSE_BY_DEVICE and stack.enter_context(fake_tensors()):
            device = None
        args = [operand(a) for a in node.args]
        kwargs = {name: operand(a) for name, a in node.kwargs.items()}
        if device is not None and "device" in kwargs:
            kwargs["device"] = device
        result = found(*args, **kwargs)  # type: ignore[misc]
    return made, list(result) if isinstance(result, (tuple, list)) and len(node.results) > 1 else [result]


def _made(type_: Type, requires: bool, device: str | None) -> Any:
    """A value of a type; tensors have no data, and may be written to."""
    if isinstance(type_, TupleType):
        return [_made(element, requires, device) for element in type_.elements]
    if not isinstance(type_, TensorType):
        raise TypeError(f"no value of type {type_} is made")
    tensor = dummy_of(type_, device)
    return tensor.requires_grad_().clone() if requires and tensor.dtype.is_floating_point else tensor


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _kept(results: Any) -> Iterator[torch.Tensor]:
    """What the nodes of autograd keep that some tensors follow from. Raises: RuntimeError where it was written to."""
    pending = [tensor.grad_fn for tensor in _tensors(results)]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        pending += [before for before, _ in node.next_functions]
        for name in dir(node):
            if name.startswith("_saved_"):
                yield from _tensors(getattr(node, name))
