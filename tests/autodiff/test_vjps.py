"""Each operator of the catalogue: its gradient and its gradient's gradient against autograd, on all its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.record import Sample
from tests.autodiff.gradient_harness import called, check_gradients, in_f64, tensors_of, with_tensors

# Functional forms of what writes in place, which torch itself does not differentiate; programs try them.
_OF_WRITES = frozenset(("aten.copy.default",))
OWN = [r.name for r in CATALOGUE if r.vjp is not None and r.name not in _OF_WRITES]
# hardsigmoid's backward has 1/6 in f32, and no gradient of its own. A sample of softmax asks for f32; torch has
# products by groups in nothing else.
RTOL = {
    "aten.hardsigmoid.default": 1e-7,
    "aten.softmax.int": 1e-5,
    "aten.log_softmax.int": 1e-5,
    "aten._grouped_mm.default": 1e-5,
}
ONCE = frozenset(("aten.hardsigmoid.default",))
# torch's gradient at NaN depends on whether the element stands in a vector or is left over.
WITHOUT_NAN = frozenset(f"aten.{name}.default" for name in ("elu", "selu", "hardtanh", "relu6", "hardswish"))


def _has_nan(sample: Sample) -> bool:
    return any(isinstance(arg, torch.Tensor) and bool(arg.isnan().any()) for arg in sample.args)


@pytest.mark.spread(2)
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


# torch itself has no second gradient of an embedding of nothing; what a mask selects from nothing has no known size.
ONCE_OF_EDGES = ONCE | {"aten.embedding.default", "aten.masked_select.default"}
# Of an empty batch torch does not look at the moments, though they be of another size.
WITHOUT_EDGES = frozenset(("aten.batch_norm.default",))


def _edges(sample: Sample) -> Iterator[Sample]:
    """The call of nothing, by rows and by columns, and of single numbers; torch refuses many of these."""
    changes: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda t: t[:0] if t.dim() else t,
        lambda t: t[..., :0] if t.dim() else t,
        lambda t: t.flatten()[:1].squeeze(),
    )
    return (with_tensors(sample, change) for change in changes)


def _is_accepted(name: str, sample: Sample) -> bool:
    try:
        called(name, sample, tensors_of(with_tensors(sample, in_f64)))
    except (RuntimeError, IndexError, ValueError):
        return False
    return True


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", [name for name in OWN if name not in WITHOUT_EDGES])
def test_edges(name: str) -> None:
    record = record_of(name)
    assert record is not None
    for sample in record.samples():
        for edge in _edges(sample):
            if (name not in WITHOUT_NAN or not _has_nan(edge)) and _is_accepted(name, edge):
                check_gradients(name, edge, second=name not in ONCE_OF_EDGES, rtol=RTOL.get(name, 1e-9))
