"""Types as a person writes them beside a parameter: `smelt.f32["B", 768]`, `int`, `list[torch.Tensor]`, `X | None`.

    def f(x: smelt.f32["B", 768], n: int, names: dict[str, torch.Tensor]): ...

A size is an int, a name (the same name is the same size everywhere) or None (any size); `f32`, `f32[...]` and a plain
`torch.Tensor` leave the rank open.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

import torch

from smelt.ir import (
    BOOL,
    COMPLEX,
    FLOAT,
    INT,
    NONE,
    STR,
    UNKNOWN_DIM,
    DictType,
    Dim,
    DType,
    ListType,
    OptionalType,
    ScalarType,
    Sym,
    TensorType,
    TupleType,
    Type,
)

TENSOR = TensorType(DType.UNKNOWN, None)
"""A tensor of which nothing is known."""
_PLAIN: dict[object, Type] = {
    int: INT, float: FLOAT, bool: BOOL, complex: COMPLEX, str: STR, None: NONE, type(None): NONE,
    torch.dtype: ScalarType("dtype"), torch.device: ScalarType("device"),
}  # fmt: skip


# What libraries write for tensors; `FloatTensor` for those of any float type.
_LEGACY: dict[object, DType] = {
    torch.LongTensor: DType.I64, torch.IntTensor: DType.I32, torch.BoolTensor: DType.BOOL,
    torch.FloatTensor: DType.UNKNOWN,
}  # fmt: skip


class TensorAnnotation:
    """A tensor's element type and, in brackets, its sizes."""

    def __init__(self, type_: TensorType) -> None:
        self.type = type_

    def __getitem__(self, sizes: object) -> TensorAnnotation:
        given = sizes if isinstance(sizes, tuple) else (sizes,)
        if Ellipsis in given:
            return TensorAnnotation(TensorType(self.type.dtype, None))
        return TensorAnnotation(TensorType(self.type.dtype, tuple(map(_dim, given))))

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise TypeError(f"smelt.{self.type.dtype} is a type for annotations; tensors are made by torch")

    def __or__(self, other: object) -> object:
        return typing.Union[self, other]  # noqa: UP007 (what `|` itself means here)

    def __ror__(self, other: object) -> object:
        return typing.Union[other, self]  # noqa: UP007

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorAnnotation) and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.type)

    def __repr__(self) -> str:
        return f"smelt.{self.type}"


def _dim(size: object) -> Dim:
    if size is None:
        return UNKNOWN_DIM
    if isinstance(size, str) and size.isidentifier():
        return Sym(size)
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    raise TypeError(f"{size!r} is no size: give an int, a name, None for any, or ... for any number of sizes")


def _of(dtype: DType) -> TensorAnnotation:
    return TensorAnnotation(TensorType(dtype, None))


f64, f32, f16, bf16 = _of(DType.F64), _of(DType.F32), _of(DType.F16), _of(DType.BF16)
i64, i32, i16, i8, u8 = _of(DType.I64), _of(DType.I32), _of(DType.I16), _of(DType.I8), _of(DType.U8)
bool_, c64, c128 = _of(DType.BOOL), _of(DType.C64), _of(DType.C128)
tensor = TensorAnnotation(TENSOR)


class Fields:
    """A value that comes apart: a tuple, a named tuple or a dataclass, with what its parts are."""

    def __init__(self, cls: type, names: Sequence[str], parts: Sequence[Any]) -> None:
        self.cls, self.names, self.parts = cls, tuple(names), tuple(parts)


def type_of_annotation(annotation: object) -> Type | Fields | None:
    """What an annotation says; None where it says nothing that a graph knows."""
    if isinstance(annotation, TensorAnnotation):
        return annotation.type
    if isinstance(annotation, type) and issubclass(annotation, torch.Tensor):
        return TENSOR
    try:
        if annotation in _PLAIN:
            return _PLAIN[annotation]
        if annotation in _LEGACY:
            return TensorType(_LEGACY[annotation], None)
    except TypeError:
        return None
    if isinstance(annotation, type):
        return _fields_of(annotation)
    return _generic(annotation)


def _fields_of(cls: type) -> Any:
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        hints = _hints(cls)
        return Fields(cls, cls._fields, [type_of_annotation(hints.get(n, torch.Tensor)) for n in cls._fields])
    if hasattr(cls, "__dataclass_fields__"):
        hints, names = _hints(cls), list(cls.__dataclass_fields__)
        return Fields(cls, names, [type_of_annotation(hints.get(n, Any)) for n in names])
    bare: dict[type, object] = {list: ListType(TENSOR), dict: DictType(STR, TENSOR)}
    return bare.get(cls)


def _hints(cls: type) -> dict[str, object]:
    try:
        return typing.get_type_hints(cls)
    except Exception:  # an annotation may be any code
        return dict(getattr(cls, "__annotations__", {}))


def _generic(annotation: object) -> Type | Fields | None:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        present = [type_of_annotation(a) for a in args if a is not type(None)]
        if len(present) != 1 or present[0] is None or isinstance(present[0], Fields):
            return None
        return OptionalType(present[0]) if len(present) < len(args) else present[0]
    if origin is typing.Annotated:
        return type_of_annotation(args[0])
    inner = [type_of_annotation(a) for a in args if a is not Ellipsis]
    if origin is tuple and len(inner) == len(args):
        return Fields(tuple, [str(i) for i in range(len(args))], inner)
    inner = [_plain_tuple(i) for i in inner]
    if any(i is None or isinstance(i, Fields) for i in inner):
        return None
    if _is_sequence(origin) or (origin is tuple and len(inner) == 1):
        return ListType(inner[0])  # type: ignore[arg-type]
    if origin is dict and len(inner) == 2:
        return DictType(inner[0], inner[1])  # type: ignore[arg-type]
    return None


def _plain_tuple(found: object) -> Any:
    """A tuple inside a container, as one value."""
    if isinstance(found, Fields) and found.cls is tuple:
        parts = [_plain_tuple(part) for part in found.parts]
        if not any(part is None or isinstance(part, Fields) for part in parts):
            return TupleType(tuple(parts))
    return found


def _is_sequence(origin: object) -> bool:
    return origin is list or getattr(origin, "__name__", "") in ("Sequence", "Iterable", "Collection")
