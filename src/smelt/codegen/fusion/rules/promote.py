"""torch's promotion: the dtype in which an operator meets its operands, tensors with dimensions before 0-d ones before
Python numbers; and numbers as constants of a dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import torch

from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.kernels.nest import Const
from smelt.codegen.kernels.operations import FLOATS, INTEGERS
from smelt.ir import BOOL, FLOAT, INT, Arg, DType, TensorType, Type, Value
from smelt.ir.sizes import is_symbolic, late_float
from smelt.ops.convert import dtype_from_torch, dtype_to_torch

LIMITS = {d: (int(torch.iinfo(dtype_to_torch(d)).min), int(torch.iinfo(dtype_to_torch(d)).max)) for d in INTEGERS}
LARGEST = {
    DType.F16: 65504.0,
    DType.BF16: 3.3895313892515355e38,
    DType.F32: 3.4028234663852886e38,
    DType.F64: 1.7976931348623157e308,
}
"""The largest finite number of each floating-point type."""

NUMBER_TYPES: dict[Type, DType] = {INT: DType.I64, FLOAT: DType.F64, BOOL: DType.BOOL}
"""Python's numbers that a run computes, and what their memory holds."""


def memory_type(type_: Type) -> TensorType | None:
    """A tensor's type, or that of the 0-d tensor which a number of the run is in memory; None for anything else."""
    if isinstance(type_, TensorType):
        return type_
    dtype = NUMBER_TYPES.get(type_)
    return None if dtype is None else TensorType(dtype, ())


def is_float(dtype: DType) -> bool:
    """Whether a dtype is one of the floating-point types of nests."""
    return dtype in FLOATS


def math_dtype(dtype: DType) -> DType:
    """The dtype in which torch computes inside one operator: f32 for the half types."""
    return DType.F32 if dtype.is_half else dtype


def common_dtype(args: Iterable[Arg]) -> DType:
    """The dtype to which an operator brings tensors and numbers. Source: torch's `result_type`."""
    by_rank: dict[int, torch.dtype] = {}
    for arg in args:
        if isinstance(arg, Value) and arg.type in NUMBER_TYPES:
            kind, dtype = 0, torch.get_default_dtype() if arg.type == FLOAT else dtype_to_torch(NUMBER_TYPES[arg.type])
        elif isinstance(arg, Value) and isinstance(arg.type, TensorType):
            kind, dtype = (2 if arg.type.rank else 1), dtype_to_torch(arg.type.dtype)
        elif isinstance(arg, bool):
            kind, dtype = 0, torch.bool
        elif isinstance(arg, int):
            kind, dtype = 0, torch.int64
        elif isinstance(arg, float):
            kind, dtype = 0, torch.get_default_dtype()
        else:
            raise Unfusible(f"{arg!r} is neither a tensor nor a number")
        by_rank[kind] = torch.promote_types(by_rank[kind], dtype) if kind in by_rank else dtype
    found: torch.dtype | None = None
    for kind in sorted(by_rank, reverse=True):
        dtype = by_rank[kind]
        if found is None:
            found = dtype
        elif _category(dtype) > _category(found):
            # A 0-d tensor or number of a higher category decides; a number of no dtype gives the default one.
            found = torch.promote_types(found, dtype)
    if found is None:
        raise Unfusible("there is no operand")
    return dtype_from_torch(found)


def _category(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


@late_float
def _rounded(value: float, dtype: DType) -> float:
    return number(value, dtype).value


def number(value: float | int | bool, dtype: DType) -> Const:
    """A number as a constant of a dtype, rounded as torch does. Raises: Unfusible where torch would not keep it."""
    if is_symbolic(value):
        if dtype in FLOATS:
            return Const(_rounded(value, dtype), dtype)
        if dtype is DType.I64 and isinstance(value, int):
            return Const(value, dtype)
    if dtype is DType.BOOL:
        return Const(bool(value), dtype)
    if dtype in INTEGERS:
        if isinstance(value, float) and not math.isfinite(value):
            raise Unfusible(f"{value} is no integer")
        whole, (low, high) = math.trunc(value), LIMITS[dtype]
        if not low <= whole <= high:
            raise Unfusible(f"{value} does not fit {dtype}")
        return Const(whole, dtype)
    if dtype not in FLOATS:
        raise Unfusible(f"{dtype} is no type of a nest")
    if dtype is DType.F64:
        return Const(float(value), dtype)
    return Const(_nearest(float(value).hex(), dtype), dtype)


@lru_cache(maxsize=1024)
def _nearest(text: str, dtype: DType) -> float:
    """The dtype's number nearest to one that is written exactly: of two zeros, too, each is itself."""
    return torch.tensor(float.fromhex(text), dtype=torch.float64).to(dtype_to_torch(dtype)).item()
