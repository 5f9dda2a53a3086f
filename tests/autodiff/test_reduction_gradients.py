"""Gradients of reductions, softmax, scans and sorts where the catalogue's samples do not reach."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan

import pytest
import torch

from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, strided
from tests.autodiff.gradient_harness import check_gradients

TIES = torch.tensor([[1.0, 3.0, 3.0, -0.0], [0.0, -2.0, 0.0, -2.0], [5.0, 5.0, 5.0, 5.0]])
NANS = torch.tensor([[1.0, nan, 3.0, nan], [inf, 2.0, inf, 1.0], [-inf, -inf, -inf, -inf], [0.0, 0.0, 0.0, 0.0]])
CUBE, POINT, EMPTY = floats(2, 3, 4).permute(2, 0, 1), torch.tensor(0.75), torch.empty(0, 3)


def _sums() -> Iterator[tuple[str, Sample]]:
    for name in ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default", "logsumexp.default"):
        for dims, keepdim in (([-1], True), ([1], False), ([0, 2], False), ([-3, 1], True), ([0, 1], False)):
            yield name, sample(CUBE, dims, keepdim)
        yield name, sample(TIES, [1])
        yield name, sample(NANS, [1])
        yield name, sample(POINT, [0])
        yield name, sample(torch.empty(3, 0, 2), [0] if "max" not in name else [2])
    yield "sum.dim_IntList", sample(CUBE, [])
    yield "sum.dim_IntList", sample(CUBE, None, True)
    yield "mean.dim", sample(CUBE, [])
    yield "amax.default", sample(TIES, [])
    for name in ("sum", "mean", "max", "min", "median"):
        for x in (CUBE, TIES, POINT, strided(3, 4)):
            yield f"{name}.default", sample(x)
        for row in NANS:
            yield f"{name}.default", sample(row)


def _chosen() -> Iterator[tuple[str, Sample]]:
    for name in ("max.dim", "min.dim", "median.dim", "mode.default"):
        for x in (CUBE, TIES, NANS):
            for dim in (0, -1, 1):
                yield name, sample(x, dim, dim == 1)
        yield name, sample(POINT, 0)
    for x in (CUBE, TIES, NANS, POINT):
        yield "sort.default", sample(x, -1)
        yield "sort.default", sample(x, 0, True)
        yield "sort.stable", sample(x, stable=True, dim=0)
        yield "topk.default", sample(x, 1, 0)
    yield "topk.default", sample(CUBE, 2, -1, False)


def _moments() -> Iterator[tuple[str, Sample]]:
    for name in ("var", "std"):
        yield f"{name}.correction", sample(CUBE, [0, 2], correction=0)
        yield f"{name}.correction", sample(CUBE, None, correction=2.5, keepdim=True)
        yield f"{name}.correction", sample(CUBE)
        yield f"{name}.correction", sample(CUBE, [], correction=1)
        yield f"{name}.correction", sample(TIES, [1])
        yield f"{name}.dim", sample(CUBE, [1], False, True)
        yield f"{name}.default", sample(CUBE, False)
        yield f"{name}.default", sample(NANS)
    for order in (0, 0.5, 1, 1.5, 2, 3, -1, inf, -inf):
        yield "linalg_vector_norm.default", sample(CUBE, order)
        yield "linalg_vector_norm.default", sample(CUBE, order, [0, -1], True)
    for order in (1, 2, inf):
        yield "linalg_vector_norm.default", sample(TIES, order, [1])
    for x in (TIES, CUBE):
        yield "linalg_norm.default", sample(x, 2, [1])


def _rows() -> Iterator[tuple[str, Sample]]:
    for name in ("softmax.int", "log_softmax.int"):
        for x, dim in ((CUBE, 0), (CUBE, -2), (EMPTY, 0), (POINT, -1), (NANS, 1)):
            yield name, sample(x, dim)
    yield "_softmax.default", sample(CUBE, 1, False)
    yield "_log_softmax.default", sample(CUBE, 1, False)
    for x, dim in ((CUBE, 0), (CUBE, -2), (EMPTY, 0), (EMPTY, 1), (POINT, 0), (NANS, 1)):
        yield "cumsum.default", sample(x, dim)


CALLS = [*_sums(), *_chosen(), *_moments(), *_rows()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_values(name: str) -> None:
    for one, call in CALLS:
        if one == name:
            assert check_gradients(f"aten.{name}", call) in (-1, 0), call


# No degree of freedom is left: infinite, or NaN at the mean; torch warns.
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@pytest.mark.parametrize("name", ["var.correction", "std.correction"])
def test_no_freedom(name: str) -> None:
    for call in (sample(TIES, [1], correction=4), sample(TIES, correction=20), sample(POINT)):
        assert check_gradients(f"aten.{name}", call, second=False) == 0
