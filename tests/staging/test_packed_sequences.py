"""Recurrent layers over packed sequences: one graph, in which lengths are data, for all lengths and batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence, unpack_sequence

import smelt

_INPUTS, _HIDDEN = 6, 5


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif value is not None:
        for item in value:
            yield from _flat(item)


def _same(got: Any, wanted: Any) -> None:
    for mine, theirs in zip(_flat(got), _flat(wanted), strict=True):
        assert (mine.shape, mine.stride(), mine.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
        torch.testing.assert_close(mine, theirs)


class Layers(nn.Module):
    """All kinds of layers on one batch; what follows them uses rows of data, too."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(_INPUTS, _HIDDEN, batch_first=True)
        self.lstm = nn.LSTM(_HIDDEN, _HIDDEN, num_layers=2, bidirectional=True, dropout=0.5)
        self.small = nn.LSTM(2 * _HIDDEN, _HIDDEN, proj_size=3)
        self.rnn = nn.RNN(_HIDDEN, _HIDDEN, nonlinearity="relu", bias=False)

    def forward(self, x: torch.Tensor, lengths: Any, state: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x * 2, lengths, batch_first=True, enforce_sorted=False)
        first, last = self.gru(packed)
        both, (h, c) = self.lstm(first)
        small, _ = self.small(both)
        active = PackedSequence(first.data.relu(), first.batch_sizes, first.sorted_indices, first.unsorted_indices)
        other, _ = self.rnn(active, state)
        padded, found = pad_packed_sequence(both, batch_first=True, total_length=x.shape[1])
        steps, _ = pad_packed_sequence(small, padding_value=-1.5)
        return padded.sum(1), found, steps + 1, other, last, h, c


class Sorted(nn.Module):
    """Of lengths that fall, the first dimension that of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.RNN(_INPUTS, _HIDDEN)

    def forward(self, x: torch.Tensor, lengths: Any) -> Any:
        states, last = self.layer(pack_padded_sequence(x, lengths))
        return *pad_packed_sequence(states), last


def _lengths(count: int, most: int, draw: random.Random) -> list[int]:
    return [draw.randint(1, most) for _ in range(count)]


def test_random_lengths_and_batches_are_two_builds() -> None:
    model = Layers().eval()
    compiled = smelt.compile(model)
    draw = random.Random(3)
    with torch.no_grad():
        for _ in range(20):
            count, most = draw.randint(2, 6), draw.randint(2, 9)
            lengths = torch.tensor(_lengths(count, most, draw))
            args = torch.randn(count, most, _INPUTS), lengths, torch.randn(1, count, _HIDDEN)
            _same(compiled(*args), model(*args))
    stats = compiled.stats()
    assert stats.builds <= 2
    assert not stats.fallbacks
    assert stats.rows[0].entry is not None
    assert all(row.entry is not None and row.entry.is_staged for row in stats.rows)


def test_lengths_of_a_list_and_sorted_ones() -> None:
    model = Sorted().eval()
    compiled, listed = smelt.compile(model), smelt.compile(model)
    draw = random.Random(4)
    with torch.no_grad():
        for _ in range(8):
            count, most = draw.randint(2, 5), draw.randint(2, 7)
            lengths = sorted(_lengths(count, most, draw), reverse=True)
            x = torch.randn(most, count, _INPUTS)
            _same(compiled(x, torch.tensor(lengths)), model(x, lengths))
            some = sorted(_lengths(3, most, draw), reverse=True)
            x = torch.randn(most, 3, _INPUTS)
            _same(listed(x, some), model(x, some))
    assert compiled.stats().builds <= 2
    assert listed.stats().builds <= 4  # one more for each number that is 1, which is free in no build


def test_a_trace_has_the_layers_whole() -> None:
    model = nn.GRU(_INPUTS, _HIDDEN).eval()

    def run(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        states, last = model(packed)
        return unpack_sequence(states), last

    x = torch.randn(6, 3, _INPUTS)
    with torch.no_grad():
        program = smelt.trace(run, (x, torch.tensor([2, 6, 1])))
        ops = [node.op for node in program.graph.walk()]
        assert ops.count("aten._pack_padded_sequence.default") == ops.count("aten.gru.data") == 1
        assert not any(op.startswith("expect") for op in ops)
        for lengths in ([4, 4, 4], [1, 1, 1], [3, 1, 6]):
            _same(program(x, torch.tensor(lengths)), run(x, torch.tensor(lengths)))


@pytest.mark.parametrize("lengths", [[3, 0], [1, 2, 1], [9, 1]])
def test_lengths_that_do_not_fit_raise_as_in_eager(lengths: list[int]) -> None:
    model = Sorted().eval()
    compiled: Callable[..., Any] = smelt.compile(model)
    x = torch.randn(4, 2, _INPUTS)
    with torch.no_grad():
        for fitting in ([4, 2], [3, 3]):
            compiled(x, torch.tensor(fitting))
        with pytest.raises(RuntimeError) as wanted:
            model(x, torch.tensor(lengths))
        with pytest.raises(RuntimeError) as got:
            compiled(x, torch.tensor(lengths))
    assert str(got.value) == str(wanted.value)


def test_what_is_differentiated_later_runs_as_eager_does() -> None:
    torch.manual_seed(0)
    layer, lengths = nn.GRU(_INPUTS, _HIDDEN), torch.tensor([2, 5, 1])

    def states(x: torch.Tensor) -> torch.Tensor:
        return layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data

    x, compiled = torch.randn(5, 3, _INPUTS), smelt.compile(states)
    with pytest.warns(smelt.SmeltWarning, match="gru.data has no kernel without data"):
        mine = torch.autograd.grad(compiled(x).sum(), list(layer.parameters()))
    _same(mine, torch.autograd.grad(states(x).sum(), list(layer.parameters())))


def test_a_step_that_differentiates_is_native() -> None:
    torch.manual_seed(0)
    layer = nn.GRU(_INPUTS, _HIDDEN)

    def step(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        layer.zero_grad()
        loss = layer(pack_padded_sequence(x, lengths, enforce_sorted=False))[0].data.square().sum()
        loss.backward()
        return loss.detach(), [p.grad for p in layer.parameters()]

    compiled = smelt.compile(step)
    for lengths in ([2, 5, 1], [5, 4, 1], [2, 2, 2]):
        x = torch.randn(5, 3, _INPUTS)
        _same(compiled(x, torch.tensor(lengths)), step(x, torch.tensor(lengths)))
    assert not compiled.stats().fallbacks
