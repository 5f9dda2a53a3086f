"""Operators that take a string or a number of any type, through C functions that mean the same: the dispatcher's C door
passes neither.

Invariant: the same bits as the operator. torch's `_addmm_activation` is addmm followed by its own gelu; over an empty
inner dimension the product is the bias itself, so gelu alone remains.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from smelt._torch.library import shim
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.generic import predicted_strides
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.ir import Arg, Node, TensorType, Value
from smelt.runtime.plan import Call, Ints, OptionalDouble, Out, Text, Use

_ADDMM_GELU = "aoti_torch_cpu__addmm_activation"
_PAD = "aoti_torch_aten_pad"
_HISTC = "aoti_torch_cpu_histc"


def lower_gelu(ctx: Context, node: Node) -> bool:
    """gelu by the error function, of a row-major tensor."""
    value = node.args[0]
    if not isinstance(value, Value) or ctx.call_arguments(node)["approximate"] != "none" or not shim.has(_ADDMM_GELU):
        return False
    type_ = tensor_type(value)
    if type_ != node.result.type or type_.strides is not None or type_.numel == 0 or "autocast" in node.mode:
        return False
    columns = type_.sizes[-1] if type_.sizes else 1
    matrix = Geometry((type_.numel // columns, columns), (columns, 1))
    place = ctx.to_eager(value)
    at = place.geometry
    bias = ctx.builder.handle(Place(place.storage, Geometry(matrix.sizes, matrix.strides, at.offset)))
    left = _empty(ctx, (matrix.sizes[0], 0), torch_dtype(value))
    right = _empty(ctx, (0, columns), torch_dtype(value))
    storage = ctx.builder.made(matrix, torch_dtype(value))
    ctx.bind(node.result, Place(storage, Geometry.of(type_)))
    args = (Use(bias), Use(left), Use(right), 1.0, 1.0, 1, Out(storage.slot))
    ctx.builder.emit(Call(_ADDMM_GELU, args, lambda x, *_: F.gelu(x)))
    ctx.note(node, "library", _ADDMM_GELU)
    return True


def _empty(ctx: Context, sizes: tuple[int, int], dtype: torch.dtype) -> int:
    key = ("empty", sizes, dtype)
    if key not in ctx.packed:
        ctx.packed[key] = ctx.builder.held(torch.empty(sizes, dtype=dtype))
    return ctx.packed[key].slot


def lower_pad(ctx: Context, node: Node) -> bool:
    """aten.pad in every mode, and constant_pad_nd of floats."""
    call = ctx.call_arguments(node)
    value, pad, number, mode = call["self"], call["pad"], call["value"], call.get("mode", "constant")
    sizes = _ints(pad)
    if not isinstance(value, Value) or sizes is None or not isinstance(mode, str) or not shim.has(_PAD):
        return False
    if node.op == "aten.constant_pad_nd.default" and not torch_dtype(value).is_floating_point:
        return False
    if not (number is None or isinstance(number, (int, float))) or "autocast" in node.mode:
        return False
    if not isinstance(node.result.type, TensorType):
        return False
    fill = None if number is None else float(number)
    strides = predicted_strides(ctx, node)
    source = ctx.slot(value, any_layout=strides is not None)
    args = (
        Use(source),
        Ints(sizes),
        len(sizes),
        Text(mode),
        OptionalDouble(fill),
        Out(ctx.result(node.result, strides)),
    )
    ctx.builder.emit(Call(_PAD, args, lambda x: F.pad(x, sizes, mode, fill)))
    ctx.note(node, "library", _PAD)
    return True


def lower_histc(ctx: Context, node: Node) -> bool:
    """How many elements fall into each bin."""
    call = ctx.call_arguments(node)
    value, bins, low, high = (call[n] for n in ("self", "bins", "min", "max"))
    if not isinstance(value, Value) or not isinstance(bins, int) or not shim.has(_HISTC) or "autocast" in node.mode:
        return False
    if not isinstance(low, (int, float)) or not isinstance(high, (int, float)):
        return False
    count, first, last = bins, float(low), float(high)
    args = (Use(ctx.slot(value)), count, first, last, Out(ctx.result(node.result)))
    ctx.builder.emit(Call(_HISTC, args, lambda x: torch.histc(x, count, first, last)))
    ctx.note(node, "library", _HISTC)
    return True


def _ints(arg: Arg) -> tuple[int, ...] | None:
    if not isinstance(arg, tuple):
        return None
    found = tuple(a for a in arg if isinstance(a, int))
    return found if len(found) == len(arg) else None
