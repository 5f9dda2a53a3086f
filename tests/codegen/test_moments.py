"""Norms of rows that hardly differ: what a mean is off by, their scale makes large (decision 0004's bound)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import smelt


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("sizes", [(2, 8, 7, 9), (1, 4, 64, 64)], ids=str)
@pytest.mark.parametrize("kind", ["instance", "group", "layer", "batch"])
def test_a_norm_is_as_near_as_eagers(kind: str, sizes: tuple[int, ...], spread: float) -> None:
    torch.manual_seed(0)
    norm: nn.Module = {
        "instance": lambda: nn.InstanceNorm2d(sizes[1]),
        "group": lambda: nn.GroupNorm(2, sizes[1]),
        "layer": lambda: nn.LayerNorm(sizes[1:]),
        "batch": lambda: nn.BatchNorm2d(sizes[1]),
    }[kind]()
    x = torch.randn(*sizes[:2], 1, 1) * 3 + torch.randn(sizes) * spread
    eager, exact = copy.deepcopy(norm), copy.deepcopy(norm).double()
    compiled = smelt.compile(norm)
    for _ in range(2):
        ours, theirs, reference = compiled(x), eager(x), exact(x.double())
    ulp = reference.abs().max() * torch.finfo(x.dtype).eps
    assert (ours - reference).square().mean().sqrt() <= 1.5 * (theirs - reference).square().mean().sqrt() + ulp
    for (name, a), b in zip(norm.named_buffers(), exact.buffers(), strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1e30])
def test_of_rows_that_are_not_finite_nothing_is_and_squares_may_overflow(value: float) -> None:
    """Eager's layer norm of few elements subtracts infinities where squares overflow; in float64 none does."""
    x = torch.randn(3, 8, 4)
    x[1, 2, 3] = value
    for norm in (nn.LayerNorm(4), nn.GroupNorm(2, 8), nn.InstanceNorm1d(8), nn.BatchNorm1d(8)):
        compiled, exact = smelt.compile(norm), copy.deepcopy(norm).double()
        compiled(x)
        assert torch.equal(compiled(x).isfinite(), exact(x.double()).isfinite()), norm
