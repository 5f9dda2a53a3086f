"""The state of one native run: its slots, its arena, and what Python steps need of it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from smelt._torch.seen import handles
from smelt.runtime.encoding.encoded import Encoded
from smelt.runtime.encoding.table import FRAME_ALIGNMENT, Cell
from smelt.runtime.machine.heap import KEPT_NBYTES, on_large_pages
from smelt.runtime.plan import Plan, PyCall
from smelt.runtime.pool import Pool
from smelt.runtime.steps import as_tensor, make_arena, number_bits, number_of, results_of


class Frame:
    """One run's slots. Its cells hold addresses of cells of the same frame, so it never moves."""

    __slots__ = (
        "__weakref__", "_encoded", "_lent", "address", "arena", "cells", "error", "inputs", "memory", "objects",
        "scratch", "view",
    )  # fmt: skip

    def __init__(self, encoded: Encoded, plan: Plan, bridge: handles.Bridge, *, keeps_arena: bool = True) -> None:
        ncells = len(encoded.cells)
        self.cells = (ctypes.c_int64 * (ncells + FRAME_ALIGNMENT // 8))()
        start = -ctypes.addressof(self.cells) % FRAME_ALIGNMENT
        self.view = memoryview(self.cells).cast("B").cast("q")[start // 8 : start // 8 + ncells]
        self.view[:] = memoryview(encoded.cells)
        self.address = ctypes.addressof(self.cells) + start
        for holder, cell in encoded.addresses:
            self.view[holder] = self.address + 8 * cell
        pool = encoded.sized.pool if encoded.sized is not None else None
        self.memory: torch.Tensor | None
        self.arena: Sequence[torch.Tensor]
        if encoded.sized is None:
            self.memory, self.arena = make_arena(plan, on_large=keeps_arena)
        else:
            self.memory, self.arena = encoded.sized.arena()
        self._encoded = encoded
        self._lent = None if keeps_arena or self.memory is None else self.memory.untyped_storage()
        self._place()
        stride = -(-encoded.scratch_nbytes // FRAME_ALIGNMENT) * FRAME_ALIGNMENT
        self.scratch = _scratch(stride * encoded.team_limit, pool)
        if self.scratch is not None:
            self.view[Cell.SCRATCH], self.view[Cell.SCRATCH_STRIDE] = self.scratch.data_ptr(), stride
        if encoded.profile is not None:
            self.view[Cell.PROFILE] = encoded.profile.table()
        owned: list[int] = []
        handled = range(len(plan.arena)) if encoded.sized is None else encoded.sized.handled
        for i in handled:
            self.view[encoded.cell_of[plan.arena[i].slot]] = handle_of(bridge, self.arena[i], owned)
        weakref.finalize(self, delete_all, bridge, owned).atexit = False
        for block in (self.memory, self.scratch) if pool is not None else ():
            if block is not None and pool is not None:
                weakref.finalize(self, pool.give, block).atexit = False
        self.inputs: Sequence[Any] = ()
        self.error: BaseException | None = None
        # What slots of kind "object" hold, for the time of a run.
        self.objects: dict[int, Any] = {}

    def _place(self) -> None:
        """Put the arena's addresses where kernels find them, unless they are there."""
        if self.memory is None:
            return
        low, high = self._encoded.arena_cells
        base, view = self.memory.data_ptr(), self.view
        if view[low] != base:
            view[low], view[high] = base, base + self.memory.numel()
            for cell, offset in self._encoded.arena_addresses:
                view[cell] = base + offset

    def take_arena(self) -> None:
        """Have memory for the arena, before a run, where the frame keeps none. Nobody else touches the frame."""
        if self._lent is not None and self.memory is not None and not self._lent.nbytes():
            self._lent.resize_(self.memory.numel())
            if self.memory.numel() > KEPT_NBYTES:
                on_large_pages(self.memory)  # nobody else's, before or behind the run
            self._place()

    def leave_arena(self) -> None:
        """Free it behind the run."""
        if self._lent is not None:
            self._lent.resize_(0)

    @property
    def runs(self) -> int:
        """Successful runs in this frame."""
        return self.view[Cell.RUNS]


class PythonSteps:
    """What native code calls for `PyCall`s: takes the GIL, makes tensors of slots, calls, and keeps the exception.

    It refers to frames weakly and to no executable, so nothing here keeps an executable alive.
    """

    def __init__(self, plan: Plan, encoded: Encoded, bridge: handles.Bridge) -> None:
        self._steps, self._cell_of, self._bridge = encoded.steps, encoded.cell_of, bridge
        self._is_launch = encoded.step_is_launch
        self._input = {slot: i for i, slot in enumerate(plan.inputs)}
        self._held = dict(plan.held)
        self._kinds = plan.kinds
        self._elided = encoded.elided
        self._arena = {planned.slot: i for i, planned in enumerate(plan.arena)}
        self.frames: weakref.WeakValueDictionary[int, Frame] = weakref.WeakValueDictionary()

    def _tensor(self, frame: Frame, slot: int) -> torch.Tensor:
        if slot in self._input and frame.inputs:
            lent: torch.Tensor = frame.inputs[self._input[slot]]
            return lent
        if slot in self._held:
            return self._held[slot]
        if slot in self._arena:
            return frame.arena[self._arena[slot]]
        if slot in self._elided:
            view = self._elided[slot]
            source = self._tensor(frame, view.src)
            return source.as_strided(view.sizes, view.strides, source.storage_offset() + view.offset)
        return self._bridge.peek(frame.view[self._cell_of[slot]])

    def __call__(self, address: int, index: int) -> int:
        frame = None
        try:
            frame = self.frames[address]
            step: PyCall = self._steps[index]
            if self._kinds:
                self._run_mixed(frame, step, self._is_launch[index])
                frame.view[Cell.STEPPED] = 1
                return 0
            found = results_of(step, step.fn(*[self._tensor(frame, slot) for slot in step.args]), self._kinds)
            for slot, tensor in zip(step.outs, found, strict=True):
                frame.view[self._cell_of[slot]] = 0 if tensor is None else self._bridge.own(tensor)
            frame.view[Cell.STEPPED] = 1
        except BaseException as error:
            if frame is not None:
                frame.error = error
            return 1
        return 0

    def _run_mixed(self, frame: Frame, step: PyCall, is_launch: bool) -> None:
        """A step of a plan that has numbers or objects."""
        values = [self._value(frame, slot) for slot in step.args]
        if is_launch:
            values = [as_tensor(v, self._kinds.get(slot)) for v, slot in zip(values, step.args, strict=True)]
        found = results_of(step, step.fn(*values), self._kinds)
        for slot, value in zip(step.outs, found, strict=True):
            kind = self._kinds.get(slot)
            if kind == "object":
                frame.objects[slot] = value
            elif kind is not None:
                frame.view[self._cell_of[slot]] = number_bits(kind, value)
            else:
                frame.view[self._cell_of[slot]] = 0 if value is None else self._bridge.own(value)

    def number(self, frame: Frame, slot: int) -> int | float | bool | None:
        """The number in a slot, or the element of a tensor in the frame's own memory; None for any other's."""
        if self._kinds.get(slot) is not None:
            found = self._value(frame, slot)
            return found if type(found) in (int, float, bool) else None
        home = slot
        while home in self._elided:
            home = self._elided[home].src
        if self._arena.get(home, len(frame.arena)) >= len(frame.arena):
            return None
        tensor = self._tensor(frame, slot)
        element: int | float | bool | None = tensor.item() if tensor.numel() == 1 else None
        return element

    def _value(self, frame: Frame, slot: int) -> Any:
        kind = self._kinds.get(slot)
        if kind is None:
            return self._tensor(frame, slot)
        return frame.objects[slot] if kind == "object" else number_of(kind, frame.view[self._cell_of[slot]])


def _scratch(nbytes: int, pool: Pool | None) -> torch.Tensor | None:
    """Memory for kernels to work in; torch aligns a tensor's memory to 64 bytes.

    It is zero: vectors go over the end of what a kernel filled, and there denormal numbers would cost five times a run.
    """
    if not nbytes:
        return None
    with torch.inference_mode(False), torch.no_grad():
        if pool is None:
            return torch.zeros(nbytes, dtype=torch.uint8)
        block = pool.take(nbytes)
        block[:nbytes].zero_()
        return block


def handle_of(bridge: handles.Bridge, tensor: torch.Tensor, owned: list[int]) -> int:
    """A handle for as long as the tensor lives; one that must be deleted is noted in `owned`.

    Raises: handles.NoHandle.
    """
    if bridge.lend_offset is not None:
        return id(tensor) + bridge.lend_offset
    handle = bridge.own(tensor)
    owned.append(handle)
    return handle


def delete_all(bridge: handles.Bridge, owned: list[int]) -> None:
    """Delete the handles and forget them."""
    while owned:
        bridge.delete(owned.pop())
