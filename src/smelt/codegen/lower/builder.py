"""Instructions, slots and storages of a plan in the making; lifetimes, releases and arena offsets at the end.

Invariant: every slot over a storage is known to it, so a storage's memory is reused only after the last instruction
that touches any of its views.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch

from smelt.codegen.lower.memory.arena import Lifetime, aligned, plan_offsets
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.result import StateName
from smelt.diag.records import record
from smelt.ir.sizes import value
from smelt.runtime.control import blocks_of
from smelt.runtime.plan import (
    NUMBER_DTYPES,
    ArenaTensor,
    CheckLayout,
    Empty,
    Instruction,
    Kind,
    Plan,
    Release,
    View,
    outs_of,
    uses_of,
)

StorageKind = Literal["input", "state", "held", "arena", "owned", "number", "object"]


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that one handle made known: an input, live state, a baked constant, an arena block or a new tensor; or a
    number's or an object's slot.

    base: how the tensor of that first handle lies in it. `checked`: its layout is certain, so views may be computed.
    handles: slots by geometry that are there at this point of the plan. slots: all that were ever made. planned: it is
    the plan's own, made for one value (and what is written into that).
    """

    kind: StorageKind
    slot: int
    base: Geometry
    dtype: torch.dtype
    source: int | StateName | None = None
    checked: bool = True
    handles: dict[Geometry, int] = field(default_factory=dict)
    slots: list[int] = field(default_factory=list)
    planned: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that the first handle spans."""
        return self.base.extent * self.dtype.itemsize


@record
class Place:
    """Where a value lies: a storage and a geometry in it."""

    storage: Storage
    geometry: Geometry


class PlanBuilder:
    """Collects instructions; `finish` makes the plan."""

    def __init__(self, *, profile: bool = False) -> None:
        self.profile = profile
        self.instructions: list[Instruction] = []
        self.origins: list[str] = []
        self.origin = ""
        self.inputs: list[int] = []
        self._nslots = 0
        self._held: list[tuple[int, torch.Tensor]] = []
        self._storages: list[Storage] = []
        self._storage_of: dict[int, Storage] = {}
        self.arena_naive_nbytes = 0
        self.peak_nbytes = 0
        self.kinds: dict[int, Kind] = {}
        self._own: dict[Hashable, int] = {}
        # What has to be undone where the block at hand ends.
        self._undo: list[list[Callable[[], None]]] = []

    # --- slots and storages

    def slot(self) -> int:
        """A new slot."""
        self._nslots += 1
        return self._nslots - 1

    def _storage(
        self,
        kind: StorageKind,
        geometry: Geometry,
        dtype: torch.dtype,
        source: int | StateName | None = None,
        checked: bool = True,
    ) -> Storage:
        storage = Storage(kind, self.slot(), geometry, dtype, source, checked)
        storage.handles[geometry] = storage.slot
        storage.slots.append(storage.slot)
        self._storages.append(storage)
        self._storage_of[storage.slot] = storage
        return storage

    def input(self, geometry: Geometry, dtype: torch.dtype) -> Storage:
        """The next input of the plan."""
        storage = self._storage("input", geometry, dtype, len(self.inputs))
        self.inputs.append(storage.slot)
        return storage

    def held(self, tensor: torch.Tensor, source: StateName | None = None) -> Storage:
        """A tensor that the plan keeps alive: a baked constant, or with `source` the program's live state."""
        geometry = Geometry(tuple(tensor.shape), _strides(tensor))
        storage = self._storage("held" if source is None else "state", geometry, tensor.dtype, source)
        self._held.append((storage.slot, tensor))
        return storage

    def arena(self, geometry: Geometry, dtype: torch.dtype) -> Storage:
        """A block of the arena."""
        storage = self._storage("arena", geometry, dtype)
        storage.planned = True
        return storage

    def empty(self, geometry: Geometry, dtype: torch.dtype) -> Storage:
        """A new, uninitialised tensor made at this point of the plan."""
        storage = self._storage("owned", geometry, dtype)
        storage.planned = True
        self.emit(Empty(storage.slot, geometry.sizes, geometry.strides, dtype))
        return storage

    def number(self, kind: Kind) -> Storage:
        """A slot for a Python number, or any Python object."""
        is_object = kind == "object"
        dtype = torch.uint8 if is_object else NUMBER_DTYPES[kind]
        storage = self._storage("object" if is_object else "number", Geometry((), ()), dtype)
        self.kinds[storage.slot] = kind
        return storage

    def input_number(self, kind: Kind) -> Storage:
        """The next input of the plan, a number."""
        storage = self.number(kind)
        self.inputs.append(storage.slot)
        return storage

    @contextmanager
    def block(self) -> Iterator[None]:
        """Instructions that may not run: what they make known is forgotten behind them."""
        self._undo.append([])
        try:
            yield
        finally:
            for undo in reversed(self._undo.pop()):
                undo()

    @property
    def in_block(self) -> bool:
        """Whether the next instruction stands in a branch or a loop."""
        return bool(self._undo)

    def made(self, geometry: Geometry, dtype: torch.dtype, *, checked: bool = False) -> Storage:
        """A tensor that the next instruction makes; its layout is checked before views rely on it unless `checked`."""
        return self._storage("owned", geometry, dtype, checked=checked)

    def handle(self, place: Place) -> int:
        """A slot whose tensor is exactly this place, viewing it where needed."""
        storage, geometry = place.storage, place.geometry
        known = storage.handles.get(geometry)
        if known is not None:
            return known
        self.check(storage)
        slot = self.slot()
        self._storage_of[slot] = storage
        storage.handles[geometry] = slot
        storage.slots.append(slot)
        if self._undo:
            self._undo[-1].append(lambda: storage.handles.__delitem__(geometry))
        itemsize = storage.dtype.itemsize
        self.emit(View(slot, storage.slot, geometry.sizes, geometry.strides, geometry.offset, itemsize))
        return slot

    def storage_of(self, slot: int) -> Storage:
        """The storage that a slot of this plan lies in."""
        return self._storage_of[slot]

    def another_handle(self, place: Place) -> int:
        """A slot with a tensor object of its own over a place that has one already."""
        self.check(place.storage)
        slot = self.slot()
        self._storage_of[slot] = place.storage
        place.storage.slots.append(slot)
        at = place.geometry
        self.emit(View(slot, place.storage.slot, at.sizes, at.strides, at.offset))
        return slot

    def own_handle(self, place: Place, owner: Hashable) -> int:
        """A slot with a tensor object over a place that is its owner's alone, the same one each time."""
        known = self._own.get(owner)
        if known is not None:
            return known
        slot = self._own[owner] = self.another_handle(place)
        if self._undo:
            self._undo[-1].append(lambda: self._own.__delitem__(owner))
        return slot

    def check(self, storage: Storage) -> None:
        """Make sure at run time that a library-made tensor lies as planned, once."""
        if not storage.checked:
            storage.checked = True
            if self._undo:
                self._undo[-1].append(lambda: setattr(storage, "checked", False))
            base = storage.base
            self.emit(CheckLayout(storage.slot, base.sizes, base.strides, storage.dtype))

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction; its origin is the node at hand."""
        self.instructions.append(instruction)
        self.origins.append(self.origin)

    # --- the end

    def finish(self, outputs: tuple[int, ...]) -> Plan:
        """The plan: releases after last uses, arena offsets, peak memory."""
        last: dict[int, int] = {}
        first: dict[int, int] = {}
        for i, instruction in enumerate(self.instructions):
            for slot in (*uses_of(instruction), *outs_of(instruction)):
                last[slot] = i
                first.setdefault(slot, i)
        for instruction in reversed(self.instructions):
            if isinstance(instruction, View):
                # A view that only launches use is no tensor of its own: its source must live as long.
                last[instruction.src] = max(last[instruction.src], last[instruction.dst])
        self._cover_blocks(first, last)
        owned = {slot for instruction in self.instructions for slot in outs_of(instruction)} - self.kinds.keys()
        dying: dict[int, list[int]] = {}
        for slot in sorted(owned - set(outputs)):
            dying.setdefault(last[slot], []).append(slot)
        arena, arena_nbytes = self._arena(first, last)
        self._measure_peak(owned, first, last, set(outputs), arena_nbytes)
        instructions: list[Instruction] = []
        origins: list[str] = []
        for i, (instruction, origin) in enumerate(zip(self.instructions, self.origins, strict=True)):
            instructions.append(instruction)
            origins.append(origin)
            if i in dying:
                instructions.append(Release(tuple(dying[i])))
                origins.append(origin)
        # A constant that no instruction uses (one that was packed since) would only take memory.
        unused = {s.slot for s in self._storages if s.kind == "held"} - first.keys() - set(outputs)
        return Plan(
            nslots=self._nslots,
            inputs=tuple(self.inputs),
            outputs=outputs,
            instructions=tuple(instructions),
            held=tuple((slot, tensor) for slot, tensor in self._held if slot not in unused),
            arena=arena,
            arena_nbytes=arena_nbytes,
            origins=tuple(origins),
            fixed=frozenset(s.slot for s in self._storages if s.kind == "held") - unused,
            profile=self.profile,
            kinds={slot: kind for slot, kind in self.kinds.items() if slot in first or slot in self.inputs},
        )

    def _cover_blocks(self, first: dict[int, int], last: dict[int, int]) -> None:
        """What is there before a block and used in it is there until its end; what is made in it and used behind it
        is there from its beginning.
        """
        # Inner blocks first: what must outlive one then stands at its end, in the middle of the next outer one.
        for block in reversed(blocks_of(self.instructions).blocks):
            for slot in first:
                if first[slot] < block.first <= last[slot] < block.last:
                    last[slot] = block.last
                elif block.first < first[slot] <= block.last < last[slot]:
                    first[slot] = block.first

    def _slots_of(self, storage: Storage) -> Iterable[int]:
        return storage.slots

    def _arena(self, first: dict[int, int], last: dict[int, int]) -> tuple[tuple[ArenaTensor, ...], int]:
        blocks = []
        storages = [s for s in self._storages if s.kind == "arena" and s.slot in first]
        for storage in storages:
            slots = [s for s in self._slots_of(storage) if s in first]
            blocks.append(Lifetime(storage.nbytes, min(first[s] for s in slots), max(last[s] for s in slots)))
        offsets, total = plan_offsets(blocks)
        self.arena_naive_nbytes = sum(aligned(value(block.nbytes)) for block in blocks)
        tensors = tuple(
            ArenaTensor(s.slot, offset, s.base.sizes, s.base.strides, s.dtype)
            for s, offset in zip(storages, offsets, strict=True)
        )
        return tensors, total

    def _measure_peak(
        self, owned: set[int], first: dict[int, int], last: dict[int, int], outputs: set[int], arena_nbytes: int
    ) -> None:
        """Largest sum of library-made tensors alive at once, the arena added."""
        change = [0] * (len(self.instructions) + 1)
        for storage in self._storages:
            if storage.kind != "owned" or storage.slot not in owned:
                continue
            slots = [s for s in self._slots_of(storage) if s in first]
            nbytes = value(storage.nbytes)
            change[min(first[s] for s in slots)] += nbytes
            if not outputs.intersection(slots):
                change[max(last[s] for s in slots) + 1] -= nbytes
        alive = peak = 0
        for delta in change:
            alive += delta
            peak = max(peak, alive)
        self.peak_nbytes = peak + value(arena_nbytes)


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    # Packed weights have no strides; nothing asks for them.
    return tensor.stride() if tensor.layout == torch.strided else (0,) * tensor.dim()
