"""Recurrent layers as a product and one kernel over the steps: what eager gives, in one launch a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.codegen.harness import check, rms_ratio

_IGNORED = "ignore:LSTM with projections is not supported with oneDNN"
LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(5, 7),
    "lstm both ways, two layers": lambda: nn.LSTM(5, 16, 2, bidirectional=True, batch_first=True),
    "lstm without biases": lambda: nn.LSTM(5, 33, bias=False, bidirectional=True),
    "lstm with projections": lambda: nn.LSTM(5, 20, 2, proj_size=7, bidirectional=True, batch_first=True),
    "lstm of many terms": lambda: nn.LSTM(5, 250),
    "gru": lambda: nn.GRU(5, 20, 2, bidirectional=True),
    "gru without biases": lambda: nn.GRU(5, 16, bias=False, batch_first=True),
    "tanh": lambda: nn.RNN(5, 9, 2, batch_first=True),
    "relu": lambda: nn.RNN(5, 9, nonlinearity="relu", bidirectional=True),
}


def _flat(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
        return
    for item in found:
        yield from _flat(item)


def _state(layer: nn.RNNBase, batch: int, dtype: torch.dtype) -> Any:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    h, c = (
        torch.randn(count, batch, n, dtype=dtype) for n in (layer.proj_size or layer.hidden_size, layer.hidden_size)
    )
    return (h, c) if isinstance(layer, nn.LSTM) else h


@pytest.mark.spread(3)
@pytest.mark.filterwarnings(_IGNORED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_eagers(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]().to(dtype).eval()
    compiled = smelt.compile(layer, options={"measure": False})
    with torch.no_grad():
        for batch, state in ((27, True), (8, True), (2, False)):
            x = torch.randn(*((batch, 4) if layer.batch_first else (4, batch)), 5, dtype=dtype)
            args = (x, _state(layer, batch, dtype)) if state else (x,)
            for special in (False, True):
                if special:
                    x.view(-1)[3], x.view(-1)[-1] = torch.nan, torch.inf
                for mine, theirs in zip(_flat(compiled(*args)), _flat(layer(*args)), strict=True):
                    assert (mine.shape, mine.stride()) == (theirs.shape, theirs.stride())
                    torch.testing.assert_close(mine, theirs, equal_nan=True)
    report = smelt.explain(compiled).to_text()
    assert "steps of" in report and "dispatcher" not in report


def test_any_length_and_batch_have_one_plan() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(5, 9, batch_first=True).eval()
    compiled = smelt.compile(layer, options={"measure": False})
    with torch.no_grad():
        for batch, length in ((2, 3), (2, 5), (4, 5), (1, 8), (60, 2), (3, 1)):
            x = torch.randn(batch, length, 5)
            for mine, theirs in zip(compiled(x), layer(x), strict=True):
                torch.testing.assert_close(mine, theirs)
    assert smelt.explain(compiled).to_dict()["graphs"][-1]["calls"] >= 3


def test_a_weight_that_changes_is_seen() -> None:
    layer = nn.RNN(5, 9).eval()
    compiled = smelt.compile(layer, options={"measure": False})
    x = torch.randn(3, 2, 5)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x)[0], layer(x)[0])
            layer.weight_hh_l0.mul_(0.5)


def test_errors_are_within_eagers() -> None:
    torch.manual_seed(0)
    for rows in (1, 20):
        layer = nn.GRU(16, 400).eval()
        compiled = smelt.compile(layer, options={"measure": False})
        x = torch.randn(12, rows, 16)
        with torch.no_grad():
            mine, theirs = compiled(x)[0], layer(x)[0]
            exact = layer.double()(x.double())[0]
        assert rms_ratio(mine, theirs, exact) <= 1.5


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
def test_the_kernel_is_the_reference(kind: str) -> None:
    torch.manual_seed(0)
    gates = {"lstm": 4, "gru": 3}.get(kind, 1)
    inner, cell, more = ("%b" if kind == "gru" else "None"), "", ""
    if kind == "lstm":
        cell, more = "%h, ", ", %c: f32[2, 7, 20]"
    text = f"""graph f(%g: f32[3, 7, {gates * 40}], %w: f32[4, {gates}, 20, 16], %b: f32[2, 20], %h: f32[2, 7, 20])
          -> f32[3, 7, 40], f32[2, 7, 20] {{
      %y: f32[3, 7, 40], %l: f32[2, 7, 20]{more} = rnn.{kind}(%g, %w, {inner}, None, %h, {cell}None, 20)
      return %y, %l
    }}"""
    inputs = (torch.randn(3, 7, gates * 40), torch.randn(4, gates, 20, 16) / 4, torch.randn(2, 20))
    check(text, [*inputs, torch.randn(2, 7, 20)], exact=False)


def test_in_training_it_drops_and_differentiates_as_eager_does() -> None:
    layer = nn.LSTM(5, 9, 2, dropout=0.5)
    compiled = smelt.compile(layer)
    x = torch.randn(3, 2, 5)
    results = []
    with pytest.warns(smelt.SmeltWarning, match="gradients are needed"):
        for run in (compiled, layer):
            torch.manual_seed(1)
            y = run(x)[0]
            results.append((y, torch.autograd.grad(y.sum(), list(layer.parameters()))))
    for mine, theirs in zip(_flat(results[0]), _flat(results[1]), strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.manual_seed(1)
        mine = compiled(x)[0]
        torch.manual_seed(1)
        torch.testing.assert_close(mine, layer(x)[0])
