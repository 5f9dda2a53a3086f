"""Gradients of views and copies: each element goes back to where it was seen; where it was seen twice it is a sum.

%1: f32[3] = aten.select.int(%x, 0, 1)      ==>      %2: f32[1, 3] = aten.unsqueeze.default(%g, 0)
                                                     %3: f32[4, 3] = aten.constant_pad_nd.default(%2, [0, 0, 1, 2])
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from smelt.ir import Value
from smelt.ops.catalogue.gradients.parts import (
    has_ranks,
    has_sizes,
    joined,
    of_ranks,
    of_sizes,
    padded,
    rank_of,
    reshaped,
    reshaped_like,
    same,
    sizes_of,
    tensors_in,
    zeros_beside,
)
from smelt.ops.record import Call, Emitter, Gradient, Parts, tensor_type


def _of_reshape(b: Emitter, call: Call, grad: Value) -> Value:
    return reshaped_like(b, grad, call["self"])


def _of_transpose(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.transpose.int", grad, call["dim0"], call["dim1"])


def _of_permute(b: Emitter, call: Call, grad: Value) -> Value:
    dims = [d % len(call["dims"]) for d in call["dims"]]
    return b.call("aten.permute.default", grad, tuple(dims.index(d) for d in range(len(dims))))


def _of_reversed(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.permute.default", grad, tuple(reversed(range(rank_of(grad)))))


def _of_movedim(name: str) -> Gradient:
    return of_ranks(self=lambda b, call, grad: b.call(name, grad, call["destination"], call["source"]))


def _of_matrix_transpose(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.transpose.int", grad, -2, -1) if rank_of(grad) else grad


def _of_t(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.transpose.int", grad, 0, 1) if rank_of(grad) == 2 else grad


# --- parts


def _of_slice(b: Emitter, call: Call, grad: Value) -> Value:
    x, dim, start, end, step = (call[name] for name in ("self", "dim", "start", "end", "step"))
    if step != 1 or isinstance(start, Value) or isinstance(end, Value) or not has_sizes(call, grad):
        return b.call("aten.slice_scatter.default", zeros_beside(b, x, grad), grad, dim, start, end, step)
    total = sizes_of(x)[dim]
    return _at(b, grad, dim, _counted(start or 0, total), total)


def _counted(start: int, total: int) -> int:
    """A start from the front, within the dimension."""
    if start < 0:
        start = start + total
        return 0 if start < 0 else start
    return total if start > total else start


def _at(b: Emitter, grad: Value, dim: int, start: int, total: int) -> Value:
    length = sizes_of(grad)[dim]
    # Of nothing there is no start.
    return padded(b, grad, dim, 0, total) if length == 0 else padded(b, grad, dim, start, total - start - length)


def _of_select(b: Emitter, call: Call, grad: Value) -> Value:
    x, dim, index = call["self"], call["dim"], call["index"]
    if isinstance(index, Value) or not has_sizes(call, grad):
        return b.call("aten.select_scatter.default", zeros_beside(b, x, grad), grad, dim, index)
    total = sizes_of(x)[dim]
    start = index + total if index < 0 else index
    row = b.call("aten.unsqueeze.default", grad, dim % rank_of(x))
    return padded(b, row, dim, start, total - start - 1)


def _of_diagonal(b: Emitter, call: Call, grad: Value) -> Value:
    whole = zeros_beside(b, call["self"], grad)
    return b.call("aten.diagonal_scatter.default", whole, grad, call["offset"], call["dim1"], call["dim2"])


def _of_embedded_diagonal(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.diagonal.default", grad, call["offset"], call["dim1"], call["dim2"])


def _of_trace(b: Emitter, call: Call, grad: Value) -> Value:
    whole = zeros_beside(b, call["self"], grad)
    rows, columns = sizes_of(call["self"])
    spread = b.call("aten.expand.default", grad, (rows if rows < columns else columns,))
    return b.call("aten.diagonal_scatter.default", whole, spread)


def _of_unfold(b: Emitter, call: Call, grad: Value) -> Value:
    x, dim = call["self"], call["dimension"]
    return b.call("aten.unfold_backward.default", grad, sizes_of(x), dim, call["size"], call["step"])


def _of_unfold_backward(b: Emitter, call: Call, grad: Value) -> Value:
    return b.call("aten.unfold.default", grad, call["dim"], call["size"], call["step"])


def _of_as_strided(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    """Of a row-major operand, counted from its first element: a sum at places in it, where each may be seen often."""
    (grad,) = grads
    x, sizes, steps = call["self"], call["size"], call["stride"]
    if grad is None or not has_sizes(call, grad):
        return None
    total = prod(sizes_of(x))
    least = sum(min(0, (n - 1) * s) for n, s in zip(sizes, steps, strict=True))
    most = sum(max(0, (n - 1) * s) for n, s in zip(sizes, steps, strict=True))
    if call["storage_offset"] is not None or tensor_type(x).strides is not None or least < 0 or most >= total:
        return None

    def made() -> Value:
        places = b.call("aten.as_strided.default", b.call("aten.arange.default", total), sizes, steps)
        flat = b.call("aten.zeros.default", (total,), dtype=tensor_type(grad).dtype)
        put = b.call("aten.index_put.default", flat, (places,), grad, True)
        return reshaped(b, put, sizes_of(x))

    return {"self": made}


# --- lists of views


def _of_split(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    return _of_pieces("cat", call, results, grads, b)


def _of_unbind(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    return _of_pieces("stack", call, results, grads, b)


def _of_pieces(
    op: str, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...], b: Emitter
) -> Parts | None:
    kinds = tensors_in(tuple(results))
    fits = has_sizes if None in grads else has_ranks
    if not fits(call, *results) or len(kinds) != len(grads):
        return None
    dim = call["dim"] % rank_of(call["self"])
    return {"self": lambda: joined(b, grads, kinds, dim, op)}


def _of_broadcast(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts:
    return {"tensors": lambda: grads}


def _of_meshgrid(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    if not has_sizes(call, *results):
        return None
    is_swapped = call.get("indexing", "ij") == "xy" and len(grads) > 1
    order = (1, 0, *range(2, len(grads))) if is_swapped else tuple(range(len(grads)))

    def along(grad: Value | None, position: int, sizes: tuple[int, ...]) -> Value | None:
        if grad is None:
            return None
        others = tuple(d for d in range(len(grads)) if d != order[position])
        summed = b.call("aten.sum.dim_IntList", grad, others) if others else grad
        return reshaped(b, summed, sizes)

    kinds = tensors_in(call["tensors"])
    return {"tensors": lambda: tuple(along(g, i, k.sizes) for i, (g, k) in enumerate(zip(grads, kinds, strict=True)))}


# --- copies


def _of_copy(b: Emitter, call: Call, results: tuple[Value, ...], grads: tuple[Value | None, ...]) -> Parts | None:
    """The gradient unchanged, where the copy stays on its device."""
    (grad,) = grads
    if tensor_type(results[0]).device != tensor_type(call["self"]).device:
        return None
    return {} if grad is None else {"self": lambda: grad}


_RESHAPE, _SAME = of_ranks(self=_of_reshape), of_ranks(self=same)

GRADIENTS: Mapping[str, Gradient] = {
    **dict.fromkeys(
        (
            "aten.view.default", "aten.reshape.default", "aten.flatten.using_ints", "aten.unflatten.int",
            "aten.view_as.default", "aten.reshape_as.default", "aten._unsafe_view.default", "aten.unsqueeze.default",
            "aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims",
        ),
        _RESHAPE,
    ),
    **dict.fromkeys(("aten.expand.default", "aten.expand_as.default"), _SAME),
    **dict.fromkeys(
        (
            "aten.contiguous.default", "aten.clone.default", "aten.alias.default", "aten.lift_fresh.default",
            "aten.to.dtype", "aten.to.dtype_layout", "aten.to.device", "aten.to.other", "aten.type_as.default",
            "aten._to_copy.default",
        ),
        _of_copy,
    ),
    "aten.transpose.int": of_ranks(self=_of_transpose),
    "aten.swapaxes.default": of_ranks(self=lambda b, c, g: b.call("aten.transpose.int", g, c["axis0"], c["axis1"])),
    "aten.swapdims.default": of_ranks(self=lambda b, c, g: b.call("aten.transpose.int", g, c["dim0"], c["dim1"])),
    "aten.permute.default": of_ranks(self=_of_permute),
    "aten.t.default": of_ranks(self=_of_t),
    "aten.mT.default": of_ranks(self=_of_matrix_transpose),
    "aten.numpy_T.default": of_ranks(self=_of_reversed),
    **{f"aten.{n}": _of_movedim(f"aten.{n}") for n in ("movedim.int", "movedim.intlist", "moveaxis.int")},
    "aten.slice.Tensor": of_ranks(self=_of_slice),
    "aten.select.int": of_ranks(self=_of_select),
    "aten.diagonal.default": of_ranks(self=_of_diagonal),
    "aten.diag_embed.default": of_ranks(self=_of_embedded_diagonal),
    "aten.trace.default": of_sizes(self=_of_trace),
    "aten.unfold.default": of_sizes(self=_of_unfold),
    "aten.unfold_backward.default": of_ranks(grad_in=_of_unfold_backward),
    "aten.as_strided.default": _of_as_strided,
    **dict.fromkeys(
        (
            "aten.split.Tensor", "aten.split_with_sizes.default", "aten.split.sizes", "aten.chunk.default",
        ),
        _of_split,
    ),
    "aten.unbind.int": _of_unbind,
    "aten.broadcast_tensors.default": _of_broadcast,
    "aten.meshgrid.default": _of_meshgrid,
    "aten.meshgrid.indexing": _of_meshgrid,
}  # fmt: skip
"""Gradients of views, and of what copies or casts; `detach` has none."""
