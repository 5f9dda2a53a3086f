"""A plan as the words and cells that the native executor walks (`table.py` has the encoding).

Invariant: after `encode` the plan's instructions keep their order (but for what `schedule` may move), and each record
knows the instruction it came from. An instruction whose symbol is missing becomes a call of Python with the same
meaning, counted as such. The arguments of launches stand in the frame, ready but for the addresses that only a run
knows; those are filled in as soon as their tensors are there.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

from smelt._torch.library import stable
from smelt._torch.tensor_layout import tensor_layout
from smelt.runtime.encoding.addresses import HERE, Addresses
from smelt.runtime.encoding.encode_blocks import BlockRecords
from smelt.runtime.encoding.encode_records import Missing
from smelt.runtime.encoding.encoded import Encoded, Later, Shared, Team
from smelt.runtime.encoding.frame_template import FrameTemplate
from smelt.runtime.encoding.table import (
    ANY_STRIDE,
    AUTOCAST_CELLS,
    FUNCTION_CELLS,
    GRAD_CELLS,
    HEADER_WORDS,
    PARALLEL,
    PROCESS_CELLS,
    Cell,
    Launched,
    Op,
)
from smelt.runtime.failures import describe
from smelt.runtime.launches import Launches
from smelt.runtime.machine.heap import ADVICE, LARGE_NBYTES
from smelt.runtime.plan import (
    Aside,
    Blit,
    Bump,
    Call,
    CheckLayout,
    Copy,
    Counts,
    Dispatch,
    Empty,
    Expect,
    Instruction,
    Launch,
    Load,
    Plan,
    PyCall,
    Release,
    View,
    Word,
    outs_of,
    uses_of,
)
from smelt.runtime.profile import Profile, Record
from smelt.runtime.schedule import Enter, Group, Leave, Single, schedule
from smelt.runtime.steps import compared_strides, python_step

_RANGES = ("aoti_record_function_start", "aoti_record_function_end")
_GET_DATA = "aoti_torch_get_data_ptr"


class _Encoder(BlockRecords):
    def __init__(self, plan: Plan, at: Plan | None = None, where: Addresses = HERE) -> None:
        self.at, self.where = at, where
        frame = FrameTemplate(where)
        super().__init__(frame, _slot_cells(plan, frame), plan)
        self.uncounted: set[int] = set()
        self.counts = Counts()
        self.held = dict(plan.held)
        self.arena_offsets = {planned.slot: planned.offset for planned in plan.arena}
        self.arena_cells = (self.frame.cell(), self.frame.cell())
        self.launches = Launches.of(plan, where.library(_GET_DATA) is not None, where.kernel)
        self.arena_addresses: list[tuple[int, int]] = []
        # Cells that hold the address of a number's cell in the frame.
        self.number_addresses: list[tuple[int, int]] = []
        # Cells that wait for the address of a slot's memory, with the bytes to add.
        self.waiting: dict[int, list[tuple[int, int]]] = {}
        self.scratch_nbytes = 0
        self.shared: list[Shared] = []
        self.teams: list[Team] = []
        self._team: tuple[int, int] | None = None
        self.arguments = self._arguments()
        self.places = {i: [self._located(slot) for slot in slots] for i, slots in self._addressed()}

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
        descriptors = [(first + Launched.NCELLS * i, index) for i, index in enumerate(group.indices)]
        self.shared.append(Shared(len(self.words) - 1, tuple(descriptors)))

    def enter(self, size: int) -> None:
        """The beginning of a region."""
        self.emit(Op.REGION, size)
        self._team = len(self.words) - 1, len(self.shared)

    def leave(self) -> None:
        """Its end."""
        assert self._team is not None
        word, first = self._team
        self.teams.append(Team(word, tuple(range(first, len(self.shared)))))
        self.emit(Op.LEAVE)

    def _descriptor(self, index: int, at: int, chunk: int, begin: int) -> None:
        """A launch's descriptor; its arguments stand ready since the start."""
        launch, code = self.plan.instructions[index], self.launches.code[index]
        assert isinstance(launch, Launch)
        self.frame.addresses[self.arguments[index]] = at + Launched.ARGS
        cells = self.frame.cells
        self.frame.put(at + Launched.FUNCTION, code.address(launch.kernel.symbol))
        if type(launch.items) is not Word and type(launch.item_ns) is not Word:
            cells[at + Launched.ITEMS], cells[at + Launched.CHUNK] = launch.items, chunk
            cells[at + Launched.FIRST_CHUNK] = begin
        cells[at + Launched.STEP] = self.step(python_step(launch), is_launch=True, owner=index)
        self.frame.keep.append(code)

    def _arguments(self) -> dict[int, int]:
        """First cell of each native launch's arguments, those filled in that are known."""
        found = {}
        for index in self.launches.code:
            launch = self.plan.instructions[index]
            assert isinstance(launch, Launch)
            args = found[index] = self.frame.block(max(len(launch.buffers) + len(launch.words), 1))
            if type(launch.scratch_nbytes) is not Word:
                self.scratch_nbytes = max(self.scratch_nbytes, launch.scratch_nbytes)
            for i, slot in enumerate(launch.buffers if launch.items else ()):
                self._locate(slot, args + i)
            for i, word in enumerate(launch.words, len(launch.buffers)):
                self.frame.put(args + i, word)
        return found

    def _addressed(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Instructions that, like launches, need to know where tensors lie: which tensors."""
        for index, instruction in enumerate(self.plan.instructions if self.launches.spots else ()):
            match instruction:
                case Load(src=slot) | Expect(slot=slot):
                    yield index, (slot,)
                case Blit(dst=dst, src=src):
                    yield index, (dst, src)
                case _:
                    pass

    def _located(self, slot: int) -> int:
        cell = self.frame.cell()
        self._locate(slot, cell)
        return cell

    def _locate(self, slot: int, cell: int) -> None:
        """See to it that the cell holds the address of the slot's first element when its instruction runs."""
        if slot in self.plan.kinds:
            self.number_addresses.append((cell, self.cell_of[slot]))
            return
        spot = self.launches.spots[slot]
        offset = self.arena_offsets.get(spot.root)
        if offset is not None:
            self.arena_addresses.append((cell, offset + spot.offset))
        elif spot.root in self.plan.fixed:
            self.frame.put(cell, self.where.held(spot.root, self.held[spot.root]) + spot.offset)
        else:
            self.waiting.setdefault(spot.root, []).append((cell, spot.offset))

    # --- instructions

    def prologue(self) -> None:
        """Addresses of what is there before the first instruction."""
        frame = self.frame
        for cell, name in PROCESS_CELLS:
            frame.put(cell, self.where.c_function(name) or 0)
        if any(block.is_loop for block in self.blocks.blocks):
            frame.put(Cell.CLOCK, self.where.c_function("clock_gettime") or 0)
            self.emit(Op.ARM)
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
        except (Missing, stable.Unsupported):
            nwords, nrecords, ncleanup, self.counts = mark
            self.uncounted = {start for start in self.uncounted if start < nwords}
            del self.words[nwords:], self.starts[nrecords:], self.owners[nrecords:], self.cleanup[ncleanup:]
            self._python(python_step(instruction))
        for slot in outs_of(instruction):
            if slot not in self.plan.kinds:
                self.cleanup.append((self.cell_of[slot], Cell.DELETE))
                self._addresses(slot)

    def _native(self, instruction: Instruction) -> None:
        frame = self.frame
        match instruction:
            case Call():
                self._call(instruction)
            case PyCall():
                self._python(instruction)
            case Aside():
                self.emit(Op.STEP, self.frame.const(self.step(python_step(instruction))))
            case Dispatch():
                self.dispatch(instruction)
                self.counts += Counts(dispatcher=1)
            case Release(slots=slots):
                made = [self.cell_of[s] for s in slots if s not in self.launches.elided]
                if made:
                    self.emit(Op.RELEASE, len(made), *made)
            case Copy(dst=dst, src=src):
                self.call("aoti_torch_copy_", [self.cell_of[dst], self.cell_of[src], Cell.ZERO])
                self.counts += Counts(library=1)
            case Bump(slot=slot):
                layout = tensor_layout()
                if layout is None:
                    raise Missing("version counter")
                self.emit(Op.BUMP, self.cell_of[slot], frame.const(layout.version), frame.const(layout.count))
            case View(dst=dst, src=src, sizes=sizes, strides=strides, offset=offset):
                words = [self.cell_of[src], frame.const(len(sizes)), self.ints(sizes), self.ints(strides)]
                words += [frame.const(offset), frame.address_of(self.cell_of[dst])]
                self.call("aoti_torch__reinterpret_tensor", words)
            case Empty(dst=dst, sizes=sizes, strides=strides, dtype=dtype):
                device = self.where.device_code()
                if device is None:
                    raise Missing("cpu")
                words = [frame.const(len(sizes)), self.ints(sizes), self.ints(strides), self.code_of(dtype)]
                words += [frame.const(device), Cell.ZERO, frame.address_of(self.cell_of[dst])]
                self.call("aoti_torch_empty_strided", words)
                self._advise(instruction)
            case CheckLayout():
                self._check(instruction)
            case Launch():
                self._launch(instruction)
            case _:
                self.number_or_jump(instruction)

    def _advise(self, made: Empty) -> None:
        """Ask for large pages below a large result."""
        function = self.where.advises()
        if not function or any(type(n) is not int for n in made.sizes) or self.where.library(_GET_DATA) is None:
            return
        nbytes = made.dtype.itemsize * math.prod(made.sizes)
        if nbytes >= LARGE_NBYTES:
            words = (self.frame.const(n) for n in (nbytes, function, ADVICE or 0, mmap.PAGESIZE))
            self.emit(Op.ADVISE, self.cell_of[made.dst], *words)

    def _launch(self, launch: Launch) -> None:
        if self.current not in self.launches.code:
            raise Missing(launch.kernel.symbol)
        # One with items is part of a group.
        self.counts += Counts(kernels=1)

    def _check(self, planned: CheckLayout) -> None:
        getters = ("dim", "sizes", "strides", *(("dtype",) if planned.dtype is not None else ()))
        if any(self.where.library(f"aoti_torch_get_{what}") is None for what in getters):
            raise Missing("getters")
        strides = tuple(ANY_STRIDE if s is None else s for s in compared_strides(planned))
        dtype = Cell.ZERO if planned.dtype is None else self.code_of_cell(planned.dtype)
        ndim = len(planned.sizes)
        self.emit(Op.CHECK, self.cell_of[planned.slot], ndim, self.ints(planned.sizes), self.ints(strides), dtype)

    def _call(self, call: Call) -> None:
        words: list[int] = []
        doubles: list[int] = []
        gathers: list[tuple[int, int]] = []
        for arg in call.args:
            if isinstance(arg, float) or (type(arg) is Word and arg.is_double):
                doubles.append(self.frame.double(arg))
            else:
                words.append(self.word(arg, gathers))
        for dst, src in gathers:
            self.emit(Op.SET, dst, src)
        with self._range(call):
            self.call(call.symbol, words, doubles)
        self.counts += Counts(library=1)

    def _python(self, step: PyCall) -> None:
        index = self.frame.const(self.step(step, is_launch=isinstance(self.plan.instructions[self.current], Launch)))
        self.emit(Op.STEP, index)
        self.counts += Counts(python=1)

    @contextmanager
    def _range(self, instruction: Instruction) -> Iterator[None]:
        """In a profiled plan, a range of torch's profiler around the records made in the block."""
        if not self.plan.profile or any(self.where.library(symbol) is None for symbol in _RANGES):
            yield
            return
        frame, (start, end) = self.frame, _RANGES
        cell = frame.cell()
        name = frame.const(frame.text(describe(instruction)))
        with self._apart():
            self.call(start, [name, Cell.ZERO, Cell.ZERO, Cell.ZERO, frame.address_of(cell)])
            self.cleanup.append((cell, frame.const(self.where.library(end) or 0)))
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

    # --- the whole

    def has_threads(self) -> bool:
        """Whether launches can be shared; what that takes is put into the frame."""
        frame, where = self.frame, self.where
        needed = {Cell.YIELD: where.c_function("sched_yield"), Cell.CLOCK: where.c_function("clock_gettime")}
        for cell, address in needed.items():
            frame.put(cell, address or 0)
        frame.put(Cell.TEAM_WORDS, where.team_words())
        has_more = where.has_pool() or where.library(PARALLEL) is not None
        return bool(self.launches.code and all(needed.values())) and has_more

    def finish(self, team_limit: int) -> Encoded:
        frame = self.frame
        for cell, symbol in FUNCTION_CELLS:
            frame.put(cell, self.where.library(symbol) or 0)
        wanted = AUTOCAST_CELLS if self.plan.keep_grad_mode else GRAD_CELLS + AUTOCAST_CELLS
        modes = {cell: self.where.library(symbol) or 0 for cell, symbol in wanted}
        modes_are_native = all(modes.values())
        if modes_are_native:
            for cell, where in modes.items():
                frame.put(cell, where)
        escape_is_native = self.where.library(_GET_DATA) is not None
        if self.plan.arena and escape_is_native:
            for slot in dict.fromkeys(s for s in self.plan.outputs if s not in self.plan.kinds):
                self.emit(Op.ESCAPE, self.cell_of[slot], *self.arena_cells)
        self.emit(Op.END)
        released = {s for i in self.plan.instructions if isinstance(i, Release) for s in i.slots}
        rest = [
            (self.cell_of[slot], int(Cell.DELETE))
            for i in self.plan.instructions
            for slot in outs_of(i)
            if slot not in self.launches.elided and slot not in self.plan.kinds
            if slot not in released and slot not in self.plan.outputs
        ]
        lists = []
        for pairs in (self.cleanup, rest):
            lists += [len(self.words), len(pairs)]
            self.words += [word for pair in pairs for word in pair]
        self.words[:HEADER_WORDS] = [HEADER_WORDS, *lists]
        self.link()
        return Encoded(
            code=(ctypes.c_int32 * len(self.words))(*self.words),
            cells=frame.cells,
            addresses=(*((holder, cell) for cell, holder in frame.addresses.items()), *self.number_addresses),
            cell_of=tuple(self.cell_of),
            starts=tuple(self.starts),
            owners=tuple(self.owners),
            steps=tuple(self.steps),
            step_is_launch=tuple(self.step_is_launch),
            arena_cells=self.arena_cells,
            counts=self.counts,
            modes_are_native=modes_are_native,
            escape_is_native=escape_is_native,
            keep=tuple(frame.keep),
            arena_addresses=tuple(self.arena_addresses),
            elided=self.launches.elided,
            scratch_nbytes=self.scratch_nbytes,
            team_limit=team_limit,
            profile=self._profile(),
            step_owners=tuple(self.step_owners),
            later=self._later(),
            relocations=tuple(frame.relocations),
        )

    def _later(self) -> Later | None:
        if self.at is None:
            return None
        return Later(tuple(self.frame.marks), tuple(self.shared), tuple(self.teams), self._handled())

    def _handled(self) -> tuple[int, ...]:
        """Tensors of the arena that something else than a kernel uses."""
        found: dict[int, None] = {}
        for index, instruction in enumerate(self.plan.instructions):
            is_address = index in self.launches.code or index in self.places
            if is_address or isinstance(instruction, Release):
                continue
            if isinstance(instruction, View) and instruction.dst in self.launches.elided:
                continue
            found.update(dict.fromkeys(slot for slot in uses_of(instruction) if slot in self.arena_offsets))
        return tuple(found)

    def _profile(self) -> Profile | None:
        if not self.plan.profile or not self.frame.cells[Cell.CLOCK]:
            return None
        owned = zip(self.starts, self.owners, strict=True)
        records = [Record(at, Op(self.words[at]), owner, at not in self.uncounted) for at, owner in owned]
        return Profile(self.plan, records, len(self.words))


def encode(plan: Plan, at: Plan | None = None, where: Addresses = HERE) -> Encoded:
    """The plan in the executor's form, with the symbols that there are.

    at: of a plan with words, what it is at some sizes; these decide how launches are grouped. where: the addresses.
    """
    encoder = _Encoder(plan, at, where)
    encoder.prologue()
    limit = where.limit if encoder.has_threads() else 1
    for item in schedule(at or plan, encoder.launches, limit, apart=plan.profile, any_offsets=at is not None):
        match item:
            case Single(index=index):
                encoder.instruction(index, plan.instructions[index])
            case Group():
                encoder.group(item)
            case Enter(size=size):
                encoder.enter(size)
            case Leave():
                encoder.leave()
    return encoder.finish(limit)


def _slot_cells(plan: Plan, frame: FrameTemplate) -> list[int]:
    """A cell for each slot: inputs first and in order."""
    first = frame.block(plan.nslots)
    inputs = set(plan.inputs)
    order = [*plan.inputs, *(s for s in range(plan.nslots) if s not in inputs)]
    cells = [0] * plan.nslots
    for i, slot in enumerate(order):
        cells[slot] = first + i
    return cells
