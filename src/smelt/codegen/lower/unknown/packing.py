"""Packed sequences: one step behind the other, with as much memory as all steps of all sequences would need.

    %1: f32[_, 8], %2: i64[_] = pack(%x, %lengths)      rows of x in which lengths reach the step, found by a mask;
                                                        how many of them each step has
    %3: f32[_, 16], ... = lstm.data(%1, %2, ...)        one product of all rows, one kernel over the steps
    %4: f32[4, _, 16], ... = pad(%3, %2)                rows gathered back

Invariant: a step that does not count has no rows, so the kernel over the steps passes it by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from smelt.codegen.lower.unknown.selecting import masked, sizes_of, tensor_of, whole_of
from smelt.codegen.lower.unknown.values import (
    Count,
    Emitter,
    Held,
    Padded,
    Refused,
    literal,
    padded_or_value,
    same_count,
    size_of,
    type_of,
)
from smelt.ir import Arg, DType, Node, Value
from smelt.ops.catalogue.packed import PACK, PACKED_LAYERS
from smelt.ops.catalogue.recurrent_layers import lower_layer
from smelt.ops.shapes.composites import FollowsTorch

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting

Call: TypeAlias = Mapping[str, Arg]
Rule: TypeAlias = "Callable[[Rewriting, Node, Call], Sequence[Held]]"


def pack(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Rows whose sequence reaches the step, step by step, and how many these are."""
    x, lengths, first = r.get(call["input"]), r.get(call["lengths"]), call["batch_first"]
    if not isinstance(x, Value) or not isinstance(lengths, Value) or type(first) is not bool:
        raise Refused("a tensor of unknown size")
    (left, right, *rest), emit = type_of(x).sizes, r.emit
    batch, steps = (left, right) if first else (right, left)
    if type_of(lengths).sizes != (batch,) or type_of(lengths).dtype is not DType.I64:
        raise Refused("lengths of another shape")
    last, longest = (_item(emit, emit("aten.select.int", lengths, 0, at)) for at in (-1, 0))
    falling = emit(
        "aten.ge.Tensor", emit("aten.slice.Tensor", lengths, 0, 0, -1), emit("aten.slice.Tensor", lengths, 0, 1)
    )
    # What torch refuses, and longer sequences than there are, of which it makes rows and steps that do not agree.
    for truth in (
        emit("py.ge", last, 1), emit("py.le", longest, steps),
        emit("aten.item.default", emit("aten.all.default", falling)),
    ):  # fmt: skip
        r.expect(truth)
    reached = _reached(emit, lengths, steps)
    flat = emit("aten.reshape.default", reached, (steps * batch,))
    places = emit("aten.nonzero_static.default", flat, size=steps * batch, fill_value=0)
    places = emit("aten.view.default", places, (steps * batch,))
    if first:
        row = emit("aten.mul.Tensor", emit("aten.remainder.Scalar", places, batch), steps)
        places = emit("aten.add.Tensor", row, emit("aten.div.Tensor_mode", places, batch, rounding_mode="floor"))
    data = emit("aten.index.Tensor", emit("aten.reshape.default", x, (steps * batch, *rest)), (places,))
    total = _item(emit, emit("aten.sum.default", lengths))
    r.facts.least[longest] = r.facts.least[total] = 1
    counts = emit("aten.sum.dim_IntList", reached, (1,))
    return [Padded(data, (total, *([None] * len(rest)))), Padded(counts, (longest,))]


def run(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """A recurrent layer over all rows."""
    data, counts = tensor_of(r, call["data"]), tensor_of(r, call["batch_sizes"])
    packed, _ = _origin(call["batch_sizes"])
    rows = r.held[packed.results[0]]
    if not isinstance(rows, Padded) or not same_count(size_of(data, 0), size_of(rows, 0)):
        raise Refused("rows of unknown number")
    plain = {name: r.get(arg) for name, arg in call.items() if name not in ("data", "batch_sizes")}
    states = plain["hx"] if isinstance(plain["hx"], tuple) else (plain["hx"],)
    batch = type_of(_lengths(r, packed)).sizes[0]
    if not all(isinstance(s, Value) and type_of(s).sizes[1:2] == (batch,) for s in states):
        raise Refused("states of another number of sequences")
    steps = masked(r, counts, 0)
    arguments = {**plain, "data": whole_of(data), "batch_sizes": steps}
    made = lower_layer(_Calls(r.emit), arguments, PACKED_LAYERS[node.op])
    if made is None:
        raise Refused("a layer that no kernel runs")
    y, *last = made
    assert isinstance(y, Value)
    return [padded_or_value(y, (size_of(data, 0), None)), *last]


def pad(r: Rewriting, node: Node, call: Call) -> Sequence[Held]:
    """Rows of each sequence, or step, together again, a number behind the last."""
    data, emit = tensor_of(r, call["data"]), r.emit
    packed, longest = _origin(call["batch_sizes"])
    held = r.held[packed.results[0]], r.held[longest]
    first, value, wanted = call["batch_first"], call["padding_value"], r.get(call["total_length"])
    if not all(isinstance(h, Padded) for h in held) or type(first) is not bool or not literal(value):
        raise Refused("rows of unknown number")
    rows, counts = (tensor_of(r, v) for v in (packed.results[0], longest))
    if not same_count(size_of(data, 0), size_of(rows, 0)):
        raise Refused("rows of unknown number")
    lengths, most, count = _lengths(r, packed), sizes_of(counts)[0], size_of(counts, 0)
    batch = type_of(lengths).sizes[0]
    known: Count | None = count
    if isinstance(wanted, int) and wanted > 0:
        r.expect(emit("py.le", count, wanted))
        most, known = wanted, None
    elif isinstance(wanted, Value) and not same_count(wanted, count):
        raise Refused("a number of steps that is known later")
    reached = _reached(emit, lengths, most)
    before = emit("aten.sum.dim_IntList", emit("aten.minimum.default", _steps(emit, most), lengths), (1,), True)
    at = emit("aten.add.Tensor", before, emit("aten.arange.default", batch))
    at = emit("aten.where.ScalarOther", reached, at, 0)
    made = emit("aten.index.Tensor", whole_of(data), (at,))
    rest = len(sizes_of(data)) - 1
    there = emit("aten.reshape.default", reached, (most, batch, *([1] * rest)))
    made = emit("aten.where.ScalarOther", there, made, value)
    sizes = [known, None, *([None] * rest)]
    if first:
        made, sizes = emit("aten.transpose.int", made, 0, 1), [None, known, *([None] * rest)]
    return [padded_or_value(made, sizes), emit("aten.clone.default", lengths)]


def _origin(steps: Arg) -> tuple[Node, Value]:
    """What packed the sequences that these are the steps of. Raises: Refused where that is not known."""
    node = steps.node if isinstance(steps, Value) else None
    if node is None or node.op != PACK or not isinstance(steps, Value):
        raise Refused("steps that were not packed here")
    return node, steps


def _lengths(r: Rewriting, packed: Node) -> Value:
    held = r.held[packed.args[1]] if isinstance(packed.args[1], Value) else None
    if not isinstance(held, Value):
        raise Refused("lengths of unknown number")
    return held


def _reached(emit: Emitter, lengths: Value, steps: int) -> Value:
    """bool[steps, sequences]: whether a sequence has so many steps."""
    return emit("aten.lt.Tensor", _steps(emit, steps), lengths)


def _steps(emit: Emitter, count: int) -> Value:
    """i64[steps, 1]: the number of each."""
    return emit("aten.view.default", emit("aten.arange.default", count), (count, 1))


def _item(emit: Emitter, tensor: Value) -> Value:
    return emit("aten.item.default", tensor)


class _Calls(FollowsTorch):
    """An emitter as lowerings of the catalogue want it."""

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        return self._emit(op, *args, **kwargs)

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        return self._emit.many(op, *args, **kwargs)
