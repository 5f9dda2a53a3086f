"""Recurrent layers as one operator each, over all steps; their cells, of one step.

That what they give has memory of its own is said here because trying it runs every step; and which sizes fit, because
torch's own kernels of `lstm` and `gru` do not look: operands that do not fit are read past their end.
Where sizes are unknown it is told what they give, for what one size changes many must with it: few trials would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.ir import ANY, UNKNOWN_DIM, Dim, TensorType, TupleType, Type, UnknownDim, Value
from smelt.ops.catalogue.recurrent_layers import drops, lower_layer
from smelt.ops.record import Call, Emitter, Lowering, OpRecord, Sample, Slot, Trait, library, sample, tensor_type
from smelt.ops.samples import floats

_LENGTH, _BATCH, _INPUTS, _HIDDEN = 3, 2, 4, 5
SOURCES = {
    "lstm": "doi:10.1162/neco.1997.9.8.1735", "gru": "arXiv:1406.1078",
    "rnn_tanh": "doi:10.1207/s15516709cog1402_1", "rnn_relu": "arXiv:1504.00941",
}  # fmt: skip


def _refuse_what_does_not_fit(call: Call, gates: int) -> None:
    """No rule for the types, which trying tells. Raises: InternalError (S0902) where sizes do not fit each other."""
    found = [_sizes(call[name]) for name in ("input", "hx", "params")]
    flags = [call[name] for name in ("has_biases", "num_layers", "bidirectional", "batch_first")]
    if any(sizes is None for sizes in found) or not all(isinstance(flag, int) for flag in flags):
        return None  # torch cannot be asked about these either
    (x,), states, weights = (sizes or [] for sizes in found)
    if not _fit(x, states, weights, gates, *flags):
        raise InternalError(f"no recurrent layer takes {x}, states {states} and weights {weights}", code="S0902")
    return None


def _sizes(arg: Any) -> list[tuple[int, ...]] | None:
    """The sizes of a tensor, or of each of several."""
    if isinstance(arg, Value):
        types = arg.type.elements if isinstance(arg.type, TupleType) else (arg.type,)
        return [t.sizes for t in types] if all(isinstance(t, TensorType) and t.is_static for t in types) else None  # type: ignore[union-attr]
    inner = [_sizes(item) for item in arg]
    return None if any(sizes is None for sizes in inner) else [size for sizes in inner for size in sizes or ()]


def _fit(
    x: tuple[int, ...],
    states: Sequence[tuple[int, ...]],
    weights: Sequence[tuple[int, ...]],
    gates: int,
    has_biases: bool,
    num_layers: int,
    both: bool,
    batch_first: bool,
) -> bool:
    ways, each = (2 if both else 1), (4 if has_biases else 2)
    count = num_layers * ways
    is_projected = len(states) == 2 and len(weights) == count * (each + 1)
    each += is_projected
    if len(x) != 3 or count < 1 or len(weights) != count * each or not weights[0] or not weights[each - 1]:
        return False
    hidden = weights[0][0] // gates
    given = weights[each - 1][0] if is_projected else hidden
    batch, length, width = x[not batch_first], x[bool(batch_first)], x[2]
    if length < 1 or list(states) != [(count, batch, given), (count, batch, hidden)][: len(states)]:
        return False
    for i in range(count):
        taken = width if i < ways else given * ways
        wanted: list[tuple[int, ...]] = [(gates * hidden, taken), (gates * hidden, given)]
        wanted += [(gates * hidden,)] * 2 if has_biases else []
        wanted += [(given, hidden)] if is_projected else []
        if list(weights[i * each : (i + 1) * each]) != wanted:
            return False
    return True


def _of_unknown(call: Call, gates: int) -> tuple[Type, ...] | None:
    """The types of the results where sizes are numbers, of a trace or not, or some are unknown; None where symbols
    tell all of them, and where numbers do not fit each other.
    """
    given = [_types(call[name]) for name in ("input", "hx", "params")]
    flags = [call[name] for name in ("has_biases", "num_layers", "bidirectional", "batch_first")]
    if all(types is not None and not any(map(_is_open, types)) for types in given):
        found = [_sizes(call[name]) for name in ("input", "hx", "params")]
        (own,), of_states, sizes_of_weights = (sizes or [()] for sizes in found)
        if None in found or not _fit(own, of_states, sizes_of_weights, gates, *flags):
            return None
    inputs, states, weights = given
    if inputs is None or states is None or not all(isinstance(flag, int) for flag in flags):
        return (ANY,) * (3 if gates == 4 else 2)
    (x,) = inputs
    if x.rank != 3:
        unknown = TensorType(x.dtype, None, None, x.device)
        return (unknown,) * (1 + len(states))
    has_biases, num_layers, both, batch_first = flags
    ways = 2 if both else 1
    x_sizes = x.shape or ()
    state_sizes = [_three(state) for state in states]
    batch = _known(x_sizes[not batch_first], *(sizes[1] for sizes in state_sizes))
    first, last = state_sizes[0], state_sizes[-1]
    each = 4 if has_biases else 2
    is_projected = len(states) == 2 and (weights is None or len(weights) != num_layers * ways * each)
    of_weights = UNKNOWN_DIM if not weights or not weights[0].shape else weights[0].shape[0]
    hidden = _known(last[2], of_weights // gates if isinstance(of_weights, int) else UNKNOWN_DIM)
    out = first[2] if is_projected else _known(first[2], hidden)
    length, width = x_sizes[bool(batch_first)], _times(out, ways)
    results = [TensorType(x.dtype, (length, batch, width), None, x.device)]
    if batch_first:
        results = [TensorType(x.dtype, (batch, length, width), (width, _times(batch, width), 1), x.device)]
    for size in (out, hidden)[-len(states) :]:
        results.append(TensorType(x.dtype, (num_layers * ways, batch, size), None, x.device))
    return tuple(results)


def _types(arg: Any) -> list[TensorType] | None:
    """The type of a tensor, or of each of several; None where there are others, or nobody knows how many."""
    if isinstance(arg, Value):
        types = arg.type.elements if isinstance(arg.type, TupleType) else (arg.type,)
        return (
            [t for t in types if isinstance(t, TensorType)] if all(isinstance(t, TensorType) for t in types) else None
        )
    inner = [_types(item) for item in arg]
    return None if any(types is None for types in inner) else [t for types in inner for t in types or ()]


def _is_open(type_: TensorType) -> bool:
    return type_.shape is None or any(isinstance(d, UnknownDim) for d in (*type_.shape, *(type_.strides or ())))


def _three(state: TensorType) -> tuple[Dim, ...]:
    return state.shape if state.shape is not None and len(state.shape) == 3 else (UNKNOWN_DIM,) * 3


def _known(*dims: Dim) -> Dim:
    """A number of some that are equal, where there is one; else what is known the most of it."""
    return min(dims, key=lambda d: (isinstance(d, UnknownDim), not isinstance(d, int)))


def _times(a: Dim, b: Dim) -> Dim:
    return a * b if isinstance(a, int) and isinstance(b, int) else (a if b == 1 else UNKNOWN_DIM)


def _samples(gates: int, states: int) -> Iterator[Sample]:
    for dtype, has_biases, layers, both, batch_first in (
        (torch.float32, True, 1, False, False),
        (torch.float64, False, 2, False, True),
        (torch.float32, True, 1, True, True),
    ):
        ways = 2 if both else 1
        x = floats(*((_BATCH, _LENGTH) if batch_first else (_LENGTH, _BATCH)), _INPUTS, dtype=dtype)
        state = [floats(layers * ways, _BATCH, _HIDDEN, seed=i, dtype=dtype) for i in range(states)]
        weights: list[torch.Tensor] = []
        for layer in range(layers):
            for way in range(ways):
                sizes = [(gates * _HIDDEN, _HIDDEN * ways if layer else _INPUTS), (gates * _HIDDEN, _HIDDEN)]
                given: list[tuple[int, ...]] = [*sizes, *([(gates * _HIDDEN,)] * 2 if has_biases else [])]
                weights += [floats(*size, seed=5 + i + 4 * way, dtype=dtype) for i, size in enumerate(given)]
        yield sample(x, state if states > 1 else state[0], weights, has_biases, layers, 0.0, False, both, batch_first)


def _record(name: str, gates: int, states: int) -> OpRecord:
    return OpRecord(
        f"aten.{name}.input",
        f"torch.{name}",
        lambda: _samples(gates, states),
        # With one gate torch looks at the sizes itself, and takes some more.
        result=(lambda call: _refuse_what_does_not_fit(call, gates)) if gates > 1 else None,
        result_of_unknown=lambda call: _of_unknown(call, gates),
        rng=drops,
        source=SOURCES[name],
        traits=Trait.SHRINKS,
        lower=lambda b, call: lower_layer(b, call, f"rnn.{name.removeprefix('rnn_')}"),
        why_not=library("its steps follow one another, each with a product: one kernel for CPUs", Slot.TRITON),
    )


# --- cells, as torch's CPU code computes them


def _is_plain(call: Call, states: Sequence[Any]) -> bool:
    """Whether the rows are a matrix, as a cell that is given one row by itself has not."""
    return all(tensor_type(t).rank == 2 for t in (call["input"], *states))


def _gates(b: Emitter, call: Call, state: Value) -> tuple[Value, Value]:
    """The gates' parts of the input and of the state: (rows, gates x hidden) each."""
    of_input = b.call("aten.linear.default", call["input"], call["w_ih"], call["b_ih"])
    return of_input, b.call("aten.linear.default", state, call["w_hh"], call["b_hh"])


def _apart(b: Emitter, gates: Value, state: Value) -> tuple[Value, ...]:
    return b.calls("aten.split.Tensor", gates, tensor_type(state).sizes[1], 1)


def _lower_lstm_cell(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    state, cell = call["hx"]
    if not _is_plain(call, (state, cell)):
        return None
    of_input, of_state = _gates(b, call, state)
    into, forget, new, out = _apart(b, b.call("aten.add.Tensor", of_state, of_input), cell)
    into, forget, out = (b.call("aten.sigmoid.default", gate) for gate in (into, forget, out))
    kept, added = b.call("aten.mul.Tensor", forget, cell), b.call("aten.tanh.default", new)
    cell = b.call("aten.add.Tensor", kept, b.call("aten.mul.Tensor", into, added))
    return b.call("aten.mul.Tensor", out, b.call("aten.tanh.default", cell)), cell


def _lower_gru_cell(b: Emitter, call: Call) -> Value | None:
    state = call["hx"]
    if not _is_plain(call, (state,)):
        return None
    of_input, of_state = (_apart(b, gates, state) for gates in _gates(b, call, state))
    reset, update = (
        b.call("aten.sigmoid.default", b.call("aten.add.Tensor", of_state[i], of_input[i])) for i in range(2)
    )
    past = b.call("aten.mul.Tensor", of_state[2], reset)
    new = b.call("aten.tanh.default", b.call("aten.add.Tensor", of_input[2], past))
    kept = b.call("aten.mul.Tensor", b.call("aten.sub.Tensor", state, new), update)
    return b.call("aten.add.Tensor", kept, new)


def _lower_rnn_cell(b: Emitter, call: Call, kind: str) -> Value | None:
    if not _is_plain(call, (call["hx"],)):
        return None
    of_input, of_state = _gates(b, call, call["hx"])
    return b.call(f"aten.{kind}.default", b.call("aten.add.Tensor", of_state, of_input))


def _cell_of_unknown(call: Call, gates: int, count: int) -> tuple[Type, ...] | None:
    """The types of the next states; None where symbols tell all of them, and where numbers do not fit each other."""
    inputs, states = _types(call["input"]), _types(call["hx"])
    if inputs and states and not any(map(_is_open, (*inputs, *states))):
        found = [_sizes(call[name]) for name in ("input", "hx", "w_ih", "w_hh")]
        (own,), of_states, of_inputs, of_hidden = (sizes or [()] for sizes in found)
        last = of_states[0][-1:]
        biases = [_sizes(call[name]) for name in ("b_ih", "b_hh") if call[name] is not None]
        wide = tuple(gates * n for n in last)
        are_given = None not in found and None not in biases and len(own) == 2
        if not are_given or [*of_inputs, *of_hidden] != [(*wide, own[1]), (*wide, *last)]:
            return None
        if of_states != [(own[0], *last)] * count or any(sizes != [wide] for sizes in biases):
            return None
    if not inputs or not states or len(states) != count or any(t.rank != 2 for t in (*inputs, *states)):
        return (ANY,) * count
    rows = _known(*((t.shape or ())[0] for t in (*inputs, *states)))
    hidden = _known(*((t.shape or ())[1] for t in states))
    return tuple(TensorType(t.dtype, (rows, hidden), None, t.device) for t in states)


def _cell_samples(gates: int, states: int) -> Iterator[Sample]:
    for dtype, has_biases, rows in ((torch.float32, True, 2), (torch.float64, False, 1), (torch.float32, True, 5)):
        state = [floats(rows, _HIDDEN, seed=i, dtype=dtype) for i in range(states)]
        weights = [floats(gates * _HIDDEN, n, seed=5 + n, dtype=dtype) for n in (_INPUTS, _HIDDEN)]
        biases = [floats(gates * _HIDDEN, seed=8 + i, dtype=dtype) if has_biases else None for i in range(2)]
        x = floats(rows, _INPUTS, seed=4, dtype=dtype)
        yield sample(x, state if states > 1 else state[0], *weights, *biases)


def _cell(name: str, gates: int, states: int, lower: Lowering) -> OpRecord:
    samples = partial(_cell_samples, gates, states)
    return OpRecord(
        f"aten.{name}_cell.default", f"torch.{name}_cell", samples, source=SOURCES[name], lower=lower, exact=True,
        result_of_unknown=partial(_cell_of_unknown, gates=gates, count=states),
    )  # fmt: skip


RECURRENT_LAYERS = frozenset(f"aten.{name}.input" for name in SOURCES)
"""Layers over sequences of one length."""
RECURRENT: tuple[OpRecord, ...] = (
    _record("lstm", 4, 2),
    _record("gru", 3, 1),
    _record("rnn_tanh", 1, 1),
    _record("rnn_relu", 1, 1),
    _cell("lstm", 4, 2, _lower_lstm_cell),
    _cell("gru", 3, 1, _lower_gru_cell),
    _cell("rnn_tanh", 1, 1, partial(_lower_rnn_cell, kind="tanh")),
    _cell("rnn_relu", 1, 1, partial(_lower_rnn_cell, kind="relu")),
)
