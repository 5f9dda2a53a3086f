"""The steps of a recurrent layer whose inputs are multiplied already: `rnn.*`, operators of our own.

    %g: f32[50, 4, 512] = linear %x, %w_ih, %b                       gates of all steps, as far as the input has a say
    %y, %h, %c = rnn.lstm(%g, %p, none, none, %h0, %c0, none, 128)         one launch runs all steps

Both directions are one operator: gates f[steps, batch, directions x gates x hidden], states f[directions, batch,
hidden], y f[steps, batch, directions x outputs]. Weights come in lines of units (`line_of`): f[directions x lines,
gates, outputs, line], beyond the last unit anything. Of sequences of different lengths gates and y are f[rows, ...],
one step behind the other, and `counts` says how many rows each step has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from smelt.diag.records import record
from smelt.ir import Arg, DType, TensorType, Type, Value

LINE_NBYTES = 64


@record
class Cell:
    """A kind of recurrent layer: how many gates and states it has, and one step from the gates' two shares."""

    gates: int
    states: int
    step: Callable[..., tuple[torch.Tensor, ...]]


def _lstm(of_input: torch.Tensor, of_state: torch.Tensor, state: Sequence[torch.Tensor], inner: Any) -> Any:
    into, forget, new, out = (of_state + of_input).chunk(4, -1)
    cell = forget.sigmoid() * state[1] + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru(of_input: torch.Tensor, of_state: torch.Tensor, state: Sequence[torch.Tensor], inner: Any) -> Any:
    reset, update, new = of_input.chunk(3, -1)
    reset_state, update_state, new_state = of_state.chunk(3, -1)
    reset, update = (reset_state + reset).sigmoid(), (update_state + update).sigmoid()
    new = (new + (new_state + inner) * reset).tanh()
    return ((state[0] - new) * update + new,)


def _tanh(of_input: torch.Tensor, of_state: torch.Tensor, state: Sequence[torch.Tensor], inner: Any) -> Any:
    return ((of_state + of_input).tanh(),)


def _relu(of_input: torch.Tensor, of_state: torch.Tensor, state: Sequence[torch.Tensor], inner: Any) -> Any:
    return ((of_state + of_input).relu(),)


PREFIX = "rnn."
CELLS = {
    "rnn.lstm": Cell(4, 2, _lstm), "rnn.gru": Cell(3, 1, _gru),
    "rnn.tanh": Cell(1, 1, _tanh), "rnn.relu": Cell(1, 1, _relu),
}  # fmt: skip


@record
class Steps:
    """The arguments of such an operator by name: tensors, or values of them. See above."""

    gates: Any
    weight: Any
    inner: Any
    projection: Any
    states: tuple[Any, ...]
    counts: Any
    hidden: int

    @staticmethod
    def of(name: str, args: Sequence[Any]) -> Steps:
        """The arguments of a call."""
        n = CELLS[name].states
        gates, weight, inner, projection, *rest = args
        hidden = rest[n + 1]
        assert isinstance(hidden, int)
        return Steps(gates, weight, inner, projection, tuple(rest[:n]), rest[n], hidden)

    @property
    def tensors(self) -> tuple[Any, ...]:
        """The operands that there are, in the order of a call."""
        found = (self.gates, self.weight, self.inner, self.projection, *self.states, self.counts)
        return tuple(one for one in found if one is not None)


def line_of(dtype: DType) -> int:
    """Units of a line."""
    return LINE_NBYTES // dtype.itemsize


def types_of(name: str, args: Sequence[Arg]) -> tuple[Type, ...]:
    """Of y, and of the states after the last step."""
    steps = Steps.of(name, args)
    gates, first = _type(steps.gates), _type(steps.states[0])
    assert gates.shape is not None
    width = first.sizes[0] * first.sizes[2]
    results = [TensorType(gates.dtype, (*gates.shape[:-1], width), None, gates.device)]
    results += [TensorType(s.dtype, s.shape, None, s.device) for s in map(_type, steps.states)]
    return tuple(results)


def _type(arg: Any) -> TensorType:
    assert isinstance(arg, Value) and isinstance(arg.type, TensorType)
    return arg.type


def run(name: str, *args: Any) -> tuple[torch.Tensor, ...]:
    """All steps, one after the other."""
    steps, cell = Steps.of(name, args), CELLS[name]
    directions, hidden = steps.states[0].shape[0], steps.hidden
    weights = _rows(steps.weight, directions, hidden)
    outputs = steps.states[0].shape[2]
    projections = None if steps.projection is None else _rows(steps.projection, directions, outputs)
    width = cell.gates * hidden
    y = steps.gates.new_empty((*steps.gates.shape[:-1], directions * outputs))
    last: list[list[torch.Tensor]] = []
    for d in range(directions):
        state = [s[d].clone() for s in steps.states]
        gates, out = steps.gates[..., d * width : (d + 1) * width], y[..., d * outputs : (d + 1) * outputs]
        inner = None if steps.inner is None else steps.inner[d]
        places = _places(steps)
        for at, count in reversed(places) if d else places:
            now = [s[:count] for s in state]
            made = list(cell.step(gates[at], now[0] @ weights[d].mT, now, inner))
            if projections is not None:
                made[0] = made[0] @ projections[d].mT
            out[at] = made[0]
            for s, new in zip(state, made, strict=True):
                s[:count] = new
        last.append(state)
    return (y, *(torch.stack(states) for states in zip(*last, strict=True)))


def _places(steps: Steps) -> list[tuple[Any, int]]:
    """Where in gates and y each step lies, and how many rows it has."""
    if steps.counts is None:
        return [(t, steps.states[0].shape[1]) for t in range(steps.gates.shape[0])]
    places, begin = [], 0
    for count in steps.counts.tolist():
        places.append((slice(begin, begin + count), count))
        begin += count
    return places


def _rows(lines: torch.Tensor, directions: int, units: int) -> torch.Tensor:
    """f[directions, gates x units, terms] from lines of units."""
    _, gates, terms, line = lines.shape
    whole = lines.reshape(directions, -1, gates, terms, line).permute(0, 2, 1, 4, 3)
    return whole.reshape(directions, gates, -1, terms)[:, :, :units].reshape(directions, gates * units, terms)
