"""Products of two activations, written into planned memory: mm, bmm, addmm, baddbmm, and matmul where it is a bmm."""

from __future__ import annotations

from math import prod

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.ir import Arg, DType, Node, TensorType, Value
from smelt.ir.sizes import equals
from smelt.ops.shapes.views import Layout, seen_as
from smelt.runtime import calls
from smelt.runtime.plan import Call

_DTYPES = (DType.F32, DType.F64, DType.BF16, DType.F16)


def _are_plain(node: Node, *args: Arg) -> bool:
    """Whether all are non-empty tensors of one floating dtype, and the result is row-major of it."""
    result = node.result.type
    if not isinstance(result, TensorType) or result.strides is not None or result.dtype not in _DTYPES:
        return False
    return "autocast" not in node.mode and all(
        isinstance(a, Value) and isinstance(a.type, TensorType) and a.type.dtype is result.dtype and a.type.numel > 0
        for a in args
    )


def lower_mm(ctx: Context, node: Node) -> bool:
    """aten.mm and aten.bmm into planned memory."""
    left, right = node.args
    if not _are_plain(node, left, right):
        return False
    assert isinstance(left, Value) and isinstance(right, Value)
    make = calls.mm_out if len(tensor_type(node.result).sizes) == 2 else calls.bmm_out
    a, b = ctx.slot(left), ctx.slot(right)
    return _emit(ctx, node, make(ctx.buffer(node.result, tensor_type(node.result).sizes), a, b))


def lower_addmm(ctx: Context, node: Node) -> bool:
    """aten.addmm and aten.baddbmm into planned memory."""
    call = ctx.call_arguments(node)
    is_batch = node.op == "aten.baddbmm.default"
    names = ("batch1", "batch2") if is_batch else ("mat1", "mat2")
    bias, left, right = call["self"], call[names[0]], call[names[1]]
    alpha, beta = call["alpha"], call["beta"]
    if not _are_plain(node, bias, left, right) or not isinstance(alpha, (int, float)):
        return False
    if not isinstance(beta, (int, float)) or not all(isinstance(v, Value) for v in (bias, left, right)):
        return False
    assert isinstance(bias, Value) and isinstance(left, Value) and isinstance(right, Value)
    make = calls.baddbmm_out if is_batch else calls.addmm_out
    c, a, b = ctx.slot(bias), ctx.slot(left), ctx.slot(right)
    out = ctx.buffer(node.result, tensor_type(node.result).sizes)
    return _emit(ctx, node, make(out, c, a, b, beta=float(beta), alpha=float(alpha)))


def lower_matmul(ctx: Context, node: Node) -> bool:
    """aten.matmul of equal batches, as the mm or bmm that eager makes of it."""
    left, right = node.args
    if not _are_plain(node, left, right):
        return False
    assert isinstance(left, Value) and isinstance(right, Value)
    a, b = tensor_type(left).sizes, tensor_type(right).sizes
    if len(a) != len(b) or len(a) < 2 or not all(map(equals, a[:-2], b[:-2])):
        return False
    if len(a) == 2:
        return lower_mm(ctx, node)
    sides = [_as_batch(ctx, left), _as_batch(ctx, right)]
    if None in sides:
        return False
    slots = [ctx.builder.handle(side) for side in sides if side is not None]
    out = ctx.buffer(node.result, (prod(a[:-2]), a[-2], b[-1]))
    return _emit(ctx, node, calls.bmm_out(out, *slots))


def _as_batch(ctx: Context, value: Value) -> Place | None:
    """The value as [batch, rows, columns] where that is a view of it."""
    type_ = tensor_type(value)
    place = ctx.to_eager(value)
    sizes = (prod(type_.sizes[:-2]), *type_.sizes[-2:])
    strides = seen_as(Layout(type_.sizes, place.geometry.strides), sizes)
    return None if strides is None else Place(place.storage, Geometry(sizes, strides, place.geometry.offset))


def _emit(ctx: Context, node: Node, call: Call) -> bool:
    ctx.builder.emit(call)
    ctx.note(node, "library", call.symbol)
    return True
