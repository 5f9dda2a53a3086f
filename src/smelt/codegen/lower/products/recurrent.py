"""All steps of a recurrent layer (`rnn.*`) as one launch: where its operands lie, and how its rows are divided.

Rows are independent, and so are directions: an item is some rows of one direction. Nothing waits inside of a launch.
"""

from __future__ import annotations

import os
from math import prod
from typing import Any, cast

import torch

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.recurrent.kernel import GATES, MAX_ROWS, Kind, Steps, StepWords, steps_of, steps_source
from smelt.ir import Node, Value
from smelt.ir.sizes import is_one, is_symbolic, late
from smelt.ops.own import recurrent_steps
from smelt.ops.own.recurrent_steps import PREFIX

# Terms of a chain of multiply-adds: with few rows the library sums in shorter ones.
_TERMS, _TERMS_OF_FEW, _FEW = 192, 96, 16
# Rows of an item from which more items are better than more rows in each.
_ROWS = 12
_FLOPS_PER_NS, _BYTES_PER_NS, _CELL_NS = 60.0, 30.0, 3.0


def lower_recurrent(ctx: Context, node: Node) -> bool:
    """Emit the launch of a layer's steps; False where no own kernel has the dtype."""
    isa, call = host_isa(), recurrent_steps.Steps.of(node.op, node.args)
    y = node.results[0]
    kind = cast(Kind, node.op.removeprefix(PREFIX))
    type_, (directions, batch, outputs) = tensor_type(y), tensor_type(call.states[0]).sizes
    if isa is None or not ctx.options.own_kernels:
        return False
    rows, items = _divided(directions, batch)
    steps = steps_of(
        kind, isa, type_.dtype, (call.hidden, outputs), None if is_symbolic(rows) else rows,
        packed=call.counts is not None, projected=call.projection is not None,
    )  # fmt: skip
    if steps is None:
        return False
    gates = ctx.place(call.gates)
    if not is_one(gates.geometry.strides[-1]):
        gates = ctx.with_strides(gates, row_major(gates.geometry.sizes).strides)
    rest = [_row_major(ctx, operand) for operand in call.tensors if operand is not call.gates]
    slots = [ctx.builder.handle(place) for place in (gates, *rest)]
    for result in node.results:
        geometry = Geometry.of(tensor_type(result))
        storage = ctx.memory_for(result, geometry)
        ctx.bind(result, Place(storage, storage.base))
        slots.append(storage.slot)
    length = tensor_type(call.gates if call.counts is None else call.counts).sizes[0]
    gates_step, gates_row = (0, *gates.geometry.strides[:-1])[-2:]
    out_row = directions * outputs
    words = StepWords(
        length, batch, call.hidden, outputs, rows, _terms(rows), gates_step, gates_row, batch * out_row, out_row
    )
    terms = GATES[kind] * outputs + (0 if call.projection is None else outputs)
    flops = 2 * (prod(tensor_type(call.gates).sizes[:-1]) * directions * call.hidden * terms)
    launch(
        ctx, steps_source(steps, isa), slots, words, items=items,
        eager=_Eager(steps, node.op, call.hidden), writes=tuple(range(len(slots) - len(node.results), len(slots))),
        item_ns=_item_ns(length, rows, call.hidden, terms, type_.dtype.itemsize),
        scratch_nbytes=steps.scratch_nbytes(call.hidden), label=f"steps of {kind}", may_refuse=False,
        about=About(
            f"for step < {length}: the cell of h[{batch}, {outputs}] @ w[{outputs}, {GATES[kind]} x {call.hidden}]",
            (node,), sum(tensor_type(v).nbytes for v in (*call.tensors, *node.results)), flops,
        ),
    )  # fmt: skip
    ctx.note(node, "kernel", f"steps of {kind}")
    return True


def _row_major(ctx: Context, value: Value) -> Place:
    place = ctx.place(value)
    dense = row_major(place.geometry.sizes).strides
    return place if place.geometry.strides == dense else ctx.with_strides(place, dense)


@late
def _divided(directions: int, batch: int) -> tuple[int, int]:
    """(rows of an item, items): something for each core, then whole tiles."""
    blocks = max(-(-(os.cpu_count() or 1) // directions), batch // _ROWS, -(-batch // MAX_ROWS), 1)
    rows = max(1, -(-batch // blocks))
    return rows, directions * -(-batch // rows)


@late
def _terms(rows: int) -> int:
    return _TERMS if rows >= _FEW else _TERMS_OF_FEW


@late
def _item_ns(length: int, rows: int, hidden: int, terms: int, itemsize: int) -> float:
    work = 2.0 * rows * hidden * terms / _FLOPS_PER_NS
    return length * (max(work, hidden * terms * itemsize / _BYTES_PER_NS) + rows * hidden * _CELL_NS / 4)


class _Eager:
    """The same in torch."""

    def __init__(self, steps: Steps, op: str, hidden: int) -> None:
        self._names, self._op, self._hidden = steps.buffers, op, hidden

    def __call__(self, *tensors: torch.Tensor) -> Any:
        at = dict(zip(self._names, tensors, strict=True))
        states = [at[name] for name in ("first_h", "first_c") if name in at]
        made = recurrent_steps.run(
            self._op, at["gates"], at["weight"], at.get("inner"), at.get("projection"), *states, at.get("counts"),
            self._hidden,
        )  # fmt: skip
        for name, value in zip(("out", "h", "c"), made, strict=False):
            at[name].copy_(value)
