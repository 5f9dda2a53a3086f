"""A tensor laid out anew by a kernel of our own: the library takes five times as long where rows become columns.

    for i0 < 1024, i1 < 256:  out[256*i0 + i1] = x[i0 + 1024*i1]

Left to the library: few elements, what leaves gaps or repeats elements, sizes that are known at run time only.
"""

from __future__ import annotations

import torch

from smelt.codegen.fusion.tidy import tidy
from smelt.codegen.kernels.nest import Buffer, Index, Load, Nest, Store
from smelt.codegen.llvm.isa import Isa, host_isa
from smelt.codegen.llvm.nests.nest_ir import emit_nests
from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.launched_kernels import About, launch
from smelt.codegen.lower.memory.copies import copy_into
from smelt.codegen.lower.memory.geometry import is_dense, same_layout
from smelt.ir import DType
from smelt.ir.sizes import current_trace, is_symbolic
from smelt.ops.convert import dtype_to_torch

_FEWEST = 1024
"""Elements for which a kernel of its own pays."""
_DTYPES = {dtype_to_torch(dtype): dtype for dtype in (DType.F32, DType.F64, DType.BF16, DType.F16)}


def relay(ctx: Context, target: Place, source: Place) -> None:
    """Copy a tensor into planned memory that has it in another order."""
    isa = host_isa() if ctx.options.own_kernels and ctx.options.numerics != "eager-library" else None
    if isa is None or not _is_reordered(target, source):
        copy_into(ctx.builder, target, source)
        return
    dtype, sizes = _DTYPES[source.storage.dtype], source.geometry.sizes
    _launch(ctx, isa, target, source, _nest(dtype, sizes, target.geometry.strides, source.geometry.strides))


def _is_reordered(target: Place, source: Place) -> bool:
    at, lies = target.geometry, source.geometry
    if source.storage.dtype not in _DTYPES or source.storage.dtype is not target.storage.dtype:
        return False
    if current_trace() is not None or any(map(is_symbolic, (*at.sizes, *at.strides, *lies.strides, lies.offset))):
        return False
    if lies.numel < _FEWEST or same_layout(at.sizes, at.strides, lies.strides):
        return False
    return is_dense(at.sizes, at.strides) and is_dense(at.sizes, lies.strides)


def _nest(dtype: DType, sizes: tuple[int, ...], into: tuple[int, ...], of: tuple[int, ...]) -> Nest:
    kept = sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -into[dim])
    load = Load(0, Index(0, tuple(of[dim] for dim in kept)), dtype)
    store = Store(1, Index(0, tuple(into[dim] for dim in kept)), load)
    return tidy(Nest((Buffer("x", dtype), Buffer("out", dtype)), tuple(sizes[dim] for dim in kept), (), (store,)))


def _launch(ctx: Context, isa: Isa, target: Place, source: Place, nest: Nest) -> None:
    slots = (ctx.builder.handle(source), ctx.builder.handle(target))
    for kernel in emit_nests(nest, isa):
        launch(
            ctx, kernel.source, slots, kernel.words, items=kernel.items, eager=_in_torch, writes=(1,),
            item_ns=kernel.item_ns, scratch_nbytes=kernel.scratch_nbytes, label="layout", may_refuse=False,
            about=About(str(nest), nbytes=2 * source.geometry.numel * source.storage.dtype.itemsize),
        )  # fmt: skip


def _in_torch(source: torch.Tensor, target: torch.Tensor) -> None:
    target.copy_(source)
