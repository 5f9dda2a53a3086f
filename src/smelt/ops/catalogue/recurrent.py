"""Recurrent layers with gates as one operator each, over all steps.

That what they give has memory of its own is said here because trying it runs every step; and which sizes fit, because
torch's own kernels of `lstm` and `gru` do not look: operands that do not fit are read past their end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from smelt.diag import InternalError
from smelt.ir import TensorType, TupleType, Value
from smelt.ops.record import Call, OpRecord, Sample, sample
from smelt.ops.samples import floats

_LENGTH, _BATCH, _INPUTS, _HIDDEN = 3, 2, 4, 5


def _drops(call: Call) -> bool:
    """Whether it draws what to drop between layers."""
    return not (call["train"] is False or (type(call["dropout"]) in (int, float) and call["dropout"] == 0))


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


def _record(name: str, gates: int, states: int, source: str) -> OpRecord:
    return OpRecord(
        f"aten.{name}.input",
        f"torch.{name}",
        lambda: _samples(gates, states),
        result=lambda call: _refuse_what_does_not_fit(call, gates),
        rng=_drops,
        source=source,
    )


RECURRENT: tuple[OpRecord, ...] = (
    _record("lstm", 4, 2, "doi:10.1162/neco.1997.9.8.1735"),
    _record("gru", 3, 1, "arXiv:1406.1078"),
)
