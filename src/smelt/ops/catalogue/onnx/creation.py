"""Tensors from nothing but sizes and numbers, and what tells sizes, in ONNX."""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir import DType, TensorType, Type
from smelt.ops.catalogue.onnx.base import (
    Forms,
    axis_of,
    cast,
    dtype_of,
    ints,
    no_form,
    operand,
    rank_of,
    reshape,
    sizes_of,
    sizes_of_type,
)
from smelt.ops.convert import dtype_to_torch
from smelt.ops.record import Call, NoOnnxForm, OnnxEmitter, OnnxForm, OnnxValue, Types

_MOST_ELEMENTS = 4096
"""Of a range that is written as a constant."""


def _filled(b: OnnxEmitter, result: Type, sizes: Any, number: Any) -> OnnxValue:
    dtype = dtype_of((result,))
    known = sizes_of_type(b, result)
    shape = known if known is not None else sizes if isinstance(sizes, OnnxValue) else ints(b, sizes)
    return b.op("Expand", operand(b, number, dtype), shape)


def _full(number: Any) -> OnnxForm:
    """number: what fills it, or the name of the argument that says so."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        return _filled(b, results[0], call.get("size"), call[number] if isinstance(number, str) else number)

    return form


def _full_like(number: Any) -> OnnxForm:
    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        fill = call[number] if isinstance(number, str) else number
        return _filled(b, results[0], sizes_of(b, call["self"]), fill)

    return form


def _scalar(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return operand(b, call["s"], dtype_of(results))


def _arange(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    kind, dtype = results[0], dtype_of(results)
    start, end, step = call.get("start", 0), call["end"], call.get("step", 1)
    if all(isinstance(n, (int, float)) for n in (start, end, step)):
        size = kind.shape[0] if isinstance(kind, TensorType) and kind.shape else None
        if isinstance(size, int) and size <= _MOST_ELEMENTS:
            return b.constant(torch.arange(start, end, step, dtype=dtype_to_torch(dtype)), dtype)
    inner = dtype if dtype in (DType.F32, DType.F64, DType.I32, DType.I64) else DType.F64
    found = b.op("Range", *(operand(b, n, inner) for n in (start, end, step)))
    return cast(b, found, dtype)


def _constant(op: Any, *names: str) -> OnnxForm:
    """What torch computes of numbers alone."""

    def form(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
        numbers = [call[name] for name in names]
        if not all(isinstance(n, (int, float)) for n in numbers):
            raise NoOnnxForm("a number that it needs is not known before the run")
        dtype = dtype_of(results)
        return b.constant(op(*numbers, dtype=dtype_to_torch(dtype)), dtype)

    return form


_DRAWS = no_form("it draws random numbers, which no runtime of ONNX draws as torch does")

# --- sizes as numbers


# A size that the program reads is that of the run, whatever the type says: on one path of a program the type may hold
# only because of what is read here.


def _sym_size(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    axis = axis_of(call["dim"], rank_of(call["self"]))
    return reshape(b, b.op("Shape", call["self"], dtype=DType.I64, start=axis, end=axis + 1), [])


def _shape(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Shape", call["self"], dtype=DType.I64)


def _sym_numel(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.op("Size", call["self"], dtype=DType.I64)


def _rank(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    return b.constant(rank_of(call["self"]), DType.I64)


def _item(b: OnnxEmitter, call: Call, results: Types) -> OnnxValue:
    x = b.value(call["self"])
    return operand(b, x if rank_of(call["self"]) == 0 else reshape(b, x, []), dtype_of(results))


FORMS: Forms = {
    **{f"aten.{new}zeros.default": _full(0) for new in ("", "new_")},
    **{f"aten.{new}ones.default": _full(1) for new in ("", "new_")},
    **{f"aten.{new}full.default": _full("fill_value") for new in ("", "new_")},
    **{f"aten.{name}": _full(0) for name in ("empty.memory_format", "empty_strided.default", "new_empty.default")},
    **{f"aten.{name}_like.default": _full_like(number) for name, number in
       (("zeros", 0), ("ones", 1), ("full", "fill_value"), ("empty", 0))},
    "aten.zero.default": _full_like(0),
    "aten.scalar_tensor.default": _scalar,
    **{f"aten.arange.{form}": _arange for form in ("default", "start", "start_step")},
    "aten.linspace.default": _constant(torch.linspace, "start", "end", "steps"),
    "aten.eye.default": _constant(torch.eye, "n"),
    "aten.eye.m": _constant(torch.eye, "n", "m"),
    **{f"aten.{name}": _DRAWS for name in (
        "rand.default", "randn.default", "randint.low", "randint.default", "randn_like.default", "rand_like.default",
        "bernoulli.default", "multinomial.default", "randperm.default", "normal_functional.default",
        "exponential.default", "uniform.default",
    )},
    "aten.sym_size.int": _sym_size,
    "aten.sym_numel.default": _sym_numel,
    "aten._shape_as_tensor.default": _shape,
    "aten.dim.default": _rank,
    "aten.item.default": _item,
    "aten._local_scalar_dense.default": _item,
}  # fmt: skip
