"""Runs one plan natively: frames, handles in and out, and the builtin that does both without a Python frame.

Invariant: a frame serves one run at a time, and every handle that a run makes is deleted when it ends, however it ends.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch

from smelt._torch.autocast import no_autocast
from smelt._torch.library import shim
from smelt._torch.seen import handles
from smelt.diag import InternalError, Miss
from smelt.diag.interpreter import is_free_threaded
from smelt.diag.records import record
from smelt.runtime.encoding.encode import encode
from smelt.runtime.encoding.encoded import Encoded
from smelt.runtime.encoding.table import BYTES_OFFSET, NUMBER_CODES, TYPE_OFFSET, Cell, Field, Op, Status
from smelt.runtime.failures import call_failed, escaped, layout_differs, step_failed
from smelt.runtime.frames import Frame, PythonSteps, delete_all, handle_of
from smelt.runtime.interpret import Interpreter, check_escapes
from smelt.runtime.machine import drafts
from smelt.runtime.machine.native import NativeEntry
from smelt.runtime.machine.signals import fetched_error
from smelt.runtime.plan import (
    Blit,
    Branch,
    Bump,
    CheckLayout,
    Empty,
    End,
    Expect,
    Kind,
    Launch,
    Load,
    Otherwise,
    Plan,
    PyCall,
    Release,
    Scalar,
    View,
    Word,
)
from smelt.runtime.steps import check_kind, number_bits, number_of

_MAX_IDLE_FRAMES = 8
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int64, ctypes.c_int64)


class _WithoutModes:
    """The native entry, for a library that cannot switch gradients and autocast off natively."""

    def __init__(self, entry: NativeEntry, keep_grad_mode: bool) -> None:
        self._entry, self._keep_grad_mode = entry, keep_grad_mode

    def __call__(self, code: int, frame: int) -> int:
        with nullcontext() if self._keep_grad_mode else torch.no_grad(), no_autocast():
            return self._entry.run(code, frame)


class NativeRunner:
    """A plan in the executor's form with its frames. `run` is the way in from Python, `builtin` the faster one."""

    def __init__(
        self,
        plan: Plan,
        encoded: Encoded,
        bridge: handles.Bridge,
        entry: NativeEntry,
        exact: Callable[[], Plan] | None = None,
        *,
        keeps_arena: bool = True,
    ) -> None:
        self.plan, self.encoded, self.keeps_arena = plan, encoded, keeps_arena
        self._exact = exact or (lambda: plan)
        self._bridge, self._entry = bridge, entry
        self._code = ctypes.addressof(encoded.code)
        self._input_cells = [encoded.cell_of[slot] for slot in plan.inputs]
        self._input_kinds = tuple(plan.kinds.get(slot) for slot in plan.inputs)
        self._has_numbers = any(self._input_kinds)
        order = list(dict.fromkeys(plan.outputs))
        self._output_slots = order
        self._output_cells = [encoded.cell_of[slot] for slot in order]
        self._output_kinds = tuple(plan.kinds.get(slot) for slot in order)
        self._output_order = None if len(order) == len(plan.outputs) else [order.index(s) for s in plan.outputs]
        without = _WithoutModes(entry, plan.keep_grad_mode)
        self._call: Callable[[int, int], int] = entry.run if encoded.modes_are_native else without
        self._looks_for_escapes = bool(plan.arena) and not encoded.escape_is_native and not bridge.copies
        self._idle: deque[Frame] = deque()
        self._entered: dict[int, Frame] = {}
        self._lock = threading.Lock()
        self._retired_runs = 0
        self._all: weakref.WeakSet[Frame] = weakref.WeakSet()
        owned: list[int] = []
        weakref.finalize(self, delete_all, bridge, owned).atexit = False
        for slot, tensor in plan.held:
            encoded.cells[encoded.cell_of[slot]] = handle_of(bridge, tensor, owned)
        self._steps = PythonSteps(plan, encoded, bridge) if encoded.steps else None
        if self._steps is not None:
            self._callback = _CALLBACK(self._steps)
            # Not `ctypes.cast`: it leaves the callback in a reference cycle, and with it the weights.
            encoded.cells[Cell.CALLBACK] = ctypes.c_void_p.from_buffer(self._callback).value or 0

    @staticmethod
    def make(
        plan: Plan, bridge: handles.Bridge, entry: NativeEntry, *, keeps_arena: bool = True
    ) -> NativeRunner | None:
        """A runner, or None where the handles at hand cannot carry this plan."""
        encoded = encode(plan)
        # Handles over bare memory neither keep a Python result alive nor describe a packed weight.
        if bridge.copies and (encoded.steps or any(t.layout != torch.strided for _, t in plan.held)):
            return None
        try:
            return NativeRunner(plan, encoded, bridge, entry, keeps_arena=keeps_arena)
        except handles.NoHandle:
            return None

    @property
    def runs(self) -> int:
        """Successful runs so far."""
        with self._lock:
            return self._retired_runs + sum(frame.runs for frame in self._all)

    def run(self, *inputs: Any) -> list[torch.Tensor]:
        """One run through Python."""
        check_inputs(self.plan, inputs)
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self._new_frame()
        try:
            frame.take_arena()
            outputs = self._run_in(frame, inputs)
            frame.leave_arena()
        except handles.NoHandle:
            self._abandon(frame)
            return Interpreter(self._exact()).run(inputs)
        except BaseException:
            self._abandon(frame)
            raise
        if len(self._idle) < _MAX_IDLE_FRAMES:
            self._idle.append(frame)
        else:
            self._retire(frame)
        return outputs

    def _run_in(self, frame: Frame, inputs: Sequence[Any]) -> list[torch.Tensor]:
        view = frame.view
        bridge = self._bridge
        frame.inputs = inputs
        offset = bridge.lend_offset
        if offset is not None and not self._has_numbers:
            for cell, tensor in zip(self._input_cells, inputs, strict=True):
                view[cell] = id(tensor) + offset
            status = self._call(self._code, frame.address)
        else:
            owned: list[int] = []
            try:
                for cell, kind, value in zip(self._input_cells, self._input_kinds, inputs, strict=True):
                    view[cell] = handle_of(bridge, value, owned) if kind is None else number_bits(kind, value)
                status = self._call(self._code, frame.address)
            finally:
                delete_all(bridge, owned)
        frame.inputs = ()
        objects, frame.objects = frame.objects, {}
        if status:
            raise self._failure(frame, status)
        take = bridge.take
        outputs: list[Any] = []
        for slot, cell, made in zip(self._output_slots, self._output_cells, self._output_kinds, strict=True):
            if made is None:
                handle = view[cell]
                view[cell] = 0
                outputs.append(take(handle))
            else:
                outputs.append(objects[slot] if made == "object" else number_of(made, view[cell]))
        view[Cell.RUNS] += 1
        if self._looks_for_escapes and frame.memory is not None:
            check_escapes(self.plan, outputs, frame.memory)
        drafts.begin()
        if self._output_order is not None:
            return [outputs[i] for i in self._output_order]
        return outputs

    def _new_frame(self) -> Frame:
        frame = Frame(self.encoded, self.plan, self._bridge, keeps_arena=self.keeps_arena)
        if self._steps is not None:
            self._steps.frames[frame.address] = frame
        with self._lock:
            self._all.add(frame)
        return frame

    def _retire(self, frame: Frame) -> None:
        """Let a frame go; its runs stay counted."""
        with self._lock:
            self._all.discard(frame)
            self._retired_runs += frame.runs

    def _abandon(self, frame: Frame) -> None:
        """Let a frame of a failed run go with whatever results were not handed out (an interrupt can fall anywhere)."""
        frame.objects = {}
        for cell, kind in zip(self._output_cells, self._output_kinds, strict=True):
            handle = frame.view[cell] if kind is None else 0
            frame.view[cell] = 0
            if handle:
                self._bridge.delete(handle)
        frame.inputs = ()
        self._retire(frame)

    def _failure(self, frame: Frame, status: int) -> BaseException:
        encoded = self.encoded
        record = bisect_right(encoded.starts, frame.view[Cell.FAILED_AT]) - 1
        index = encoded.owners[record]
        error, frame.error = frame.error, None
        if error is not None:
            return step_failed(self._exact(), index, error)
        if status == Status.LIBRARY and frame.view[Cell.ERROR]:
            return fetched_error(frame.view)
        if status == Status.LIBRARY and encoded.code[encoded.starts[record]] == Op.STEP:
            # A handler raised where nothing can catch it: between the call of the step and its first line.
            return KeyboardInterrupt()
        if status == Status.LIBRARY:
            return call_failed(self.plan, index, shim.last_error())
        if status == Status.LAYOUT:
            return layout_differs(self._exact(), index)
        if status == Status.ESCAPED:
            return escaped(self.plan)
        if status == Status.MISS:
            expected = self.plan.instructions[index]
            assert isinstance(expected, Expect)
            steps = self._steps or PythonSteps(self.plan, encoded, self._bridge)
            return Miss(expected.literal, steps.number(frame, expected.slot), expected.where)
        if status == Status.INTERRUPTED:
            return fetched_error(frame.view)
        return InternalError(f"the executor ended with status {status}", notes=(f"instruction {index}",))

    # --- the builtin

    def builtin(self) -> Callable[..., list[torch.Tensor]] | None:
        """A builtin function that does what `run` does, or None where something it relies on is not as expected.

        It keeps this runner alive; the runner does not refer to it.
        """
        fields = self._context_fields()
        if fields is None:
            return None
        context = (ctypes.c_int64 * len(Field))()
        address = ctypes.addressof(context)
        this, give = weakref.ref(self), self._entry.give

        def slow(*inputs: Any) -> list[torch.Tensor]:
            runner = this()
            assert runner is not None
            check_inputs(runner.plan, inputs)
            frame = runner._new_frame()
            try:
                outputs = runner._run_in(frame, inputs)
            except BaseException:
                runner._abandon(frame)
                raise
            runner._entered[frame.address] = frame
            give(address, frame.address)
            return outputs

        def fail(where: int, status: int) -> None:
            runner = this()
            assert runner is not None
            failure = runner._failure(runner._entered[where], status)
            give(address, where)
            raise failure

        cells = (ctypes.c_int64 * max(len(self._output_cells), 1))(*self._output_cells)
        kinds, made = _codes(self._input_kinds), _codes(self._output_kinds)
        fields |= {Field.SLOW: id(slow), Field.FAIL: id(fail), Field.OUTPUT_CELLS: ctypes.addressof(cells)}
        fields |= {Field.KINDS: ctypes.addressof(kinds), Field.OUTPUT_KINDS: ctypes.addressof(made)}
        for field, value in fields.items():
            context[field] = value
        owner = _Context(address.to_bytes(8, "little"))
        owner.keeps = (self, context, cells, kinds, made, slow, fail)
        sized = self.encoded.sized
        is_short = _is_short(self.plan) if sized is None else sized.is_short
        owner.enter = EntryContext(address, _address(self._entry.run), fail, is_short, self._input_kinds)
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )
        return make(ctypes.addressof(self._entry.method), owner, None)

    def _context_fields(self) -> dict[Field, int] | None:
        """The context's constant words, or None if this plan, interpreter or library cannot be entered natively."""
        encoded, bridge = self.encoded, self._bridge
        wrap = shim.address(handles.WRAP)
        needs_tensors = bool(encoded.counts.python) and encoded.counts.python > _calls_on_numbers(self.plan)
        is_plain = not needs_tensors and self._output_order is None and not self._looks_for_escapes
        is_plain = is_plain and self.keeps_arena
        is_plain = is_plain and "object" not in self._output_kinds
        if not is_plain or isinstance(self._call, _WithoutModes) or bridge.lend_offset is None or wrap is None:
            return None
        if not _layout_is_known() or ctypes.sizeof(ctypes.c_void_p) != 8:
            return None
        return {
            Field.NARGS: len(self._input_cells),
            Field.NOUTS: len(self._output_cells),
            Field.CODE: ctypes.addressof(encoded.code),
            # Inputs are the first slots, in order.
            Field.FIRST_INPUT: self._input_cells[0] if self._input_cells else 0,
            Field.TENSOR_TYPE: id(torch.Tensor),
            Field.INT_TYPE: id(int),
            Field.FLOAT_TYPE: id(float),
            Field.BOOL_TYPE: id(bool),
            Field.TRUE: id(True),
            Field.LEND_OFFSET: bridge.lend_offset,
            Field.WRAP: wrap,
            **{field: _python_address(name) for field, name in _PYTHON.items()},
        }


_PYTHON = {
    Field.SAVE_THREAD: "PyEval_SaveThread",
    Field.RESTORE_THREAD: "PyEval_RestoreThread",
    Field.LIST_NEW: "PyList_New",
    Field.LIST_SET: "PyList_SetItem",
    Field.VECTORCALL: "PyObject_Vectorcall",
    Field.IS_SUBTYPE: "PyType_IsSubtype",
    Field.LONG: "PyLong_FromLongLong",
    Field.DECREF: "Py_DecRef",
    Field.AS_INT: "PyLong_AsLongLongAndOverflow",
    Field.AS_FLOAT: "PyFloat_AsDouble",
    Field.FROM_FLOAT: "PyFloat_FromDouble",
    Field.FROM_BOOL: "PyBool_FromLong",
}


def _codes(kinds: Sequence[Kind | None]) -> ctypes.Array[ctypes.c_int64]:
    """What inputs or outputs are, as native code reads it."""
    return (ctypes.c_int64 * max(len(kinds), 1))(*[0 if kind is None else NUMBER_CODES[kind] for kind in kinds])


@record
class EntryContext:
    """A plan as other native code enters it.

    address: of the context's words (`table.Field`); run: of `smelt_run`. fail(frame, status) raises what a run in this
    frame failed with. is_short: a run is over before another thread could make use of the GIL. kinds: of its inputs,
    None for tensors. Valid while the builtin lives.
    """

    address: int
    run: int
    fail: Callable[[int, int], None]
    is_short: bool
    kinds: tuple[Kind | None, ...]


class _Context(bytes):
    """The builtin's `self`: eight bytes with the context's address, and what must live as long as the builtin."""

    keeps: tuple[Any, ...]
    enter: EntryContext


def entry_context(call: Callable[..., Any]) -> EntryContext | None:
    """The way into the plan behind a builtin of `NativeRunner.builtin`; None for any other callable."""
    context = getattr(call, "__self__", None)
    return context.enter if isinstance(context, _Context) else None


_SHORT_NS = 10_000.0
_QUICK = (Empty, View, CheckLayout, Release, Scalar, Load, Blit, Bump, Expect, Branch, Otherwise, End)


def _calls_on_numbers(plan: Plan) -> int:
    """How many calls of Python take and give numbers only, so that no tensors are made for them."""
    numbers = {slot for slot, kind in plan.kinds.items() if kind != "object"}
    return sum(isinstance(i, PyCall) and numbers.issuperset((*i.args, *i.outs)) for i in plan.instructions)


def _is_short(plan: Plan) -> bool:
    """Whether a run is known to take less than 10 us."""
    total_ns = 0.0
    for instruction in plan.instructions:
        match instruction:
            case Launch(items=items, item_ns=item_ns) if item_ns > 0 or items == 0:
                total_ns += items * item_ns
            case _ if not isinstance(instruction, _QUICK):
                return False
    return total_ns < _SHORT_NS


def is_quick(plan: Plan) -> bool:
    """Whether a run takes little beyond what is known of its kernels."""
    for instruction in plan.instructions:
        is_known = isinstance(instruction, Launch) and (type(instruction.item_ns) is Word or instruction.item_ns > 0)
        if not is_known and not isinstance(instruction, _QUICK):
            return False
    return True


def _address(function: Any) -> int:
    # Not `ctypes.cast`: it leaves the function in a reference cycle.
    return ctypes.c_void_p.from_buffer(function).value or 0


@cache
def _python_address(name: str) -> int:
    return _address(getattr(ctypes.pythonapi, name))


@cache
def _layout_is_known() -> bool:
    """Whether objects of this interpreter keep their type, and bytes their content, where the builtin looks."""
    if is_free_threaded():
        return False
    probe = _Context(b"8 bytes.")
    content = ctypes.string_at(id(probe) + BYTES_OFFSET, 8)
    return content == probe and ctypes.c_uint64.from_address(id(probe) + TYPE_OFFSET).value == id(_Context)


def check_inputs(plan: Plan, inputs: Sequence[Any]) -> None:
    """A plan takes exactly its inputs, tensors and numbers of one type each: anything else would be read as one.

    Raises: InternalError; SmeltError (S0404) for a number beyond 64 bits.
    """
    if len(inputs) != len(plan.inputs):
        raise InternalError(f"the plan takes {len(plan.inputs)} inputs, {len(inputs)} were passed")
    for i, (slot, value) in enumerate(zip(plan.inputs, inputs, strict=True)):
        kind = plan.kinds.get(slot)
        if kind is not None:
            check_kind(kind, value, f"input {i}")
        elif not isinstance(value, torch.Tensor):
            raise InternalError(f"input {i} is {type(value).__name__}, not a tensor")
