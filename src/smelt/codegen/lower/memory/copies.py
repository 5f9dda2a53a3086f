"""Copies between places of a plan: of bytes where both lie alike, of elements otherwise."""

from __future__ import annotations

from smelt.codegen.lower.builder import Place, PlanBuilder
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.runtime.plan import Blit, Copy


def copy_into(builder: PlanBuilder, target: Place, source: Place) -> None:
    """Copy a tensor into planned memory: its bytes where both lie alike and densely, else element by element."""
    repeated = _repeated(target.geometry)
    target, source = _once(target, repeated), _once(source, repeated)
    slot = builder.handle(source)
    builder.check(source.storage)
    at = target.geometry
    alike = (source.geometry.sizes, source.geometry.strides) == (at.sizes, at.strides)
    if alike and at.extent == at.numel and source.storage.dtype == target.storage.dtype:
        if at.numel:
            builder.emit(Blit(builder.handle(target), slot, at.numel * target.storage.dtype.itemsize))
    else:
        builder.emit(Copy(builder.handle(target), slot))


def _repeated(at: Geometry) -> tuple[bool, ...]:
    """The dimensions of stride 0: of the elements there, which are all the same, one is copied."""
    return tuple(stride == 0 and 0 not in at.sizes for stride in at.strides)


def _once(place: Place, repeated: tuple[bool, ...]) -> Place:
    """A place with the first element alone of the dimensions that are repeated."""
    if not any(repeated):
        return place
    at = place.geometry
    sizes = tuple(1 if again else n for n, again in zip(at.sizes, repeated, strict=True))
    strides = tuple(1 if again else s for s, again in zip(at.strides, repeated, strict=True))
    return Place(place.storage, Geometry(sizes, strides, at.offset))
