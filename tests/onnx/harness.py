"""Graphs and programs as ONNX models, run by onnxruntime, held against the evaluator and eager."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from smelt.ir import Graph, Value
from smelt.ops.evaluate import Lookup, no_state
from smelt.package.onnx.export import ExportedModel, export_onnx
from smelt.package.onnx.model import Model, Weight
from smelt.package.onnx.protobuf import Protobuf

# A process in which these are not installed, as on another torch, runs no test of this folder.
onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

_TYPES = {
    torch.bool: onnx.TensorProto.BOOL, torch.uint8: onnx.TensorProto.UINT8, torch.int8: onnx.TensorProto.INT8,
    torch.int16: onnx.TensorProto.INT16, torch.int32: onnx.TensorProto.INT32, torch.int64: onnx.TensorProto.INT64,
    torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16,
    torch.float32: onnx.TensorProto.FLOAT, torch.float64: onnx.TensorProto.DOUBLE,
}  # fmt: skip
_DTYPES = {number: dtype for dtype, number in _TYPES.items()}


class Session:
    """A model in onnxruntime, checked before by `onnx`, its types included."""

    def __init__(self, model: Path | Any) -> None:
        is_file = isinstance(model, Path)
        onnx.checker.check_model(str(model) if is_file else model, full_check=True)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        source = str(model) if is_file else model.SerializeToString()
        self.session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        self.outputs = [each.name for each in self.session.get_outputs()]

    def run(self, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
        """The outputs in order: tensors, and lists of them."""
        types = [each.type for each in (*self.session.get_inputs(), *self.session.get_outputs())]
        if not any("bfloat16" in kind for kind in types):
            plain = {name: tensor.detach().contiguous().numpy() for name, tensor in inputs.items()}
            return [_tensor(value) for value in self.session.run(self.outputs, plain)]
        given = {name: _given(tensor) for name, tensor in inputs.items()}
        return [_taken(value) for value in self.session.run_with_ort_values(self.outputs, given)]


def _tensor(value: Any) -> Any:
    return [_tensor(item) for item in value] if isinstance(value, list) else torch.as_tensor(value)


def _given(tensor: torch.Tensor) -> Any:
    plain = tensor.detach().contiguous()
    if plain.dtype is torch.bfloat16:
        make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        return make(plain.view(torch.uint16).numpy(), _TYPES[torch.bfloat16])
    return onnxruntime.OrtValue.ortvalue_from_numpy(plain.numpy())


def _taken(value: Any) -> Any:
    dtype, shape = _DTYPES[value.element_type()], value.shape()
    found = torch.empty(shape, dtype=dtype)
    if found.numel():
        ctypes.memmove(found.data_ptr(), value.data_ptr(), found.numel() * found.element_size())
    return found


def model_of(graph: Graph, lookup: Lookup = no_state) -> Model:
    """A graph's model."""
    outputs = [f"out{i}" for i, output in enumerate(graph.outputs) if isinstance(output, Value)]
    return Model(
        Protobuf(), graph, lambda kind, path: Weight(path, lookup(kind, path), path),
        [f"in{i}" for i in range(len(graph.inputs))], outputs,
    )  # fmt: skip


def exported(program: Any, folder: Path, **how: Any) -> ExportedModel:
    """A program, saved and exported."""
    if isinstance(program, dict):
        smelt.save(program, folder / "m.ingot", targets=[])
    else:
        program.save(folder / "m.ingot", targets=[])
    return export_onnx(folder / "m.ingot", folder / "m.onnx", **how)


def assert_alike(found: Sequence[Any], wanted: Sequence[Any], *, tolerance: float = 1e-5) -> None:
    """Values in order, up to the rounding of another order of operations; numbers of Python as tensors."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(one, list):
            assert_alike(one, list(other), tolerance=tolerance)
            continue
        other = other if isinstance(other, torch.Tensor) else torch.tensor(other, dtype=one.dtype)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        rough = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(one.dtype, tolerance)
        torch.testing.assert_close(one, other.detach(), rtol=rough, atol=rough, equal_nan=True)
