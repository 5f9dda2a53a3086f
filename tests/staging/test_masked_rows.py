"""Rows chosen by masks, in what people do with them: losses, attention, recurrent layers, parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

import smelt

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor, Tensor], Any]

torch.manual_seed(0)
ATTENTION = nn.MultiheadAttention(4, 2, batch_first=True).eval()
LAYER = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
RNN, GRU, LSTM = nn.RNN(4, 4), nn.GRU(4, 4, 2), nn.LSTM(4, 4, 2, batch_first=True)

# One graph whatever the mask.
WHOLE: dict[str, Program] = {
    "mse_loss": lambda x, y, m: F.mse_loss(x[m], y[m]),
    "MSELoss": lambda x, y, m: nn.MSELoss(reduction="sum")(x[m], y[m]),
    "l1_loss": lambda x, y, m: F.l1_loss(x[m], y[m], reduction="none"),
    "smooth_l1_loss": lambda x, y, m: F.smooth_l1_loss(x[m], y[m]),
    "huber_loss": lambda x, y, m: F.huber_loss(x[m], y[m]),
    "binary_cross_entropy": lambda x, y, m: F.binary_cross_entropy(x[m].sigmoid(), y[m].sigmoid()),
    "with_logits": lambda x, y, m: F.binary_cross_entropy_with_logits(x[m], y[m].sigmoid()),
    "cross_entropy": lambda x, y, m: F.cross_entropy(x[m], y[m, 0].long().clamp(0, 3), label_smoothing=0.1),
    "triplet": lambda x, y, m: F.triplet_margin_loss(x[m], y[m], y[m] + 1),
    "gaussian_nll_loss": lambda x, y, m: F.gaussian_nll_loss(x[m], y[m], y[m].abs() + 1),
    "pairwise": lambda x, y, m: F.pairwise_distance(x[m], y[m]),
    "attention": lambda x, y, m: ATTENTION(x[m][None], y[m][None], y[m][None])[0],
    "encoder": lambda x, y, m: LAYER(x[m][None]),
    "rnn": lambda x, y, m: RNN(x[m][:, None]),
    "rnn of rows": lambda x, y, m: RNN(x[m])[1],
    "gru": lambda x, y, m: GRU(x[m][:, None]),
    "lstm": lambda x, y, m: LSTM(x[m][None]),
    "and": lambda x, y, m: (x[m] > 0) & (y[m] > 0),
    "or": lambda x, y, m: (x[m] > 0) | (y[m] > 0),
    "subtract": lambda x, y, m: torch.subtract(x[m], y[m]),
    "greater": lambda x, y, m: torch.greater(x[m], y[m]),
    "isclose": lambda x, y, m: torch.isclose(x[m], y[m]),
    "turns over rows": lambda x, y, m: sum(r.sum() for r in x[m]),
    "parts of columns": lambda x, y, m: x[m].split(3, dim=1)[0],
}
# As many parts as rows: a graph for each number of them.
PARTS: dict[str, Program] = {
    "unbind": lambda x, y, m: x[m].unbind(0)[0],
    "split": lambda x, y, m: torch.split(x[m], 2)[0],
    "chunk": lambda x, y, m: x[m].chunk(3)[0],
    "stack": lambda x, y, m: torch.stack(list(x[m])).sum(0),
}


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


def compared(program: Program) -> smelt.Compiled:
    compiled = smelt.compile(program, options={"measure": False})
    torch.manual_seed(1)
    for rows in (8, 5, 2, 6, 1, 3):
        x, y = torch.randn(8, 4), torch.randn(8, 4)
        mask = torch.arange(8)[torch.randperm(8)] < rows
        found, wanted = tree_leaves(compiled(x, y, mask)), tree_leaves(program(x, y, mask))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
    assert not compiled.stats().fallbacks
    return compiled


@pytest.mark.spread(15)
@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name: str) -> None:
    assert compared(WHOLE[name]).stats().builds == 1


@pytest.mark.spread(4)
@pytest.mark.parametrize("name", PARTS)
def test_as_many_parts_as_rows(name: str) -> None:
    compared(PARTS[name])


def test_a_trace_with_two_selections_by_one_mask() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        keep = (x > 0).any(0)
        chosen, valid = x[:2, keep], y[:2, keep] > 0
        places = chosen.clamp(0, 3).long()
        seen = (y > 0)[None].expand(2, -1, -1).gather(-1, places[:, None, :].expand(2, 3, -1))
        return seen & valid[:, None]

    torch.manual_seed(0)
    program = smelt.trace(f, (torch.randn(3, 4), torch.randn(3, 4)))
    for _ in range(6):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        assert torch.equal(program(x, y), f(x, y))


def test_with_gradients_a_trace_holds_for_one_length() -> None:
    x = torch.randn(8, 4)
    with torch.enable_grad(), pytest.warns(smelt.SmeltWarning, match="one path"):
        program = smelt.trace(lambda x, m: RNN(x[m][:, None])[0], (x, x[:, 0] > 0))
    torch.testing.assert_close(program(x, x[:, 0] > 0), RNN(x[x[:, 0] > 0][:, None])[0])
