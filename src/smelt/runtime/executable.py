"""A plan ready to run: natively where that is possible, in Python where it is not, with the same answers.

Invariant: `run` may be called by any number of threads at once. Each run has a frame (its slots and its arena) of its
own; frames are kept for the next run. Whatever ends a run, every handle it made is deleted and the grad mode is the
caller's.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt._torch import handles, shim
from smelt.diag import InternalError
from smelt.runtime.check import check_plan
from smelt.runtime.encode import Encoded, encode
from smelt.runtime.failures import call_failed, escaped, layout_differs, step_failed
from smelt.runtime.interpret import Interpreter, check_escapes
from smelt.runtime.native import NativeEntry, native_entry
from smelt.runtime.plan import Counts, Plan, PyCall
from smelt.runtime.steps import make_arena, results_of
from smelt.runtime.table import Cell, Status

_MAX_IDLE_FRAMES = 8


@dataclass(frozen=True, slots=True)
class Stats:
    """Runs so far, and the calls all of them made to the library, the dispatcher and Python."""

    runs: int
    calls: Counts


class _Frame:
    """One run's slots. Its cells hold addresses of cells of the same frame, so it never moves."""

    __slots__ = (
        "__weakref__",
        "address",
        "arena",
        "arena_handles",
        "cells",
        "error",
        "inputs",
        "memory",
        "runs",
        "view",
    )

    def __init__(self, encoded: Encoded, plan: Plan) -> None:
        self.cells = (ctypes.c_int64 * len(encoded.cells)).from_buffer_copy(encoded.cells)
        self.view = memoryview(self.cells).cast("B").cast("q")
        self.address = ctypes.addressof(self.cells)
        for holder, cell in encoded.addresses:
            self.view[holder] = self.address + 8 * cell
        self.memory, self.arena = make_arena(plan)
        self.arena_handles: list[int] = []
        if self.memory is not None:
            low, high = encoded.arena_cells
            self.view[low] = self.memory.data_ptr()
            self.view[high] = self.memory.data_ptr() + self.memory.numel()
        self.inputs: Sequence[torch.Tensor] = ()
        self.error: BaseException | None = None
        self.runs = 0


class _PythonSteps:
    """What native code calls for `PyCall`s: takes the GIL, makes tensors of slots, calls, and keeps the exception.

    It refers to frames weakly and to no executable, so nothing here keeps an executable alive.
    """

    def __init__(self, plan: Plan, encoded: Encoded, bridge: handles.Bridge) -> None:
        self._steps, self._cell_of, self._bridge = encoded.steps, encoded.cell_of, bridge
        self._input = {slot: i for i, slot in enumerate(plan.inputs)}
        self._held = dict(plan.held)
        self._arena = {planned.slot: i for i, planned in enumerate(plan.arena)}
        self.frames: weakref.WeakValueDictionary[int, _Frame] = weakref.WeakValueDictionary()

    def _tensor(self, frame: _Frame, slot: int) -> torch.Tensor:
        if slot in self._input:
            return frame.inputs[self._input[slot]]
        if slot in self._held:
            return self._held[slot]
        if slot in self._arena:
            return frame.arena[self._arena[slot]]
        return self._bridge.peek(frame.view[self._cell_of[slot]])

    def __call__(self, address: int, index: int) -> int:
        frame = self.frames.get(address)
        if frame is None:
            return 1
        try:
            step: PyCall = self._steps[index]
            found = results_of(step, step.fn(*[self._tensor(frame, slot) for slot in step.args]))
            for slot, tensor in zip(step.outs, found, strict=True):
                frame.view[self._cell_of[slot]] = 0 if tensor is None else self._bridge.own(tensor)
        except BaseException as error:
            frame.error = error
            return 1
        return 0


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)


class _WithoutGrad:
    """The native entry, for a library that cannot switch gradients off natively."""

    def __init__(self, entry: NativeEntry) -> None:
        self._entry = entry

    def __call__(self, code: int, frame: int) -> int:
        with torch.no_grad():
            return self._entry.run(code, frame)


class Executable:
    """A plan with what it needs to run. `machine_code` is the executor's object code, None to run in Python.

    Keeps the plan, hence its packed weights, alive.
    """

    def __init__(self, plan: Plan, machine_code: bytes | None) -> None:
        check_plan(plan)
        self.plan = plan
        self._idle: deque[_Frame] = deque()
        self._lock = threading.Lock()
        self._retired_runs = 0
        self._all: weakref.WeakSet[_Frame] = weakref.WeakSet()
        bridge = handles.bridge()
        entry = native_entry(machine_code) if machine_code is not None and bridge is not None else None
        self._interpreter: Interpreter | None = None
        if bridge is None or entry is None or not self._prepare(bridge, entry):
            self._interpreter = Interpreter(plan)
            self.counts = self._interpreter.counts

    def _prepare(self, bridge: handles.Bridge, entry: NativeEntry) -> bool:
        plan = self.plan
        encoded = encode(plan)
        # Handles over bare memory neither keep a Python result alive nor describe a packed weight.
        if bridge.copies and (encoded.steps or any(t.layout != torch.strided for _, t in plan.held)):
            return False
        self._bridge, self._encoded, self._entry = bridge, encoded, entry
        self.counts = encoded.counts
        self._code = ctypes.addressof(encoded.code)
        self._input_cells = [encoded.cell_of[slot] for slot in plan.inputs]
        self._output_cells = [encoded.cell_of[slot] for slot in dict.fromkeys(plan.outputs)]
        order = list(dict.fromkeys(plan.outputs))
        self._output_order = None if len(order) == len(plan.outputs) else [order.index(s) for s in plan.outputs]
        is_done_natively = encoded.grad_is_native or plan.keep_grad_mode
        self._call = entry.run if is_done_natively else _WithoutGrad(entry)
        self._looks_for_escapes = bool(plan.arena) and not encoded.escape_is_native and not bridge.copies
        owned: list[int] = []
        try:
            for slot, tensor in plan.held:
                encoded.cells[encoded.cell_of[slot]] = _handle(bridge, tensor, owned)
        except handles.NoHandle:
            _delete_all(bridge, owned)
            return False
        weakref.finalize(self, _delete_all, bridge, owned).atexit = False
        self._steps = _PythonSteps(plan, encoded, bridge) if encoded.steps else None
        if self._steps is not None:
            self._callback = _CALLBACK(self._steps)
            encoded.cells[encoded.callback_cell] = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        return True

    @property
    def is_native(self) -> bool:
        """Whether runs go through native code."""
        return self._interpreter is None

    @property
    def stats(self) -> Stats:
        """Successful runs so far and what they called."""
        with self._lock:
            runs = self._retired_runs + sum(frame.runs for frame in self._all)
        return Stats(runs, self.counts * runs)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The plan's outputs for these inputs (CPU tensors with the shapes, strides and dtypes that were planned for).

        Raises: SmeltError (S0401: a library call failed; S0403: a result has another layout than planned),
            InternalError, or whatever a `PyCall` of the plan raises.
        """
        if self._interpreter is not None:
            return self._interpret(inputs)
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self._new_frame()
        try:
            outputs = self._run_in(frame, inputs)
        except handles.NoHandle:
            self._abandon(frame)
            return Interpreter(self.plan).run(inputs)
        except BaseException:
            self._abandon(frame)
            raise
        if len(self._idle) < _MAX_IDLE_FRAMES:
            self._idle.append(frame)
        else:
            self._retire(frame)
        return outputs

    def _interpret(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert self._interpreter is not None
        if len(inputs) != len(self.plan.inputs):
            raise _wrong_count(self.plan, inputs)
        outputs = self._interpreter.run(inputs)
        with self._lock:
            self._retired_runs += 1
        return outputs

    def _run_in(self, frame: _Frame, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        view = frame.view
        bridge = self._bridge
        cells = self._input_cells
        if len(inputs) != len(cells):
            raise _wrong_count(self.plan, inputs)
        frame.inputs = inputs
        offset = bridge.lend_offset
        if offset is not None:
            for cell, tensor in zip(cells, inputs, strict=True):
                view[cell] = id(tensor) + offset
            status = self._call(self._code, frame.address)
        else:
            owned: list[int] = []
            try:
                for cell, tensor in zip(cells, inputs, strict=True):
                    view[cell] = _handle(bridge, tensor, owned)
                status = self._call(self._code, frame.address)
            finally:
                _delete_all(bridge, owned)
        frame.inputs = ()
        if status:
            raise self._failure(frame, status)
        take = bridge.take
        outputs = []
        for cell in self._output_cells:
            handle = view[cell]
            view[cell] = 0
            outputs.append(take(handle))
        frame.runs += 1
        if self._looks_for_escapes and frame.memory is not None:
            check_escapes(self.plan, outputs, frame.memory)
        if self._output_order is not None:
            return [outputs[i] for i in self._output_order]
        return outputs

    def _new_frame(self) -> _Frame:
        frame = _Frame(self._encoded, self.plan)
        for planned, tensor in zip(self.plan.arena, frame.arena, strict=True):
            frame.view[self._encoded.cell_of[planned.slot]] = _handle(self._bridge, tensor, frame.arena_handles)
        weakref.finalize(frame, _delete_all, self._bridge, frame.arena_handles).atexit = False
        if self._steps is not None:
            self._steps.frames[frame.address] = frame
        with self._lock:
            self._all.add(frame)
        return frame

    def _retire(self, frame: _Frame) -> None:
        """Let a frame go; its runs stay counted."""
        with self._lock:
            self._all.discard(frame)
            self._retired_runs += frame.runs

    def _abandon(self, frame: _Frame) -> None:
        """Let a frame of a failed run go with whatever results were not handed out (an interrupt can fall anywhere)."""
        for cell in self._output_cells:
            handle = frame.view[cell]
            frame.view[cell] = 0
            if handle:
                self._bridge.delete(handle)
        frame.inputs = ()
        self._retire(frame)

    def _failure(self, frame: _Frame, status: int) -> BaseException:
        encoded = self._encoded
        record = bisect_right(encoded.starts, frame.view[Cell.FAILED_AT]) - 1
        index = encoded.owners[record]
        error, frame.error = frame.error, None
        if error is not None:
            return step_failed(self.plan, index, error)
        if status == Status.LIBRARY:
            return call_failed(self.plan, index, shim.last_error())
        if status == Status.LAYOUT:
            return layout_differs(self.plan, index)
        if status == Status.ESCAPED:
            return escaped(self.plan)
        return InternalError(f"the executor ended with status {status}", notes=(f"instruction {index}",))


def _handle(bridge: handles.Bridge, tensor: torch.Tensor, owned: list[int]) -> int:
    """A handle for as long as the tensor lives; one that must be deleted is noted in `owned`."""
    if bridge.lend_offset is not None:
        return id(tensor) + bridge.lend_offset
    handle = bridge.own(tensor)
    owned.append(handle)
    return handle


def _delete_all(bridge: handles.Bridge, owned: list[int]) -> None:
    while owned:
        bridge.delete(owned.pop())


def _wrong_count(plan: Plan, inputs: Sequence[Any]) -> InternalError:
    return InternalError(f"the plan takes {len(plan.inputs)} inputs, {len(inputs)} were given")
