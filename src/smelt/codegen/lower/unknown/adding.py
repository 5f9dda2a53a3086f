"""Rows added at indices, by a kernel of our own: a copy of the tensor, then one row after the other, in eager's order.

    out = self;  for m < M: out[o, index[m], c] += source[o, m, c]        an item: one `o`, a block of columns c

Invariant: sums are made in the order of the indices, as by torch; an index that is out of range is refused.
"""

from __future__ import annotations

from math import prod

import torch

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type, torch_dtype
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.ir import Node, Value
from smelt.ir.sizes import ceil_div, equals, size_min

_TYPES = {
    torch.float32: ("float", "fadd"),
    torch.float64: ("double", "fadd"),
    torch.int64: ("i64", "add"),
    torch.int32: ("i32", "add"),
}
_INDICES = {torch.int64: "i64", torch.int32: "i32"}
_COLUMNS = 64  # of an item
_NS = 0.6  # an element that is copied or added

_TEXT = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
entry:
  %self = load ptr, ptr %args
  %a1 = getelementptr i64, ptr %args, i64 1
  %index = load ptr, ptr %a1
  %a2 = getelementptr i64, ptr %args, i64 2
  %source = load ptr, ptr %a2
  %a3 = getelementptr i64, ptr %args, i64 3
  %out = load ptr, ptr %a3
  %a4 = getelementptr i64, ptr %args, i64 4
  %rows = load i64, ptr %a4
  %a5 = getelementptr i64, ptr %args, i64 5
  %width = load i64, ptr %a5
  %a6 = getelementptr i64, ptr %args, i64 6
  %count = load i64, ptr %a6
  %a7 = getelementptr i64, ptr %args, i64 7
  %blocks = load i64, ptr %a7
  br label %items
items:
  %item = phi i64 [ %begin, %entry ], [ %item1, %itemdone ]
  %go = icmp slt i64 %item, %end
  br i1 %go, label %body, label %done
body:
  %o = sdiv i64 %item, %blocks
  %b = srem i64 %item, %blocks
  %c0 = mul i64 %b, COLUMNS
  %cz = add i64 %c0, COLUMNS
  %short = icmp slt i64 %cz, %width
  %c1 = select i1 %short, i64 %cz, i64 %width
  %plane = mul i64 %rows, %width
  %obase = mul i64 %o, %plane
  %splane = mul i64 %count, %width
  %sbase = mul i64 %o, %splane
  br label %copyrow
copyrow:
  %r = phi i64 [ 0, %body ], [ %r1, %copied ]
  %rgo = icmp slt i64 %r, %rows
  br i1 %rgo, label %copystart, label %addrow
copystart:
  %roff = mul i64 %r, %width
  %rbase = add i64 %obase, %roff
  br label %copy
copy:
  %c = phi i64 [ %c0, %copystart ], [ %cn, %copy ]
  %at = add i64 %rbase, %c
  %pf = getelementptr TYPE, ptr %self, i64 %at
  %pv = load TYPE, ptr %pf
  %pt = getelementptr TYPE, ptr %out, i64 %at
  store TYPE %pv, ptr %pt
  %cn = add i64 %c, 1
  %cgo = icmp slt i64 %cn, %c1
  br i1 %cgo, label %copy, label %copied
copied:
  %r1 = add i64 %r, 1
  br label %copyrow
addrow:
  %m = phi i64 [ 0, %copyrow ], [ %m1, %added ]
  %mgo = icmp slt i64 %m, %count
  br i1 %mgo, label %addcheck, label %itemdone
addcheck:
  %ip = getelementptr INDEX, ptr %index, i64 %m
  %iv = load INDEX, ptr %ip
  %i = WIDEN
  %inside = icmp ult i64 %i, %rows
  br i1 %inside, label %addstart, label %refused
addstart:
  %ioff = mul i64 %i, %width
  %tbase = add i64 %obase, %ioff
  %moff = mul i64 %m, %width
  %mbase = add i64 %sbase, %moff
  br label %sum
sum:
  %d = phi i64 [ %c0, %addstart ], [ %dn, %sum ]
  %ta = add i64 %tbase, %d
  %ma = add i64 %mbase, %d
  %mp = getelementptr TYPE, ptr %source, i64 %ma
  %mv = load TYPE, ptr %mp
  %tp = getelementptr TYPE, ptr %out, i64 %ta
  %tv = load TYPE, ptr %tp
  %tn = ADD TYPE %tv, %mv
  store TYPE %tn, ptr %tp
  %dn = add i64 %d, 1
  %dgo = icmp slt i64 %dn, %c1
  br i1 %dgo, label %sum, label %added
added:
  %m1 = add i64 %m, 1
  br label %addrow
itemdone:
  %item1 = add i64 %item, 1
  br label %items
refused:
  ret i32 1
done:
  ret i32 0
}
"""


def lower_index_add(ctx: Context, node: Node) -> bool:
    """`index_add` with a factor of 1, on row-major tensors."""
    call = ctx.call_arguments(node)
    value, dim, index, source = call["self"], call["dim"], call["index"], call["source"]
    if not all(isinstance(v, Value) for v in (value, index, source)) or type(dim) is not int or node.mode:
        return False
    assert isinstance(value, Value) and isinstance(index, Value) and isinstance(source, Value)
    type_, other, indices = tensor_type(value), tensor_type(source), tensor_type(index)
    rank = len(type_.sizes)
    types = _TYPES.get(torch_dtype(value))
    is_one = type(call["alpha"]) in (int, float) and call["alpha"] == 1
    if types is None or torch_dtype(index) not in _INDICES or not rank or len(indices.sizes) != 1 or not is_one:
        return False
    at = dim % rank
    expected = (*type_.sizes[:at], indices.sizes[0], *type_.sizes[at + 1 :])
    if other.dtype is not type_.dtype or other.sizes != expected or node.result.type != type_:
        return False
    if any(t.strides is not None for t in (type_, other, indices)) or host_isa() is None or not ctx.options.own_kernels:
        return False
    if any(equals(n, 0) for n in (*type_.sizes, *expected)):
        return False
    outer, width = prod(type_.sizes[:at]), prod(type_.sizes[at + 1 :])
    rows, count = type_.sizes[at], indices.sizes[0]
    blocks = ceil_div(width, _COLUMNS)
    buffers = [ctx.slot(value), ctx.slot(index), ctx.slot(source)]
    geometry = Geometry.of(type_)
    storage = ctx.memory_for(node.result, geometry)
    ctx.bind(node.result, Place(storage, geometry))
    launch(
        ctx,
        KernelSource.of(_text(*types, _INDICES[torch_dtype(index)])),
        (*buffers, storage.slot),
        (rows, width, count, blocks),
        items=outer * blocks,
        eager=_Eager(dim),
        writes=(3,),
        item_ns=_NS * ((rows + count) * size_min(width, _COLUMNS)),
        label="index_add",
        about=About("index_add", (node,), 2 * type_.nbytes + other.nbytes, count * width * outer),
    )
    ctx.note(node, "kernel", "index_add")
    return True


class _Eager:
    """The same in torch."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def __call__(self, value: torch.Tensor, index: torch.Tensor, source: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(torch.index_add(value, self._dim, index, source))


def _text(type_: str, add: str, index: str) -> str:
    widen = "add i64 %iv, 0" if index == "i64" else "sext i32 %iv to i64"
    text = _TEXT.replace("COLUMNS", str(_COLUMNS)).replace("INDEX", index).replace("WIDEN", widen)
    return text.replace("ADD", add).replace("TYPE", type_)
