"""What a call's arguments looked like: their structure, each tensor's form, each number; and how two calls differ.

Invariant: two calls that differ in nothing but sizes and numbers agree in structure, types, dtypes, ranks and every
other plain value. No argument is kept alive.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch

from smelt.capture.dynamic.spec import Spot
from smelt.capture.structure.tree import has_parts, parts
from smelt.diag.records import record
from smelt.runtime.guarding.guard_sizes import row_major

_PLAIN = (bool, str, bytes, complex, type(None), torch.dtype, torch.device, torch.layout, torch.Size, slice, range)


@record
class SeenCall:
    """kinds: by place, what must be alike; values: the sizes and numbers, which may differ. Floats stand as bits.

    is_ordinary: no tensor is empty. odd: the places of tensors with a size of 1 that do not lie row by row: what torch
    makes of those may have strides that do not follow from sizes.
    """

    kinds: Mapping[str, tuple[Any, ...]]
    values: Mapping[Spot, Any]
    raw: Mapping[Spot, int | float]
    is_ordinary: bool = True
    odd: frozenset[str] = frozenset()

    def difference(self, other: SeenCall) -> frozenset[Spot] | None:
        """The sizes and numbers that differ; None where more does."""
        if self.kinds != other.kinds:
            return None
        return self._differing(other)

    def grown(self, other: SeenCall) -> tuple[str, frozenset[Spot]] | None:
        """The first list or dict that holds more or fewer items in the other call, and the sizes and numbers that both
        have and that differ; None where something else is another, too.
        """
        places = [place for place, kind in self.kinds.items() if other.kinds.get(place, kind) != kind]
        for place in places:
            kind, theirs = self.kinds[place], other.kinds[place]
            is_inside = place not in ("args", "kwargs")
            if not (is_inside and kind[0] is theirs[0] and kind[0] in (list, dict) and len(kind[1]) != len(theirs[1])):
                return None
        return (places[0], self._differing(other)) if places else None

    def _differing(self, other: SeenCall) -> frozenset[Spot]:
        return frozenset(spot for spot, value in self.values.items() if other.values.get(spot, value) != value)


def seen_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SeenCall:
    """What these arguments look like."""
    walk = _Walk()
    walk.visit(args, "args")
    walk.visit(dict(kwargs), "kwargs")
    return SeenCall(walk.kinds, walk.values, walk.raw, walk.is_ordinary, frozenset(walk.odd))


class _Walk:
    def __init__(self) -> None:
        self.kinds: dict[str, tuple[Any, ...]] = {}
        self.values: dict[Spot, Any] = {}
        self.raw: dict[Spot, int | float] = {}
        self.is_ordinary = True
        self.odd: set[str] = set()
        self._met: dict[int, str] = {}

    def visit(self, value: Any, place: str) -> None:
        cls = type(value)
        if isinstance(value, torch.Tensor):
            self._tensor(value, place)
        elif cls is int or cls is float:
            self.kinds[place] = (cls,)
            self.raw[place, None] = value
            self.values[place, None] = value if cls is int else struct.pack("<d", value)
        elif isinstance(value, _PLAIN):
            self.kinds[place] = (cls, repr(value))
        elif not has_parts(value):
            self.kinds[place] = (cls, id(value))
        elif id(value) in self._met:
            self.kinds[place] = ("same", self._met[id(value)])
        else:
            self._met[id(value)] = place
            inner = list(parts(value))
            self.kinds[place] = (cls, tuple(suffix for suffix, _ in inner))
            for suffix, part in inner:
                self.visit(part, place + suffix)

    def _tensor(self, value: torch.Tensor, place: str) -> None:
        if id(value) in self._met:
            self.kinds[place] = ("same", self._met[id(value)])
            return
        self._met[id(value)] = place
        if value.is_nested:
            self.kinds[place] = (type(value), value.dtype, "nested")
            self.is_ordinary = False
            return
        self.kinds[place] = (type(value), value.dtype, value.layout, str(value.device), value.dim())
        if value.layout is torch.strided:
            self.is_ordinary &= value.numel() > 0
            if 1 in value.shape and value.stride() != row_major(value.shape):
                self.odd.add(place)
        for axis, size in enumerate(value.shape):
            self.values[place, axis] = self.raw[place, axis] = int(size)
