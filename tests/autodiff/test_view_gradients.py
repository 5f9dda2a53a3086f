"""Views at their edges: parts of nothing, steps, elements seen twice, unused results; first and second gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, strided
from tests.autodiff.gradient_harness import check_gradients, check_program

_LAST = 9223372036854775807

CALLS: list[tuple[str, Sample]] = [
    ("slice.Tensor", sample(floats(5, 3), 0, -4, -1)),
    ("slice.Tensor", sample(floats(5, 3), -1, -9, 2)),
    ("slice.Tensor", sample(strided(5, 3), 0, 4, 2)),
    ("slice.Tensor", sample(floats(5, 3), 0, 7, 9)),
    ("slice.Tensor", sample(floats(7), 0, None, None, 3)),
    ("slice.Tensor", sample(floats(7), 0, 1, _LAST, 4)),
    ("slice.Tensor", sample(torch.empty(0, 3), 0, 0, 2)),
    ("select.int", sample(strided(5, 3), -1, -3)),
    ("select.int", sample(floats(4), 0, 3)),
    ("narrow.default", sample(floats(5, 3), 0, -2, 2)),
    ("narrow.default", sample(floats(5, 3), 1, 3, 0)),
    ("diagonal.default", sample(floats(3, 5), -1, 1, 0)),
    ("diagonal.default", sample(floats(3, 5), 9)),
    ("unfold.default", sample(floats(7), 0, 3, 2)),
    ("unfold.default", sample(strided(2, 6), -1, 4, 1)),
    ("unfold.default", sample(torch.tensor(2.0), 0, 1, 1)),
    ("as_strided.default", sample(floats(6), [3, 4], [1, 1])),
    ("as_strided.default", sample(floats(2, 3), [4], [0])),
    ("as_strided.default", sample(floats(4), [], [])),
    ("expand.default", sample(floats(1, 3), [0, 3])),
    ("expand.default", sample(floats(1, 1), [2, 4, -1])),
    ("unflatten.int", sample(torch.empty(0, 4), 1, [2, -1])),
    ("flatten.using_ints", sample(torch.tensor(3.0))),
    ("permute.default", sample(floats(2, 3, 4, 5), [-1, 0, 2, 1])),
    ("permute.default", sample(torch.tensor(3.0), [])),
    ("mT.default", sample(torch.empty(2, 0, 3))),
    ("movedim.intlist", sample(floats(2, 3, 4, 5), [0, -1], [2, 0])),
    ("unbind.int", sample(floats(3, 1), 1)),
    ("split_with_sizes.default", sample(floats(5, 2), [0, 2, 3])),
    ("meshgrid.indexing", sample([floats(3), floats(2), floats(4)], indexing="xy")),
    ("meshgrid.indexing", sample([floats(3)], indexing="xy")),
]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda c: c if isinstance(c, str) else "")
def test_edges(name: str, call: Sample) -> None:
    assert check_gradients(f"aten.{name}", call) == 0


PROGRAMS: dict[str, Callable[[torch.Tensor], object]] = {
    "first and last part": lambda x: (lambda p: p[0] * p[3].exp())(x.split(1)),
    "an inner part": lambda x: x.chunk(4)[2].sin(),
    "parts in the middle": lambda x: (lambda p: p[1] * p[2] + p[1])(x.split([0, 1, 2, 1], 0)),
    "one row of all": lambda x: x.unbind(1)[1].exp(),
    "two rows of all": lambda x: (lambda r: r[0] * r[2])(x.unbind(1)),
    "all rows": lambda x: sum(r.exp() * i for i, r in enumerate(x.unbind())),
    "one of two broadcast": lambda x: torch.broadcast_tensors(x[0], x)[0].sin(),
    "one axis of a grid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[1].exp(),
    "overlapping windows": lambda x: x.unfold(1, 2, 1).exp(),
    "detached part": lambda x: x[0].detach() * x[1:],
    "casts": lambda x: x.to(torch.float32).double() * x.to(torch.float64),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    assert check_program(PROGRAMS[name], floats(4, 3, dtype=torch.float64)) == 0
