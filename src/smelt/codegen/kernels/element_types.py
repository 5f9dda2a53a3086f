"""Numbers as the element types of kernels hold them."""

from __future__ import annotations

import struct

from smelt.ir import DType


def to_half(value: float) -> float:
    """The f16 number next to a float (rounded to f32 first, as eager does)."""
    single = to_single(value)
    if single != single or abs(single) == float("inf"):
        return single
    try:
        return float(struct.unpack("<e", struct.pack("<e", single))[0])
    except OverflowError:
        return float("inf") if single > 0 else float("-inf")


def to_single(value: float) -> float:
    """The f32 number next to a double."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def to_bfloat(value: float) -> float:
    """The bf16 number next to a float (rounded to f32 first, as eager does)."""
    single = to_single(value)
    if single != single:
        return single
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def rounded(value: float, dtype: DType) -> float:
    """A number as an f16 or bf16 holds it; other dtypes are left to the literal's type."""
    if dtype is DType.F16:
        return to_half(value)
    if dtype is DType.BF16:
        return to_bfloat(value)
    return value


def wrapped(value: int, dtype: DType) -> int:
    """A number as an integer of a dtype holds it, which keeps its low bits."""
    bits = 8 * dtype.itemsize
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.kind == "int" and value >> (bits - 1) else value
