"""Gradients at ties, bounds, zeros, NaN and infinities, and of calls that the catalogue's samples do not make."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan

import pytest
import torch

from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats
from tests.autodiff.gradient_harness import check_gradients

X = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 6.0, 20.0, -20.0, 21.0, 200.0, -200.0, 0.5, inf, -inf])
NAN = torch.tensor([nan])
LEFT, RIGHT = (
    torch.tensor(v) for v in zip(*((a, b) for a in (-1.0, 0.0, 1.0, nan) for b in (0.0, 1.0, nan)), strict=True)
)
ACTIVATIONS = (
    "relu", "relu6", "hardtanh", "hardswish", "elu", "selu", "leaky_relu", "log_sigmoid", "silu", "mish", "gelu",
)  # fmt: skip
LOW, HIGH = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[1.0], [0.5], [2.0]])


def _pointwise() -> Iterator[tuple[str, Sample]]:
    for name in (*ACTIVATIONS, "abs", "sign", "round", "frac", "nan_to_num", "sqrt", "sigmoid"):
        yield f"{name}.default", sample(X)
        if name not in ("relu6", "hardtanh", "hardswish", "elu", "selu"):
            yield f"{name}.default", sample(NAN)
    yield "gelu.default", sample(X, approximate="tanh")
    yield "softplus.default", sample(X[X != 20])
    yield "softplus.default", sample(X[X != 3], 2, 6)
    yield "softplus.default", sample(NAN)
    yield "elu.default", sample(X, 0.5, 2, 3)
    yield "leaky_relu.default", sample(X, 0.3)
    yield "hardtanh.default", sample(X, -3, 2)
    yield "nan_to_num.default", sample(torch.tensor([nan, inf, -inf, 1.0]), 1.0, 2.0, 3.0)
    for name in ("maximum", "minimum", "fmax", "fmin", "atan2"):
        yield f"{name}.default", sample(LEFT, RIGHT)
    for exponent in (0, 1, 2, 3, 0.5, -1, 0.0, 1.5):
        yield "pow.Tensor_Scalar", sample(X, exponent)
    bases, powers = (
        torch.tensor([0.0, 0.0, 0.0, 2.0, 1.0, nan, 3.0]),
        torch.tensor([0.0, 2.0, -1.0, 0.0, nan, 0.0, 2.5]),
    )
    yield "pow.Tensor_Tensor", sample(bases, powers)
    for base in (0.0, 1.0, 2, -2.0):
        yield "pow.Scalar", sample(base, torch.tensor([0.0, 1.0, 2.0, -1.0, 0.5]))
    for mode in (None, "floor", "trunc"):
        yield "div.Tensor_mode", sample(floats(3, 4), floats(4, seed=1), rounding_mode=mode)
    for name in ("rsub.Tensor", "sub.Tensor", "add.Tensor"):
        yield name, sample(floats(3, 1), floats(4, seed=1), alpha=2.5)
    yield "mul.Tensor", sample(floats(2, 3, 4), floats(3, 1, seed=1))  # one dimension more, and one of 1
    for order in (1, 1.5, 2, 3, inf, -inf, 0.5):
        yield "linalg_vector_norm.default", sample(torch.zeros(3), order)
        yield "linalg_vector_norm.default", sample(torch.tensor([[0.0, 0.0], [0.0, 2.0]]), order, [1])
    yield "rsub.Scalar", sample(floats(3), 2, 0.5)
    yield "addcdiv.default", sample(floats(2, 3), floats(3, seed=1), floats(2, 1, seed=2), value=-2)
    yield "where.self", sample(torch.tensor([True, False]), torch.tensor([1.0, nan]), torch.tensor(inf))


def _bounds() -> Iterator[tuple[str, Sample]]:
    x = torch.tensor([0.0, 0.5, 1.0, 2.0, 3.0, nan])
    for low, high in ((1, 2), (1.0, None), (None, 1), (1, 1), (2, 0.5)):
        yield "clamp.default", sample(x, low, high)
    yield "clamp_min.default", sample(x, 1)
    yield "clamp_max.default", sample(x, 1)
    yield "clamp.Tensor", sample(x, LOW, HIGH)
    yield "clamp.Tensor", sample(x, LOW)
    yield "clamp.Tensor", sample(x, None, HIGH)
    yield "clamp.Tensor", sample(x, torch.tensor([nan, 1.0, nan, 2.0, 3.0, 0.0]), torch.tensor(3.0))


CALLS = [*_pointwise(), *_bounds()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_values(name: str) -> None:
    for one, call in CALLS:
        if one == name:
            # With two tensors for bounds later versions of torch share otherwise, and torch's own backward runs.
            nodes = check_gradients(f"aten.{name}", call)
            assert nodes in (-1, 0) or name == "clamp.Tensor", call
