"""Gradients of gathers, joins, pads and repeats: an index that is read twice gets a sum, in the order of the indices.

%1: f32[3, 4] = aten.index_select.default(%x, 0, %i)    ==>    %2: f32[5, 4] = aten.zeros.default([5, 4])
                                                               %3: f32[5, 4] = aten.index_add.default(%2, 0, %i, %g)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.ir import DType, Value
from smelt.ir.sizes import equals
from smelt.ops.catalogue.gradients.parts import (
    has_ranks,
    has_sizes,
    of_ranks,
    of_sizes,
    rank_of,
    reshaped,
    reshaped_like,
    same,
    sizes_of,
    tensors_in,
    times,
    zeros,
    zeros_beside,
)
from smelt.ops.catalogue.gradients.reductions import running_count
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type
from smelt.ops.shapes.results import broadcast

# --- reading and writing at indices


def _of_index_select(b: Emitter, call: Call, grad: Value) -> Value:
    x = call["self"]
    if rank_of(x) == 0:
        return reshaped_like(b, grad, x)
    return b.call("aten.index_add.default", zeros_beside(b, x, grad), call["dim"], call["index"], grad)


def _of_added(b: Emitter, call: Call, grad: Value) -> Value:
    found = b.call("aten.index_select.default", grad, call["dim"], call["index"])
    return times(b, reshaped_like(b, found, call["source"]), call["alpha"])


def _of_gather(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.scatter_add.default", zeros_beside(b, call["self"], grad), call["dim"], call["index"], grad)


def _gathered(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.gather.default", grad, call["dim"], call["index"])


def _without_scattered(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.scatter.value", grad, call["dim"], call["index"], 0)


def _of_whole_source(gradient: Gradient) -> Gradient:
    """Where there is an index for each element of the source, as torch's own gradients need it."""

    def checked(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
        fits = tensor_type(call["src"]).shape == tensor_type(call["index"]).shape
        return gradient(b, call, results, grads) if fits else None

    return checked


def _of_index(b: Emitter, call: Call, grad: Value) -> Value:
    indices, x = call["indices"], call["self"]
    # No two places of a mask are one.
    may_repeat = any(kind.dtype is not DType.BOOL for kind in tensors_in(indices))
    return b.call("aten.index_put.default", zeros_beside(b, x, grad), indices, grad, may_repeat)


def _without_put(b: Emitter, call: Call, grad: Value) -> Value:
    if call["accumulate"]:
        return grad
    nothing = b.call("aten.zeros.default", (), dtype=tensor_type(grad).dtype)
    return b.call("aten.index_put.default", grad, call["indices"], nothing)


def _of_put_values(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.index.Tensor", grad, call["indices"])


def _of_masked_select(
    b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    (grad,) = grads
    x, mask = call["self"], call["mask"]
    if not has_sizes(call) or grad is None:
        return None
    sizes = broadcast(sizes_of(x), sizes_of(mask))
    if sizes is None:
        return None

    def made() -> Value:
        room = sizes or (1,)  # a mask has to have a dimension
        wide = mask if sizes_of(mask) == room else b.call("aten.expand.default", mask, room)
        whole = b.call("aten.zeros.default", room, dtype=tensor_type(grad).dtype)
        return reshaped(b, b.call("aten.index_put.default", whole, (wide,), grad), sizes)

    return {"self": made}


def _of_fill_value(b: Emitter, call: Call, grad: Value) -> Value:
    """All that was filled, each once."""
    nothing = b.call("aten.zeros_like.default", call["self"], dtype=DType.BOOL)
    filled = b.call("aten.index_fill.int_Scalar", nothing, call["dim"], call["index"], 1)
    return b.call("aten.sum.default", b.call("aten.where.ScalarOther", filled, grad, 0))


def _without_filled(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.index_fill.int_Scalar", grad, call["dim"], call["index"], 0)


def _of_copied(b: Emitter, call: Call, grad: Value) -> Value:
    found = b.call("aten.index_select.default", grad, call["dim"], call["index"])
    return reshaped_like(b, found, call["source"])


def _of_masked_source(b: Emitter, call: Call, grad: Value) -> Value:
    """The source's elements went one after the other to where the mask is."""
    mask, sizes, kind = call["mask"], sizes_of(grad), tensor_type(call["source"])
    whole = mask if sizes_of(mask) == sizes else b.call("aten.expand.default", mask, sizes)
    flat = reshaped(b, whole, (prod(sizes),))
    place = b.call("aten.sub.Tensor", running_count(b, flat), 1)
    given = b.call("aten.where.ScalarOther", flat, reshaped(b, grad, (prod(sizes),)), 0)
    room = b.call("aten.zeros.default", (kind.numel,), dtype=tensor_type(grad).dtype)
    place = b.call("aten.clamp_min.default", place, 0)
    return reshaped(b, b.call("aten.index_put.default", room, (place,), given, True), kind.sizes)


def _of_take(b: Emitter, call: Call, grad: Value) -> Value:
    kind = tensor_type(call["self"])
    room = b.call("aten.zeros.default", (kind.numel,), dtype=tensor_type(grad).dtype)
    return reshaped(b, b.call("aten.index_put.default", room, (call["index"],), grad, True), kind.sizes)


def _of_embedding(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    (grad,) = grads
    if grad is None or call["sparse"] or call["scale_grad_by_freq"] or not tensor_type(call["weight"]).is_static:
        return None
    rows, padding = sizes_of(call["weight"])[0], call["padding_idx"]
    return {
        "weight": lambda: b.call("aten.embedding_dense_backward.default", grad, call["indices"], rows, padding, False)
    }


def _of_embedding_backward(
    b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]
) -> Parts | None:
    (grad,) = grads
    indices, padding = call["indices"], call["padding_idx"]
    if grad is None or call["scale_grad_by_freq"] or not has_ranks(call, grad):
        return None

    def made() -> Value:
        rows = b.call("aten.embedding.default", grad, indices, padding)
        if padding < 0:
            return rows
        is_padding = b.call("aten.unsqueeze.default", b.call("aten.eq.Scalar", indices, padding), rank_of(indices))
        return b.call("aten.masked_fill.Scalar", rows, is_padding, 0)

    return {"grad_output": made}


# --- joining


def _of_cat(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    (grad,) = grads
    tensors = call["tensors"]
    kinds = tensors_in(tensors)
    if grad is None or not has_sizes(call, grad):
        return None

    def made() -> tuple[Value, ...]:
        if len(kinds) == 1:
            return (grad,)
        dim, rank = call["dim"], rank_of(grad)
        # A vector of nothing may stand beside tensors of any rank.
        left_out = [len(kind.sizes) != rank for kind in kinds]
        lengths = tuple(0 if out else kind.sizes[dim] for out, kind in zip(left_out, kinds, strict=True))
        parts = b.calls("aten.split_with_sizes.default", grad, lengths, dim)
        return tuple(zeros(b, kind) if out else part for kind, out, part in zip(kinds, left_out, parts, strict=True))

    return {"tensors": made}


def _of_stack(b: Emitter, call: Call, grad: Value) -> tuple[Value | None, ...]:
    return b.calls("aten.unbind.int", grad, call["dim"])


# --- padding and repeating


def _of_pad(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.constant_pad_nd.default", grad, tuple(-n for n in call["pad"]))


def _of_repeat(b: Emitter, call: Call, grad: Value) -> Value:
    x, repeats = call["self"], call["repeats"]
    sizes: list[int] = []
    summed: list[int] = []
    for n, size in zip(repeats, (1,) * (len(repeats) - rank_of(x)) + sizes_of(x), strict=True):
        if not equals(n, 1):
            summed.append(len(sizes))
            sizes.append(n)
        sizes.append(size)
    return reshaped(b, _summed(b, reshaped(b, grad, sizes), summed), sizes_of(x))


def _summed(b: Emitter, x: Value, dims: list[int]) -> Value:
    return b.call("aten.sum.dim_IntList", x, tuple(dims)) if dims else x


def _of_repeat_interleave(b: Emitter, call: Call, grad: Value) -> Value:
    x, n, dim = call["self"], call["repeats"], call["dim"]
    whole, at = ((prod(sizes_of(x)),), 1) if dim is None else (sizes_of(x), dim % rank_of(x) + 1)
    wide = reshaped(b, grad, (*whole[:at], n, *whole[at:]))
    return reshaped(b, b.call("aten.sum.dim_IntList", wide, (at,)), sizes_of(x))


def _of_flip(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.flip.default", grad, call["dims"])


def _of_roll(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.roll.default", grad, tuple(-n for n in call["shifts"]), call["dims"])


def _triangle(name: str) -> Gradient:
    return of_ranks(self=lambda b, call, grad: b.call(name, grad, call["diagonal"]))


# --- writing a part


def _of_part(name: str, view: str, *names: str) -> Gradient:
    """Of an operator that puts a source where a view of the first operand is."""

    def without(b: Emitter, call: Call, grad: Value) -> Value:
        return b.call(name, grad, zeros_beside(b, call["src"], grad), *(call[n] for n in names))

    return of_ranks(self=without, src=lambda b, call, grad: b.call(view, grad, *(call[n] for n in names)))


def _nothing(b: Emitter, call: Call, grad: Value) -> Value:
    """Nothing of the operand is left in the result: autograd gives zeros, not no gradient."""
    return b.call("aten.zeros_like.default", call["self"])


GRADIENTS: Mapping[str, Gradient] = {
    "aten.index_select.default": of_ranks(self=_of_index_select),
    "aten.index_add.default": of_ranks(self=same, source=_of_added),
    "aten.gather.default": of_ranks(self=_of_gather),
    "aten.scatter.src": _of_whole_source(of_ranks(self=_without_scattered, src=_gathered)),
    "aten.scatter.value": of_ranks(self=_without_scattered),
    "aten.scatter_add.default": _of_whole_source(of_ranks(self=same, src=_gathered)),
    "aten.index.Tensor": of_ranks(self=_of_index),
    "aten.index_put.default": of_ranks(self=_without_put, values=_of_put_values),
    "aten.index_fill.int_Scalar": of_ranks(self=_without_filled),
    "aten.index_fill.int_Tensor": of_ranks(self=_without_filled, value=_of_fill_value),
    "aten.index_copy.default": of_ranks(self=_without_filled, source=_of_copied),
    "aten.masked_scatter.default": of_sizes(
        self=lambda b, call, grad: b.call("aten.masked_fill.Scalar", grad, call["mask"], 0), source=_of_masked_source
    ),
    "aten.take.default": of_sizes(self=_of_take),
    "aten.masked_select.default": _of_masked_select,
    "aten.embedding.default": _of_embedding,
    "aten.embedding_dense_backward.default": _of_embedding_backward,
    **dict.fromkeys(("aten.cat.default", "aten.concat.default", "aten.concatenate.default"), _of_cat),
    "aten.stack.default": of_sizes(tensors=_of_stack),
    "aten.constant_pad_nd.default": of_ranks(self=_of_pad),
    "aten.repeat.default": of_sizes(self=_of_repeat),
    "aten.repeat_interleave.self_int": of_sizes(self=_of_repeat_interleave),
    "aten.flip.default": of_ranks(self=_of_flip),
    "aten.roll.default": of_ranks(self=_of_roll),
    "aten.tril.default": _triangle("aten.tril.default"),
    "aten.triu.default": _triangle("aten.triu.default"),
    "aten.select_scatter.default": _of_part("aten.select_scatter.default", "aten.select.int", "dim", "index"),
    "aten.slice_scatter.default": _of_part(
        "aten.slice_scatter.default", "aten.slice.Tensor", "dim", "start", "end", "step"
    ),
    "aten.diag_embed.default": of_ranks(
        self=lambda b, call, grad: b.call("aten.diagonal.default", grad, call["offset"], call["dim1"], call["dim2"])
    ),
    "aten.diagonal_scatter.default": _of_part(
        "aten.diagonal_scatter.default", "aten.diagonal.default", "offset", "dim1", "dim2"
    ),
    "aten.copy.default": of_ranks(self=_nothing, src=same),
    "aten.fill.Tensor": of_ranks(self=_nothing, value=same),
    "aten.fill.Scalar": of_ranks(self=_nothing),
    "aten.zero.default": of_ranks(self=_nothing),
}
"""Gradients of gathers and scatters, joins, pads, repeats, and of what fills a tensor."""
