"""scaled_dot_product_attention as one call of the flash kernel where eager would run it, else by the dispatcher."""

from __future__ import annotations

import math
from functools import partial

import torch

from smelt._torch.library import products, shim
from smelt.codegen.lower.builder import Storage
from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.memory.geometry import dummy
from smelt.codegen.lower.static.static_program import Content
from smelt.ir import Node, TensorType, Value
from smelt.ir.sizes import chosen
from smelt.runtime import calls
from smelt.runtime.plan import Dispatch, Use

_SYMBOL = "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu"


def lower_attention(ctx: Context, node: Node) -> bool:
    """Lower where torch itself would choose the flash kernel for these operands."""
    call = ctx.call_arguments(node)
    q, k, v, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    scale, is_causal, gqa = call["scale"], call["is_causal"], call["enable_gqa"]
    if not all(isinstance(t, Value) for t in (q, k, v)) or call["dropout_p"] != 0 or not shim.has(_SYMBOL):
        return False
    assert isinstance(q, Value) and isinstance(k, Value) and isinstance(v, Value)
    if not (mask is None or isinstance(mask, Value)) or not (scale is None or isinstance(scale, float)):
        return False
    if "autocast" in node.mode:
        return False
    operands = tensor_type(q), tensor_type(k), tensor_type(v), None if mask is None else tensor_type(mask)
    if not _is_flash(*operands, is_causal=bool(is_causal), scale=scale, enable_gqa=bool(gqa)):
        return False
    slots = [ctx.slot(t) for t in (q, k, v)]
    bias_slot = None if mask is None else _additive_mask(ctx, mask, torch_dtype(q))
    dst = ctx.result(node.result)
    ignored = ctx.builder.slot()
    flash = calls.flash_attention(dst, ignored, *slots, mask=bias_slot, is_causal=bool(is_causal), scale=scale)
    ctx.builder.emit(flash)
    ctx.note(node, "library", flash.symbol)
    return True


@chosen
def _is_flash(
    q: TensorType, k: TensorType, v: TensorType, mask: TensorType | None, *, is_causal: bool, scale: float | None,
    enable_gqa: bool,
) -> bool:  # fmt: skip
    """Whether torch chooses the flash kernel, which is right wherever another one is."""
    # Nothing is read from these, only their sizes and strides.
    query, key, value = (dummy(t, t.steps, "cpu") for t in (q, k, v))
    bias = None if mask is None else dummy(mask, mask.steps, "cpu")
    return products.attention_is_flash(query, key, value, bias, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa)


def _additive_mask(ctx: Context, mask: Value, dtype: torch.dtype) -> int:
    """The mask as eager hands it to the kernel: a bool mask becomes 0 where it is set and -inf elsewhere."""
    if torch_dtype(mask) != torch.bool:
        return ctx.slot(mask)
    if ctx.statics.is_static(mask):
        key = ("mask", mask, dtype)
        if key not in ctx.packed:
            allowed = ctx.statics.bake(mask)
            additive = torch.zeros_like(allowed, dtype=dtype).masked_fill_(allowed.logical_not(), float("-inf"))
            ctx.packed[key] = ctx.builder.held(additive)
        return ctx.packed[key].slot
    key = ("run-time mask", mask, dtype)
    if key not in ctx.packed:
        zero, blocked = (_number(ctx, number, dtype) for number in (0.0, -math.inf))
        geometry = ctx.place(mask).geometry
        storage = ctx.builder.made(geometry, dtype)
        args = (Use(ctx.slot(mask)), Use(zero.slot), Use(blocked.slot))
        ctx.builder.emit(Dispatch(torch.ops.aten.where.self, args, (storage.slot,)))
        ctx.packed[key] = storage
    return ctx.packed[key].slot


def _number(ctx: Context, number: float, dtype: torch.dtype) -> Storage:
    tensor = torch.full((), number, dtype=dtype)
    return ctx.constant(tensor, partial(Content.of, tensor))
