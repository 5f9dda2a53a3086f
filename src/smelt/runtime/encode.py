"""A plan as the words and cells that the native executor walks (`table.py` has the encoding).

Invariant: after `encode` the plan's instructions keep their order (but for what `schedule` may move), and each record
knows the instruction it came from. An instruction whose symbol is missing becomes a call of Python with the same
meaning, counted as such. The arguments of launches stand in the frame, ready but for the addresses that only a run
knows; those are filled in as soon as their tensors are there.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch import shim, stable
from smelt.runtime.check import fits_call
from smelt.runtime.failures import describe
from smelt.runtime.frame_template import FrameTemplate
from smelt.runtime.launches import Launches
from smelt.runtime.plan import (
    Call,
    CheckLayout,
    Copy,
    Counts,
    Dispatch,
    DoublePointers,
    Empty,
    Instruction,
    Ints,
    Launch,
    OptionalDouble,
    OptionalInt,
    OptionalText,
    OptionalUse,
    OptionalUses,
    Out,
    Plan,
    PyCall,
    Release,
    Text,
    Use,
    Uses,
    View,
    outs_of,
)
from smelt.runtime.profile import Profile, Record
from smelt.runtime.schedule import Enter, Group, Leave, Single, schedule
from smelt.runtime.steps import compared_strides, python_step
from smelt.runtime.table import (
    ANY_STRIDE,
    CALL_CLASSES,
    FUNCTION_CELLS,
    GRAD_CELLS,
    HEADER_WORDS,
    MAX_DOUBLES,
    PARALLEL,
    Cell,
    Launched,
    Op,
)
from smelt.runtime.threads import c_function, team_limit, team_words

_RANGES = ("aoti_record_function_start", "aoti_record_function_end")
_GET_DATA = "aoti_torch_get_data_ptr"


class _Missing(Exception):
    """This instruction needs a symbol, an enum value or a call shape that is not there."""


@dataclass(frozen=True)
class Encoded:
    """The result: `code` words, the frame's initial `cells`, and what ties both to the plan.

    `addresses` are (cell, cell whose address in the frame it holds). `cell_of` gives a slot's cell, inputs first and in
    order. `starts[i]` is the word where record i begins, `owners[i]` its instruction. `keep` holds what addresses in
    the template point to. `grad_is_native`, `escape_is_native`: whether the executor itself switches gradients off,
    and looks for outputs that share the arena's memory. `arena_addresses` are (cell, bytes from the arena's start).
    `elided` views have no handle. `scratch_nbytes` is what each of at most `team_limit` threads must lend to
    kernels. `profile` collects the times of a plan that asks for them.
    """

    code: Any
    cells: array[int]
    addresses: tuple[tuple[int, int], ...]
    cell_of: tuple[int, ...]
    starts: tuple[int, ...]
    owners: tuple[int, ...]
    steps: tuple[PyCall, ...]
    arena_cells: tuple[int, int]
    counts: Counts
    grad_is_native: bool
    escape_is_native: bool
    keep: tuple[Any, ...]
    arena_addresses: tuple[tuple[int, int], ...] = ()
    elided: Mapping[int, View] = field(default_factory=dict)
    scratch_nbytes: int = 0
    team_limit: int = 1
    profile: Profile | None = None


class _Encoder:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.frame = FrameTemplate()
        self.words: list[int] = [0] * HEADER_WORDS
        self.starts: list[int] = []
        self.uncounted: set[int] = set()
        self.owners: list[int] = []
        self.steps: list[PyCall] = []
        self.cleanup: list[tuple[int, int]] = []
        self.counts = Counts()
        self.current = 0
        self.cell_of = self._slot_cells()
        self.held = dict(plan.held)
        self.arena_offsets = {planned.slot: planned.offset for planned in plan.arena}
        self.arena_cells = (self.frame.cell(), self.frame.cell())
        self.launches = Launches.of(plan, is_possible=shim.has(_GET_DATA))
        self.arena_addresses: list[tuple[int, int]] = []
        # Cells that wait for the address of a slot's memory, with the bytes to add.
        self.waiting: dict[int, list[tuple[int, int]]] = {}
        self.scratch_nbytes = 0
        self.arguments = self._arguments()

    def _slot_cells(self) -> list[int]:
        first = self.frame.block(self.plan.nslots)
        inputs = set(self.plan.inputs)
        order = [*self.plan.inputs, *(s for s in range(self.plan.nslots) if s not in inputs)]
        cells = [0] * self.plan.nslots
        for i, slot in enumerate(order):
            cells[slot] = first + i
        return cells

    def group(self, group: Group) -> None:
        """Independent launches as one record; their descriptors stand side by side."""
        self.current = group.indices[0]
        first = self.frame.block(Launched.NCELLS * len(group.indices))
        begin = 0
        for i, index in enumerate(group.indices):
            at = first + Launched.NCELLS * i
            self._descriptor(index, at, group.chunk[i], begin)
            begin += group.chunks[i]
            self.counts += Counts(kernels=1)
        with self._range(self.plan.instructions[self.current]):
            self.emit(Op.LAUNCH, first, len(group.indices), group.total)

    def _descriptor(self, index: int, at: int, chunk: int, begin: int) -> None:
        """A launch's descriptor; its arguments stand ready since the start."""
        launch, code = self.plan.instructions[index], self.launches.code[index]
        assert isinstance(launch, Launch)
        self.frame.addresses[self.arguments[index]] = at + Launched.ARGS
        cells = self.frame.cells
        cells[at + Launched.FUNCTION] = code.address(launch.kernel.symbol)
        cells[at + Launched.ITEMS], cells[at + Launched.CHUNK] = launch.items, chunk
        cells[at + Launched.FIRST_CHUNK] = begin
        cells[at + Launched.STEP] = len(self.steps)
        self.steps.append(python_step(launch))
        self.frame.keep.append(code)

    def _arguments(self) -> dict[int, int]:
        """First cell of each native launch's arguments, those filled in that are known."""
        found = {}
        for index in self.launches.code:
            launch = self.plan.instructions[index]
            assert isinstance(launch, Launch)
            args = found[index] = self.frame.block(max(len(launch.buffers) + len(launch.words), 1))
            self.scratch_nbytes = max(self.scratch_nbytes, launch.scratch_nbytes)
            for i, slot in enumerate(launch.buffers if launch.items else ()):
                self._locate(slot, args + i)
            for i, word in enumerate(launch.words, len(launch.buffers)):
                self.frame.cells[args + i] = word
        return found

    def _locate(self, slot: int, cell: int) -> None:
        """See to it that the cell holds the address of the slot's first element when its launch runs."""
        spot = self.launches.spots[slot]
        offset = self.arena_offsets.get(spot.root)
        if offset is not None:
            self.arena_addresses.append((cell, offset + spot.offset))
        elif spot.root in self.plan.fixed:
            self.frame.cells[cell] = self.held[spot.root].data_ptr() + spot.offset
        else:
            self.waiting.setdefault(spot.root, []).append((cell, spot.offset))

    # --- words

    def emit(self, op: Op, *operands: int) -> None:
        self.starts.append(len(self.words))
        self.owners.append(self.current)
        self.words += [op, 2 + len(operands), *operands]

    def call(self, symbol: str, words: Sequence[int], doubles: Sequence[int] = ()) -> None:
        where = shim.address(symbol)
        if where is None or not fits_call(len(words), len(doubles)):
            raise _Missing(symbol)
        self.call_cell(self.frame.const(where), words, doubles)

    def call_cell(self, function: int, words: Sequence[int], doubles: Sequence[int] = ()) -> None:
        for limit, plain, with_doubles in CALL_CLASSES:
            if len(words) <= limit:
                padded = [*words, *([Cell.ZERO] * (limit - len(words)))]
                if doubles:
                    padded += [*doubles, *([Cell.ZERO] * (MAX_DOUBLES - len(doubles)))]
                self.emit(with_doubles if doubles else plain, function, *padded)
                return

    def code_of(self, dtype: torch.dtype) -> int:
        code = shim.dtype_code(dtype)
        if code is None:
            raise _Missing(f"dtype {dtype}")
        return self.frame.const(code)

    # --- instructions

    def prologue(self) -> None:
        """Addresses of what is there before the first instruction."""
        for slot in (*self.plan.inputs, *self.held):
            self._addresses(slot)

    def _addresses(self, slot: int) -> None:
        """Fill in the address of a slot's memory where launches wait for it."""
        pairs = self.waiting.pop(slot, None)
        if pairs:
            words = [word for cell, offset in pairs for word in (cell, self.frame.const(offset))]
            self.emit(Op.DATA, self.cell_of[slot], len(pairs), *words)

    def instruction(self, index: int, instruction: Instruction) -> None:
        self.current = index
        if isinstance(instruction, View) and instruction.dst in self.launches.elided:
            return
        mark = (len(self.words), len(self.starts), len(self.cleanup), self.counts)
        try:
            self._native(instruction)
        except (_Missing, stable.Unsupported):
            nwords, nrecords, ncleanup, self.counts = mark
            self.uncounted = {start for start in self.uncounted if start < nwords}
            del self.words[nwords:], self.starts[nrecords:], self.owners[nrecords:], self.cleanup[ncleanup:]
            self._python(python_step(instruction))
        for slot in outs_of(instruction):
            self.cleanup.append((self.cell_of[slot], Cell.DELETE))
            self._addresses(slot)

    def _native(self, instruction: Instruction) -> None:
        frame = self.frame
        match instruction:
            case Call():
                self._call(instruction)
            case PyCall():
                self._python(instruction)
            case Dispatch():
                self._dispatch(instruction)
            case Release(slots=slots):
                made = [self.cell_of[s] for s in slots if s not in self.launches.elided]
                if made:
                    self.emit(Op.RELEASE, len(made), *made)
            case Copy(dst=dst, src=src):
                self.call("aoti_torch_copy_", [self.cell_of[dst], self.cell_of[src], Cell.ZERO])
                self.counts += Counts(library=1)
            case View(dst=dst, src=src, sizes=sizes, strides=strides, offset=offset):
                words = [self.cell_of[src], frame.const(len(sizes)), self._ints(sizes), self._ints(strides)]
                words += [frame.const(offset), frame.address_of(self.cell_of[dst])]
                self.call("aoti_torch__reinterpret_tensor", words)
            case Empty(dst=dst, sizes=sizes, strides=strides, dtype=dtype):
                device = shim.device_type_code("cpu")
                if device is None:
                    raise _Missing("cpu")
                words = [frame.const(len(sizes)), self._ints(sizes), self._ints(strides), self.code_of(dtype)]
                words += [frame.const(device), Cell.ZERO, frame.address_of(self.cell_of[dst])]
                self.call("aoti_torch_empty_strided", words)
            case CheckLayout():
                self._check(instruction)
            case Launch():
                self._launch(instruction)

    def _launch(self, launch: Launch) -> None:
        if self.current not in self.launches.code:
            raise _Missing(launch.kernel.symbol)
        # One with items is part of a group.
        self.counts += Counts(kernels=1)

    def _ints(self, values: tuple[int, ...]) -> int:
        return self.frame.const(self.frame.data(ctypes.c_int64, values))

    def _check(self, planned: CheckLayout) -> None:
        getters = ("dim", "sizes", "strides", *(("dtype",) if planned.dtype is not None else ()))
        if any(not shim.has(f"aoti_torch_get_{what}") for what in getters):
            raise _Missing("getters")
        strides = tuple(ANY_STRIDE if s is None else s for s in compared_strides(planned))
        dtype = Cell.ZERO if planned.dtype is None else self.code_of_cell(planned.dtype)
        ndim = len(planned.sizes)
        self.emit(Op.CHECK, self.cell_of[planned.slot], ndim, self._ints(planned.sizes), self._ints(strides), dtype)

    def code_of_cell(self, dtype: torch.dtype) -> int:
        """Like `code_of`, in a cell of its own where the code is 0: cell 0 means that any dtype will do."""
        cell = self.code_of(dtype)
        return self.frame.cell(0) if cell == Cell.ZERO else cell

    def _call(self, call: Call) -> None:
        words: list[int] = []
        doubles: list[int] = []
        gathers: list[tuple[int, int]] = []
        for arg in call.args:
            if isinstance(arg, float):
                doubles.append(self.frame.double(arg))
            else:
                words.append(self._word(arg, gathers))
        for dst, src in gathers:
            self.emit(Op.SET, dst, src)
        with self._range(call):
            self.call(call.symbol, words, doubles)
        self.counts += Counts(library=1)

    def _word(self, arg: Any, gathers: list[tuple[int, int]]) -> int:
        frame = self.frame
        match arg:
            case None | OptionalUse(slot=None) | OptionalInt(None) | OptionalDouble(None) | OptionalText(None):
                return Cell.ZERO
            case Use(slot=slot):
                return self.cell_of[slot]
            case Out(slot=slot) | OptionalUse(slot=int(slot)):
                return frame.address_of(self.cell_of[slot])
            case Uses(slots=slots):
                first = frame.block(max(len(slots), 1))
                gathers += [(first + i, self.cell_of[s]) for i, s in enumerate(slots)]
                return frame.address_of(first)
            case OptionalUses(slots=optional):
                sources = [Cell.ZERO if s is None else frame.address_of(self.cell_of[s]) for s in optional]
                first = frame.block(max(len(optional), 1))
                gathers += [(first + i, source) for i, source in enumerate(sources)]
                return frame.address_of(first)
            case Ints(values=values):
                return self._ints(values)
            case OptionalInt(value=int(value)):
                return self._ints((value,))
            case _:
                return self._constant_word(arg)

    def _constant_word(self, arg: Any) -> int:
        frame = self.frame
        match arg:
            case OptionalDouble(value=value):
                return frame.const(frame.data(ctypes.c_double, (value,)))
            case DoublePointers(values=values):
                pointers = tuple(0 if v is None else frame.data(ctypes.c_double, (v,)) for v in values)
                return self._ints(pointers)
            case Text(value=text):
                return frame.const(frame.text(text))
            case OptionalText(value=str(text)):
                return self._ints((frame.text(text),))
            case torch.dtype():
                return self.code_of(arg)
            case int():
                return frame.const(int(arg))
            case _:
                raise _Missing(f"{arg!r}")

    def _python(self, step: PyCall) -> None:
        self.steps.append(step)
        index = self.frame.const(len(self.steps) - 1)
        # The address of its first cell is what names a frame.
        self.call_cell(Cell.CALLBACK, [self.frame.address_of(Cell.ZERO), index])
        self.counts += Counts(python=1)

    @contextmanager
    def _range(self, instruction: Instruction) -> Iterator[None]:
        """In a profiled plan, a range of torch's profiler around the records made in the block."""
        if not self.plan.profile or not all(shim.has(symbol) for symbol in _RANGES):
            yield
            return
        frame, (start, end) = self.frame, _RANGES
        cell = frame.cell()
        name = frame.const(frame.text(describe(instruction)))
        with self._apart():
            self.call(start, [name, Cell.ZERO, Cell.ZERO, Cell.ZERO, frame.address_of(cell)])
            self.cleanup.append((cell, frame.const(shim.address(end) or 0)))
        yield
        with self._apart():
            self.call(end, [cell])
            self.emit(Op.SET, cell, Cell.ZERO)

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Records made in the block do not count for their instruction's time."""
        first = len(self.words)
        yield
        self.uncounted.update(start for start in self.starts if start >= first)

    # --- the dispatcher

    def _dispatch(self, instruction: Dispatch) -> None:
        words = stable.words_of(instruction.op, instruction.args, _slot_of)
        version = shim.abi_version()
        target = shim.address(stable.CALL)
        if target is None or version is None or not shim.has(stable.NEW_HANDLE):
            raise _Missing(stable.CALL)
        nouts = len(instruction.op._schema.returns)
        ntemps = sum(_temporaries(w) for w in words)
        nstack = max(len(words), nouts)
        first = self.frame.block(nstack + ntemps)
        temps = iter(range(first + nstack, first + nstack + ntemps))
        for i, word in enumerate(words):
            self._build(word, first + i, temps)
        frame = self.frame
        schema = instruction.op._schema
        name, overload = str(schema.name), str(schema.overload_name)
        call = [frame.const(frame.text(name)), frame.const(frame.text(overload)), frame.address_of(first)]
        self.emit(Op.DISPATCH, frame.const(target), *call, frame.const(version), first, nstack, nouts)
        for i, slot in enumerate(instruction.outs):
            if slot is None:
                spare = frame.cell()
                self.emit(Op.MOVE, spare, first + i)
                self.emit(Op.RELEASE, 1, spare)
            else:
                self.emit(Op.MOVE, self.cell_of[slot], first + i)
        self.counts += Counts(dispatcher=1)

    def _build(self, word: stable.Word, into: int, temps: Any) -> None:
        """Put a word of the dispatcher's stack into a cell; what it owns there is deleted if the building stops."""
        frame = self.frame
        at = frame.address_of(into)
        match word:
            case stable.Bits(value=value):
                self.emit(Op.SET, into, frame.const(value))
            case stable.Handle(slot=slot):
                self.call(stable.NEW_HANDLE, [self.cell_of[slot], at])
                self._cleans(into, stable.NEW_HANDLE)
            case stable.Cell(word=inner):
                temp = next(temps)
                self._build(inner, temp, temps)
                self.call(stable.NEW_CELL, [at])
                self._cleans(into, stable.NEW_CELL)
                self.emit(Op.POKE, into, temp)
                self.emit(Op.SET, temp, Cell.ZERO)
            case stable.List(words=words):
                self.call(stable.NEW_LIST, [frame.const(len(words)), at])
                self._cleans(into, stable.NEW_LIST)
                for item in words:
                    temp = next(temps)
                    self._build(item, temp, temps)
                    self.call(stable.PUSH, [into, temp])
                    self.emit(Op.SET, temp, Cell.ZERO)

    def _cleans(self, cell: int, maker: str) -> None:
        deleter = shim.address(stable.DELETERS[maker])
        if deleter is None:
            raise _Missing(stable.DELETERS[maker])
        self.cleanup.append((cell, self.frame.const(deleter)))

    # --- the whole

    def has_threads(self) -> bool:
        """Whether launches can be shared; what that takes is put into the frame."""
        cells = self.frame.cells
        cells[Cell.YIELD] = c_function("sched_yield") or 0
        cells[Cell.CLOCK] = c_function("clock_gettime") or 0
        cells[Cell.TEAM_WORDS] = ctypes.addressof(team_words())
        return bool(self.launches.code and cells[Cell.YIELD] and cells[Cell.CLOCK]) and shim.has(PARALLEL)

    def finish(self, team_limit: int) -> Encoded:
        frame = self.frame
        for cell, symbol in FUNCTION_CELLS:
            frame.cells[cell] = shim.address(symbol) or 0
        grad = [(cell, shim.address(symbol) or 0) for cell, symbol in GRAD_CELLS]
        grad_is_native = all(where for _, where in grad)
        if grad_is_native and not self.plan.keep_grad_mode:
            for cell, where in grad:
                frame.cells[cell] = where
        escape_is_native = shim.has(_GET_DATA)
        if self.plan.arena and escape_is_native:
            for slot in dict.fromkeys(self.plan.outputs):
                self.emit(Op.ESCAPE, self.cell_of[slot], *self.arena_cells)
        self.emit(Op.END)
        released = {s for i in self.plan.instructions if isinstance(i, Release) for s in i.slots}
        rest = [
            (self.cell_of[slot], int(Cell.DELETE))
            for i in self.plan.instructions
            for slot in outs_of(i)
            if slot not in self.launches.elided
            if slot not in released and slot not in self.plan.outputs
        ]
        lists = []
        for pairs in (self.cleanup, rest):
            lists += [len(self.words), len(pairs)]
            self.words += [word for pair in pairs for word in pair]
        self.words[:HEADER_WORDS] = [HEADER_WORDS, *lists]
        return Encoded(
            code=(ctypes.c_int32 * len(self.words))(*self.words),
            cells=frame.cells,
            addresses=tuple((holder, cell) for cell, holder in frame.addresses.items()),
            cell_of=tuple(self.cell_of),
            starts=tuple(self.starts),
            owners=tuple(self.owners),
            steps=tuple(self.steps),
            arena_cells=self.arena_cells,
            counts=self.counts,
            grad_is_native=grad_is_native,
            escape_is_native=escape_is_native,
            keep=tuple(frame.keep),
            arena_addresses=tuple(self.arena_addresses),
            elided=self.launches.elided,
            scratch_nbytes=self.scratch_nbytes,
            team_limit=team_limit,
            profile=self._profile(),
        )

    def _profile(self) -> Profile | None:
        if not self.plan.profile or not self.frame.cells[Cell.CLOCK]:
            return None
        owned = zip(self.starts, self.owners, strict=True)
        records = [Record(at, Op(self.words[at]), owner, at not in self.uncounted) for at, owner in owned]
        return Profile(self.plan, records, len(self.words))


def encode(plan: Plan) -> Encoded:
    """The plan in the executor's form, with the symbols that exist here and now."""
    encoder = _Encoder(plan)
    encoder.prologue()
    limit = team_limit() if encoder.has_threads() else 1
    for item in schedule(plan, encoder.launches, limit, apart=plan.profile):
        match item:
            case Single(index=index):
                encoder.instruction(index, plan.instructions[index])
            case Group():
                encoder.group(item)
            case Enter(size=size):
                encoder.emit(Op.REGION, size)
            case Leave():
                encoder.emit(Op.LEAVE)
    return encoder.finish(limit)


def _slot_of(value: Any) -> int | None:
    return value.slot if isinstance(value, Use) else None


def _temporaries(word: stable.Word) -> int:
    match word:
        case stable.Cell(word=inner):
            return 1 + _temporaries(inner)
        case stable.List(words=words):
            return sum(1 + _temporaries(w) for w in words)
        case _:
            return 0
