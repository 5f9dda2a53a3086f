"""Calls on fake tensors as the type functions of `ops.shapes` take them, and what these tell as fake tensors again.

A fake tensor is a value of its type, whose sizes are numbers of the trace; the numbers of Python's are as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.seen.staged_fakes import FakeTensors
from smelt.capture.dynamic.arithmetic import at_hand, is_symbolic
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.dynamic.values import number_of, sized
from smelt.ir import NONE, Arg, TensorType, TupleType, Type, Value
from smelt.ops.convert import dtype_from_torch, dtype_to_torch, from_torch
from smelt.ops.shapes.symbolic import CannotTell


def typed_call(
    args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[tuple[Arg, ...], dict[str, Arg], list[Value]]:
    """A call with values in place of its tensors, each once, and these. Raises: TypeError for what no graph names."""
    values: dict[int, Value] = {}
    positional = tuple([_argument(a, values) for a in args])
    return positional, {name: _argument(a, values) for name, a in kwargs.items()}, list(values.values())


def _argument(arg: object, values: dict[int, Value]) -> Any:
    if isinstance(arg, torch.Tensor):
        found = values.get(id(arg))
        if found is None:
            found = values[id(arg)] = Value(f"v{len(values)}", tensor_type(arg), None)  # type: ignore[arg-type]
        return found
    if isinstance(arg, (list, tuple)):
        return tuple([_argument(a, values) for a in arg])
    number = number_of(arg)
    return number if is_symbolic(number) else from_torch(arg)


def tensor_type(tensor: torch.Tensor) -> TensorType:
    """The type of a fake tensor; of free sizes the strides are spelled out. Raises: TypeError for one that has none."""
    if tensor.layout is not torch.strided:
        raise TypeError(f"a tensor of the layout {tensor.layout} has no strides")
    dtype, sizes, steps = dtype_from_torch(tensor.dtype), numbers(tensor.shape), numbers(tensor.stride())
    is_fixed = all(type(n) is int for n in (*sizes, *steps))
    return (TensorType.of if is_fixed else TensorType)(dtype, sizes, steps, str(tensor.device))


def type_of(value: Value) -> Type:
    """A value's own type."""
    return value.type


def numbers(sizes: Sequence[object]) -> tuple[Any, ...]:
    """Sizes as numbers of the trace."""
    return tuple([n if type(n) is int else number_of(n) for n in sizes])


def shown(trace: CaptureTrace | None, sizes: Sequence[Any]) -> list[Any]:
    """Numbers of the trace as torch takes them."""
    return list(sizes) if trace is None else [sized(trace, n) for n in sizes]


def resolved(number: Any) -> object:
    """A number with what the trace knows of its symbols put in."""
    return number.trace.number(number.trace.resolved(number.poly)) if is_symbolic(number) else number


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal at all sizes; leaves no guard."""
    a, b = resolved(a), resolved(b)
    if is_symbolic(a) and is_symbolic(b):
        return bool(a.poly == b.poly)
    return type(a) is type(b) and bool(a == b)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is row-major and has elements at all sizes.

    Strides over one element may be numbers, those that row-major order gives now: guards hold them where they matter.
    """
    plain: Any = 1
    for size, step in zip(reversed(numbers(tensor.shape)), reversed(numbers(tensor.stride())), strict=True):
        if (size.trace.bounds(size.poly)[0] if is_symbolic(size) else size) < 1:
            return False
        if not same(step, plain) and not (type(size) is type(step) is int and size == 1 and at_hand(plain) == step):
            return False
        plain = plain * size
    return True


def tensors_in(value: object) -> Iterator[torch.Tensor]:
    """All tensors of an argument, or of a result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def fake_of(fakes: FakeTensors, trace: CaptureTrace | None, type_: Type, grad: bool) -> object:
    """A fake tensor of a type, or several of several. Raises: CannotTell for what is no tensor of known sizes."""
    if type_ == NONE:
        return None
    if isinstance(type_, TupleType):
        return [fake_of(fakes, trace, t, grad) for t in type_.elements]
    if not isinstance(type_, TensorType) or not type_.is_static or type_.layout != "strided":
        raise CannotTell(f"it gives {type_}")
    dtype = dtype_to_torch(type_.dtype)
    sizes, steps = shown(trace, type_.sizes), shown(trace, type_.steps)
    return fakes.fresh(dtype, sizes, steps, type_.device, grad and (dtype.is_floating_point or dtype.is_complex))
