"""Linear layers over few bits: `narrow.*`, operators of our own.

    %y = narrow.int8(%x, %weight, %bias)         x in bytes row by row, the weight in bytes column by column
    %y = narrow.int4(%x, %weight, %bias, 32)     x as it is, the weight in 4 bits, a scale for each 32 of a column

Operands are those of `aten.linear`, f32[..., k], f32[n, k] and f32[n] or None; so is the result, f32[..., n]. What the
bits are is part of the operator's meaning:

    int8   a row's range, 0 included, is divided into 255 steps; scale = range / 255; x becomes whole numbers of steps.
           A column's greatest magnitude is 127 steps. Products are summed exactly, then multiplied by both scales.
    int4   of the numbers of a group the one of greatest magnitude is -8 steps (the step, of bf16, has its sign); the
           others are the nearest of -8..7 steps.

A row that holds NaN or infinity becomes NaN in int8.

On a GPU the weight alone has few bits, and the product is one of bf16, whose right operand is

    narrow.bytes(%q, %scale)           i8[n, k], f32[n, 1] -> bf16[n, k]: q * scale
    narrow.nibbles(%p, %step, 32)      u8[n, k / 2], bf16[n, k / 32] -> bf16[n, k]: (4 bits - 8) * step, even j low
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from smelt.ir import Arg, DType, TensorType, Type, Value

PREFIX = "narrow."
INT8, INT4 = f"{PREFIX}int8", f"{PREFIX}int4"
BYTES, NIBBLES = f"{PREFIX}bytes", f"{PREFIX}nibbles"
GROUP = 32
"""Elements of a column with a scale of their own, in 4 bits."""
MOST_TERMS = 1 << 16
"""Terms of a sum of bytes that 32 bits hold whatever they are."""

_STEPS = 255.0
_EXACT_TERMS = 512  # so many products of a step and a byte are summed exactly in f32, in whatever order
_SHARE = torch.tensor(1.0 / _STEPS)
TINY = 1e-32
"""The least step of bytes: of a row or column of zeros."""
STEPS_OF_FEW = 8
_CACHED = 1 << 17


def byte_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """f32[m, k] as steps from each row's zero point f32[m, k] of whole numbers, a step f32[m, 1], the zero points."""
    nothing = x.new_zeros(())
    low = torch.where(x < 0, x, nothing).amin(-1, keepdim=True) if x.shape[-1] else nothing
    high = torch.where(x > 0, x, nothing).amax(-1, keepdim=True)
    scale = high * _SHARE - low * _SHARE
    scale = torch.where(scale > TINY, scale, x.new_full((), TINY))
    inverse = 1.0 / scale
    zero = _within(torch.round(-low * inverse), nothing, nothing + _STEPS)
    steps = _within(torch.round(x * inverse), -zero, _STEPS - zero)
    is_finite = x.isfinite().all(-1, keepdim=True)
    return steps, torch.where(is_finite, scale, nothing + torch.nan), zero


def _within(value: torch.Tensor, least: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
    """Clamped; NaN becomes the least."""
    value = torch.where(value > least, value, least)
    return torch.where(value < most, value, most)


def byte_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """f32[n, k] as bytes i8[n, k] and a step f32[n] each."""
    steps, scales = zip(*map(_byte_weight, in_cache(weight)), strict=True)
    return torch.cat(steps), torch.cat(scales)


def _byte_weight(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(1).div(127).clamp_min(TINY)
    return weight.div(scale[:, None]).round_().clamp_(-127, 127).to(torch.int8), scale


def nibble_weight(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """f32[n, k] as steps i8[n, k] of -8..7, and a step bf16[n, k / group] of each group of a column."""
    groups = weight.reshape(weight.shape[0], -1, group)
    low, high = groups.aminmax(dim=2, keepdim=True)
    largest = torch.where(high < -low, low, high)
    step = (largest / -STEPS_OF_FEW).to(torch.bfloat16)
    wide = step.float()
    steps = groups.div(torch.where(wide == 0, wide.new_ones(()), wide)).round_()
    steps = steps.clamp_(-STEPS_OF_FEW, STEPS_OF_FEW - 1).to(torch.int8)
    return steps.view(weight.shape), step[:, :, 0]


def in_cache(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Rows of a weight, so many at a time as a core's own cache holds; multiples of 32 but for the last."""
    return weight.split(max(_CACHED // max(weight.shape[1], 1) // 32, 1) * 32)


def as_int4(weight: torch.Tensor, group: int) -> torch.Tensor:
    """What the 4 bits of a weight stand for."""
    return torch.cat([_as_int4(rows, group) for rows in in_cache(weight)])


def _as_int4(weight: torch.Tensor, group: int) -> torch.Tensor:
    steps, step = nibble_weight(weight, group)
    return (steps.view(weight.shape[0], -1, group) * step.float()[:, :, None]).view(weight.shape)


def int8(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`narrow.int8` in torch."""
    rows, (of_weight, columns) = x.reshape(-1, x.shape[-1]), byte_weight(weight)
    steps, scale, _ = byte_rows(rows)
    blocks = zip(steps.split(_EXACT_TERMS, 1), of_weight.float().split(_EXACT_TERMS, 1), strict=True)
    sums = sum((a @ b.t()).double() for a, b in blocks)
    assert isinstance(sums, torch.Tensor)
    found = sums.float() * scale * columns
    return (found if bias is None else found + bias).view(*x.shape[:-1], weight.shape[0])


def int4(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, group: int) -> torch.Tensor:
    """`narrow.int4` in torch."""
    return torch.nn.functional.linear(x, as_int4(weight, group), bias)


def wide_bytes(steps: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`narrow.bytes` in torch."""
    return (steps.float() * scale).to(torch.bfloat16)


def wide_nibbles(packed: torch.Tensor, step: torch.Tensor, group: int) -> torch.Tensor:
    """`narrow.nibbles` in torch."""
    both = packed.float()
    high = (both / 16).floor()
    bits = torch.stack((both - 16 * high, high), -1).view(packed.shape[0], -1, group)
    return ((bits - STEPS_OF_FEW) * step.float()[:, :, None]).to(torch.bfloat16).view(packed.shape[0], -1)


RUNS: dict[str, Callable[..., torch.Tensor]] = {
    INT8: int8, INT4: int4, BYTES: wide_bytes, NIBBLES: wide_nibbles,
}  # fmt: skip


def wide_type(args: Sequence[Arg]) -> tuple[Type, ...]:
    """Of `narrow.bytes` and `narrow.nibbles`."""
    given, scale = (arg.type for arg in args[:2] if isinstance(arg, Value))
    assert isinstance(given, TensorType) and given.shape is not None and isinstance(scale, TensorType)
    n, k = given.sizes
    return (TensorType(DType.BF16, (n, k * 2 if len(args) > 2 else k), None, given.device),)


def type_of(args: Sequence[Arg]) -> tuple[Type, ...]:
    """Of the result."""
    x, weight = (arg.type for arg in args[:2] if isinstance(arg, Value))
    assert isinstance(x, TensorType) and isinstance(weight, TensorType) and x.shape is not None
    assert weight.shape is not None
    return (TensorType(x.dtype, (*x.shape[:-1], weight.shape[0]), None, x.device),)
