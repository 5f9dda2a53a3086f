"""Gradients of normalisations in their forms: moments of the batch or given, with and without weights, any layout."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, positives
from tests.autodiff.gradient_harness import check_gradients, check_program

IMAGE = floats(2, 4, 3, 5).to(memory_format=torch.channels_last)
WEIGHT, BIAS, MEAN, VARIANCE = floats(4, seed=1), floats(4, seed=2), floats(4, seed=3), positives(4, seed=4)


def _calls() -> Iterator[tuple[str, Sample]]:
    x = floats(2, 3, 4, 2)
    yield "layer_norm.default", sample(x, [4, 2], floats(4, 2, seed=1), floats(4, 2, seed=2), 1e-3)
    yield "layer_norm.default", sample(x.transpose(0, 1), [2], floats(2))
    yield "layer_norm.default", sample(torch.full((3, 4), 2.0), [4], WEIGHT)
    yield "rms_norm.default", sample(x, [4, 2], floats(4, 2, seed=1))
    yield "rms_norm.default", sample(torch.zeros(3, 4), [4], WEIGHT)
    for image in (IMAGE, floats(3, 4)):
        yield "group_norm.default", sample(image, 2, WEIGHT, BIAS, 1e-3)
    yield "group_norm.default", sample(IMAGE, 4)
    for image in (IMAGE, floats(2, 4, 6)):
        yield "instance_norm.default", sample(image, WEIGHT, BIAS, None, None, True, 0.1, 1e-3, False)
        yield "instance_norm.default", sample(image, WEIGHT, BIAS, MEAN, VARIANCE, False, 0.1, 1e-3, False)
    for image in (IMAGE, floats(5, 4), floats(2, 4, 6), floats(2, 4, 2, 3, 2)):
        for affine in ((WEIGHT, BIAS), (None, None), (WEIGHT, None)):
            yield "batch_norm.default", sample(image, *affine, MEAN, VARIANCE, False, 0.1, 1e-3, False)
            yield "batch_norm.default", sample(image, *affine, None, None, True, 0.1, 1e-3, False)


CALLS = list(_calls())


@pytest.mark.parametrize("name", sorted({name for name, _ in CALLS}))
def test_values(name: str) -> None:
    for one, call in CALLS:
        if one == name:
            assert check_gradients(f"aten.{name}", call) == 0, call


def test_training_writes_running_moments() -> None:
    for image in (IMAGE, floats(5, 4), floats(2, 4, 6)):

        def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            return F.batch_norm(x, torch.zeros(4).to(x), torch.ones(4).to(x), weight, bias, True, 0.1, 1e-3)

        assert check_program(program, image.double(), WEIGHT.double(), BIAS.double()) == 0
