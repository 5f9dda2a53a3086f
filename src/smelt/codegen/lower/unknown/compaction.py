"""Where a flat mask holds, by a kernel of our own: one pass without branches, then zeros behind what counts.

    for i < n: out[k] = i; k += mask[i * step]         for k <= j < n: out[j] = 0

Invariant: what `aten.nonzero_static` gives for as many places as the mask has elements.
"""

from __future__ import annotations

import torch

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context, tensor_type
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.geometry import Geometry, row_major
from smelt.ir import Node, Value
from smelt.ir.sizes import equals

_TEXT = """
define i32 @KERNEL(ptr noalias %args, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {
entry:
  %mask = load ptr, ptr %args
  %at1 = getelementptr i64, ptr %args, i64 1
  %out = load ptr, ptr %at1
  %at2 = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %at2
  %at3 = getelementptr i64, ptr %args, i64 3
  %step = load i64, ptr %at3
  %some = icmp sgt i64 %n, 0
  br i1 %some, label %pass, label %done
pass:
  %i = phi i64 [ 0, %entry ], [ %i1, %pass ]
  %k = phi i64 [ 0, %entry ], [ %k1, %pass ]
  %to = getelementptr i64, ptr %out, i64 %k
  store i64 %i, ptr %to
  %place = mul i64 %i, %step
  %from = getelementptr i8, ptr %mask, i64 %place
  %bit = load i8, ptr %from
  %one = zext i8 %bit to i64
  %k1 = add i64 %k, %one
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %pass, label %passed
passed:
  %left = icmp slt i64 %k1, %n
  br i1 %left, label %rest, label %done
rest:
  %j = phi i64 [ %k1, %passed ], [ %j1, %rest ]
  %zero = getelementptr i64, ptr %out, i64 %j
  store i64 0, ptr %zero
  %j1 = add i64 %j, 1
  %again = icmp slt i64 %j1, %n
  br i1 %again, label %rest, label %done
done:
  ret i32 0
}
"""
_NS = 0.9  # an element


def lower_places(ctx: Context, node: Node) -> bool:
    """`nonzero_static` of a flat mask, for all its elements and with zeros behind."""
    call = ctx.call_arguments(node)
    mask, size, fill = call["self"], call["size"], call["fill_value"]
    if not isinstance(mask, Value) or host_isa() is None or not ctx.options.own_kernels:
        return False
    type_ = tensor_type(mask)
    if len(type_.sizes) != 1 or type_.dtype.kind != "bool" or type(size) is bool or not isinstance(size, int):
        return False
    count = type_.sizes[0]
    if not equals(size, count) or fill != 0:
        return False
    source = ctx.slot(mask)
    whole = Geometry.of(tensor_type(node.result))
    storage = ctx.memory_for(node.result, whole)
    ctx.bind(node.result, Place(storage, whole))
    out = ctx.builder.handle(Place(storage, row_major((count,))))
    launch(
        ctx,
        KernelSource.of(_TEXT),
        (source, out),
        (count, type_.steps[0]),
        items=1,
        eager=_eager,
        writes=(1,),
        item_ns=_NS * count,
        label="nonzero",
        about=About("places", (node,), 9 * count, count),
    )
    ctx.note(node, "kernel", "nonzero")
    return True


def _eager(mask: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.nonzero_static(mask, size=out.shape[0], fill_value=0).reshape(out.shape))
