"""Attention by own kernels, beside the library's flash kernel: which node has one, and its launch.

    %4 = scaled_dot_product_attention %q, %k, %v, %mask         ==>   one launch
    %9 = add %4, (NaN where spelled-out attention gives it)           ... and this too, with no term to compute

The rule: an own kernel wherever there is one. On AVX-512 it took 0.74 of the flash kernel's time for 128 queries
and keys of size 64, 0.44 causally, and 0.3 for one query; on AVX2 0.84, 0.5 and 0.35. The exception is a handful of
queries against rows that are no whole vectors, where tiles would mostly compute padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from smelt.codegen.attention import Attention, Operand, Work, kernel_of
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.diag.records import record
from smelt.ir import Node, TensorType, Value
from smelt.ir.sizes import blind, equals, is_one, is_whole
from smelt.ops.convert import dtype_to_torch
from smelt.passes.attentions.attention_guard import ATTENTION, guard_nodes

Four = tuple[int, int, int, int]
# Queries of an item, and keys, with which tiles are slower than the library (but for whole vectors, see `few`).
_FEW_ROWS, _FEW_KEYS = 4, 32


@record
class OwnAttention:
    """An attention, and the nodes behind it that it computes too: the term that spells out NaN, and its addition."""

    node: Node
    nodes: tuple[Node, ...]

    @property
    def result(self) -> Value:
        """What is computed."""
        return (self.nodes[-1] if self.nodes else self.node).result

    def bare(self) -> OwnAttention:
        """The same with nothing behind it."""
        return replace(self, nodes=())


def own_attention_of(ctx: Context, node: Node, claimed: set[Node]) -> OwnAttention | None:
    """The attention that a node is if an own kernel computes it, else None."""
    options = ctx.options
    if node.op != ATTENTION or options.numerics == "eager-library" or not options.own_kernels:
        return None
    if ctx.statics.is_static(node.result):
        return None
    work = _work(ctx, OwnAttention(node, ()), eager_place)
    if work is None or not _is_worthwhile(node, work):
        return None
    guard = guard_nodes(node)
    found = OwnAttention(node, () if claimed.intersection(guard) else guard)
    return found if found.result.type == node.result.type else found.bare()


@blind
def _is_worthwhile(node: Node, work: Work) -> bool:
    """Whether it is no slower than the library, which is as right."""
    query, key, *_ = (tensor_type(v) for v in node.operands())
    rows = query.numel // query.sizes[-1] // work.items
    return work.is_few or rows > _FEW_ROWS or key.sizes[-2] <= _FEW_KEYS


def lower_own_attention(ctx: Context, own: OwnAttention) -> None:
    """Emit the launch, into planned memory that lies as eager's result does."""
    call = ctx.call_arguments(own.node)
    result = tensor_type(own.result)
    geometry = Geometry.of(result)
    work = _work(ctx, own, ctx.place)
    assert work is not None
    operands = [call[name] for name in ("query", "key", "value")]
    slots = [ctx.builder.handle(ctx.place(v)) for v in operands if isinstance(v, Value)]
    mask = call["attn_mask"]
    masks = [ctx.builder.handle(ctx.place(mask))] if isinstance(mask, Value) else []
    dtype = dtype_to_torch(result.dtype)
    is_output = ctx.escapes(own.result)
    storage = ctx.builder.empty(geometry, dtype) if is_output else ctx.builder.arena(geometry, dtype)
    ctx.bind(own.result, Place(storage, storage.base))
    types = [tensor_type(v) for v in operands if isinstance(v, Value)]
    label = "attention " + " x ".join(str(t) for t in types)
    launch(
        ctx,
        work.source,
        (*slots, storage.slot, *masks),
        work.words,
        items=work.items,
        eager=_eager(call, is_spelled=bool(own.nodes)),
        writes=(3,),
        item_ns=work.item_ns,
        scratch_nbytes=work.scratch_nbytes,
        label=label,
        about=_about(own, types, work),
    )
    ctx.note(own.node, "kernel", work.source.symbol)
    for node in own.nodes:
        ctx.note(node, "fused", f"%{own.node.result.name}")


def _about(own: OwnAttention, types: Sequence[TensorType], work: Work) -> About:
    query, key, value = types
    *_, size = query.sizes
    nbytes = sum(t.numel * t.dtype.itemsize for t in (*types, tensor_type(own.result)))
    flops = 2 * (query.numel // size) * key.sizes[-2] * (size + value.sizes[-1])
    return About(listing=work.listing, nodes=(own.node, *own.nodes), nbytes=nbytes, flops=flops)


# --- what there is to compute


def eager_place(value: Value) -> Place | Geometry:
    return Geometry.of(tensor_type(value))


def _work(ctx: Context, own: OwnAttention, place: Callable[[Value], Place | Geometry]) -> Work | None:
    """The launch for operands that lie at their places; None where no own kernel takes them."""
    isa = host_isa()
    attention = _attention(ctx, own, place)
    return None if isa is None or attention is None else kernel_of(attention, isa)


def _attention(ctx: Context, own: OwnAttention, place: Callable[[Value], Place | Geometry]) -> Attention | None:
    call = ctx.call_arguments(own.node)
    query, key, value, mask = call["query"], call["key"], call["value"], call["attn_mask"]
    if call["dropout_p"] != 0 or "autocast" in own.node.mode:
        return None
    if not isinstance(query, Value) or not isinstance(key, Value) or not isinstance(value, Value):
        return None
    if not (mask is None or isinstance(mask, Value)):
        return None
    rank = len(tensor_type(query).sizes)
    if not 2 <= rank <= 4 or any(len(tensor_type(v).sizes) != rank for v in (key, value)):
        return None
    q, k, v = (operand_of(t, place) for t in (query, key, value))
    out = operand_of(own.result, eager_place)
    masks = None if mask is None else spread(operand_of(mask, place), (*q.sizes[:3], k.sizes[2]))
    if not are_fit(q, k, v, out, bool(call["enable_gqa"])) or (mask is not None and masks is None):
        return None
    scale = call["scale"]
    if not (scale is None or isinstance(scale, (int, float))):
        return None
    return Attention(
        q,
        k,
        v,
        out,
        masks,
        scale_after=q.sizes[3] ** -0.5 if scale is None else float(scale),
        is_causal=bool(call["is_causal"]),
        is_spelled=bool(own.nodes),
    )


def operand_of(value: Value, place: Callable[[Value], Place | Geometry]) -> Operand:
    """A tensor as one of four dimensions, sizes 1 put in front."""
    found = place(value)
    at = found if isinstance(found, Geometry) else found.geometry
    missing = 4 - len(at.sizes)
    sizes, strides = (1,) * missing + at.sizes, (0,) * missing + at.strides
    return Operand(tensor_type(value).dtype, _four(sizes), _four(strides))


def _four(numbers: tuple[int, ...]) -> Four:
    a, b, c, d = numbers
    return a, b, c, d


def spread(mask: Operand, sizes: Four) -> Operand | None:
    """The mask with a stride of 0 where it is broadcast; None if it does not fit."""
    if not all(is_one(n) or n == size for n, size in zip(mask.sizes, sizes, strict=True)):
        return None
    return replace(mask, sizes=sizes, strides=_four(tuple(
        0 if is_one(n) else s for n, s in zip(mask.sizes, mask.strides, strict=True)
    )))  # fmt: skip


def are_fit(q: Operand, k: Operand, v: Operand, out: Operand, is_gqa: bool) -> bool:
    (batch, heads, queries, size), (_, kv_heads, keys, _) = q.sizes, k.sizes
    # Sizes known at run time only are compared by guards: eager takes values of another length than the keys', which
    # hardly anybody means.
    if k.sizes != (batch, kv_heads, keys, size) or v.sizes[:3] != k.sizes[:3] or 0 in (*q.sizes, *k.sizes, *v.sizes):
        return False
    if out.sizes != (batch, heads, queries, v.sizes[3]):
        return False
    if not is_whole(heads, kv_heads) or not (equals(heads, kv_heads) or is_gqa):
        return False
    # Elements of a result never share memory; an eager result that did would not be dense.
    return all(is_one(n) or s > 0 for n, s in zip(out.sizes, out.strides, strict=True))


# --- the same in torch


def _eager(call: dict[str, Any], is_spelled: bool) -> Callable[..., Any]:
    is_causal, scale, is_gqa = bool(call["is_causal"]), call["scale"], bool(call["enable_gqa"])

    def flash(q: Any, k: Any, v: Any, out: Any, mask: Any = None) -> None:
        found = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, mask, is_causal=is_causal, scale=scale, enable_gqa=is_gqa
        )
        out.copy_(found)

    def spelled(q: Any, k: Any, v: Any, out: Any, mask: Any = None) -> None:
        if is_gqa:
            k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
        scores = torch.matmul(q, k.transpose(-1, -2)) * (q.shape[-1] ** -0.5 if scale is None else scale)
        if mask is not None:
            scores = scores + mask
        out.copy_(torch.matmul(torch.softmax(scores, -1), v))

    return spelled if is_spelled else flash
