"""The package `onnx`, which is imported when it is asked for; what its protobufs are made of.

Invariant: nothing of Smelt imports `onnx` but this module, and it does at an export only.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from smelt.diag import PackageError
from smelt.ir import Dim, DType, ListType, Sym, SymExpr, TensorType, Type
from smelt.ops.catalogue.onnx.base import NUMBER_TYPES
from smelt.ops.convert import dtype_from_torch, element_bytes
from smelt.ops.record import NoOnnxForm

OPSET = 20
"""The version of ONNX's operators that files are written in: the first with Gelu."""
IR_VERSION = 9
"""The version of the file's format that goes with it."""

_NAMES: Mapping[DType, str] = MappingProxyType(
    {
        DType.BOOL: "BOOL", DType.U8: "UINT8", DType.U16: "UINT16", DType.U32: "UINT32", DType.U64: "UINT64",
        DType.I8: "INT8", DType.I16: "INT16", DType.I32: "INT32", DType.I64: "INT64", DType.F16: "FLOAT16",
        DType.BF16: "BFLOAT16", DType.F32: "FLOAT", DType.F64: "DOUBLE", DType.F8E4M3FN: "FLOAT8E4M3FN",
        DType.F8E5M2: "FLOAT8E5M2", DType.F8E4M3FNUZ: "FLOAT8E4M3FNUZ", DType.F8E5M2FNUZ: "FLOAT8E5M2FNUZ",
    }
)  # fmt: skip


def library() -> Any:
    """The package. Raises: PackageError (S0705) where it is not installed."""
    try:
        found = importlib.import_module("onnx")
        importlib.import_module("onnx.helper")
        importlib.import_module("onnx.checker")
    except ImportError as error:
        raise PackageError(
            "an export to ONNX needs the package onnx",
            why=f"it cannot be imported: {error}",
            fix="pip install onnx",
            code="S0705",
        ) from None
    return found


class Protobuf:
    """Makes messages of the package."""

    def __init__(self) -> None:
        """Raises: PackageError (S0705)."""
        self.onnx = library()
        self.helper = self.onnx.helper

    def element_type(self, dtype: DType) -> int:
        """ONNX's number of an element type. Raises: NoOnnxForm."""
        name = _NAMES.get(dtype)
        if name is None:
            raise NoOnnxForm(f"ONNX's operators take no tensors of {dtype}")
        return int(getattr(self.onnx.TensorProto, name))

    def tensor(self, name: str, tensor: torch.Tensor) -> Any:
        """A tensor's content under a name. Raises: NoOnnxForm."""
        made = self.onnx.TensorProto(name=name, data_type=self.element_type(dtype_from_torch(tensor.dtype)))
        made.dims.extend(tensor.shape)
        made.raw_data = element_bytes(tensor)
        return made

    def declared(self, name: str, type_: Type) -> Any:
        """What is said of a value of a type of the graph: numbers are tensors without dimensions, lists sequences."""
        if isinstance(type_, ListType):
            inner = self.helper.make_tensor_type_proto(*self._tensor_type(type_.element))
            return self.helper.make_value_info(name, self.helper.make_sequence_type_proto(inner))
        return self.helper.make_tensor_value_info(name, *self._tensor_type(type_))

    def _tensor_type(self, type_: Type) -> tuple[int, Sequence[Any] | None]:
        if isinstance(type_, TensorType):
            shape = None if type_.shape is None else [_dimension(dim) for dim in type_.shape]
            return self.element_type(type_.dtype), shape
        dtype = NUMBER_TYPES.get(type_)
        if dtype is None:
            raise NoOnnxForm(f"ONNX has no values of type {type_}")
        return self.element_type(dtype), []


def _dimension(dim: Dim) -> int | str | None:
    """A size: a number, or the text of an expression over the free sizes; None where only a run tells."""
    if isinstance(dim, (Sym, SymExpr)):
        return str(dim)
    return dim if isinstance(dim, int) else None
