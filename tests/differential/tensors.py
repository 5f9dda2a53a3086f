"""Deterministic tensors of every dtype, layout and kind of value, from one expression."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.uint8)
LAYOUTS = ("plain", "transposed", "sliced", "offset", "expanded", "overlapping")

_WILD = (float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e-40, -5e-324, 1e30, -1e30, 6e-8, 65504.0, 0.5, -1.0)


def values(seed: int, count: int, dtype: torch.dtype, kind: str) -> torch.Tensor:
    """`count` elements. kind: "tame" (moderate numbers) or "wild" (NaN, infinities, -0.0, denormals, extremes too)."""
    rng = random.Random(seed)
    if dtype == torch.bool:
        return torch.tensor([rng.random() < 0.5 for _ in range(count)], dtype=dtype)
    if dtype.is_floating_point:
        numbers = [rng.gauss(0.0, 1.5) for _ in range(count)]
        if kind == "wild":
            numbers = [rng.choice(_WILD) if rng.random() < 0.3 else x for x in numbers]
        return torch.tensor(numbers, dtype=torch.float64).to(dtype)
    low, high = (0, 9) if dtype == torch.uint8 else (-9, 9)
    numbers_i = [rng.randint(low, high) for _ in range(count)]
    if kind == "wild":
        info = torch.iinfo(dtype)
        numbers_i = [rng.choice((info.min, info.max, 0, 1)) if rng.random() < 0.2 else x for x in numbers_i]
    return torch.tensor(numbers_i, dtype=dtype)


def tensor(
    seed: int, shape: Sequence[int], dtype: torch.dtype, layout: str = "plain", kind: str = "tame"
) -> torch.Tensor:
    """A tensor of the given shape whose elements and strides follow from the arguments alone."""
    shape = tuple(shape)
    count = 1
    for size in shape:
        count *= size
    if layout == "transposed":
        return values(seed, count, dtype, kind).reshape(shape[::-1]).permute(tuple(range(len(shape)))[::-1])
    if layout == "sliced" and shape:
        wide = (*shape[:-1], 2 * shape[-1] + 1)
        count = count // max(shape[-1], 1) * wide[-1] if shape[-1] else 0
        return (
            values(seed, count, dtype, kind).reshape(wide)[..., 1::2]
            if shape[-1]
            else torch.empty(wide, dtype=dtype)[..., 1::2]
        )
    if layout == "offset":
        return values(seed, count + 3, dtype, kind)[3:].reshape(shape)
    if layout == "expanded" and shape and count:
        return values(seed, count // shape[0], dtype, kind).reshape(shape[1:]).expand(shape)
    if layout == "overlapping" and len(shape) >= 2 and count:
        return values(seed, sum(shape), dtype, kind).as_strided(shape, (1,) * len(shape))
    return values(seed, count, dtype, kind).reshape(shape)
