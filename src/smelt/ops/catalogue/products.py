"""Matrix products, convolutions and attention: the operators that backends run whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from smelt._torch.library.schemas import find_overload
from smelt.ir import Arg, TensorType, Type
from smelt.ops.convert import dummy_of, type_of
from smelt.ops.record import (
    Call,
    Emitter,
    Lowering,
    OpRecord,
    Product,
    Sample,
    Trait,
    as_torch_does,
    library,
    sample,
    tensor_type,
)
from smelt.ops.samples import fixed, floats, ints, strided


def _lower_matmul(b: Emitter, call: Call) -> Arg | None:
    left, right = tensor_type(call["self"]), tensor_type(call["other"])
    if left.rank == 2 and right.rank == 2:
        return b.call("aten.mm.default", call["self"], call["other"])
    if left.rank == 3 and right.rank == 3 and left.sizes[0] == right.sizes[0] > 1:
        return b.call("aten.bmm.default", call["self"], call["other"])
    return None


def _lower_linear(b: Emitter, call: Call) -> Arg | None:
    x = tensor_type(call["input"])
    if x.rank != 2 or tensor_type(call["weight"]).rank != 2:
        return None
    product = b.call("aten.mm.default", call["input"], b.call("aten.t.default", call["weight"]))
    return product if call["bias"] is None else b.call("aten.add.Tensor", product, call["bias"])


def _attention_draws(call: Call) -> bool:
    return not (type(call["dropout_p"]) in (int, float) and call["dropout_p"] == 0)


def takes_flash_attention(call: Call) -> bool:
    """Whether torch takes its flash kernel for a call here: asked of torch on memory that is never touched."""
    query, key, value = (tensor_type(call[n]) for n in ("query", "key", "value"))
    mask = tensor_type(call["attn_mask"]) if call["attn_mask"] is not None else None
    types = [query, key, value, *([mask] if mask is not None else [])]
    if query.device != "cpu" or any(not t.is_static for t in types) or query.rank != 4:
        return False
    if not query.numel or not key.numel or not value.numel:
        return False  # eager returns before it comes to the kernel, which divides by the number of heads
    choose = find_overload("aten._fused_sdp_choice.default")
    if choose is None or not isinstance(call["dropout_p"], (int, float)):
        return False
    tensors = [dummy_of(t) for t in types]
    with torch.no_grad():
        choice = choose(
            *tensors[:3],
            tensors[3] if mask is not None else None,
            call["dropout_p"],
            call["is_causal"],
            scale=call["scale"],
            enable_gqa=call["enable_gqa"],
        )
    return bool(choice == 1)


def _attention_type(call: Call) -> tuple[Type, ...] | None:
    """Strides as the kernel that torch chooses here leaves them: the flash kernel's output lies as the query does."""
    if not takes_flash_attention(call):
        return None
    return (type_of(torch.empty_like(dummy_of(tensor_type(call["query"])))),)


def _is_channels_last(kind: TensorType) -> bool:
    """Whether torch takes a 4-d tensor for channels-last: strides that do not shrink in the order C, W, H, N.

    Source: c10's is_channels_last_strides_2d, for which a tensor of one pixel or one channel may count as both.
    """
    sizes, steps = kind.sizes, kind.steps
    if len(sizes) != 4 or steps[1] == 0:
        return False
    least = 0
    for dim in (1, 3, 2, 0):
        if sizes[dim] == 0 or steps[dim] < least or (dim == 0 and least == steps[1]):
            return False
        least = steps[dim] * max(sizes[dim], 1)
    return True


def _convolution_type(call: Call) -> tuple[Type, ...] | None:
    """Channels-last where the image or the weight is, which torch's meta kernel does not know of the CPU."""
    image, weight = tensor_type(call["input"]), tensor_type(call["weight"])
    if image.device != "cpu" or not (image.is_static and weight.is_static) or image.rank != 4 or image.numel == 0:
        return None
    rows, columns = (
        (size + 2 * pad - gap * (width - 1) - 1) // step + 1
        for size, width, step, pad, gap in zip(
            image.sizes[2:], weight.sizes[2:], call["stride"], call["padding"], call["dilation"], strict=True
        )
    )
    channels = weight.sizes[0]
    sizes = (image.sizes[0], channels, rows, columns)
    strides = None
    if _is_channels_last(image) or _is_channels_last(weight):
        strides = (channels * rows * columns, 1, columns * channels, channels)
    return (TensorType.of(image.dtype, sizes, strides, image.device),)


def _attentions() -> Iterator[Sample]:
    q, k, v = floats(2, 3, 5, 4), floats(2, 3, 7, 4, seed=1), floats(2, 3, 7, 4, seed=2)
    yield sample(q, k, v)
    yield sample(q, k, v, scale=0.3)
    yield sample(q, k, v, floats(1, 1, 5, 7, seed=3))
    yield sample(q, k, v, floats(2, 1, 1, 7, seed=3) > -1)
    yield sample(q, q, q, is_causal=True)
    yield sample(*(floats(2, 5, 3, 4, seed=s).transpose(1, 2) for s in range(3)))
    yield sample(*(t.view(2, 5, 3, 4).transpose(1, 2) for t in floats(2, 5, 36).chunk(3, -1)))
    yield sample(q, k, floats(2, 3, 7, 6, seed=2))
    yield sample(*(floats(2, 3, 5, 4, seed=s, dtype=torch.bfloat16) for s in range(3)))
    yield sample(floats(2, 5, 4), floats(2, 7, 4), floats(2, 7, 4))
    yield sample(floats(2, 4, 5, 4), floats(2, 2, 5, 4), floats(2, 2, 5, 4, seed=1), enable_gqa=True)


def _linears() -> Iterator[Sample]:
    for x in (
        floats(5, 4),
        strided(5, 4),
        floats(2, 5, 4),
        floats(4),
        torch.empty(0, 4),
        floats(5, 4, dtype=torch.float64),
    ):
        weight, bias = floats(3, 4, seed=1, dtype=x.dtype), floats(3, seed=2, dtype=x.dtype)
        yield sample(x, weight)
        yield sample(x, weight, bias)
    yield sample(floats(5, 4), strided(3, 4), floats(3))


def _matmuls() -> Iterator[Sample]:
    yield sample(floats(3, 4), floats(4, 5, seed=1))
    yield sample(strided(3, 4), strided(4, 5, seed=1))
    yield sample(floats(2, 3, 4), floats(2, 4, 5, seed=1))
    yield sample(floats(2, 3, 4), floats(4, 5, seed=1))
    yield sample(floats(2, 3, 6, 4), floats(2, 3, 4, 5, seed=1))
    yield sample(floats(4), floats(4, seed=1))
    yield sample(floats(3, 4), floats(4, seed=1))
    yield sample(floats(0, 4), floats(4, 5, seed=1))
    yield sample(floats(3, 0), floats(0, 5, seed=1))


def _convolutions() -> Iterator[Sample]:
    weight, bias = floats(4, 3, 3, 3, seed=1), floats(4, seed=2)
    yield sample(floats(2, 3, 8, 8), weight)
    yield sample(floats(2, 3, 8, 8), weight, bias, [2, 2], [1, 1])
    yield sample(floats(1, 3, 8, 8), weight, bias, [1, 1], [2, 2], [2, 2])
    yield sample(floats(1, 4, 8, 8), floats(4, 1, 3, 3), None, [1, 1], [1, 1], [1, 1], 4)
    yield sample(floats(2, 3, 8, 8).to(memory_format=torch.channels_last), weight, bias)
    yield sample(floats(2, 3, 8, 8), weight.to(memory_format=torch.channels_last), bias)
    yield sample(floats(2, 3, 1, 1), floats(4, 3, 1, 1), bias)
    yield sample(floats(2, 1, 4, 4), floats(4, 1, 3, 3), bias)
    yield sample(floats(2, 3, 4, 4), floats(4, 3, 1, 1), bias)
    yield sample(floats(3, 8, 8), weight)


def _grouped_type(call: Call) -> tuple[Type, ...] | None:
    """Rows begin at multiples of 16 bytes; torch's meta kernel takes bf16 alone, and does not pad them."""
    left, right, ends = tensor_type(call["self"]), tensor_type(call["mat2"]), call["offs"]
    if call["out_dtype"] is not None or not (left.is_static and right.is_static) or left.device != "cpu":
        return None
    if {left.rank, right.rank} - {2, 3} or (left.rank == right.rank == 3) != (ends is None):
        return None
    sizes: tuple[int, ...] = (left.sizes[-2], right.sizes[-1])
    if left.rank == right.rank:
        sizes = (left.sizes[0] if ends is None else tensor_type(ends).sizes[0], *sizes)
    step = -(-sizes[-1] * left.dtype.itemsize // 16) * 16 // left.dtype.itemsize
    steps = (sizes[-2] * step, step, 1)[-len(sizes) :]
    return (TensorType.of(left.dtype, sizes, steps, left.device),)


def _grouped() -> Iterator[Sample]:
    ends = torch.tensor([3, 8], dtype=torch.int32)
    yield sample(floats(8, 4), floats(2, 4, 8), ends)
    yield sample(floats(8, 4), floats(2, 8, 4).transpose(1, 2), ends)
    yield sample(floats(2, 7, 4), floats(4, 8), ends)
    yield sample(floats(4, 8), floats(8, 8), ends)
    yield sample(floats(2, 7, 4), floats(2, 8, 4).transpose(1, 2))
    yield sample(floats(8, 8, dtype=torch.bfloat16), floats(2, 8, 8, dtype=torch.bfloat16).transpose(1, 2), ends)


def _einsums() -> Iterator[Sample]:
    q, k = floats(2, 5, 3, 4).transpose(1, 2), floats(2, 3, 4, 6)
    yield sample("ij,jk->ik", [floats(3, 4), floats(4, 5)])
    yield sample("bhid,bhdj->bhij", [q, k])
    yield sample("bhid, bhjd -> bhij", [q, floats(2, 3, 6, 4)])
    yield sample("bhwqc,hkc->bhwqk", [floats(2, 3, 4, 5, 6), floats(3, 7, 6)])
    yield sample("ibh,hnd->ibnd", [floats(4, 2, 6), floats(6, 3, 5)])
    yield sample("i,j", [floats(3), floats(4)])
    yield sample("ij->ji", [floats(3, 4)])
    yield sample("ii->i", [floats(3, 3)])
    yield sample("ii", [floats(3, 3)])
    yield sample("ijk->", [floats(2, 3, 4)])
    yield sample("...ij,...jk->...ik", [floats(2, 3, 4), floats(4, 5)])
    yield sample("ij,ij,jk->k", [floats(3, 4), floats(3, 4, seed=1), floats(4, 2)])
    yield sample("ij,jk,kl->il", [floats(3, 4), floats(4, 5), floats(5, 2)], path=[1, 2, 0, 1])
    yield sample("ij,ij->i", [ints(3, 4), ints(3, 4, seed=1)])
    yield sample("ij,jk->ik", [floats(0, 4), floats(4, 5)])
    yield sample("ij,jk->ik", [floats(3, 4, dtype=torch.bfloat16), floats(4, 5, dtype=torch.bfloat16)])


def _lower_padding(n: int) -> Lowering:
    """A convolution padded by numbers; of an operand that is padded where the same size needs more at the end."""

    def lower(b: Emitter, call: Call) -> Arg | None:
        if call["padding"] not in ("same", "valid"):
            return None
        is_same, dilation = call["padding"] == "same", _per_axis(call["dilation"], n)
        kernel = tensor_type(call["weight"]).sizes[2:]
        totals = [d * (k - 1) if is_same else 0 for k, d in zip(kernel, dilation, strict=True)]
        ends = tuple(end for total in reversed(totals) for end in (0, total % 2))
        image = b.call("aten.constant_pad_nd.default", call["input"], ends, 0) if any(ends) else call["input"]
        both = tuple(total // 2 for total in totals)
        return b.call(
            f"aten.conv{n}d.default",
            image, call["weight"], call["bias"], call["stride"], both, call["dilation"], call["groups"],
        )  # fmt: skip

    return lower


def _per_axis(given: Any, n: int) -> tuple[int, ...]:
    return given * n if len(given) == 1 else given


def _same_paddings() -> Iterator[Sample]:
    for kernel in (3, 4):
        weight = floats(4, 3, kernel, seed=1)
        yield sample(floats(2, 3, 9), weight, None, [1], "same")
        yield sample(floats(3, 9), weight, floats(4), [1], "same", [3])
    yield sample(floats(2, 4, 13), floats(4, 1, 32), None, [1], "same", [1], 4)
    yield sample(floats(2, 3, 9), floats(4, 3, 3), None, [2], "valid")


def _same_paddings_of_images() -> Iterator[Sample]:
    yield sample(floats(2, 3, 9, 8), floats(4, 3, 2, 3), floats(4), [1, 1], "same")
    yield sample(floats(2, 3, 9, 8), floats(4, 3, 4, 2), None, [1, 1], "same", [1, 3])
    yield sample(floats(2, 3, 9, 8), floats(4, 3, 3, 3), None, [1, 1], "same")


_M, _N, _K = 3, 5, 4
PRODUCTS: tuple[OpRecord, ...] = (
    OpRecord(
        "aten.linear.default",
        "torch.nn.functional.linear",
        _linears,
        lower=_lower_linear,
        traits=Trait.COSTLY,
        product=Product("input", "weight", "bias"),
    ),
    OpRecord(
        "aten.matmul.default",
        "torch.matmul",
        _matmuls,
        lower=_lower_matmul,
        exact=True,
        traits=Trait.COSTLY,
        product=Product("self", "other"),
    ),
    OpRecord(
        "aten.mm.default",
        "torch.mm",
        fixed(lambda: [sample(floats(_M, _K), floats(_K, _N)), sample(strided(_M, _K), floats(_N, _K).t())]),
        traits=Trait.COSTLY,
        product=Product("self", "mat2"),
    ),
    OpRecord(
        "aten.bmm.default",
        "torch.bmm",
        fixed(lambda: [sample(floats(2, _M, _K), floats(2, _K, _N))]),
        traits=Trait.COSTLY,
        product=Product("self", "mat2"),
    ),
    OpRecord(
        "aten.mv.default",
        "torch.mv",
        fixed(lambda: [sample(floats(_M, _K), floats(_K))]),
        why_not=library("the library reads the matrix at full speed"),
    ),
    OpRecord(
        "aten.dot.default",
        "torch.dot",
        fixed(lambda: [sample(floats(_K), floats(_K, seed=1))]),
        why_not=library("one sum, in the library's order"),
    ),
    OpRecord(
        "aten.addmm.default",
        "torch.addmm",
        fixed(
            lambda: [
                sample(floats(_N), floats(_M, _K), floats(_K, _N)),
                sample(floats(_M, _N), floats(_M, _K), floats(_K, _N), beta=0.5, alpha=2),
            ]
        ),
        traits=Trait.COSTLY,
        product=Product("mat1", "mat2", "self", first=1),
    ),
    OpRecord(
        "aten.baddbmm.default",
        "torch.baddbmm",
        fixed(lambda: [sample(floats(2, _M, _N), floats(2, _M, _K), floats(2, _K, _N))]),
        product=Product("batch1", "batch2", "self", first=1),
    ),
    OpRecord(
        "aten.outer.default",
        "torch.outer",
        fixed(lambda: [sample(floats(3), floats(4))]),
        traits=Trait.COSTLY,
        why_not=library("one product for each element, which memory bounds"),
    ),
    OpRecord(
        "aten.einsum.default",
        "torch.einsum",
        _einsums,
        lower=as_torch_does("aten.einsum.default"),
        exact=True,
        alias="maybe",
        traits=Trait.COSTLY,
    ),
    OpRecord(
        "aten.conv1d.default",
        "torch.conv1d",
        fixed(lambda: [sample(floats(2, 3, 9), floats(4, 3, 3), floats(4), [2], [1])]),
        traits=Trait.CONVOLVES,
    ),
    OpRecord(
        "aten.conv1d.padding",
        "torch.conv1d",
        _same_paddings,
        lower=_lower_padding(1),
        exact=True,
        traits=Trait.CONVOLVES,
    ),
    OpRecord(
        "aten.conv2d.padding",
        "torch.conv2d",
        _same_paddings_of_images,
        lower=_lower_padding(2),
        exact=True,
        traits=Trait.CONVOLVES,
    ),
    OpRecord("aten.conv2d.default", "torch.conv2d", _convolutions, result=_convolution_type, traits=Trait.CONVOLVES),
    OpRecord(
        "aten.conv3d.default",
        "torch.conv3d",
        fixed(
            lambda: [
                sample(floats(2, 3, 4, 5, 5), floats(4, 3, 2, 3, 3), floats(4), [1, 2, 1], [1, 0, 1]),
                sample(floats(1, 16, 3, 5, 4), floats(8, 16, 2, 3, 3), floats(8)),
            ]
        ),
        traits=Trait.CONVOLVES,
    ),
    OpRecord(
        "aten.conv_transpose2d.input",
        "torch.conv_transpose2d",
        fixed(
            lambda: [
                sample(floats(2, 3, 4, 4), floats(3, 2, 2, 2), floats(2), [2, 2]),
                sample(floats(1, 4, 5, 4), floats(4, 16, 3, 3), floats(16), [2, 2], [1, 1], [1, 0]),
            ]
        ),
    ),
    OpRecord(
        "aten._grouped_mm.default",
        "torch.nn.functional.grouped_mm",
        _grouped,
        result=_grouped_type,
        why_not=library("the library has products by groups"),
    ),
    OpRecord(
        "aten.scaled_dot_product_attention.default",
        "torch.nn.functional.scaled_dot_product_attention",
        _attentions,
        result=_attention_type,
        rng=_attention_draws,
        source="arXiv:1706.03762",
    ),
)
