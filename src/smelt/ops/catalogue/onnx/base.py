"""What ONNX forms of all kinds are written with: operands of one element type, sizes as tensors, axes.

Invariant: nothing here imports the package `onnx`; forms name ONNX's operators and attributes, an emitter writes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import torch

from smelt.ir import BOOL, FLOAT, INT, Arg, DType, TensorType, Type, Value
from smelt.ops.convert import dtype_from_torch, dtype_to_torch
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, tensor_type

Operand: TypeAlias = "Arg | OnnxValue"
Forms: TypeAlias = "dict[str, OnnxForm]"

LAST = (1 << 63) - 1
"""A slice's end behind all elements."""

_SMALL = (DType.I8, DType.I16, DType.U8, DType.U16, DType.BOOL)
NUMBER_TYPES: Mapping[Type, DType] = MappingProxyType({INT: DType.I64, FLOAT: DType.F64, BOOL: DType.BOOL})
"""Of which element type the numbers of Python are in ONNX."""


def dtype_of(results: Sequence[Type], number: int = 0) -> DType:
    """The element type of a result. Raises: NoOnnxForm where it has none."""
    kind = results[number]
    if isinstance(kind, TensorType):
        return kind.dtype
    found = NUMBER_TYPES.get(kind)
    if found is None:
        raise NoOnnxForm(f"ONNX has no values of type {kind}")
    return found


def rank_of(x: Arg) -> int:
    """The number of dimensions of a tensor. Raises: NoOnnxForm where it is not known."""
    rank = tensor_type(x).rank if isinstance(x, Value) and isinstance(x.type, TensorType) else 0
    if rank is None:
        raise NoOnnxForm("the number of dimensions of a tensor is not known before the run")
    return rank


def axis_of(dim: Any, rank: int) -> int:
    """A dimension counted from the first."""
    return int(dim) % max(rank, 1)


def axes_of(dims: Any, rank: int) -> tuple[int, ...]:
    """Dimensions counted from the first; all of them for None and for an empty list."""
    if dims is None or dims == ():
        return tuple(range(rank))
    return tuple(axis_of(dim, rank) for dim in (dims if isinstance(dims, tuple) else (dims,)))


def computed_in(dtype: DType) -> DType:
    """The element type that arithmetic is written in: ONNX's runtimes compute small integers and bools in i32.

    Adding, multiplying and casting back gives the bits of the small type.
    """
    return DType.I32 if dtype in _SMALL else dtype


def cast(b: OnnxEmitter, x: OnnxValue, dtype: DType) -> OnnxValue:
    """The same in another element type."""
    return x if x.dtype is dtype else b.op("Cast", x, dtype=dtype, to=dtype)


def operand(b: OnnxEmitter, x: Operand, dtype: DType) -> OnnxValue:
    """A tensor or a number in an element type."""
    if isinstance(x, (bool, int, float)):
        return b.constant(_fitting(x, dtype), dtype)
    return cast(b, x if isinstance(x, OnnxValue) else b.value(x), dtype)


def _fitting(number: float, dtype: DType) -> Any:
    return int(number) if dtype.is_integral else bool(number) if dtype is DType.BOOL else float(number)


def promoted(*args: Arg) -> DType:
    """The element type in which operands meet, as torch's promotion has it."""
    found = torch.result_type(*map(_dummy, (args[0], args[-1])))
    return dtype_from_torch(found)


_NUMBERS: Mapping[Type, Any] = MappingProxyType({INT: 1, FLOAT: 1.0, BOOL: True})


def _dummy(arg: Arg) -> Any:
    if isinstance(arg, Value):
        if isinstance(arg.type, TensorType):
            return torch.empty((1,) * rank_of(arg), dtype=dtype_to_torch(arg.type.dtype), device="meta")
        number: Any = _NUMBERS.get(arg.type)
        if number is None:
            raise NoOnnxForm(f"ONNX has no values of type {arg.type}")
        return number
    return arg


def ints(b: OnnxEmitter, arg: Any) -> OnnxValue:
    """Whole numbers, some of which a run may compute, as a tensor of one dimension."""
    items = arg if isinstance(arg, tuple) else (arg,)
    if isinstance(arg, Value) and not isinstance(arg.type, TensorType) and arg.type not in NUMBER_TYPES:
        raise NoOnnxForm("a list of sizes has a length that is not known before the run")
    if all(isinstance(item, int) for item in items):
        return b.constant([int(item) for item in items], DType.I64)
    one = b.constant([1], DType.I64)
    parts = [
        b.constant([item], DType.I64) if isinstance(item, int) else b.op("Reshape", operand(b, item, DType.I64), one)
        for item in items
    ]
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=0)


def sizes_of(b: OnnxEmitter, x: Value | OnnxValue) -> OnnxValue:
    """A tensor's sizes."""
    if isinstance(x, Value) and isinstance(x.type, TensorType):
        known = sizes_of_type(b, x.type)
        if known is not None:
            return known
    return b.op("Shape", x, dtype=DType.I64)


def sizes_of_type(b: OnnxEmitter, type_: Type) -> OnnxValue | None:
    """The sizes that a type tells, where it tells all."""
    if not isinstance(type_, TensorType) or type_.shape is None:
        return None
    if all(isinstance(dim, int) for dim in type_.shape):
        return b.constant([int(dim) for dim in type_.shape if isinstance(dim, int)], DType.I64)
    numbers = [b.constant([dim], DType.I64) if isinstance(dim, int) else b.size(dim) for dim in type_.shape]
    one = b.constant([1], DType.I64)
    known = [number for number in numbers if number is not None]
    parts = [n if isinstance(d, int) else b.op("Reshape", n, one) for n, d in zip(known, type_.shape, strict=False)]
    if len(known) < len(numbers):
        return None
    return parts[0] if len(parts) == 1 else b.op("Concat", *parts, axis=0)


def size_of(b: OnnxEmitter, x: Value, dim: int) -> OnnxValue:
    """One size of a tensor, as a tensor of one element."""
    shape = tensor_type(x).shape
    if shape is not None and isinstance(shape[dim], int):
        return b.constant([shape[dim]], DType.I64)
    return b.op("Shape", x, dtype=DType.I64, start=axis_of(dim, rank_of(x)), end=axis_of(dim, rank_of(x)) + 1)


def static_size(x: Arg, dim: int) -> int:
    """One size of a tensor as a number. Raises: NoOnnxForm where it is free."""
    shape = tensor_type(x).shape
    found = None if shape is None else shape[dim]
    if not isinstance(found, int):
        raise NoOnnxForm("a size that this operator needs is not known before the run")
    return int(found)


def reshape(b: OnnxEmitter, x: OnnxValue | Value, sizes: Sequence[int] | OnnxValue) -> OnnxValue:
    """The elements under other sizes; -1: as many as are left."""
    if isinstance(sizes, OnnxValue):
        return b.op("Reshape", x, sizes, allowzero=1)
    return b.op("Reshape", x, b.constant(list(sizes), DType.I64), allowzero=int(-1 not in sizes and 0 in sizes))


def permute(b: OnnxEmitter, x: OnnxValue | Value, order: Sequence[int]) -> OnnxValue:
    """Dimensions in another order."""
    if list(order) == sorted(order):
        return x if isinstance(x, OnnxValue) else b.value(x)
    return b.op("Transpose", x, perm=list(order))


def unsqueeze(b: OnnxEmitter, x: OnnxValue | Value, *axes: int) -> OnnxValue:
    """Dimensions of size 1 at these places of the result."""
    return (
        b.op("Unsqueeze", x, b.constant(list(axes), DType.I64)) if axes else b.value(x) if isinstance(x, Value) else x
    )


def squeeze(b: OnnxEmitter, x: OnnxValue | Value, *axes: int) -> OnnxValue:
    """Without these dimensions of size 1."""
    return b.op("Squeeze", x, b.constant(list(axes), DType.I64))


def where(b: OnnxEmitter, test: OnnxValue, yes: OnnxValue, no: OnnxValue) -> OnnxValue:
    """Element by element one of two, of one element type."""
    dtype = yes.dtype
    inner = DType.U8 if dtype is DType.BOOL else computed_in(dtype)
    return cast(b, b.op("Where", test, cast(b, yes, inner), cast(b, no, inner), dtype=inner), dtype)


def compared(b: OnnxEmitter, kind: str, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """A comparison of operands of one element type."""
    inner = x.dtype if kind == "Equal" and x.dtype is DType.BOOL else computed_in(x.dtype)
    return b.op(kind, cast(b, x, inner), cast(b, y, inner), dtype=DType.BOOL)


def arithmetic(b: OnnxEmitter, kind: str, x: OnnxValue, y: OnnxValue) -> OnnxValue:
    """An operation on two operands of one element type."""
    inner = computed_in(x.dtype)
    return cast(b, b.op(kind, cast(b, x, inner), cast(b, y, inner)), x.dtype)


def reduced(b: OnnxEmitter, kind: str, x: OnnxValue, axes: Sequence[int] | None, keep: bool) -> OnnxValue:
    """A reduction along axes, None: along all."""
    inner = computed_in(x.dtype)
    along = None if axes is None else b.constant(list(axes), DType.I64)
    if axes == ():  # of a tensor without dimensions
        return x
    return cast(b, b.op(kind, cast(b, x, inner), along, keepdims=int(keep)), x.dtype)


def infinite(b: OnnxEmitter, dtype: DType, sign: int = 1) -> OnnxValue:
    """Infinity."""
    return b.constant(sign * float("inf"), dtype)


def sliced(b: OnnxEmitter, x: OnnxValue | Value, axis: int, start: Any, end: Any, step: int = 1) -> OnnxValue:
    """Elements from one to before another along an axis; numbers that a run computes are `ints`."""
    begin, stop = (n if isinstance(n, OnnxValue) else b.constant([n], DType.I64) for n in (start, end))
    return b.op("Slice", x, begin, stop, b.constant([axis], DType.I64), b.constant([step], DType.I64))


def no_form(why: str) -> OnnxForm:
    """The form of what ONNX cannot say, for this reason."""

    def form(b: OnnxEmitter, call: Call, results: tuple[Type, ...]) -> None:
        raise NoOnnxForm(why)

    return form
