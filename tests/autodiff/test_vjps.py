"""Each operator of the catalogue: its gradient and its gradient's gradient against autograd, on all its samples."""

from __future__ import annotations

import pytest
import torch

from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.record import Sample
from tests.autodiff.gradient_harness import check_gradients

# Functional forms of what writes in place, which torch itself does not differentiate; programs try them.
_OF_WRITES = frozenset(("aten.copy.default",))
OWN = [r.name for r in CATALOGUE if r.vjp is not None and r.name not in _OF_WRITES]
# hardsigmoid's backward has 1/6 in f32, and no gradient of its own. A sample of softmax asks for f32.
RTOL = {"aten.hardsigmoid.default": 1e-7, "aten.softmax.int": 1e-5, "aten.log_softmax.int": 1e-5}
ONCE = frozenset(("aten.hardsigmoid.default",))
# torch's gradient at NaN depends on whether the element stands in a vector or is left over.
WITHOUT_NAN = frozenset(f"aten.{name}.default" for name in ("elu", "selu", "hardtanh", "relu6", "hardswish"))


def _has_nan(sample: Sample) -> bool:
    return any(isinstance(arg, torch.Tensor) and bool(arg.isnan().any()) for arg in sample.args)


@pytest.mark.parametrize("name", OWN)
def test_own_gradient(name: str) -> None:
    record = record_of(name)
    assert record is not None
    counts = [
        check_gradients(name, sample, second=name not in ONCE, rtol=RTOL.get(name, 1e-9))
        for sample in record.samples()
        if name not in WITHOUT_NAN or not _has_nan(sample)
    ]
    assert 0 in counts, f"the gradient of {name} fits none of its samples"
