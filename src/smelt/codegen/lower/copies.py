"""Copies between places of a plan: of bytes where both lie alike, of elements otherwise."""

from __future__ import annotations

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.runtime.plan import Blit, Copy


def copy_into(ctx: Context, target: Place, source: Place) -> None:
    """Copy a tensor into planned memory: its bytes where both lie alike and densely, else element by element."""
    builder = ctx.builder
    slot = builder.handle(source)
    builder.check(source.storage)
    at = target.geometry
    alike = (source.geometry.sizes, source.geometry.strides) == (at.sizes, at.strides)
    if alike and at.extent == at.numel and source.storage.dtype == target.storage.dtype:
        if at.numel:
            builder.emit(Blit(builder.handle(target), slot, at.numel * target.storage.dtype.itemsize))
    else:
        builder.emit(Copy(builder.handle(target), slot))
