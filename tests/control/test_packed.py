"""Packed sequences in one plan: rows found by a mask, recurrent layers over what each step has, rows gathered back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils import _pytree as pytree

import smelt
from smelt.codegen.lower.unknown import padded
from smelt.ops.evaluate import evaluate

LENGTHS = ((6, 4, 4, 1), (6, 6, 6, 6), (3, 2, 1, 1))


class Tagger(nn.Module):
    """A recurrent layer over sentences of different lengths, and what its options are."""

    def __init__(self, layer: nn.RNNBase, sorts: bool = False, **padding: Any) -> None:
        super().__init__()
        self.layer, self.sorts, self.padding = layer, sorts, padding

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        first = self.layer.batch_first
        packed = pack_padded_sequence(x, lengths, batch_first=first, enforce_sorted=not self.sorts)
        y, state = self.layer(packed)
        return pad_packed_sequence(y, batch_first=first, **self.padding), state


PROGRAMS: dict[str, Callable[[], Tagger]] = {
    "lstm": lambda: Tagger(nn.LSTM(5, 7, 2, bidirectional=True, batch_first=True)),
    "lstm, sorted here": lambda: Tagger(nn.LSTM(5, 16, batch_first=True), sorts=True),
    "lstm of f64, padded to more": lambda: Tagger(nn.LSTM(5, 3, batch_first=True).double(), total_length=9),
    "gru": lambda: Tagger(nn.GRU(5, 7, bidirectional=True), padding_value=-1.5),
    "tanh": lambda: Tagger(nn.RNN(5, 9, 2, batch_first=True), total_length=6),
    "relu": lambda: Tagger(nn.RNN(5, 9, nonlinearity="relu"), sorts=True),
}


def _same(mine: Any, theirs: Any) -> None:
    for one, other in zip(pytree.tree_leaves(mine), pytree.tree_leaves(theirs), strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one, other)


def _inputs(model: Tagger, lengths: tuple[int, ...], steps: int = 6) -> tuple[Tensor, Tensor]:
    dtype = next(model.parameters()).dtype
    x = torch.randn(*((len(lengths), steps) if model.layer.batch_first else (steps, len(lengths))), 5, dtype=dtype)
    return x, torch.tensor(lengths)


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str) -> None:
    torch.manual_seed(0)
    model = PROGRAMS[name]().eval()
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        for lengths in (*LENGTHS, *([(2, 6, 1, 3)] if model.sorts else [])):
            x = _inputs(model, lengths)
            _same(compiled(*x), model(*x))
    report = smelt.explain(compiled).to_text(everything=True)
    assert "steps of" in report and ".data" not in report.split("Kernels")[1].split("Sizes")[0]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_evaluator_says_the_same_of_both_graphs(name: str) -> None:
    torch.manual_seed(0)
    model = PROGRAMS[name]().eval()
    with torch.no_grad():
        graph = smelt.trace(model, _inputs(model, LENGTHS[0]), check=False).graph
        lookup = dict(model.named_parameters())
        made = padded(graph)
        assert any(node.op.startswith("rnn.") for node in made.walk())
        for lengths in LENGTHS:
            inputs = _inputs(model, lengths)
            found, wanted = (evaluate(g, list(inputs), lambda _, path: lookup[path]) for g in (made, graph))
            _same(found, wanted)


def test_other_numbers_of_sentences_and_words() -> None:
    torch.manual_seed(0)
    model = PROGRAMS["lstm"]().eval()
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        for lengths, steps in (((5, 2), 5), ((5, 2), 7), ((4, 3, 2), 7), ((1,), 1), ((3, 3, 3, 2, 1, 1, 1), 4)):
            x = _inputs(model, lengths, steps)
            _same(compiled(*x), model(*x))


def test_lengths_that_do_not_fit_are_refused_as_eager_does() -> None:
    model = PROGRAMS["lstm"]().eval()
    compiled = smelt.compile(model, options={"measure": False})
    with torch.no_grad():
        compiled(*_inputs(model, LENGTHS[0]))
        for lengths, text in (((3, 4, 1, 1), "sorted in decreasing order"), ((4, 2, 1, 0), "greater than 0")):
            for _ in range(2):
                with pytest.raises(RuntimeError, match=text):
                    compiled(*_inputs(model, lengths))
        x = _inputs(model, LENGTHS[1])
        _same(compiled(*x), model(*x))
