"""Operators with a Python number, as calls without one: the dispatcher's C door refuses numbers of unknown kind.

Invariant: every rewrite gives the same bits as the operator it replaces. A number becomes a held 0-d tensor only if
torch's promotion then gives the same result type, and only in a dtype from which the kernel computes the same value
(float64 or int64 where a tensor with dimensions decides the type, the result's own dtype otherwise).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.generic import emit_operator, lower_in_place, predicted_strides
from smelt.codegen.lower.static.static_program import Content
from smelt.ir import Arg, Node, TensorType, Value
from smelt.ops.convert import dtype_to_torch
from smelt.ops.registry import overload
from smelt.runtime import calls
from smelt.runtime.plan import Use

_REDUCED = (torch.float16, torch.bfloat16)


class _Rewriting:
    """One node's rewrite: operands as slots in whatever layout the node may use."""

    def __init__(self, ctx: Context, node: Node) -> None:
        self.ctx, self.node = ctx, node
        self.strides = predicted_strides(ctx, node)

    def slot(self, value: Value) -> int:
        return self.ctx.slot(value, any_layout=self.strides is not None)

    def result(self) -> int:
        return self.ctx.result(self.node.result, self.strides)

    def library(self, call: Any) -> bool:
        self.ctx.builder.emit(call)
        self.ctx.note(self.node, "library", call.symbol)
        return True

    def operator(self, name: str, *args: Any) -> bool:
        emit_operator(self.ctx, self.node, overload(name), args, self.strides)
        return True


def constant_0d(ctx: Context, number: float | int | bool, dtype: torch.dtype) -> int:
    """A held 0-d tensor of a number."""
    key = ("number", dtype, struct.pack("<d", number) if isinstance(number, float) else number, type(number))
    storage = ctx.packed.get(key)
    if storage is None:
        made = torch.tensor(number, dtype=dtype)
        storage = ctx.packed[key] = ctx.held(made, partial(Content.of, made))
    return storage.slot


def number_slot(ctx: Context, number: Arg, beside: TensorType) -> int | None:
    """A 0-d tensor that acts like the Python number beside a tensor of the given type; None where none does."""
    if not isinstance(number, (bool, int, float)):
        return None
    sample = torch.empty((1,) * len(beside.sizes), dtype=dtype_to_torch(beside.dtype), device="meta")
    wanted = torch.result_type(sample, number)
    if isinstance(number, bool):
        own = torch.bool
    elif isinstance(number, int):
        own = torch.int64
        if not -(2**63) <= number < 2**63:
            return None
        if not (wanted.is_floating_point or wanted.is_complex or wanted == torch.bool):
            limits = torch.iinfo(wanted)
            if not limits.min <= number <= limits.max:
                return None
    else:
        own = torch.float64
    for dtype in (own, wanted):
        if dtype in _REDUCED and dtype is not own:
            # Kernels compute with the number in float32; rounding it first would change the result.
            continue
        if torch.result_type(sample, torch.empty((), dtype=dtype, device="meta")) == wanted:
            return constant_0d(ctx, number, dtype)
    return None


def _operand_pair(rw: _Rewriting, left: Arg, right: Arg) -> tuple[int, int] | None:
    """Slots of two operands of which one may be a number."""
    if isinstance(left, Value) and isinstance(right, Value):
        return rw.slot(left), rw.slot(right)
    if isinstance(left, Value):
        number = number_slot(rw.ctx, right, tensor_type(left))
        return None if number is None else (rw.slot(left), number)
    if isinstance(right, Value):
        number = number_slot(rw.ctx, left, tensor_type(right))
        return None if number is None else (number, rw.slot(right))
    return None


def _lower_sum(rw: _Rewriting, left: Arg, right: Arg, alpha: Arg) -> bool:
    """left + alpha * right; the shim's alpha is a double, so integer results are left to the dispatcher."""
    if not torch_dtype(rw.node.result).is_floating_point or not isinstance(alpha, (int, float)):
        return False
    if isinstance(alpha, int) and abs(alpha) > 2**53:
        return False
    pair = _operand_pair(rw, left, right)
    return pair is not None and rw.library(calls.add(rw.result(), *pair, alpha=float(alpha)))


def _add(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    return _lower_sum(rw, call["self"], call["other"], call["alpha"])


def _sub(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    alpha = call["alpha"]
    return isinstance(alpha, (int, float)) and _lower_sum(rw, call["self"], call["other"], -alpha)


def _rsub(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    alpha = call["alpha"]
    return isinstance(alpha, (int, float)) and _lower_sum(rw, call["other"], call["self"], -alpha)


def _mul(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    pair = _operand_pair(rw, call["self"], call["other"])
    return pair is not None and rw.library(calls.mul(rw.result(), *pair))


def _binary(name: str) -> Callable[[_Rewriting, dict[str, Arg]], bool]:
    """The form of a binary operator that takes two tensors."""

    def lower(rw: _Rewriting, call: dict[str, Arg]) -> bool:
        pair = _operand_pair(rw, call["self"], call["other"])
        return pair is not None and rw.operator(name, Use(pair[0]), Use(pair[1]))

    return lower


def _div_mode(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    pair = _operand_pair(rw, call["self"], call["other"])
    if call["rounding_mode"] is None:
        return pair is not None and rw.operator("aten.div.Tensor", Use(pair[0]), Use(pair[1]))
    if call["rounding_mode"] != "floor":
        return False
    return pair is not None and rw.operator("aten.floor_divide.default", Use(pair[0]), Use(pair[1]))


def _pow(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    base, exponent = call["self"], call["exponent"]
    if not isinstance(base, Value) or isinstance(exponent, bool) or not isinstance(exponent, (int, float)):
        return False
    if not torch_dtype(base).is_floating_point or (isinstance(exponent, int) and abs(exponent) > 2**53):
        return False
    return rw.library(calls.pow_scalar(rw.result(), rw.slot(base), float(exponent)))


def _masked_fill(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    value, mask, number = call["self"], call["mask"], call["value"]
    if not isinstance(value, Value) or not isinstance(mask, Value):
        return False
    if not isinstance(number, (bool, int, float)) or (type(number) is int and not -(2**63) <= number < 2**63):
        return False
    own = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(number)]
    slot = constant_0d(rw.ctx, number, own)
    return rw.operator("aten.masked_fill.Tensor", Use(rw.slot(value)), Use(rw.slot(mask)), Use(slot))


def _where(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    condition, picked, other = call["condition"], call["self"], call["other"]
    wanted = torch_dtype(rw.node.result)
    if not isinstance(condition, Value) or wanted.is_complex:
        return False
    slots = []
    for arg in (picked, other):
        if isinstance(arg, Value):
            if torch_dtype(arg) != wanted:
                return False
            slots.append(rw.slot(arg))
        elif isinstance(arg, (bool, int, float)) and _fits(arg, wanted):
            slots.append(constant_0d(rw.ctx, arg, wanted))
        else:
            return False
    return rw.operator("aten.where.self", Use(rw.slot(condition)), *map(Use, slots))


def _fits(number: float | int | bool, dtype: torch.dtype) -> bool:
    """Whether a number turns into this dtype as torch does it silently."""
    if dtype.is_floating_point:
        return not math.isfinite(number) or abs(number) <= torch.finfo(dtype).max
    if isinstance(number, float):
        return False
    return dtype == torch.bool or torch.iinfo(dtype).min <= number <= torch.iinfo(dtype).max


def _bounds(rw: _Rewriting, value: Arg, low: Arg, high: Arg) -> bool:
    """value clamped between two numbers (None: no bound)."""
    if not isinstance(value, Value) or not torch_dtype(value).is_floating_point:
        return False
    type_ = tensor_type(value)
    if type_.is_static and (0 in type_.sizes or (1 in type_.sizes and type_.strides is not None)):
        # Beside tensors, strides that no element needs come out differently.
        return False
    if _is_plus_zero(low) and high is None and type_ == rw.node.result.type:
        # torch's relu is its clamp_min at 0.
        return rw.operator("aten.relu.default", Use(rw.slot(value)))
    if low == 0 or high == 0:
        # Against tensors of bounds, a zero of the other sign than the bound's comes out differently.
        return False
    slots: list[Any] = []
    for bound in (low, high):
        if bound is None:
            slots.append(None)
            continue
        if not isinstance(bound, (int, float)) or not _fits(bound, torch_dtype(value)) or bound != bound:
            return False
        # The kernel compares in the operand's dtype; a number of that dtype is what eager makes of it.
        slots.append(Use(constant_0d(rw.ctx, float(bound), torch_dtype(value))))
    if type_ != rw.node.result.type or slots == [None, None]:
        return False
    return rw.operator("aten.clamp.Tensor", Use(rw.slot(value)), *slots)


def _is_plus_zero(bound: Arg) -> bool:
    return isinstance(bound, (int, float)) and bound == 0 and math.copysign(1.0, bound) > 0


def _clamp(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    return _bounds(rw, call["self"], call.get("min"), call.get("max"))


def _hardtanh(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    value, low, high = call["self"], call["min_val"], call["max_val"]
    if isinstance(rw.node.result.type, TensorType) and rw.node.result.type.numel == 0:
        # Of no elements only the strides are to be seen, and the operators below choose others.
        return False
    if isinstance(value, Value) and _is_plus_zero(low) and high == 6:
        if lower_in_place(rw.ctx, rw.node, "aten.relu6_.default", ()):
            return True
        return rw.operator("aten.relu6.default", Use(rw.slot(value)))
    return _bounds(rw, value, low, high)


def _variance(name: str) -> Callable[[_Rewriting, dict[str, Arg]], bool]:
    """`var` and `std` with a correction of 0 or 1, which older overloads say with a bool."""

    def lower(rw: _Rewriting, call: dict[str, Arg]) -> bool:
        value, correction = call["self"], call["correction"]
        if not isinstance(value, Value) or correction not in (None, 0, 1):
            return False
        unbiased = correction != 0
        return rw.operator(name, Use(rw.slot(value)), call["dim"], unbiased, call["keepdim"])

    return lower


def _vector_norm(rw: _Rewriting, call: dict[str, Arg]) -> bool:
    """The 2-norm: torch's Frobenius norm over dimensions is the same kernel, and takes no number."""
    value, order, dims = call["self"], call["ord"], call["dim"]
    if not isinstance(value, Value) or order != 2 or not isinstance(dims, tuple) or call["dtype"] is not None:
        return False
    return rw.operator("aten.frobenius_norm.dim", Use(rw.slot(value)), dims, call["keepdim"])


REWRITES: dict[str, Callable[[_Rewriting, dict[str, Arg]], bool]] = {
    "aten.add.Tensor": _add,
    "aten.add.Scalar": _add,
    "aten.sub.Tensor": _sub,
    "aten.sub.Scalar": _sub,
    "aten.rsub.Tensor": _rsub,
    "aten.rsub.Scalar": _rsub,
    "aten.mul.Tensor": _mul,
    "aten.mul.Scalar": _mul,
    "aten.div.Tensor": _binary("aten.div.Tensor"),
    "aten.div.Scalar": _binary("aten.div.Tensor"),
    "aten.div.Tensor_mode": _div_mode,
    "aten.div.Scalar_mode": _div_mode,
    "aten.pow.Tensor_Scalar": _pow,
    "aten.masked_fill.Scalar": _masked_fill,
    "aten.where.Scalar": _where,
    "aten.where.ScalarSelf": _where,
    "aten.where.ScalarOther": _where,
    "aten.clamp.default": _clamp,
    "aten.clamp_min.default": _clamp,
    "aten.clamp_max.default": _clamp,
    "aten.hardtanh.default": _hardtanh,
    "aten.var.correction": _variance("aten.var.dim"),
    "aten.std.correction": _variance("aten.std.dim"),
    **{
        f"aten.{name}.{form}": _binary(f"aten.{name}.Tensor")
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "remainder", "bitwise_and", "bitwise_or", "bitwise_xor")
        for form in ("Scalar", "Tensor")
    },
    "aten.linalg_vector_norm.default": _vector_norm,
    "aten.floor_divide.Scalar": _binary("aten.floor_divide.default"),
    "aten.floor_divide.default": _binary("aten.floor_divide.default"),
}


def lower_with_numbers(ctx: Context, node: Node) -> bool:
    """Lower a node by its rewrite, if it has one that applies."""
    rewrite = REWRITES.get(node.op)
    if rewrite is None or "autocast" in node.mode or len(node.results) != 1:
        return False
    if not isinstance(node.result.type, TensorType):
        return False
    return rewrite(_Rewriting(ctx, node), ctx.call_arguments(node))
