"""Recurrent layers as the product of all inputs with the weights of both directions, and the steps (`rnn.*`).

    %y, %h, %c = lstm(%x, [%h0, %c0], [%w_ih, %w_hh, %b_ih, %b_hh], ...)
==> %g = linear %x, %w_ih, %b_ih + %b_hh; %y, %h, %c = rnn.lstm(%g, %w_hh in lines, none, none, %h0, %c0, none, 128)
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.diag.records import record
from smelt.ir import Arg, DType, MemoryFormat, TensorType, Value
from smelt.ops.own.recurrent_steps import CELLS, line_of
from smelt.ops.record import Call, Emitter, tensor_type

_FLOATS = (DType.F32, DType.F64)


def drops(call: Call) -> bool:
    """Whether it draws what to drop between layers."""
    return not (call["train"] is False or (type(call["dropout"]) in (int, float) and call["dropout"] == 0))


@record
class _Weights:
    """Those of one layer and direction."""

    inputs: Value
    state: Value
    biases: tuple[Value, Value] | None
    projection: Value | None


def lower_layer(b: Emitter, call: Call, op: str) -> tuple[Arg, ...] | None:
    """By layers; not where something is dropped between them, and not for other dtypes than f32 and f64.

    Of packed sequences the input is their rows, one step behind the other, and `batch_sizes` how many each step has.
    """
    cell, counts = CELLS[op], call.get("batch_sizes")
    states = call["hx"] if cell.states > 1 else (call["hx"],)
    x, params = call["input" if counts is None else "data"], call["params"]
    flags = [call[name] for name in ("has_biases", "num_layers", "bidirectional")]
    flags.append(call["batch_first"] if counts is None else False)
    if drops(call) or not isinstance(states, tuple) or not isinstance(params, tuple):
        return None
    operands = (x, *states, *params)
    if not all(isinstance(v, Value) and isinstance(v.type, TensorType) for v in operands):
        return None
    if not all(isinstance(flag, int) for flag in flags) or len(states) != cell.states:
        return None
    types = [tensor_type(v) for v in operands]
    if (
        types[0].rank != (3 if counts is None else 2)
        or types[0].dtype not in _FLOATS
        or any(t.dtype is not types[0].dtype for t in types)
    ):
        return None
    has_biases, layers, both, batch_first = flags
    directions = 2 if both else 1
    weights = _weights(params, has_biases, layers * directions)
    if not weights:
        return None
    last: list[tuple[Value, ...]] = []
    for layer in range(layers):
        begin, end = layer * directions, (layer + 1) * directions
        first = tuple(s if layers == 1 else b.call("aten.slice.Tensor", s, 0, begin, end) for s in states)
        gates = _products(b, x, weights[begin:end], op)
        if batch_first and layer == 0:
            gates = b.call("aten.transpose.int", gates, 0, 1)
        x, *after = _steps(b, gates, weights[begin:end], first, counts, op)
        last.append(tuple(after))
    ends = [b.call("aten.cat.default", each) if layers > 1 else each[0] for each in zip(*last, strict=True)]
    return (b.call("aten.transpose.int", x, 0, 1) if batch_first else x, *ends)


def _weights(params: Sequence[Value], has_biases: bool, count: int) -> list[_Weights]:
    """Those of each layer and direction in turn; none where their number fits no layer."""
    each, rest = divmod(len(params), max(count, 1))
    plain = 4 if has_biases else 2
    if rest or each not in (plain, plain + 1):
        return []
    found = []
    for i in range(count):
        inputs, state, *more = params[i * each : (i + 1) * each]
        biases = (more[0], more[1]) if has_biases else None
        found.append(_Weights(inputs, state, biases, more[-1] if each > plain else None))
    return found


def _joined(b: Emitter, values: Sequence[Value]) -> Value:
    return values[0] if len(values) == 1 else b.call("aten.cat.default", tuple(values))


def _products(b: Emitter, x: Value, weights: Sequence[_Weights], op: str) -> Value:
    """The inputs' share of the gates of all steps and directions, with what is added to the state's share."""
    biases = [_bias(b, w, op) for w in weights]
    bias = _joined(b, [one for one in biases if one is not None]) if biases[0] is not None else None
    return b.call("aten.linear.default", x, _joined(b, [w.inputs for w in weights]), bias)


def _bias(b: Emitter, weights: _Weights, op: str) -> Value | None:
    if weights.biases is None:
        return None
    of_input, of_state = weights.biases
    if op == "rnn.gru":  # the new state's is added before the gate is applied
        hidden = tensor_type(of_state).sizes[0] // 3
        of_state = b.call("aten.slice.Tensor", of_state, 0, 0, 2 * hidden)
        of_state = b.call("aten.constant_pad_nd.default", of_state, (0, hidden))
    return b.call("aten.add.Tensor", of_input, of_state)


def _steps(
    b: Emitter, gates: Value, weights: Sequence[_Weights], first: Sequence[Value], counts: Value | None, op: str
) -> tuple[Value, ...]:
    number = CELLS[op].gates
    hidden = tensor_type(weights[0].state).sizes[0] // number
    lines = _joined(b, [_lines(b, w.state, number) for w in weights])
    inner = _inner(b, weights, hidden) if op == "rnn.gru" else None
    outward = [_lines(b, w.projection, 1) for w in weights if w.projection is not None]
    projection = _joined(b, outward) if outward else None
    return b.calls(op, gates, lines, inner, projection, *first, counts, hidden)


def _inner(b: Emitter, weights: Sequence[_Weights], hidden: int) -> Value:
    """What is added to the state's share of the new state: f[directions, hidden]."""
    kind = tensor_type(weights[0].state)
    if weights[0].biases is None:
        return b.call("aten.full.default", (len(weights), hidden), 0.0, dtype=kind.dtype)
    parts = [b.call("aten.slice.Tensor", w.biases[1], 0, 2 * hidden, 3 * hidden) for w in weights if w.biases]
    return b.call("aten.stack.default", tuple(parts))


def _lines(b: Emitter, weight: Value, gates: int) -> Value:
    """f[gates x units, terms] as f[lines, gates, terms, line]."""
    kind = tensor_type(weight)
    rows, terms = kind.sizes
    units, line = rows // gates, line_of(kind.dtype)
    lines = -(-units // line)
    made = b.call("aten.reshape.default", weight, (gates, units, terms))
    if lines * line > units:
        made = b.call("aten.constant_pad_nd.default", made, (0, 0, 0, lines * line - units))
    made = b.call("aten.reshape.default", made, (gates, lines, line, terms))
    made = b.call("aten.permute.default", made, (1, 0, 3, 2))
    return b.call("aten.clone.default", made, memory_format=MemoryFormat("contiguous_format"))
