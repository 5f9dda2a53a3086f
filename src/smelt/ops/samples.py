"""Deterministic operands for trying operators: dtypes, strides, empty, 0-d, NaN, infinities and negative zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from smelt.ops.record import Sample, Samples, sample

SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 0.0, 1.0, -1.0, 0.5, -2.5, 30.0, -30.0, 1e-30)


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Normally distributed numbers, the same each time."""
    generator = torch.Generator().manual_seed(seed + 17 * len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def positives(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers between 0.1 and about 5."""
    return floats(*shape, seed=seed, dtype=dtype).abs() + 0.1


def ints(*shape: int, low: int = -5, high: int = 6, seed: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Integers in [low, high)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def bools(*shape: int, seed: int = 0) -> torch.Tensor:
    """True and False about as often."""
    return ints(*shape, low=0, high=2, seed=seed).to(torch.bool)


def special(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The values that simplifications get wrong."""
    return torch.tensor(SPECIAL, dtype=dtype)


def strided(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The same as `floats`, every dimension's stride doubled and the last two transposed in memory."""
    doubled = floats(*(2 * s for s in (*shape[:-2], *reversed(shape[-2:]))), seed=seed, dtype=dtype)
    picked = doubled[tuple(slice(None, None, 2) for _ in shape)]
    return picked.transpose(-1, -2) if len(shape) >= 2 else picked


def float_operands() -> Iterator[torch.Tensor]:
    """Single operands over float dtypes, layouts and sizes."""
    yield floats(3, 4)
    yield special()
    yield special(torch.float64)
    yield special(torch.bfloat16)
    yield strided(3, 4)
    yield floats(2, 3, 4).permute(2, 0, 1)
    yield torch.empty(0, 3)
    yield torch.tensor(0.75)
    yield floats(3, 1).expand(3, 4)


def all_operands() -> Iterator[torch.Tensor]:
    """Float operands, and integers and bools, which promote."""
    yield from float_operands()
    yield ints(3, 4)
    yield ints(3, low=0, dtype=torch.uint8)
    yield bools(3)


def each(operands: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Iterator[Sample]:
    """One sample per operand, with the same further arguments."""
    for operand in operands:
        yield sample(operand, *args, **kwargs)


def unary() -> Iterator[Sample]:
    """Samples of a pointwise function of one float or integer tensor."""
    yield from each(all_operands())


def unary_float() -> Iterator[Sample]:
    """Samples of a pointwise function of floats only."""
    yield from each(float_operands())


def unary_ints() -> Iterator[Sample]:
    """Samples of a pointwise function of integers and bools."""
    yield from each((ints(3, 4), bools(2, 3), ints(4, dtype=torch.int8), torch.empty(0, dtype=torch.int32)))


def pairs() -> Iterator[tuple[Any, Any]]:
    """Two operands: same and broadcast sizes, other layouts, promotion between dtypes, scalars."""
    yield floats(3, 4), floats(3, 4, seed=1)
    yield special(), special().flip(0)
    yield floats(3, 4), floats(4, seed=1)
    yield floats(3, 1), floats(1, 4, seed=1)
    yield strided(3, 4), floats(3, 4, seed=1)
    yield strided(3, 4), strided(3, 4, seed=1)
    yield floats(3, 4), torch.tensor(2.0, dtype=torch.float64)
    yield floats(3, 4), floats(3, 4, seed=1, dtype=torch.float64)
    yield floats(3, 4, dtype=torch.bfloat16), floats(4, seed=1)
    yield floats(3, 4), ints(3, 4, low=1)
    yield ints(3, 4, low=1), ints(4, low=1, seed=1)
    yield torch.empty(0, 3), floats(3)
    yield torch.tensor(1.5), torch.tensor(-0.0)


def binary() -> Iterator[Sample]:
    """Samples of a pointwise function of two tensors."""
    for left, right in pairs():
        yield sample(left, right)


def arithmetic() -> Iterator[Sample]:
    """Samples of a pointwise function of two tensors, or a tensor and a number in a tensor's place."""
    yield from binary()
    yield sample(floats(3, 4), 2)
    yield sample(floats(3, 4), 2.5)
    yield sample(ints(3), 2)
    yield sample(bools(3), 1)


def binary_float() -> Iterator[Sample]:
    """Samples of a function of two float tensors of equal dtype."""
    for left, right in pairs():
        if left.is_floating_point() and left.dtype == right.dtype:
            yield sample(left, right)


def with_number(*numbers: int | float, operands: Samples = unary) -> Samples:
    """Samples of a tensor and a number."""

    def made() -> Iterator[Sample]:
        for one in operands():
            for number in numbers:
                yield sample(*one.args, number)

    return made


def binary_ints() -> Iterator[Sample]:
    """Samples of a function of two integer or bool tensors."""
    yield sample(ints(3, 4), ints(4, seed=1))
    yield sample(bools(3), bools(3, seed=1))
    yield sample(bools(3), ints(3))
    yield sample(ints(3, dtype=torch.int8), ints(3, dtype=torch.uint8, low=0))


def fixed(make: Callable[[], Iterable[Sample]]) -> Samples:
    """Samples that are written out, made when they are asked for."""
    return make
