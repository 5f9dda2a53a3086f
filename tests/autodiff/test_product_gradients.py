"""Products of all ranks and convolutions of all kinds; first and second gradients, and how they run."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.ops.catalogue import record_of
from smelt.ops.record import Sample, sample
from smelt.ops.samples import floats, strided
from tests.autodiff.gradient_harness import check_gradients, check_program
from tests.codegen.harness import check

_HOW = ([2, 1], [1, 0], [1, 2])

CALLS: list[tuple[str, Sample]] = [
    *(("matmul.default", sample(floats(*left), floats(*right))) for left, right in (
        ((4,), (4, 5)), ((4,), (2, 4, 5)), ((4,), (2, 3, 4, 5)), ((2, 3, 4), (4,)), ((3, 4), (2, 4, 5)),
        ((2, 3, 6, 4), (4, 5)), ((2, 1, 6, 4), (3, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((0,), (0,)), ((2, 3, 0), (0, 5)),
        ((0, 3, 4), (4,)),
    )),
    ("matmul.default", sample(strided(2, 3, 4), strided(4, 5))),
    ("linear.default", sample(floats(2, 0, 4), floats(3, 4), floats(3))),
    ("linear.default", sample(strided(2, 3, 5, 4), strided(3, 4), floats(3))),
    ("linear.default", sample(floats(3, 0), floats(2, 0), floats(2))),
    ("addmm.default", sample(torch.tensor(1.0), floats(3, 4), floats(4, 5), beta=0.5, alpha=-2)),
    ("addmm.default", sample(floats(3, 1), strided(3, 4), floats(4, 5), beta=0)),
    ("baddbmm.default", sample(floats(5), floats(2, 3, 4), floats(2, 4, 5), alpha=3)),
    ("mv.default", sample(strided(3, 4), floats(4))),
    ("conv2d.default", sample(floats(2, 4, 7, 8), floats(6, 2, 3, 2), floats(6), *_HOW, 2)),
    ("conv3d.default", sample(floats(1, 2, 4, 5, 4), floats(3, 2, 2, 3, 2), floats(3), [1, 2, 1], [0, 1, 1])),
    ("conv1d.default", sample(floats(3, 9), floats(4, 3, 3))),
    ("conv_transpose1d.default", sample(floats(2, 4, 5), floats(4, 2, 3), floats(4), [2], [1], [1], 2)),
    ("conv_transpose2d.input", sample(floats(4, 4, 5), floats(4, 3, 3, 2), floats(3), *_HOW[:2], [1, 0])),
    ("conv_transpose3d.input", sample(floats(1, 2, 3, 2, 3), floats(2, 2, 2, 2, 1))),
    ("convolution.default", sample(floats(2, 4, 7, 8), floats(6, 2, 3, 2), floats(6), *_HOW, False, [0, 0], 2)),
    ("convolution.default", sample(floats(2, 4, 5), floats(4, 3, 3), None, [2], [1], [1], True, [1], 1)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda c: c if isinstance(c, str) else "")
def test_edges(name: str, call: Sample) -> None:
    assert check_gradients(f"aten.{name}", call) == 0


def test_operators_that_consist_of_products() -> None:
    for name in ("einsum.default", "conv1d.padding", "conv2d.padding", "lstm_cell.default", "gru_cell.default"):
        record = record_of(f"aten.{name}")
        assert record is not None
        assert {check_gradients(record.name, call, rtol=1e-6) for call in record.samples()} <= {0, -1}


def test_products_of_a_broadcast_gradient() -> None:
    x, w = floats(3, 4, dtype=torch.float64), floats(4, 5, dtype=torch.float64)
    assert check_program(lambda x, w: (x @ w).sum(), x, w) == 0
    assert check_program(lambda x, w: torch.nn.functional.linear(x.expand(2, 3, 4), w.t()).sum(0), x, w) == 0


def test_gradients_of_convolutions_run_natively() -> None:
    """Parts of torch's backward that nobody asks for are undefined tensors, with which the dispatcher can be called."""
    image, weight, bias = floats(2, 3, 6, 6), floats(4, 3, 3, 3), floats(4)
    graph = smelt.trace(torch.conv2d, (image, weight, bias)).grad_graph()
    made = check(graph, [image, weight, bias, floats(2, 4, 4, 4)], exact=False)
    assert [n.how for n in made.report.nodes if "convolution_backward" in n.op] == ["kernel", "dispatcher"]
