"""Each operator of the catalogue: its gradient and its gradient's gradient against autograd, on all its samples."""

from __future__ import annotations

import pytest

from smelt.ops.catalogue import CATALOGUE, record_of
from tests.autodiff.gradient_harness import check_gradients

OWN = [r.name for r in CATALOGUE if r.vjp is not None]


@pytest.mark.parametrize("name", OWN)
def test_own_gradient(name: str) -> None:
    record = record_of(name)
    assert record is not None
    counts = [check_gradients(name, sample) for sample in record.samples()]
    assert 0 in counts, f"the gradient of {name} fits none of its samples"
