"""Sequences of different lengths, packed one step behind the other, and recurrent layers over them.

What they give is said here because it cannot be tried: torch's kernels take what they are given for lengths as places
in memory. How many rows and steps there are only data tell; how many sequences, those that were packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from smelt.ir import ANY, UNKNOWN_DIM, Dim, TensorType, TupleType, Type, Value
from smelt.ops.catalogue.recurrent import SOURCES
from smelt.ops.catalogue.recurrent_layers import drops
from smelt.ops.record import Call, OpRecord, Sample, library, sample
from smelt.ops.samples import floats

PACK, PAD = "aten._pack_padded_sequence.default", "aten._pad_packed_sequence.default"
_INPUTS, _HIDDEN = 4, 5
_LENGTHS = (3, 3, 1)


def _type_of(arg: Any) -> TensorType | None:
    """The type of a tensor of known rank."""
    type_ = arg.type if isinstance(arg, Value) else None
    return type_ if isinstance(type_, TensorType) and type_.shape is not None else None


def _packed(call: Call) -> tuple[Type, ...]:
    x, lengths = _type_of(call["input"]), _type_of(call["lengths"])
    if x is None or lengths is None:
        return ANY, ANY
    rest = (x.shape or ())[2:]
    steps = TensorType(lengths.dtype, (UNKNOWN_DIM,), None, lengths.device)
    return TensorType(x.dtype, (UNKNOWN_DIM, *rest), None, x.device), steps


def _padded(call: Call) -> tuple[Type, ...]:
    data, steps, total = _type_of(call["data"]), _type_of(call["batch_sizes"]), call["total_length"]
    if data is None or steps is None:
        return ANY, ANY
    batch = _batch(call["batch_sizes"])
    length: Dim = total if type(total) is int and total > 0 else UNKNOWN_DIM
    rest = (data.shape or ())[1:]
    strides: tuple[Dim, ...] | None = None
    shape = (length, batch, *rest)
    if call["batch_first"]:
        row = _product(rest)
        inner = [_product(rest[i + 1 :]) for i in range(len(rest))]
        shape, strides = (batch, length, *rest), (row, _product((batch, *rest)), *inner)
    return TensorType(data.dtype, shape, strides, data.device), TensorType(steps.dtype, (batch,), None, steps.device)


def _batch(steps: Value) -> Dim:
    """How many sequences there are in what was packed."""
    lengths = _type_of(steps.node.args[1]) if steps.node is not None and steps.node.op == PACK else None
    return UNKNOWN_DIM if lengths is None else (lengths.shape or (UNKNOWN_DIM,))[0]


def _product(dims: tuple[Dim, ...]) -> Dim:
    product = 1
    for dim in dims:
        if not isinstance(dim, int):
            return UNKNOWN_DIM
        product *= dim
    return product


def _run(call: Call, states: int) -> tuple[Type, ...]:
    given = call["hx"]
    if isinstance(given, Value) and isinstance(given.type, TupleType):
        found = [t if isinstance(t, TensorType) else None for t in given.type.elements]
    else:
        found = list(map(_type_of, given if isinstance(given, tuple) else (given,)))
    data = _type_of(call["data"])
    if data is None or any(t is None or t.rank != 3 for t in found) or len(found) != states:
        return (ANY,) * (1 + states)
    sizes = [t.shape or () for t in found if t is not None]
    rows, out = (data.shape or ())[0], sizes[0][2]
    width = out if not call["bidirectional"] else 2 * out if isinstance(out, int) else UNKNOWN_DIM
    results = [TensorType(data.dtype, shape, None, data.device) for shape in ((rows, width), *sizes)]
    return tuple(results)


def _lengths() -> torch.Tensor:
    return torch.tensor(_LENGTHS)


def _pack_samples() -> Iterator[Sample]:
    yield sample(floats(len(_LENGTHS), max(_LENGTHS), _INPUTS), _lengths(), True)
    yield sample(floats(max(_LENGTHS), len(_LENGTHS), dtype=torch.float64), _lengths(), False)


def _steps() -> torch.Tensor:
    return torch.tensor([3, 2, 2])


def _pad_samples() -> Iterator[Sample]:
    yield sample(floats(sum(_LENGTHS), _INPUTS), _steps(), True, 0.0, -1)
    yield sample(floats(sum(_LENGTHS), dtype=torch.float64), _steps(), False, -1.5, 5)


def _run_samples(gates: int, states: int) -> Iterator[Sample]:
    for dtype, both in ((torch.float32, False), (torch.float64, True)):
        ways = 2 if both else 1
        state = [floats(ways, len(_LENGTHS), _HIDDEN, seed=i, dtype=dtype) for i in range(states)]
        sizes = [(gates * _HIDDEN, _INPUTS), (gates * _HIDDEN, _HIDDEN), (gates * _HIDDEN,), (gates * _HIDDEN,)]
        weights = [floats(*size, seed=5 + i, dtype=dtype) for i, size in enumerate(sizes * ways)]
        x = floats(sum(_LENGTHS), _INPUTS, dtype=dtype)
        yield sample(x, _steps(), state if states > 1 else state[0], weights, True, 1, 0.0, False, both)


def _layer(name: str, gates: int, states: int) -> OpRecord:
    return OpRecord(
        f"aten.{name}.data", f"torch.{name}", partial(_run_samples, gates, states), source=SOURCES[name],
        result=partial(_run, states=states), result_of_unknown=partial(_run, states=states), rng=drops,
        why_not=library("only data say how many rows it has"),
    )  # fmt: skip


_BY_LENGTHS = library("it orders rows by lengths that data give")

PACKED: tuple[OpRecord, ...] = (
    OpRecord(
        PACK, "torch._VF._pack_padded_sequence", _pack_samples, result=_packed, result_of_unknown=_packed,
        why_not=_BY_LENGTHS,
    ),
    OpRecord(
        PAD, "torch._VF._pad_packed_sequence", _pad_samples, result=_padded, result_of_unknown=_padded,
        why_not=_BY_LENGTHS,
    ),
    _layer("lstm", 4, 2),
    _layer("gru", 3, 1),
    _layer("rnn_tanh", 1, 1),
    _layer("rnn_relu", 1, 1),
)  # fmt: skip
PACKED_LAYERS = {f"aten.{name}.data": f"rnn.{name.removeprefix('rnn_')}" for name in SOURCES}
"""Layers over packed sequences, each with the operator of its steps."""
OF_PACKED = frozenset(record.name for record in PACKED)
"""Of these there are library calls only, however much is known of sizes."""
