"""Gathers and scatters at their edges: equal indices, masks, nothing, 0-d, broadcasts; first and second gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.autodiff import joint_graph
from smelt.ops.evaluate import evaluate
from smelt.ops.record import Sample, sample
from smelt.ops.samples import bools, floats, ints, strided
from tests.autodiff.gradient_harness import check_gradients, check_program

_I = torch.tensor([2, 0, 2, -1])
_FROM_START = torch.tensor([2, 0, 2, 1])
_NONE = torch.empty(0, dtype=torch.int64)
_GRID = torch.tensor([[0, 1, 2], [2, 0, 2]])
_MASK = torch.tensor([True, False, True])

CALLS: list[tuple[str, Sample]] = [
    ("index_select.default", sample(strided(3, 4), -1, _FROM_START)),
    ("index_select.default", sample(torch.tensor(2.0), 0, torch.tensor([0]))),
    ("index_select.default", sample(floats(3, 4), 0, _NONE)),
    ("index_select.default", sample(floats(3, 4), 1, torch.tensor(2))),
    ("index_add.default", sample(floats(3, 4), 0, _FROM_START, floats(4, 4), alpha=2.5)),
    ("index_add.default", sample(torch.tensor(1.0), 0, torch.tensor([0]), torch.tensor(2.0))),
    ("index_add.default", sample(floats(3), 0, _NONE, torch.empty(0))),
    ("gather.default", sample(floats(4, 3), -2, _GRID)),
    ("gather.default", sample(floats(4, 3), 0, _NONE.view(0, 3))),
    ("gather.default", sample(torch.tensor(1.0), 0, torch.tensor([0, 0]))),
    ("scatter.src", sample(floats(4, 3), 0, torch.tensor([[0, 1, 2], [2, 0, 3]]), floats(2, 3))),
    ("scatter_add.default", sample(floats(4, 3), 0, _GRID, floats(2, 3))),
    ("scatter_add.default", sample(strided(4, 3), 1, _GRID, floats(2, 3))),
    ("scatter.value", sample(floats(4, 3), 0, _GRID, 2.0)),
    ("index.Tensor", sample(floats(4, 3), [_I])),
    ("index.Tensor", sample(floats(4, 3), [None, torch.tensor(1)])),
    ("index.Tensor", sample(strided(2, 4, 3), [None, _I, torch.tensor([[0], [2]])])),
    ("index.Tensor", sample(floats(4, 3, 2), [_I, None, torch.tensor([0, 1, 1, 0])])),
    ("index.Tensor", sample(floats(4, 3), [_NONE])),
    ("index.Tensor", sample(floats(3, 4), [_MASK])),
    ("index.Tensor", sample(strided(3, 4), [bools(3, 4)])),
    ("index.Tensor", sample(floats(3, 3), [_MASK, torch.tensor([1, 1])])),
    ("index_put.default", sample(floats(4, 3), [torch.tensor([2, 0])], floats(2, 3))),
    ("index_put.default", sample(floats(4, 3), [_I], floats(4, 3), True)),
    ("index_put.default", sample(floats(4, 3), [None, torch.tensor([2, 0])], torch.tensor(2.0))),
    ("index_put.default", sample(floats(3, 4), [_MASK], floats(2, 4))),
    ("index_put.default", sample(floats(3, 4), [_MASK], floats(4))),
    ("index_put.default", sample(floats(3, 4), [bools(3, 4)], torch.tensor(2.0))),
    ("masked_select.default", sample(floats(3, 4), _MASK[:, None])),
    ("masked_select.default", sample(floats(4), bools(3, 4))),
    ("masked_select.default", sample(floats(3, 4), torch.tensor(False))),
    ("embedding.default", sample(floats(5, 2), torch.tensor([[1, 3, 1], [0, 1, 3]]), 3)),
    ("embedding_dense_backward.default", sample(floats(4, 2), torch.tensor([1, 3, 1, 0]), 5, 3, False)),
    ("embedding_dense_backward.default", sample(floats(2, 2, 3), torch.tensor([[1, 3], [1, 0]]), 5, -1, False)),
    ("cat.default", sample([floats(2, 3), torch.empty(0), floats(2, 1), torch.empty(2, 0)], -1)),
    ("cat.default", sample([torch.empty(0), floats(3)])),
    ("cat.default", sample([floats(2, 3)], 1)),
    ("cat.default", sample([floats(2, dtype=torch.float64), ints(2), floats(1, dtype=torch.float64)])),
    ("stack.default", sample([torch.tensor(1.0), torch.tensor(2.0)])),
    ("constant_pad_nd.default", sample(floats(4, 3), [1, -1, -2, 2], 3.0)),
    ("constant_pad_nd.default", sample(floats(4, 3), [-2, -1])),
    ("repeat.default", sample(floats(2, 3), [2, 1, 3])),
    ("repeat.default", sample(floats(2, 3), [0, 1, 3])),
    ("repeat.default", sample(torch.tensor(2.0), [3])),
    ("repeat.default", sample(strided(2, 3), [1, 1])),
    ("repeat_interleave.self_int", sample(floats(2, 3), 2)),
    ("repeat_interleave.self_int", sample(strided(2, 3), 3, -2)),
    ("repeat_interleave.self_int", sample(floats(2, 3), 0, 1)),
    ("repeat_interleave.self_int", sample(torch.tensor(2.0), 2)),
    ("roll.default", sample(floats(3, 4), [1, -2], [0, -1])),
    ("tril.default", sample(floats(2, 3, 4), -1)),
    ("triu.default", sample(torch.empty(0, 3))),
    ("select_scatter.default", sample(floats(3, 4), floats(3), -1, -2)),
    ("slice_scatter.default", sample(floats(5, 3), floats(2, 3), 0, -4, -1, 2)),
    ("diagonal_scatter.default", sample(floats(3, 4), floats(2), -1)),
    ("fill.Tensor", sample(floats(3, 4), torch.tensor(2.0))),
]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda c: c if isinstance(c, str) else "")
def test_edges(name: str, call: Sample) -> None:
    assert check_gradients(f"aten.{name}", call) == 0


def test_embedding_of_nothing() -> None:
    """Of which torch has no second gradient."""
    assert check_gradients("aten.embedding.default", sample(floats(5, 2), _NONE), second=False) == 0


def test_calls_without_a_rule_take_torch_s() -> None:
    weight, indices = floats(5, 2), torch.tensor([1, 3, 1])
    assert check_gradients("aten.embedding.default", sample(weight, indices, -1, True), second=False) == 1


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "copied into": lambda x: x[0].clone().copy_(x[1].exp()) * x[0],
    "copied into, broadcast": lambda x: torch.ones_like(x).copy_(x[1].sin()),
    "part written": lambda x: (lambda y: y[1:3].mul_(x[0]) * y[2:])(x * 1.5),
    "written where a mask is": lambda x: (lambda y: y.index_put_((y > 1,), x[0, 0]) * y)(x * 1.5),
    "filled by a tensor": lambda x: (lambda y: y.fill_(x[0, 1].sin()) * x)(x * 1.5),
    "zeroed": lambda x: (lambda y: y[1].zero_() * y[0] + y)(x * 1.5),
    "one of some joined": lambda x: torch.cat([x[0].detach(), x[1].exp(), x[2].detach()]) * 2,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    assert check_program(PROGRAMS[name], floats(4, 3, dtype=torch.float64)) == 0


@pytest.mark.parametrize(
    "read",
    [
        lambda w, i: torch.nn.functional.embedding(i, w),
        lambda w, i: w[i],
        lambda w, i: w.index_select(0, i),
        lambda w, i: w.gather(0, i[:, None]),
    ],
)
def test_sums_are_in_the_order_of_the_indices(read: Callable[..., torch.Tensor]) -> None:
    """1e8 + 1 - 1e8 + 1 is 1 in f32 in this order only."""
    terms = torch.tensor([[1e8], [1.0], [-1e8], [1.0]])

    indices = torch.zeros(4, dtype=torch.int64)
    joint = joint_graph(smelt.trace(read, (torch.zeros(2, 1), indices)).graph)
    _, grad = evaluate(joint.graph, [torch.zeros(2, 1), indices, terms])
    assert grad.tolist() == [[1.0], [0.0]]
