"""Recurrent cells are products and kernels, as torch's CPU code computes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import smelt

CELLS: dict[str, Callable[[], nn.RNNCellBase]] = {
    "lstm": lambda: nn.LSTMCell(7, 9),
    "gru": lambda: nn.GRUCell(7, 9),
    "gru without biases": lambda: nn.GRUCell(7, 9, bias=False),
    "tanh": lambda: nn.RNNCell(7, 9),
    "relu": lambda: nn.RNNCell(7, 9, nonlinearity="relu"),
}


@pytest.mark.spread(16)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CELLS)
def test_steps(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    cell = CELLS[name]().to(dtype)

    def steps(x: torch.Tensor) -> list[torch.Tensor]:
        state, found = None, []
        for row in x:
            state = cell(row, state)
            found.extend(state if isinstance(state, tuple) else (state,))
        return found

    compiled = smelt.compile(steps, options={"measure": False})
    with torch.no_grad():
        for rows in (3, 3, 1, 1):
            x = torch.randn(4, rows, 7, dtype=dtype)
            for one, other in zip(compiled(x), steps(x), strict=True):
                torch.testing.assert_close(one, other)
                assert one.stride() == other.stride()
    report = smelt.explain(compiled).to_text()
    assert "kernel" in report and "dispatcher" not in report
