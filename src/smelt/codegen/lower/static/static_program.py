"""A static value as a small program over the state that it follows from, so that another process can compute it anew.

    %0 = param "wq"; %1 = param "wk"; %2 = cat [%0, %1]   ==>   Read(wq); Read(wk); Apply("aten.cat", [At 0, At 1])

Invariant: it runs what `Statics` runs, operator by operator, so both give the same bits from the same state; it holds
no tensor of the state, and of constants the elements.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from smelt.codegen.lower.result import Lookup, StateName
from smelt.codegen.lower.static.statics import Statics, needed, plain_signed, state_name
from smelt.diag.records import record
from smelt.ir import STATE_OPS, Arg, Node, TensorType, Value
from smelt.ir.nodes import fill_leaves
from smelt.ops.convert import dummy_of, to_torch, type_of
from smelt.ops.evaluate import constant
from smelt.ops.registry import overload


class OtherState(Exception):
    """The state is not what a program was made for: another type, or no such tensor."""


@record
class At:
    """A result of an earlier step."""

    step: int
    result: int = 0


@record
class Read:
    """The live tensor of the program's state, which must be of this type."""

    name: StateName
    type: TensorType


@record
class Content:
    """A tensor by its elements, in a run of memory that it lies in with these sizes and strides."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    memory: bytes

    @staticmethod
    def of(tensor: torch.Tensor) -> Content | None:
        """The elements of a plainly strided tensor on the CPU; None for others."""
        tensor = tensor.detach()
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.is_conj() or tensor.is_neg():
            return None
        sizes, strides = tuple(tensor.shape), tensor.stride()
        if tensor.numel() == 0:
            return Content(tensor.dtype, sizes, strides, b"")
        extent = 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        flat = tensor.as_strided((extent,), (1,)).clone()
        return Content(tensor.dtype, sizes, strides, flat.view(torch.uint8).numpy().tobytes())

    def tensor(self) -> torch.Tensor:
        """A new tensor of these elements."""
        if not self.memory:
            return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype)
        flat = torch.frombuffer(bytearray(self.memory), dtype=torch.uint8).clone().view(self.dtype)
        return flat.as_strided(self.sizes, self.strides)


@record
class Blank:
    """A tensor of which only the type matters."""

    type: TensorType


@record
class Apply:
    """An operator by its name in the graph; `unpack` gives the elements of its operand."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    is_list: bool


Step: TypeAlias = Read | Content | Blank | Apply


@record
class StaticProgram:
    """The steps, and which result of theirs is the value."""

    steps: tuple[Step, ...]
    value: At

    def run(self, state: Lookup) -> torch.Tensor:
        """The value for the present contents of the state. Raises: OtherState."""
        known: list[Any] = []

        def fill(arg: Any) -> Any:
            return fill_leaves(
                arg, lambda leaf: known[leaf.step][leaf.result] if isinstance(leaf, At) else to_torch(leaf)
            )

        with torch.no_grad():
            for step in self.steps:
                known.append(_run(step, state, fill))
        found: torch.Tensor = known[self.value.step][self.value.result]
        return found


def _run(step: Step, state: Lookup, fill: Any) -> Any:
    match step:
        case Read():
            return (read(step, state),)
        case Content():
            return (step.tensor(),)
        case Blank(type=type_):
            return (dummy_of(type_),)
    if step.op == "unpack":
        return fill(step.args[0])
    made = plain_signed(overload(step.op)(*map(fill, step.args), **{k: fill(v) for k, v in step.kwargs}))  # type: ignore[misc]
    return made if step.is_list else (made,)


def read(wanted: Read, state: Lookup) -> torch.Tensor:
    """The live tensor. Raises: OtherState."""
    try:
        tensor = state(wanted.name.kind, wanted.name.path)
    except KeyError as error:
        raise OtherState(str(wanted.name)) from error
    # A type does not tell whether memory holds the negated elements.
    if type_of(tensor) != wanted.type or tensor.is_neg():
        raise OtherState(str(wanted.name))
    return tensor


def program_of(statics: Statics, value: Value) -> StaticProgram | None:
    """How a static value is computed; None where a constant in it has no plain elements."""
    node = value.node
    assert node is not None
    places: dict[Value, At] = {}
    steps: list[Step] = []

    def place(operand: Value) -> At:
        found = places.get(operand)
        if found is None:
            assert isinstance(operand.type, TensorType), "only of a tensor's type alone something follows"
            found = places[operand] = At(len(steps))
            steps.append(Blank(operand.type))
        return found

    def fill(arg: Arg) -> Any:
        if isinstance(arg, Value):
            return place(arg)
        return tuple(map(fill, arg)) if isinstance(arg, tuple) else arg

    for each in needed(node, {}):
        step = _step(statics, each, fill)
        if step is None:
            return None
        places.update((result, At(len(steps), i)) for i, result in enumerate(each.results))
        steps.append(step)
    return StaticProgram(tuple(steps), places[value])


def _step(statics: Statics, node: Node, fill: Any) -> Step | None:
    if node.op in STATE_OPS:
        assert isinstance(node.result.type, TensorType)
        return Read(state_name(node), node.result.type)
    if node.op == "const":
        return Content.of(constant(statics.graph, node))
    kwargs: Mapping[str, Arg] = node.kwargs
    args = tuple(map(fill, node.args))
    return Apply(node.op, args, tuple((k, fill(v)) for k, v in kwargs.items()), len(node.results) > 1)
