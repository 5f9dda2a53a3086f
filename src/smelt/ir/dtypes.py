"""Element types, named as in the graph's text. No torch here: `smelt._torch.dtypes` maps them to torch's."""

from __future__ import annotations

import enum
from typing import Literal

Kind = Literal["bool", "int", "uint", "float", "complex", "other"]


class DType(enum.Enum):
    """An element type: its text name, size in bytes, and kind."""

    label: str
    itemsize: int
    kind: Kind

    BOOL = ("bool", 1, "bool")
    U8 = ("u8", 1, "uint")
    U16 = ("u16", 2, "uint")
    U32 = ("u32", 4, "uint")
    U64 = ("u64", 8, "uint")
    I8 = ("i8", 1, "int")
    I16 = ("i16", 2, "int")
    I32 = ("i32", 4, "int")
    I64 = ("i64", 8, "int")
    F16 = ("f16", 2, "float")
    BF16 = ("bf16", 2, "float")
    F32 = ("f32", 4, "float")
    F64 = ("f64", 8, "float")
    F8E4M3FN = ("f8e4m3fn", 1, "float")
    F8E5M2 = ("f8e5m2", 1, "float")
    F8E4M3FNUZ = ("f8e4m3fnuz", 1, "float")
    F8E5M2FNUZ = ("f8e5m2fnuz", 1, "float")
    F8E8M0FNU = ("f8e8m0fnu", 1, "float")
    C32 = ("c32", 4, "complex")
    C64 = ("c64", 8, "complex")
    C128 = ("c128", 16, "complex")
    QI8 = ("qi8", 1, "other")
    QU8 = ("qu8", 1, "other")
    QI32 = ("qi32", 4, "other")
    # Not an element type: stands for any of them where it is not known.
    UNKNOWN = ("tensor", 0, "other")

    def __init__(self, label: str, itemsize: int, kind: Kind) -> None:
        self.label = label
        self.itemsize = itemsize
        self.kind = kind

    # Each is one object. Enum's own is a function in Python, and types are hashed wherever anything is looked up.
    __hash__ = object.__hash__

    @property
    def is_floating(self) -> bool:
        """Whether values are real floating-point numbers."""
        return self.kind == "float"

    @property
    def is_quantized(self) -> bool:
        """Whether an element's value follows from its bits only with a scale, which is no part of a type."""
        return self in (DType.QI8, DType.QU8, DType.QI32)

    @property
    def is_integral(self) -> bool:
        """Whether values are integers (bool counted apart)."""
        return self.kind in ("int", "uint")

    @property
    def is_half(self) -> bool:
        """Whether its elements are floating-point numbers of 16 bits, in which torch stores but does not compute."""
        return self.kind == "float" and self.itemsize == 2

    def __str__(self) -> str:
        return self.label

    def __repr__(self) -> str:
        return f"DType.{self.name}"


BY_LABEL: dict[str, DType] = {d.label: d for d in DType}
