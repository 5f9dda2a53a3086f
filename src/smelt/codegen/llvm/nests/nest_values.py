"""Values of a nest as SSA names: each computed once where it is needed, or before the loops that do not change it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.codegen.kernels.graph import StoreValue, Value, operand_dtype
from smelt.codegen.kernels.nest import Const, Load, Op, Position, Reduce, Scan
from smelt.codegen.llvm.lanes.lanes_types import register_type, vector_type
from smelt.codegen.llvm.nests.nest_frame import Frame
from smelt.codegen.llvm.nests.nest_memory import Memory
from smelt.codegen.llvm.nests.nest_schedule import woven
from smelt.diag import InternalError
from smelt.ir import DType
from smelt.ir.sizes import is_symbolic

# Products are these powers for every value; roots are not at -inf and -0.0, reciprocals not where the square overflows.
_POWERS = frozenset({2.0, 3.0})


# Operations within operations that are made by recursion, which keeps the order of a nest's text.
_DEEP = 60


class Values:
    """Emits values at the open loops of a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.memory = Memory(frame)
        self.kept_ready: set[int] = set()
        self._kept = {v.number for v in frame.graph.kept}
        self.tiled: dict[int, str] = {}
        self.tile_start = "0"
        self._depth = 0

    def is_vector(self, value: Value) -> bool:
        """Whether a value differs from lane to lane of the vectors at hand."""
        return bool(value.loops & self.memory.lane_bit())

    def _key(self, value: Value) -> tuple[str, int, int]:
        return ("value", value.number, self.frame.copy if self.is_vector(value) else -1)

    def remember(self, value: Value, name: str) -> None:
        """Give a value its name, for the copy at hand."""
        self.frame.remember(self._key(value), name)

    def at(self, value: Value) -> str:
        """A value's name: a vector if it differs along the lanes, else a scalar."""
        known = self.frame.recall(self._key(value))
        if known is not None:
            return known
        if self._depth == _DEEP:
            self._make_operands(value)
        self._depth += 1
        try:
            return self.frame.remember(self._key(value), self._made(value))
        finally:
            self._depth -= 1

    def _make_operands(self, value: Value) -> None:
        """Make all that a value is computed of, the first first, so that no chain is too long for Python's stack."""
        waiting = [value]
        while waiting:
            missing = self._missing_operand(waiting[-1])
            if missing is not None:
                waiting.append(missing)
            elif (last := waiting.pop()) is not value:
                self.frame.remember(self._key(last), self._made(last))

    def _missing_operand(self, value: Value) -> Value | None:
        """An operation that a value is computed of and that is not at hand."""
        if not isinstance(value.source, Op) or value.number in self.kept_ready:
            return None
        made = (a for a in value.args if isinstance(a.source, Op) and self.frame.recall(self._key(a)) is None)
        return next(made, None)

    def wide(self, value: Value, lanes: int) -> str:
        """A value in so many lanes: 1, or as many as the vectors at hand have."""
        if isinstance(value.source, Const) and not is_symbolic(value.source.value):
            return self.frame.emitter(lanes).const(value.source.value, value.dtype)
        name = self.at(value)
        if lanes == 1 or self.is_vector(value):
            return name
        key = ("splat", value.number, lanes)
        known = self.frame.recall(key)
        return known or self.frame.remember(key, self.frame.emitter(lanes).splat(name, value.dtype))

    def _made(self, value: Value) -> str:
        lanes = self.frame.span.lanes if self.is_vector(value) else 1
        if value.number in self.kept_ready:
            return self._from_scratch(value, lanes)
        match value.source:
            case Const(value=number):
                if is_symbolic(number):
                    return self.frame.number(number, value.dtype)
                return self.frame.emitter(1).const(number, value.dtype)
            case Position(loop=loop):
                return self._position(loop, lanes)
            case Load():
                return self._load(value)
            case Op(op=op, dtype=dtype):
                return self._operation(op, dtype, value, lanes)
            case Reduce() | Scan():
                raise InternalError("a reduction is used before it is finished", notes=(str(self.frame.nest),))
        raise InternalError(f"no code for {value.source}")

    def _position(self, loop: int, lanes: int) -> str:
        frame = self.frame
        if loop != frame.schedule.lane:
            return frame.counters[loop]
        start = frame.span.starts[frame.copy]
        if lanes == 1:
            return start
        iota = f"<{', '.join(f'i64 {k}' for k in range(lanes))}>"
        type_ = vector_type("i64", lanes)
        return frame.fn.let(f"add {type_} {frame.emitter(lanes).splat(start, DType.I64)}, {iota}")

    def _operation(self, op: str, dtype: DType, value: Value, lanes: int) -> str:
        emitter = self.frame.emitter(lanes)
        if op == "pow" and isinstance(value.args[1].source, Const) and value.args[1].source.value in _POWERS:
            return self._power(int(value.args[1].source.value), self.wide(value.args[0], lanes), dtype, lanes)
        args = [self.wide(a, lanes) for a in value.args]
        return emitter.emit(op, dtype, args, operand_dtype(value))

    def _power(self, exponent: int, x: str, dtype: DType, lanes: int) -> str:
        result = x
        for _ in range(exponent - 1):
            result = self.frame.emitter(lanes).emit("mul", dtype, [result, x])
        return result

    # --- memory

    def places(self, positions: Iterable[Value], owner: Load | StoreValue, where: Value | None) -> tuple[
        list[tuple[str, int, int]], bool
    ]:  # fmt: skip
        """The gathers of an index as (position, stride, lanes), and whether any moves from lane to lane."""
        index = owner.index if isinstance(owner, Load) else owner.source.index
        found = []
        moves = False
        for gather, value in zip(index.gathers, positions, strict=True):
            vector = self.is_vector(value) or (where is not None and self.is_vector(where))
            lanes = self.frame.span.lanes if vector else 1
            mask = None if where is None else self.wide(where, lanes)
            masked_by = None if where is None else where.number
            copy = self.frame.copy if vector else -1
            key = ("place", value.number, gather.size, gather.wraps, masked_by, lanes, copy)
            name = self.frame.recall(key)
            if name is None:
                name = self.memory.position(self.wide(value, lanes), lanes, gather.size, gather.wraps, mask)
                self.frame.remember(key, name)
            moves |= vector
            found.append((name, gather.stride, lanes))
        return found, moves

    def _load(self, value: Value) -> str:
        source = value.source
        assert isinstance(source, Load)
        if value.number in self.tiled and self.frame.span.lanes > 1:
            return self._from_tile(value)
        count = len(source.index.gathers)
        where = value.args[count] if len(value.args) > count else None
        places, moves = self.places(value.args[:count], source, where)
        mask, lanes = None, 1
        if where is not None:
            lanes = self.frame.span.lanes if self.is_vector(value) else 1
            mask = self.wide(where, lanes)
        return self.memory.load(value, places, moves, mask, lanes)

    def _from_tile(self, value: Value) -> str:
        """A row of the turned square on the stack: the lanes at the counter of the loop across."""
        frame = self.frame
        lanes = frame.span.lanes
        assert frame.schedule.tile is not None
        type_ = vector_type(register_type(value.dtype), lanes)
        place = frame.fn.let(f"sub i64 {frame.counters[frame.schedule.tile]}, {self.tile_start}", "i")
        row = frame.fn.gep(type_, self.tiled[value.number], place)
        width = lanes * max(value.dtype.itemsize, 4 if value.dtype.is_floating else 1)
        return frame.fn.load(type_, row, min(64, width))

    def store_all(self, stores: Sequence[StoreValue]) -> None:
        """Emit stores for the copy at hand, where it matters behind all that any of them needs."""
        if len(stores) > 1 and self.frame.graph.stores_last:
            for store in stores:
                for root in store.roots:
                    self.at(root)
                self.places(store.positions, store, store.where)
        lane = self.frame.schedule.lane
        if lane is None or self.frame.span.lanes == 1 or self.frame.mask() is not None:
            for store in stores:
                self.store(store)
            return
        for group in woven(stores, lane):
            if len(group) > 1 and group[0].loops & self.memory.lane_bit():
                self.memory.store_woven(group, self.wide(group[0].value, self.frame.span.lanes))
            else:
                for store in group:
                    self.store(store)

    def store(self, store: StoreValue) -> None:
        """Emit a store for the copy at hand."""
        count = self.frame.span.lanes
        vector = bool(store.loops & self.memory.lane_bit())
        lanes = count if vector else 1
        where = None if store.where is None else self.wide(store.where, lanes)
        places, _ = self.places(store.positions, store, store.where)
        self.memory.store(store, self.wide(store.value, lanes), vector, places, where)

    # --- rows of scratch

    def keep(self, value: Value) -> None:
        """Write a value that later passes read to its row of scratch."""
        lanes = self.frame.span.lanes if self.is_vector(value) else 1
        element, at = self._scratch_place(value)
        name = self.frame.bits(lanes).to_memory(self.at(value), DType.BOOL) if element == "i8b" else self.at(value)
        kind = "i8" if element == "i8b" else element
        self.frame.fn.store(vector_type(kind, lanes), name, at, _ALIGN[kind])

    def _from_scratch(self, value: Value, lanes: int) -> str:
        element, at = self._scratch_place(value)
        kind = "i8" if element == "i8b" else element
        raw = self.frame.fn.load(vector_type(kind, lanes), at, _ALIGN[kind])
        return self.frame.bits(lanes).from_memory(raw, DType.BOOL) if element == "i8b" else raw

    def _scratch_place(self, value: Value) -> tuple[str, str]:
        frame = self.frame
        fn = frame.fn
        element = "i8b" if value.dtype is DType.BOOL else register_type(value.dtype)
        row = frame.word(scratch_begin(frame, value), ("row", value.number))
        key = ("row of scratch", value.number)
        base = frame.recall(key) or frame.fn.at_entry(f"getelementptr i8, ptr %scratch, i64 {row}", "row")
        frame._known[0][key] = base
        place = self.linear()
        if frame.schedule.lane is not None and frame.schedule.lane < len(frame.nest.outer):
            width = frame.schedule.lanes * frame.schedule.copies
            place = fn.add(fn.mul(place, width), frame.copy * frame.schedule.lanes)
        return element, fn.gep("i8" if element == "i8b" else element, base, place)

    def linear(self) -> str:
        """The row-major number of the inner point at hand (of the first lane)."""
        frame = self.frame
        inner = range(len(frame.nest.outer), len(frame.nest.sizes))
        total = "0"
        for loop in inner:
            counter = frame.span.starts[frame.copy] if loop == frame.schedule.lane else frame.counters[loop]
            if total != "0":
                total = frame.fn.mul(total, frame.size(loop))
            total = frame.fn.add(total, counter)
        return total

    # --- before the loops

    def prepare(self, roots: Iterable[Value], stores: Iterable[StoreValue]) -> None:
        """Compute now what the loops still to be opened do not change."""
        ready: dict[int, bool] = {}
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            value = stack.pop()
            if value.number in seen:
                continue
            seen.add(value.number)
            if self._ready(value, ready):
                if not isinstance(value.source, Const | Position):
                    self._for_copies(value)
                continue
            if isinstance(value.source, Load):
                self.frame.offset(value.source.index)
            if not isinstance(value.source, Reduce) and value.number not in self.kept_ready:
                stack += value.args
        for store in stores:
            self.frame.offset(store.source.index)

    def _for_copies(self, value: Value) -> None:
        before = self.frame.copy
        for copy in range(self.frame.span.copies if self.is_vector(value) else 1):
            self.frame.copy = copy
            self.at(value)
        self.frame.copy = before

    def _ready(self, value: Value, known: dict[int, bool]) -> bool:
        """Whether all that a value is computed of is at hand, or does not change in loops still to be opened."""
        waiting = [value]
        while waiting:
            last = waiting[-1]
            if isinstance(last.source, Reduce | Scan):
                known[last.number] = self.frame.recall(self._key(last)) is not None
            elif last.loops & ~self.frame.open_bits:
                known[last.number] = False
            else:
                unknown = next((a for a in last.args if a.number not in known), None)
                if unknown is not None:
                    waiting.append(unknown)
                    continue
                known[last.number] = all(known[a.number] for a in last.args)
            waiting.pop()
        return known[value.number]


# A vector in scratch is aligned as its elements are: rows of several loops need not be whole vectors long.
_ALIGN = {"i8": 1, "i16": 2, "float": 4, "i32": 4, "double": 8, "i64": 8}


def scratch_begin(frame: Frame, value: Value) -> int:
    """The byte of scratch at which a kept value's row begins."""
    begin = 0
    for other in frame.graph.kept:
        if other is value:
            return begin
        begin += scratch_row(frame, other)
    return begin


def scratch_row(frame: Frame, value: Value) -> int:
    """Bytes of a kept value's row, a multiple of a line, with room for a whole vector past its end."""
    points = 1
    for size in frame.nest.inner:
        points *= size
    width = 1
    lane = frame.schedule.lane
    if lane is not None and lane < len(frame.nest.outer):
        width = frame.schedule.lanes * frame.schedule.copies
    nbytes = (points * width + 2 * frame.schedule.lanes) * max(value.dtype.itemsize, 4)
    return -(-nbytes // 64) * 64
