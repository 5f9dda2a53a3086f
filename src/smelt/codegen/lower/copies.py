"""Copies between places of a plan: of bytes where both lie alike, of elements otherwise."""

from __future__ import annotations

from smelt.codegen.lower.builder import Place
from smelt.codegen.lower.context import Context
from smelt.codegen.lower.geometry import Geometry
from smelt.runtime.plan import Blit, Copy


def copy_into(ctx: Context, target: Place, source: Place) -> None:
    """Copy a tensor into planned memory: its bytes where both lie alike and densely, else element by element."""
    builder = ctx.builder
    target, source = _once(target, source), _once(source, target)
    slot = builder.handle(source)
    builder.check(source.storage)
    at = target.geometry
    alike = (source.geometry.sizes, source.geometry.strides) == (at.sizes, at.strides)
    if alike and at.extent == at.numel and source.storage.dtype == target.storage.dtype:
        if at.numel:
            builder.emit(Blit(builder.handle(target), slot, at.numel * target.storage.dtype.itemsize))
    else:
        builder.emit(Copy(builder.handle(target), slot))


def _once(place: Place, other: Place) -> Place:
    """A place with each element once that is repeated there and in the other (dimensions of stride 0)."""
    at = place.geometry
    repeated = [s == 0 == t for s, t in zip(at.strides, other.geometry.strides, strict=True)]
    if not any(repeated) or 0 in at.sizes:
        return place
    sizes = tuple(1 if again else n for n, again in zip(at.sizes, repeated, strict=True))
    strides = tuple(1 if again else s for s, again in zip(at.strides, repeated, strict=True))
    return Place(place.storage, Geometry(sizes, strides, at.offset))
