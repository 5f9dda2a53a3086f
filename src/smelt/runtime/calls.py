"""Builders of the usual library calls: the C shim's argument order on one side, the equal torch expression on the
other.

Invariant: for every builder, `Call.eager` gives what the shim gives, up to the library's own rounding. Outputs named
`dst` are owned slots that the call fills; `out` is a slot that holds a tensor to write into. Sizes and strides of
what a library makes are the library's choice: check them with `CheckLayout`.

Source: torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h, c/shim_cpu.h (installed headers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from smelt._torch.library import mkldnn, products
from smelt.runtime.plan import (
    Arg,
    Call,
    DoublePointers,
    Ints,
    Numbers,
    OptionalDouble,
    OptionalText,
    OptionalUse,
    OptionalUses,
    Out,
    Text,
    Use,
    Uses,
)

Tensor: TypeAlias = torch.Tensor


def mm_out(out: int, a: int, b: int) -> Call:
    """out = a @ b for matrices, written in place."""
    return Call("aoti_torch_cpu_mm_out", (Use(out), Use(a), Use(b)), lambda o, x, y: torch.mm(x, y, out=o))


def bmm_out(out: int, a: int, b: int) -> Call:
    """out = a @ b for batches of matrices, written in place."""
    return Call("aoti_torch_cpu_bmm_out", (Use(out), Use(a), Use(b)), lambda o, x, y: torch.bmm(x, y, out=o))


def addmm_out(out: int, bias: int, a: int, b: int, *, beta: float = 1.0, alpha: float = 1.0) -> Call:
    """out = beta * bias + alpha * (a @ b), written in place."""
    return Call(
        "aoti_torch_cpu_addmm_out",
        (Use(out), Use(bias), Use(a), Use(b), float(beta), float(alpha)),
        lambda o, c, x, y: torch.addmm(c, x, y, beta=beta, alpha=alpha, out=o),
    )


def baddbmm_out(out: int, bias: int, a: int, b: int, *, beta: float = 1.0, alpha: float = 1.0) -> Call:
    """out = beta * bias + alpha * (a @ b) for batches, written in place."""
    return Call(
        "aoti_torch_cpu_baddbmm_out",
        (Use(out), Use(bias), Use(a), Use(b), float(beta), float(alpha)),
        lambda o, c, x, y: torch.baddbmm(c, x, y, beta=beta, alpha=alpha, out=o),
    )


def cut(dst: int, src: int, sizes: Sequence[int | Use], strides: Sequence[int], offset: int = 0) -> Call:
    """A handle over the memory of src, from its start or behind it, of sizes that are known or stand in slots of ints.

    src begins where its memory does, if there is an offset.
    """
    return Call(
        "aoti_torch__reinterpret_tensor",
        (Use(src), len(sizes), Numbers(tuple(sizes)), Ints(tuple(strides)), offset, Out(dst)),
        lambda t, found: t.as_strided(found, strides, t.storage_offset() + offset),
    )


def add(dst: int, a: int, b: int, *, alpha: float = 1.0) -> Call:
    """dst = a + alpha * b with broadcasting and promotion (integer results need an integral alpha)."""
    scale = _number(alpha)
    return Call(
        "aoti_torch_cpu_add_Tensor",
        (Use(a), Use(b), float(alpha), Out(dst)),
        lambda x, y: torch.add(x, y, alpha=scale),
    )


def mul(dst: int, a: int, b: int) -> Call:
    """dst = a * b with broadcasting and promotion."""
    return Call("aoti_torch_cpu_mul_Tensor", (Use(a), Use(b), Out(dst)), torch.mul)


def add_scalar(dst: int, a: int, value: float, *, alpha: float = 1.0) -> Call:
    """dst = a + alpha * value for a floating-point a (the shim passes a double, which would promote an integer a)."""
    return Call(
        "aoti_torch_cpu_add_Scalar",
        (Use(a), float(value), float(alpha), Out(dst)),
        lambda x: torch.add(x, float(value), alpha=alpha),
    )


def mul_scalar(dst: int, a: int, value: float) -> Call:
    """dst = a * value for a floating-point a (the shim passes a double, which would promote an integer a)."""
    return Call("aoti_torch_cpu_mul_Scalar", (Use(a), float(value), Out(dst)), lambda x: torch.mul(x, float(value)))


def pow_scalar(dst: int, a: int, exponent: float) -> Call:
    """dst = a ** exponent for a floating-point a."""
    return Call(
        "aoti_torch_cpu_pow_Tensor_Scalar",
        (Use(a), float(exponent), Out(dst)),
        lambda x: torch.pow(x, float(exponent)),
    )


def cat(dst: int, tensors: Sequence[int], dim: int) -> Call:
    """dst = the tensors joined along `dim`."""
    return Call(
        "aoti_torch_cpu_cat",
        (Uses(tuple(tensors)), len(tensors), dim, Out(dst)),
        lambda items: torch.cat(items, dim),
    )


def index(dst: int, a: int, indices: Sequence[int | None]) -> Call:
    """dst = a indexed by tensors, None for a whole dimension."""
    return Call(
        "aoti_torch_cpu_index_Tensor",
        (Use(a), OptionalUses(tuple(indices)), len(indices), Out(dst)),
        lambda x, items: torch.ops.aten.index.Tensor(x, items),
    )


def flash_attention(
    dst: int,
    logsumexp: int,
    q: int,
    k: int,
    v: int,
    *,
    mask: int | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Call:
    """dst = attention of f32/bf16[B, H, S, D] on CPU; `logsumexp` receives a second, usually released, tensor.

    A mask has the operands' dtype or is of float32, and is 2-d or 4-d. The result's strides follow q's.
    """

    def eager(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Any:
        return products.flash_attention(query, key, value, bias, is_causal=is_causal, scale=scale)

    return Call(
        "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu",
        (
            Use(q), Use(k), Use(v), 0.0, int(is_causal), OptionalUse(mask), OptionalDouble(scale), Out(dst),
            Out(logsumexp),
        ),
        eager,
    )  # fmt: skip


def convolution(
    dst: int,
    x: int,
    weight: int,
    bias: int | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (),
    groups: int = 1,
) -> Call:
    """dst = convolution with an ordinary weight; torch picks the library."""
    extra = tuple(output_padding) or (0,) * len(stride)
    args: tuple[Arg, ...] = (
        Use(x), Use(weight), OptionalUse(bias), *_list(stride), *_list(padding), *_list(dilation), int(transposed),
        *_list(extra), groups, Out(dst),
    )  # fmt: skip

    def eager(inp: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        return torch.convolution(
            inp, w, b, list(stride), list(padding), list(dilation), transposed, list(extra), groups
        )

    return Call("aoti_torch_cpu_convolution", args, eager)


def packed_linear(
    dst: int,
    x: int,
    packed: int,
    bias: int | None,
    *,
    post: str = "none",
    scalars: Sequence[float | None] = (),
    algorithm: str | None = None,
    other: int | None = None,
) -> Call:
    """dst = post(x @ weight^T + bias) by oneDNN with a weight from `mkldnn.pack_linear`; f32[..., in] -> f32[..., out].

    `post` is a name of `mkldnn.POST_OPS`; "add" with `other` adds a tensor of the result's shape instead. `packed` must
    be a held slot.
    """
    if other is not None:
        return Call(
            mkldnn.LINEAR_BINARY,
            (Use(x), Use(other), Use(packed), OptionalUse(bias), Text("add"), Out(dst)),
            lambda i, o, w, b: F.linear(i, _plain(w), b) + o,
        )
    return Call(
        mkldnn.LINEAR,
        (Use(x), Use(packed), OptionalUse(bias), *_post(post, scalars, algorithm), Out(dst)),
        lambda i, w, b: _apply_post(F.linear(i, _plain(w), b), post, scalars, algorithm),
    )


def mkl_linear(dst: int, x: int, packed: int, weight: int, bias: int | None, rows: int) -> Call:
    """dst = x @ weight^T + bias by MKL with a weight from `mkldnn.pack_mkl_linear` for exactly `rows` rows."""
    return Call(
        mkldnn.MKL_LINEAR,
        (Use(x), Use(packed), Use(weight), OptionalUse(bias), rows, Out(dst)),
        lambda i, _, w, b: F.linear(i, w, b),
    )


def packed_convolution(
    dst: int,
    x: int,
    packed: int,
    bias: int | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
    post: str = "none",
    scalars: Sequence[float | None] = (),
    algorithm: str | None = None,
    other: int | None = None,
) -> Call:
    """dst = post(convolution) by oneDNN with a weight from `mkldnn.pack_convolution`; stride, padding, dilation per
    axis.

    With `other`, dst = post(convolution + other). For two and three axes; the result is always channels-last.
    """
    window = (*_list(padding), *_list(stride), *_list(dilation), groups)

    layout = torch.channels_last if len(stride) == 2 else torch.channels_last_3d

    def plain(inp: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        shape = (list(stride), list(padding), list(dilation), False, [0] * len(stride), groups)
        return torch.convolution(inp, _plain(w), b, *shape).contiguous(memory_format=layout)

    if other is None:
        return Call(
            mkldnn.CONVOLUTION,
            (Use(x), Use(packed), OptionalUse(bias), *window, *_post(post, scalars, algorithm), Out(dst)),
            lambda i, w, b: _apply_post(plain(i, w, b), post, scalars, algorithm),
        )
    unary = None if post == "none" else post
    args: tuple[Arg, ...] = (
        Use(x), Use(other), Use(packed), OptionalUse(bias), *window, Text("add"), OptionalDouble(1.0),
        OptionalText(unary), DoublePointers(tuple(scalars)), len(scalars), OptionalText(algorithm), Out(dst),
    )  # fmt: skip
    return Call(
        mkldnn.CONVOLUTION_BINARY,
        args,
        lambda i, o, w, b: _apply_post(plain(i, w, b) + o, post, scalars, algorithm),
    )


def _list(values: Sequence[int]) -> tuple[Arg, Arg]:
    return Ints(tuple(values)), len(values)


def _post(post: str, scalars: Sequence[float | None], algorithm: str | None) -> tuple[Arg, ...]:
    return Text(post), DoublePointers(tuple(scalars)), len(scalars), OptionalText(algorithm)


def _plain(weight: Tensor) -> Tensor:
    return weight.to_dense() if weight.layout != torch.strided else weight


_POST = {post.name: post.eager for post in mkldnn.POST_OPS}


def _apply_post(x: Tensor, post: str, scalars: Sequence[float | None], algorithm: str | None) -> Tensor:
    if post == "gelu":
        return F.gelu(x, approximate=algorithm or "none")
    return _POST[post](x, *scalars)


def _number(value: float) -> float | int:
    """A whole number as int, so that torch accepts it for integer tensors as the shim's double is."""
    return int(value) if float(value).is_integer() else value
