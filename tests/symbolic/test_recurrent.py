"""Recurrent modules and loops of cells over any length and batch: one graph, one loop, the bound a free size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.compiler import SizedUnit

SIZES = ((5, 3), (7, 3), (8, 5), (3, 2), (20, 4))


class Cells(nn.Module):
    """A cell of torch's, step by step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cell = getattr(nn, kind)(4, 6)
        self.has_two = kind == "LSTMCell"

    def forward(self, x: Any) -> Any:
        h, c, out = torch.zeros(x.shape[1], 6), torch.zeros(x.shape[1], 6), []
        for t in range(x.shape[0]):
            if self.has_two:
                h, c = self.cell(x[t], (h, c))
            else:
                h = self.cell(x[t], h)
            out.append(h)
        return torch.stack(out), h


class ByHand(nn.Module):
    """A step of two layers; the part that does not depend on the step before is taken out of the loop."""

    def __init__(self, by_index: bool) -> None:
        super().__init__()
        self.inner, self.outer, self.by_index = nn.Linear(4, 6), nn.Linear(6, 6), by_index

    def forward(self, x: Any) -> Any:
        h = torch.zeros(x.shape[1], 6)
        if self.by_index:
            for t in range(x.shape[0]):
                h = torch.tanh(self.inner(x[t]) + self.outer(h))
        else:
            for row in x:
                h = torch.tanh(self.inner(row) + self.outer(h))
        return h


MODULES: dict[str, tuple[nn.Module, bool]] = {
    f"{kind}{' batch first' if batch_first else ''}{' both ways' if both else ''}": (
        getattr(nn, kind)(4, 6, 2 if both else 1, batch_first=batch_first, bidirectional=both),
        batch_first,
    )
    for kind in ("LSTM", "GRU", "RNN")
    for batch_first in (False, True)
    for both in (False, True)
} | {
    "projected": (nn.LSTM(4, 6, proj_size=3), False),
    "relu, no bias": (nn.RNN(4, 6, nonlinearity="relu", bias=False), False),
    "double": (nn.GRU(4, 6).double(), False),
    "dropout, not in training": (nn.GRU(4, 6, 2, dropout=0.5).eval(), False),
}


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        assert type(found) is tuple and len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
        return
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()


def sequence(module: nn.Module, length: int, batch: int, batch_first: bool = False) -> torch.Tensor:
    sizes = (batch, length, 4) if batch_first else (length, batch, 4)
    return torch.randn(sizes, dtype=next(module.parameters()).dtype)


def assert_shared(compiled: Any, most: int) -> None:
    stats = compiled.stats()
    assert stats.builds <= most and stats.fallbacks == {} and stats.refused == {}
    units = [row.entry for row in stats.rows if isinstance(row.entry, SizedUnit)]
    assert units and all(unit.why_alone == "" and unit.lowered_alone == 0 for unit in units)


@pytest.mark.spread(20)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", MODULES)
def test_modules_take_any_length_and_batch(name: str) -> None:
    module, batch_first = MODULES[name]
    with torch.no_grad():
        compiled = smelt.compile(module)
        for length, batch in SIZES:
            x = sequence(module, length, batch, batch_first)
            assert_same(compiled(x), module(x))
        assert_shared(compiled, 3)
        x = sequence(module, 6, 7, batch_first).transpose(0, 1).contiguous().transpose(0, 1)
        assert_same(compiled(x), module(x))


@pytest.mark.parametrize("kind", ("LSTM", "GRU", "RNN"))
def test_states_that_are_given(kind: str) -> None:
    module = getattr(nn, kind)(4, 6)
    with torch.no_grad():
        compiled = smelt.compile(module, dynamic=True)
        for length, batch in SIZES:
            h, c = torch.randn(1, batch, 6), torch.randn(1, batch, 6)
            state = (h, c) if kind == "LSTM" else h
            x = sequence(module, length, batch)
            assert_same(compiled(x, state), module(x, state))
        assert_shared(compiled, 1)


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", ("LSTM", "GRU"))
def test_one_step_one_sequence_none_and_no_batch(kind: str) -> None:
    module = getattr(nn, kind)(4, 6)
    with torch.no_grad():
        compiled = smelt.compile(module)
        for length, batch in (*SIZES, (1, 3), (6, 1), (1, 1), (4, 5), (1, 7)):
            x = sequence(module, length, batch)
            assert_same(compiled(x), module(x))
        for length in (5, 7, 2, 1):
            x = torch.randn(length, 4)
            assert_same(compiled(x), module(x))
        for x in (torch.randn(0, 3, 4), torch.randn(5, 3, 3)):
            with pytest.raises(RuntimeError):
                module(x)
            with pytest.raises(RuntimeError):
                compiled(x)


def test_written_weights_are_seen() -> None:
    module = nn.LSTM(4, 6)
    with torch.no_grad():
        compiled = smelt.compile(module)
        for length, batch in SIZES:
            x = sequence(module, length, batch)
            assert_same(compiled(x), module(x))
            module.weight_hh_l0.mul_(0.5)
            assert_same(compiled(x), module(x))


@pytest.mark.parametrize("sizes", [SIZES[:3], pytest.param(SIZES[3:], marks=pytest.mark.nightly)], ids=len)
def test_dropout_in_training_draws_as_eager_does(sizes: list[tuple[int, int]]) -> None:
    module = nn.GRU(4, 6, 2, dropout=0.5)
    with torch.no_grad():
        compiled = smelt.compile(module)
        for length, batch in sizes:
            x = sequence(module, length, batch)
            torch.manual_seed(3)
            expected = module(x)
            torch.manual_seed(3)
            assert_same(compiled(x), expected)


@pytest.mark.spread(6)
@pytest.mark.parametrize("module", [Cells("RNNCell"), Cells("GRUCell"), Cells("LSTMCell"), ByHand(True), ByHand(False)])
def test_loops_have_a_bound_that_is_free(module: nn.Module) -> None:
    with torch.no_grad():
        compiled = smelt.compile(module, dynamic=True)
        for length, batch in (*SIZES, (30, 9)):
            x = sequence(module, length, batch)
            assert_same(compiled(x), module(x))
        assert_shared(compiled, 1)
        (unit,) = (row.entry for row in compiled.stats().rows if isinstance(row.entry, SizedUnit))
        assert [node.op for node in unit.graph.walk() if node.op in ("for", "while")] == ["for"]
        for length, batch in ((1, 4), (4, 1), (1, 1)):
            x = sequence(module, length, batch)
            assert_same(compiled(x), module(x))
