"""The tensors of the programs that are saved: which there are, and where in the file each lies.

Invariant: memory that two tensors share is stored once, and they share it again when it is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import torch

from smelt.package.panels import Panels
from smelt.runtime.ingot.manifest import InPanels, Placed, State
from smelt.runtime.ingot.tensors import raw, span_of

_ALIGNMENT = 16


@dataclass
class Tensors:
    """Tensors by name, as they are collected; `number` gives the number of one that is there already."""

    names: list[tuple[str, str]] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)
    is_persistent: list[bool] = field(default_factory=list)
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    panels: Panels = field(default_factory=Panels)

    def number(self, kind: str, path: str, tensor: torch.Tensor, *, is_persistent: bool = True) -> int:
        """The number of a tensor of the state."""
        if (kind, path) in self.names:
            return self.names.index((kind, path))
        self.names.append((kind, path))
        self.tensors.append(tensor)
        self.is_persistent.append(is_persistent)
        return len(self.names) - 1

    def stored(self, tensor: torch.Tensor) -> Placed:
        """Where a tensor lies that is no state, but a value that native code needs; equal ones are one."""
        content = raw(tensor)
        shape = f"{tensor.dtype}{list(tensor.shape)}{tensor.stride()}"
        digest = hashlib.sha256(shape.encode() + content).hexdigest()[:32]
        name = f"~native/{digest}"
        self.values[name] = tensor
        return Placed(name, 0, tensor.dtype, tuple(tensor.shape), tensor.stride())

    def placed(self, written: Set[int]) -> tuple[list[State], list[tuple[str, torch.Tensor]]]:
        """The state, and what is stored, by name; written: numbers of the state that calls write to."""
        groups = _groups(self.tensors)
        self.panels.settle(groups, lambda number: self.names[number][0] == "param" and number not in written)
        stored: dict[str, torch.Tensor] = dict(self.panels.made)
        places: dict[int, Placed] = {}
        for group in groups:
            if group[0] in self.panels.places:
                name, _ = self.panels.places[group[0]]
                places.update((i, _over(name, 0, self.tensors[i])) for i in group)
                continue
            name = self._unused(group[0], stored)
            first = self.tensors[group[0]].detach()
            if all(_layout(self.tensors[i]) == _layout(first) for i in group):
                stored[name] = first
                places.update((i, _over(name, 0, first)) for i in group)
                continue
            whole, start = _whole([self.tensors[i] for i in group])
            stored[name] = whole
            for i in group:
                tensor = self.tensors[i]
                places[i] = _over(name, (tensor.data_ptr() - start) // tensor.itemsize, tensor)
        states = [
            State(kind, path, places[i], self.tensors[i].requires_grad, self.is_persistent[i], self._panels_of(i))
            for i, (kind, path) in enumerate(self.names)
        ]
        return states, sorted((stored | self.values).items())

    def _panels_of(self, number: int) -> InPanels | None:
        found = self.panels.places.get(number)
        return None if found is None else found[1]

    def _unused(self, number: int, taken: dict[str, torch.Tensor]) -> str:
        kind, path = self.names[number]
        name = path if kind in ("param", "buffer") else f"~{kind}/{path}"
        return name if name not in taken else f"{name}~{number}"


def _groups(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """The numbers of tensors that overlap in memory, directly or by way of others."""
    extents = []
    found = []
    for i, tensor in enumerate(tensors):
        nbytes = span_of(tensor) * tensor.itemsize
        if nbytes:
            extents.append((tensor.data_ptr(), tensor.data_ptr() + nbytes, i))
        else:
            found.append([i])
    end = 0
    for start, stop, i in sorted(extents):
        if start < end:
            found[-1].append(i)
        else:
            found.append([i])
        end = max(end, stop)
    return [sorted(group) for group in found]


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _over(name: str, offset: int, tensor: torch.Tensor) -> Placed:
    return Placed(name, offset, tensor.dtype, tuple(tensor.shape), tensor.stride())


def _whole(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The bytes from the first to the last of tensors of one storage, and where they begin."""
    storage = tensors[0].untyped_storage()
    base = storage.data_ptr()
    start = min(t.data_ptr() for t in tensors) - base
    start -= start % _ALIGNMENT
    stop = max(t.data_ptr() + span_of(t) * t.itemsize for t in tensors) - base
    flat = torch.empty(0, dtype=torch.uint8).set_(storage, start, (stop - start,), (1,))
    return flat, base + start
