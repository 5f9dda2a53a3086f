"""Loads and stores of a nest's vectors: contiguous, one place for all lanes, or a place for each.

Invariant: memory is touched only at places that a lane in use names; a lane that is not in use, or whose load is masked
off, reads the first element of its buffer at most (which exists: sizes are at least 1).
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.codegen.kernels.graph import StoreValue, Value
from smelt.codegen.kernels.nest import Const, Index, Load
from smelt.codegen.kernels.sizes import is_short_step
from smelt.codegen.llvm.lanes.lanes_types import type_suffix, vector_type
from smelt.codegen.llvm.nests.nest_frame import Frame
from smelt.ir import DType
from smelt.ir.sizes import equals, is_one


class Memory:
    """Emits loads and stores in a frame; `at(value)` gives a value's vector or scalar."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.fn = frame.fn

    # --- places

    def lane_bit(self) -> int:
        """The bit of the loop that vectors go along, while they do."""
        lane = self.frame.schedule.lane
        return 0 if lane is None or self.frame.span.lanes == 1 else 1 << lane

    def steps(self, index: Index) -> int:
        """How far apart the lanes' places are; 0 while there is one lane."""
        lane = self.frame.schedule.lane
        return 0 if lane is None or self.frame.span.lanes == 1 else index.strides[lane]

    def scattered(self, index: Index, offset: str, positions: list[tuple[str, int, int]], lanes: int) -> str:
        """The element of each lane: `offset`, lane steps, and gathers as (position, stride, lanes of it)."""
        fn = self.fn
        type_ = vector_type("i64", lanes)
        emitter = self.frame.emitter(lanes)
        total = emitter.splat(offset, DType.I64) if offset != "0" else "zeroinitializer"
        step = self.steps(index)
        if not equals(step, 0):
            iota = f"<{', '.join(f'i64 {k}' for k in range(lanes))}>"
            if is_one(step):
                walked = iota
            else:
                word = self.frame.word(step, ("stride", index.strides, self.frame.schedule.lane))
                walked = fn.let(f"mul {type_} {iota}, {emitter.splat(word, DType.I64)}")
            total = fn.let(f"add {type_} {total}, {walked}")
        for place, stride, width in positions:
            part = place if width > 1 else emitter.splat(place, DType.I64)
            if not is_one(stride):
                word = self.frame.word(stride, ("gather", index.strides, stride))
                part = fn.let(f"mul {type_} {part}, {emitter.splat(word, DType.I64)}")
            total = fn.let(f"add {type_} {total}, {part}")
        return total

    def position(self, name: str, lanes: int, size: int, wraps: bool, where: str | None) -> str:
        """A gather's position within its bounds, or the kernel refuses; 0 where the load is masked off."""
        fn, emitter = self.frame.fn, self.frame.emitter(lanes)
        type_ = vector_type("i64", lanes)
        bound = emitter.splat(self.frame.word(size, ("extent", size)), DType.I64)
        if wraps:
            below = fn.let(f"icmp slt {type_} {name}, {emitter.const(0, DType.I64)}")
            name = emitter.emit("select", DType.I64, [below, fn.let(f"add {type_} {name}, {bound}"), name])
        wrong = fn.let(f"icmp uge {type_} {name}, {bound}")
        if where is not None:
            wrong = fn.let(f"and {vector_type('i1', lanes)} {wrong}, {where}")
        self.frame.refuse(wrong, lanes)
        if where is not None or (lanes > 1 and self.frame.mask() is not None):
            name = emitter.emit("select", DType.I64, [wrong, emitter.const(0, DType.I64), name])
        return name

    # --- loads

    def load(
        self, value: Value, places: list[tuple[str, int, int]], moves: bool, where: str | None, where_lanes: int
    ) -> str:
        """The register form of a load. `moves`: whether its lanes have places of their own."""
        source = value.source
        assert isinstance(source, Load)
        lanes = self.frame.span.lanes if value.loops & self.lane_bit() else 1
        other = source.other or Const(0, source.dtype)
        if lanes == 1:
            return self._load_one(source, places, where, other)
        bits = self.frame.bits(lanes)
        element = bits.memory_element(source.dtype)
        offset = self.frame.offset(source.index)
        base = self.frame.base(source.buffer, source.index, element)
        step = self.steps(source.index)
        if where is not None and where_lanes == 1:
            where = self.frame.emitter(lanes).splat(where, DType.BOOL)
        mask = self._both(self.frame.mask(), where, lanes)
        if not moves and is_one(step):
            offset = self._with_places(source.index, offset, places)
            at = self.fn.gep(element, base, offset)
            raw = self.contiguous(element, at, lanes, source.dtype.itemsize, mask)
        elif not moves and equals(step, 0):  # one place, but a mask of its own for each lane
            used = mask and self._any(mask, lanes)
            one = self._load_one(Load(source.buffer, source.index, source.dtype), places, used, other)
            return self._or_other(self.frame.emitter(lanes).splat(one, source.dtype), where, other, source.dtype, lanes)
        else:
            raw = self._apart(source, base, offset, places, mask, lanes, moves)
        return self._or_other(bits.from_memory(raw, source.dtype), where, other, source.dtype, lanes)

    def _with_places(self, index: Index, offset: str, places: list[tuple[str, int, int]]) -> str:
        for place, stride, _ in places:
            step: str | int = 1 if is_one(stride) else self.frame.word(stride, ("gather", index.strides, stride))
            offset = self.fn.add(offset, self.fn.mul(place, step))
        return offset

    def _both(self, a: str | None, b: str | None, lanes: int) -> str | None:
        if a is None or b is None:
            return a if b is None else b
        return self.fn.let(f"and {vector_type('i1', lanes)} {a}, {b}")

    def _any(self, mask: str, lanes: int) -> str:
        type_ = vector_type("i1", lanes)
        self.fn.declare(f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({type_})")
        return self.fn.let(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({type_} {mask})")

    def _or_other(self, name: str, where: str | None, other: Const, dtype: DType, lanes: int) -> str:
        if where is None:
            return name
        emitter = self.frame.emitter(lanes)
        return emitter.emit("select", dtype, [where, name, emitter.const(other.value, dtype)])

    def _load_one(self, source: Load, places: list[tuple[str, int, int]], where: str | None, other: Const) -> str:
        bits = self.frame.bits(1)
        element = bits.memory_element(source.dtype)
        offset = self._with_places(source.index, self.frame.offset(source.index), places)
        base = self.frame.base(source.buffer, source.index, element)
        if where is not None:
            offset = self.fn.let(f"select i1 {where}, i64 {offset}, i64 0", "i")
            first = self.frame.bases[source.buffer]
            base = self.fn.let(f"select i1 {where}, ptr {base}, ptr {first}", "p")
        raw = self.fn.load(element, self.fn.gep(element, base, offset), source.dtype.itemsize)
        return self._or_other(bits.from_memory(raw, source.dtype), where, other, source.dtype, 1)

    def contiguous(self, element: str, at: str, lanes: int, align: int, mask: str | None) -> str:
        """A vector of neighbours; lanes that the mask leaves out are zero and not read."""
        type_ = vector_type(element, lanes)
        if mask is None:
            return self.fn.load(type_, at, align)
        mask_type = vector_type("i1", lanes)
        name = f"@llvm.masked.load.{type_suffix(element, lanes)}.p0"
        self.fn.declare(f"declare {type_} {name}(ptr, i32, {mask_type}, {type_})")
        return self.fn.let(f"call {type_} {name}(ptr {at}, i32 {align}, {mask_type} {mask}, {type_} zeroinitializer)")

    def _apart(
        self, source: Load, base: str, offset: str, places: list[tuple[str, int, int]], mask: str | None, lanes: int,
        moves: bool,
    ) -> str:  # fmt: skip
        """A vector whose lanes are not neighbours."""
        element = self.frame.bits(lanes).memory_element(source.dtype)
        step = self.steps(source.index)
        if not moves and is_short_step(step) and (mask is None or mask == self.frame.mask()):
            at = self.fn.gep(element, base, self._with_places(source.index, offset, places))
            return self._picked(element, at, step, lanes, source.dtype.itemsize, masked=mask is not None)
        return self._gather(source, element, base, self.scattered(source.index, offset, places, lanes), mask, lanes)

    def _picked(self, element: str, at: str, step: int, lanes: int, align: int, *, masked: bool) -> str:
        """Every `step`-th element from vectors of neighbours, none of which goes past the last one in use."""
        fn, type_, emitter = self.fn, vector_type(element, lanes), self.frame.emitter(lanes)
        end = ""
        if masked:
            reach = fn.let(f"sub i32 {fn.let(f'mul i32 {self.frame.span.left}, {step}')}, {step - 1}")
            end = emitter.splat(reach, DType.I32)

        def neighbours(begin: int) -> str:
            mask = None
            if masked:
                places = ", ".join(f"i32 {begin + k}" for k in range(lanes))
                mask = fn.let(f"icmp slt {vector_type('i32', lanes)} <{places}>, {end}")
            return self.contiguous(element, fn.gep(element, at, begin), lanes, align, mask)

        begins = [k * lanes for k in range(step - 1)] + [(lanes - 1) * (step - 1)]
        result = neighbours(0)
        for number, begin in enumerate(begins[1:], 1):
            more = neighbours(begin)
            picks = []
            for lane in range(lanes):
                place = lane * step
                if min(place // lanes, step - 1) == number:
                    picks.append(lanes + place - begin)
                else:
                    picks.append(lane if number > 1 else min(place, lanes - 1))
            text = ", ".join(f"i32 {p}" for p in picks)
            result = fn.let(f"shufflevector {type_} {result}, {type_} {more}, <{lanes} x i32> <{text}>")
        return result

    def _gather(self, source: Load, element: str, base: str, places: str, mask: str | None, lanes: int) -> str:
        fn, type_, wide = self.fn, vector_type(element, lanes), vector_type("i64", lanes)
        align = source.dtype.itemsize
        if self.frame.isa.name == "avx512" and align >= 4:
            pointers = fn.let(f"getelementptr {element}, ptr {base}, {wide} {places}")
            mask_type, pointer_type = vector_type("i1", lanes), vector_type("ptr", lanes)
            name = f"@llvm.masked.gather.{type_suffix(element, lanes)}.v{lanes}p0"
            fn.declare(f"declare {type_} {name}({pointer_type}, i32, {mask_type}, {type_})")
            used = mask or "splat (i1 true)"
            args = f"{pointer_type} {pointers}, i32 {align}, {mask_type} {used}, {type_} zeroinitializer"
            return fn.let(f"call {type_} {name}({args})")
        if mask is not None:
            # Lanes out of use read the buffer's first element, which an offset may lie before.
            back = "0" if equals(source.index.offset, 0) else fn.let(f"sub i64 0, {self._begin(source)}")
            safe = self.frame.emitter(lanes).splat(back, DType.I64) if back != "0" else "zeroinitializer"
            places = fn.let(f"select {vector_type('i1', lanes)} {mask}, {wide} {places}, {wide} {safe}")
        result = "poison"
        for lane in range(lanes):
            at = fn.gep(element, base, fn.let(f"extractelement {wide} {places}, i64 {lane}"))
            result = fn.let(f"insertelement {type_} {result}, {element} {fn.load(element, at, align)}, i64 {lane}")
        return result

    def _begin(self, source: Load) -> str:
        return self.frame.word(source.index.offset, ("begin", source.buffer, source.index.offset))

    # --- stores

    def store(
        self, store: StoreValue, name: str, vector: bool, places: list[tuple[str, int, int]], where: str | None
    ) -> None:
        """Write a register value; `vector`: whether lanes have places of their own. `where` is as wide as that."""
        source = store.source
        dtype = self.frame.nest.buffers[source.buffer].dtype
        lanes = self.frame.span.lanes if vector else 1
        bits = self.frame.bits(lanes)
        element = bits.memory_element(dtype)
        base = self.frame.base(source.buffer, source.index, element)
        offset = self.frame.offset(source.index)
        if lanes == 1:
            at = self.fn.gep(element, base, self._with_places(source.index, offset, places))
            if where is None:
                self._write_one(store, name, at, element, dtype)
            else:
                with self.fn.when(where):
                    self._write_one(store, name, at, element, dtype)
            return
        mask = self._both(self.frame.mask(), where, lanes)
        if is_one(self.steps(source.index)):
            at = self.fn.gep(element, base, self._with_places(source.index, offset, places))
            if source.mode == "add":
                old = bits.from_memory(self.contiguous(element, at, lanes, dtype.itemsize, mask), dtype)
                name = self.frame.emitter(lanes).emit("add", dtype, [old, name])
            self.write(bits.to_memory(name, dtype), element, at, lanes, dtype.itemsize, mask)
            return
        self._write_each(store, name, base, self.scattered(source.index, offset, places, lanes), mask)

    def store_woven(self, group: Sequence[StoreValue], name: str) -> None:
        """Write each lane of a register as often as there are stores, side by side."""
        source, count, lanes = group[0].source, len(group), self.frame.span.lanes
        dtype = self.frame.nest.buffers[source.buffer].dtype
        bits = self.frame.bits(lanes)
        element = bits.memory_element(dtype)
        raw, type_ = bits.to_memory(name, dtype), vector_type(element, lanes)
        at = self.fn.gep(
            element, self.frame.base(source.buffer, source.index, element), self.frame.offset(source.index)
        )
        for number in range(count):
            picks = ", ".join(f"i32 {(number * lanes + lane) // count}" for lane in range(lanes))
            part = self.fn.let(f"shufflevector {type_} {raw}, {type_} poison, <{lanes} x i32> <{picks}>")
            self.write(part, element, self.fn.gep(element, at, number * lanes), lanes, dtype.itemsize, None)

    def _write_one(self, store: StoreValue, name: str, at: str, element: str, dtype: DType) -> None:
        bits = self.frame.bits(1)
        if store.source.mode == "add":
            old = bits.from_memory(self.fn.load(element, at, dtype.itemsize), dtype)
            name = self.frame.emitter(1).emit("add", dtype, [old, name])
        self.fn.store(element, bits.to_memory(name, dtype), at, dtype.itemsize)

    def write(self, raw: str, element: str, at: str, lanes: int, align: int, mask: str | None) -> None:
        """Store a vector of neighbours where the mask holds."""
        type_ = vector_type(element, lanes)
        if mask is None:
            self.fn.store(type_, raw, at, align)
            return
        mask_type = vector_type("i1", lanes)
        name = f"@llvm.masked.store.{type_suffix(element, lanes)}.p0"
        self.fn.declare(f"declare void {name}({type_}, ptr, i32, {mask_type})")
        self.fn.do(f"call void {name}({type_} {raw}, ptr {at}, i32 {align}, {mask_type} {mask})")

    def _write_each(self, store: StoreValue, name: str, base: str, places: str, mask: str | None) -> None:
        """One store a lane, in the order of the lanes."""
        fn, lanes = self.fn, self.frame.span.lanes
        dtype = self.frame.nest.buffers[store.source.buffer].dtype
        element = self.frame.bits(1).memory_element(dtype)
        register = self.frame.emitter(lanes).type(dtype)
        for lane in range(lanes):
            at = fn.gep(element, base, fn.let(f"extractelement {vector_type('i64', lanes)} {places}, i64 {lane}"))
            one = fn.let(f"extractelement {register} {name}, i64 {lane}")
            if mask is None:
                self._write_one(store, one, at, element, dtype)
                continue
            with fn.when(fn.let(f"extractelement {vector_type('i1', lanes)} {mask}, i64 {lane}")):
                self._write_one(store, one, at, element, dtype)
