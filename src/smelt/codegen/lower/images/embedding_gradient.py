"""The gradient of a table of embeddings, by a kernel of our own: zeros, then one row after the other, in eager's order.

    for a block of the table's rows, or of its columns:                # a work item
      out[rows, columns] = 0
      for m < M:  if index[m] is one of the rows and not the padding:  out[index[m], columns] += grad[m, columns]

Invariant: an item writes elements of its own, so sums are made in the order of the indices on any number of threads.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import torch

from smelt.codegen.attention.vectors import Lanes, down, least, number
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, row_major, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.ir import DType, Node, Value
from smelt.ir.sizes import ceil_div, late

_INDICES = {DType.I64: "i64", DType.I32: "i32"}
# Elements of the table of an item, where the table is divided by rows, and items at most: each looks at all indices.
_BLOCK, _ITEMS = 1 << 18, 64
# Columns of an item of a small table.
_COLUMNS = 64
# Nanoseconds of an element that is written or added, and of an index that is looked at.
_ELEMENT_NS, _INDEX_NS = 0.3, 0.5


def lower_embedding_gradient(ctx: Context, node: Node) -> bool:
    """`embedding_dense_backward` of f32 or f64 with each row added as it is."""
    call, isa = ctx.call_arguments(node), host_isa()
    grad, index, rows, padding = (call[n] for n in ("grad_output", "indices", "num_weights", "padding_idx"))
    if not isinstance(grad, Value) or not isinstance(index, Value) or type(rows) is not int or type(padding) is not int:
        return False
    type_, other, indices = (tensor_type(v) for v in (node.result, grad, index))
    if isa is None or not ctx.options.own_kernels or node.mode or call["scale_grad_by_freq"] is not False:
        return False
    if type_.dtype not in (DType.F32, DType.F64) or other.dtype is not type_.dtype or indices.dtype not in _INDICES:
        return False
    if type_.strides is not None or not all(t.is_static and t.numel for t in (type_, other, indices)):
        return False
    width, count = type_.sizes[-1], prod(indices.sizes)
    if other.sizes != (*indices.sizes, width):
        return False
    slots = [ctx.builder.handle(_row_major(ctx, v)) for v in (grad, index)]
    storage = ctx.memory_for(node.result, Geometry.of(type_))
    ctx.bind(node.result, Place(storage, storage.base))
    row_block, column_block, items = _cut(rows, width)
    launch(
        ctx,
        _source(type_.dtype, indices.dtype, isa),
        (*slots, storage.slot),
        (rows, width, count, row_block, column_block, padding),
        items=items,
        eager=_Eager(rows, padding),
        writes=(2,),
        item_ns=_ELEMENT_NS * (rows + count) * width / items + _INDEX_NS * count,
        label="gradient of embedding",
        may_refuse=False,
        about=About("gradient of embedding", (node,), type_.nbytes + other.nbytes, count * width),
    )
    ctx.note(node, "kernel", "gradient of embedding")
    return True


def _row_major(ctx: Context, value: Value) -> Place:
    place = ctx.place(value)
    dense = row_major(place.geometry.sizes).strides
    return place if place.geometry.strides == dense else ctx.with_strides(place, dense)


@late
def _cut(rows: int, width: int) -> tuple[int, int, int]:
    """(rows of an item, columns of an item, items): by rows where the table is large, else by columns."""
    if rows * width >= 2 * _BLOCK:
        row_block = ceil_div(rows, min(ceil_div(rows * width, _BLOCK), _ITEMS))
        return row_block, width, ceil_div(rows, row_block)
    return rows, _COLUMNS, ceil_div(width, _COLUMNS)


class _Eager:
    """The same in torch."""

    def __init__(self, rows: int, padding: int) -> None:
        self._rows, self._padding = rows, padding

    def __call__(self, grad: torch.Tensor, index: torch.Tensor, out: torch.Tensor) -> Any:
        out.copy_(torch.ops.aten.embedding_dense_backward(grad, index, self._rows, self._padding, False))


@lru_cache(maxsize=8)
def _source(dtype: DType, indices: DType, isa: Isa) -> KernelSource:
    fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
    lanes = Lanes.of(fn, isa, dtype)
    grad, index, out = (fn.address(i) for i in range(3))
    rows, width, count, row_block, column_block, padding = (fn.word(3 + i) for i in range(6))
    blocks = fn.let(f"udiv i64 {fn.add(fn.add(width, column_block), -1)}, {column_block}", "i")
    kind = _INDICES[indices]
    with fn.loop("%begin", "%end") as item:
        first = fn.mul(fn.let(f"udiv i64 {item.index}, {blocks}", "i"), row_block)
        last = least(fn, fn.add(first, row_block), rows)
        column = fn.mul(fn.let(f"urem i64 {item.index}, {blocks}", "i"), column_block)
        size = least(fn, column_block, fn.let(f"sub i64 {width}, {column}", "i"))
        whole = down(fn, size, lanes.count)
        with fn.loop(first, last) as row:
            target = fn.gep(lanes.kind, out, fn.add(fn.mul(row.index, width), column))
            with fn.loop("0", whole, lanes.count) as at:
                lanes.store("zeroinitializer", fn.gep(lanes.kind, target, at.index))
            with fn.loop(whole, size) as at:
                fn.store(lanes.kind, number(0.0), fn.gep(lanes.kind, target, at.index))
        with fn.loop("0", count) as each:
            found = fn.load(kind, fn.gep(kind, index, each.index))
            row_index = found if kind == "i64" else fn.let(f"sext i32 {found} to i64", "i")
            is_here = fn.let(
                f"and i1 {fn.let(f'icmp sge i64 {row_index}, {first}')}, {fn.let(f'icmp slt i64 {row_index}, {last}')}"
            )
            with fn.when(fn.let(f"and i1 {is_here}, {fn.let(f'icmp ne i64 {row_index}, {padding}')}")):
                target = fn.gep(lanes.kind, out, fn.add(fn.mul(row_index, width), column))
                source = fn.gep(lanes.kind, grad, fn.add(fn.mul(each.index, width), column))
                with fn.loop("0", whole, lanes.count) as at:
                    to = fn.gep(lanes.kind, target, at.index)
                    read = lanes.load(fn.gep(lanes.kind, source, at.index))
                    lanes.store(lanes.op("fadd", lanes.load(to), read), to)
                with fn.loop(whole, size) as at:
                    to = fn.gep(lanes.kind, target, at.index)
                    single = fn.load(lanes.kind, fn.gep(lanes.kind, source, at.index))
                    fn.store(lanes.kind, fn.let(f"fadd {lanes.kind} {fn.load(lanes.kind, to)}, {single}"), to)
    return KernelSource.of(fn.finish())
