"""The loops of a nest: work items, points, vectors along the lanes with their remainder, passes over the inner loops.

for item in begin..end:                     the outer loops before the blocked one, from the item's number
  for block of the blocked loop:            and the loops after it; a schedule may tile and unroll them
    vectors along the lanes (if outer)      several at once, then one masked or shorter, then single elements
      pass 0: for each inner point ...      reductions carried by the loops; vectors along the lanes (if inner)
      pass 1: ...
      stores of the point
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from smelt.codegen.kernels.graph import Pass, Value, reach
from smelt.codegen.kernels.nest import Reduce, Scan
from smelt.codegen.kernels.sizes import rest_of
from smelt.codegen.llvm.lanes.lanes_types import vector_type
from smelt.codegen.llvm.nests.nest_frame import Frame, Span
from smelt.codegen.llvm.nests.nest_reduce import Accumulator
from smelt.codegen.llvm.nests.nest_schedule import OuterLevel, block_lengths
from smelt.codegen.llvm.nests.nest_tiles import emit_tiles
from smelt.codegen.llvm.nests.nest_values import Values
from smelt.diag.records import record
from smelt.ir.sizes import ceil_div, equals, is_one, is_symbolic, is_whole

Carry = list[tuple[str, str]]
"""What a loop carries: (type, name) each."""


@dataclass(slots=True)
class Slot:
    """The part of what a pass carries that belongs to one reduction and one copy of its vectors.

    others: reductions that are found in the same state, as an extreme and its position are.
    """

    owner: Value
    others: dict[Value, Accumulator]
    accumulator: Accumulator
    lanes: int
    copy: int
    at: int  # where its state begins in what is carried

    @property
    def width(self) -> int:
        """How many values its state is."""
        return 2 if self.accumulator.is_arg else 1


@record
class Level:
    """One loop of a pass: `kind` is plain, blocks (of `size` turns) or lanes; `fresh`: sums inside start from zero."""

    kind: str
    loop: int
    size: int = 1
    fresh: bool = False


class Loops:
    """Emits a nest's loops into a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.fn = frame, frame.fn
        self.schedule, self.graph = frame.schedule, frame.graph
        self.values = Values(frame)
        nest = frame.nest
        self.inner = list(range(len(nest.outer), len(nest.sizes)))
        self.lane_is_inner = self.schedule.lane is not None and self.schedule.lane >= len(nest.outer)
        self.levels = self.schedule.levels
        self.tiles: dict[int, tuple[str, str]] = {}  # of the tiled outer loops that are open: where the tile is

    @cached_property
    def index_type(self) -> str:
        """The type of a position over the inner loops."""
        points = 1
        for size in self.frame.nest.inner:
            points *= size
        return "i32" if points < 2**31 - 1 else "i64"

    # --- items

    def kernel(self) -> None:
        """The whole kernel."""
        self._prepare()
        with self.fn.loop("%begin", "%end") as items, self.frame.scope():
            self._item(items.index)

    def _item(self, number: str) -> None:
        schedule, frame = self.schedule, self.frame
        if not self.levels:
            self._point()
            return
        spread = list(self.levels[: schedule.block])
        blocked = self.levels[schedule.block]
        count = ceil_div(self._turns(blocked), schedule.block_size)
        counters: dict[OuterLevel, str] = {}
        rest = number
        for level, turns in [(blocked, count), *((k, self._turns(k)) for k in reversed(spread))]:
            if is_one(turns):
                counters[level] = "0"
                continue
            last = level == (spread[0] if spread else blocked)
            if last:
                counters[level] = rest
                continue
            by = frame.word(turns, ("turns", level))
            counters[level] = self.fn.let(f"urem i64 {rest}, {by}", "i")
            rest = self.fn.let(f"udiv i64 {rest}, {by}", "i")
        self._spread(spread, counters, blocked, counters[blocked])

    def _turns(self, level: OuterLevel) -> int:
        size = self.frame.nest.sizes[level.loop]
        return size if level.tile is None else ceil_div(size, level.tile)

    def _spread(
        self, levels: list[OuterLevel], counters: dict[OuterLevel, str], blocked: OuterLevel, block: str
    ) -> None:
        if levels:
            with self._turn(levels[0], counters[levels[0]]):
                self._prepare()
                self._spread(levels[1:], counters, blocked, block)
            return
        at, length = self.schedule.block, self.schedule.block_size
        is_turn = blocked.tile is not None or (self.schedule.nesting and blocked.loop != self.schedule.lane)
        if is_turn and equals(length, 1):
            with self._turn(blocked, block):
                self._prepare()
                self._outer(at + 1)
            return
        turns = self._turns(blocked)
        if equals(length, turns):
            bounds = ("0", self._stop(blocked))
        else:
            start = self.fn.mul(block, self.frame.word(length, ("block", blocked)))
            stop = self.fn.add(start, self.frame.word(length, ("block", blocked)))
            bounds = (start, self._least(stop, self._stop(blocked)))
        self._outer(at, bounds)

    def _stop(self, level: OuterLevel) -> str:
        """The number of turns of a level, as a word."""
        if level.tile is None:
            return self.frame.size(level.loop)
        return self.frame.word(self._turns(level), ("tiles", level))

    @contextmanager
    def _turn(self, level: OuterLevel, counter: str) -> Iterator[None]:
        """Inside a turn of an outer loop, or inside one of its tiles."""
        loop = level.loop
        if level.tile is None:
            with self.frame.turn(loop, counter):
                yield
            return
        tile = self.frame.word(level.tile, ("tile", loop))
        with self.frame.scope():
            start = self.fn.mul(counter, tile)
            stop = self.fn.add(start, tile)
            if not is_whole(self.frame.nest.sizes[loop], level.tile):
                stop = self._least(stop, self.frame.size(loop))
            self.tiles[loop] = start, stop
            yield
            del self.tiles[loop]

    def _least(self, a: str, b: str) -> str:
        less = self.fn.let(f"icmp slt i64 {a}, {b}", "b")
        return self.fn.let(f"select i1 {less}, i64 {a}, i64 {b}", "i")

    def _outer(self, at: int, bounds: tuple[str, str] | None = None) -> None:
        """The outer loops from a position of the levels on."""
        if at == len(self.levels):
            self._point()
            return
        level = self.levels[at]
        loop = level.loop
        if level.tile is not None:
            low, high = bounds or ("0", self._stop(level))
            with self.fn.loop(low, high) as made, self._turn(level, made.index):
                self._outer(at + 1)
            return
        low, high = bounds or self.tiles.get(loop) or ("0", self.frame.size(loop))
        if loop == self.schedule.tile:
            assert self.schedule.lane is not None
            emit_tiles(self.frame, self.values, (low, high), self._rows, self.tiles.get(self.schedule.lane))
        elif loop == self.schedule.lane:
            self.along_lanes(loop, low, high, [], self._lane_point)
        else:
            self._rows(loop, low, high)

    def _rows(self, loop: int, low: str, high: str) -> None:
        """A loop of which each turn runs the loops after it."""
        inside = self.levels.index(OuterLevel(loop)) + 1

        def row(counter: str, carry: Carry) -> Carry:
            with self.frame.turn(loop, counter):
                self._prepare()
                self._outer(inside)
            return carry

        self._repeated(loop, (low, high), [], row)

    def _repeated(self, loop: int, bounds: tuple[str, str], carry: Carry, body: Callable[[str, Carry], Carry]) -> Carry:
        """A loop whose body stands in it as often as the schedule says, in the loop's order; then what is left."""
        times, (low, high) = self.schedule.times(loop), bounds
        if times == 1:
            return self._looped(low, high, 1, carry, body)
        if bounds == ("0", self.frame.size(loop)) and equals(self.frame.nest.sizes[loop], times):
            for turn in range(times):
                carry = body(str(turn), carry)
            return carry

        def several(counter: str, state: Carry) -> Carry:
            for turn in range(times):
                state = body(self.fn.add(counter, turn), state)
            return state

        carry = self._looped(low, self.fn.add(high, 1 - times), times, carry, several)
        if self._divides(loop, bounds, times):
            return carry
        length = high if low == "0" else self.fn.let(f"sub i64 {high}, {low}", "i")
        left = self.fn.let(f"urem i64 {length}, {times}", "i")
        return self._looped(self.fn.let(f"sub i64 {high}, {left}", "i"), high, 1, carry, body)

    def _divides(self, loop: int, bounds: tuple[str, str], times: int) -> bool:
        """Whether bodies in a row leave no turn over between bounds: of the loop, a tile or the part in an item."""
        cuts = [self.frame.nest.sizes[loop], dict(self.schedule.tiled).get(loop, 0)]
        if loop in self.inner and bounds != ("0", self.frame.size(loop)):
            return False  # blocks of sums have lengths of their own
        if self.levels and self.levels[self.schedule.block] == OuterLevel(loop):
            cuts.append(self.schedule.block_size)
        return all(is_whole(cut, times) for cut in cuts)

    def _looped(self, low: str, high: str, step: str | int, carry: Carry, body: Callable[[str, Carry], Carry]) -> Carry:
        with self.fn.loop(low, high, step, carry) as made:
            now = [(type_, c.now) for (type_, _), c in zip(carry, made.carried, strict=True)]
            for value, (_, name) in zip(made.carried, body(made.index, now), strict=True):
                value.next = name
        return [(type_, c.last) for (type_, _), c in zip(carry, made.carried, strict=True)]

    def _lane_point(self, carry: Carry) -> Carry:
        self._prepare()
        self._point()
        return carry

    # --- vectors along a loop

    def along_lanes(self, loop: int, low: str, high: str, carry: Carry, body: Callable[[Carry], Carry]) -> Carry:
        """Vectors from low to high of a loop: `copies` at once, what remains one by one.

        `high - low` is a multiple of all vectors at once unless `high` is the loop's end.
        """
        fn, schedule = self.fn, self.schedule
        lanes, size = schedule.lanes, self.frame.nest.sizes[loop]
        step = lanes * schedule.copies
        rest = rest_of(size, step)
        if is_symbolic(size) or size >= step:
            stop = fn.add(high, 1 - step) if rest else high
            carry = self._vectors(loop, (low, stop), lanes, schedule.copies, carry, body)
            low = self._after(low, high, step) if rest else low
        if not rest:
            return carry
        if schedule.masked and is_symbolic(size) and schedule.copies > 1:
            # What is left may be whole vectors only, which need no masks.
            carry = self._vectors(loop, (low, fn.add(high, 1 - lanes)), lanes, 1, carry, body)
            low = self._after(low, high, lanes)
        if schedule.masked:
            return self._vectors(loop, (low, high), lanes, 1, carry, body, masked=True)
        if rest >= lanes and lanes > 1:
            carry = self._vectors(loop, (low, fn.add(high, 1 - lanes)), lanes, 1, carry, body)
            low = self._after(low, high, lanes)
        if rest % lanes:
            carry = self._vectors(loop, (low, high), 1, 1, carry, body)
        return carry

    def _after(self, low: str, high: str, step: int) -> str:
        """Where the whole steps from low to high end."""
        length = high if low == "0" else self.fn.let(f"sub i64 {high}, {low}", "i")
        return self.fn.add(low, self.fn.let(f"and i64 {length}, {-step}", "i"))

    def _vectors(
        self, loop: int, bounds: tuple[str, str], lanes: int, copies: int, carry: Carry,
        body: Callable[[Carry], Carry], *, masked: bool = False,
    ) -> Carry:  # fmt: skip
        fn = self.fn
        with fn.loop(bounds[0], bounds[1], lanes * copies, carry) as made:
            starts = [fn.add(made.index, k * lanes) for k in range(copies)]
            masks, left = None, ""
            if masked:
                left = fn.let(f"trunc i64 {fn.let(f'sub i64 {bounds[1]}, {made.index}', 'i')} to i32", "left")
                masks = [self._tail_mask(left, lanes)]
            with self.frame.lanes(loop, Span(lanes, copies, starts, masks, left)):
                result = body([(type_, c.now) for (type_, _), c in zip(carry, made.carried, strict=True)])
            for value, (_, name) in zip(made.carried, result, strict=True):
                value.next = name
        return [(type_, c.last) for (type_, _), c in zip(carry, made.carried, strict=True)]

    def _tail_mask(self, left: str, lanes: int) -> str:
        type_ = vector_type("i32", lanes)
        one = self.fn.let(f"insertelement {type_} poison, i32 {left}, i64 0")
        wide = self.fn.let(f"shufflevector {type_} {one}, {type_} poison, <{lanes} x i32> zeroinitializer")
        return self.fn.let(f"icmp slt {type_} <{', '.join(f'i32 {k}' for k in range(lanes))}>, {wide}", "mask")

    # --- a point of the outer loops

    def _point(self) -> None:
        stored: set[int] = set()
        self.values.kept_ready = set()
        for step in self.graph.passes:
            self._pass(step, stored)
        for copy in range(self.frame.span.copies):
            self.frame.copy = copy
            self.values.store_all(self.graph.outer_stores)
        self.frame.copy = 0

    def _prepare(self) -> None:
        roots = [root for step in self.graph.passes for root in step.roots]
        roots += [root for store in self.graph.outer_stores for root in store.roots]
        self.values.prepare(roots, self.graph.stores)

    def _pass(self, step: Pass, stored: set[int]) -> None:
        """One walk over the inner loops; its reductions are known after it."""
        slots, carry = self._slots(step)
        needed = {v.number for v in reach(step.roots, self.graph.inner_bits)}
        keeps = [v for v in self.graph.kept if v.number in needed and v.number not in stored]
        stored |= {v.number for v in keeps}
        self._prepare()

        def body(state: Carry) -> Carry:
            return self._inner_point(step, slots, keeps, state)

        carry = self._level(self._levels(step), 0, {}, slots, carry, body)
        self.values.kept_ready |= {v.number for v in keeps}
        self._finish(slots, carry)

    def _slots(self, step: Pass) -> tuple[list[Slot], Carry]:
        span = self.frame.span
        slots: list[Slot] = []
        carry: Carry = []
        firsts: dict[object, dict[Value, Accumulator]] = {}
        for owner in (*step.scans, *step.reduces):
            assert isinstance(owner.source, Reduce | Scan)
            index_type = self.index_type if owner.source.kind.startswith("arg") else "i64"
            accumulator = Accumulator(owner.source, owner.args[0].dtype, self.frame.emitter, self.fn, index_type)
            others: dict[Value, Accumulator] = {}
            if accumulator.shared is not None:
                known = firsts.setdefault((owner.args[0].number, accumulator.shared), others)
                if known is not others:
                    known[owner] = accumulator
                    continue
            if self.lane_is_inner:
                shapes = [(self.schedule.lanes, copy) for copy in range(self.schedule.copies)]
                if not self.schedule.masked:
                    shapes.append((1, 0))
            elif self.values.is_vector(owner):
                shapes = [(span.lanes, copy) for copy in range(span.copies)]
            else:
                shapes = [(1, 0)]
            for lanes, copy in shapes:
                slots.append(Slot(owner, others, accumulator, lanes, copy, len(carry)))
                carry += list(zip(accumulator.types(lanes), accumulator.start(lanes), strict=True))
        return slots, carry

    # --- the inner loops

    def _levels(self, step: Pass) -> list[Level]:
        """The loops of a pass; those of long floating-point sums in blocks whose sums are added up."""
        sizes = self.frame.nest.sizes
        sums = any(
            isinstance(r.source, Reduce) and r.source.kind == "sum" and r.dtype.is_floating for r in step.reduces
        )
        unit = self.schedule.lanes * self.schedule.copies if self.lane_is_inner else 1
        long = sums and self.schedule.long
        tiled = dict(self.schedule.tiled)
        around: list[Level] = []
        levels = []
        for loop in self.inner:
            is_lane = loop == self.schedule.lane
            width = unit if is_lane else 1
            lengths = block_lengths(sizes[loop], width) if long else ()
            tile = tiled.get(loop)
            if tile is not None:
                # Blocks of sums that are longer go around the tiles, so that no chain of additions gets longer.
                longer = [length for length in lengths if length > tile]
                around += [Level("blocks", loop, length, fresh=True) for length in longer]
                around.append(Level("blocks", loop, tile, fresh=long))
                lengths = tuple(length for length in lengths if length < tile)
            levels += [Level("blocks", loop, length, fresh=True) for length in lengths]
            last = loop == self.inner[-1]
            levels.append(Level("lanes" if is_lane else "plain", loop, fresh=long and not last))
        return around + levels

    def _level(
        self, levels: list[Level], at: int, bounds: dict[int, tuple[str, str]], slots: list[Slot], carry: Carry,
        body: Callable[[Carry], Carry],
    ) -> Carry:  # fmt: skip
        if at == len(levels):
            return body(carry)
        level = levels[at]
        low, high = bounds.get(level.loop) or ("0", self.frame.size(level.loop))
        if level.kind == "lanes":
            return self.along_lanes(level.loop, low, high, carry, body)
        step: str | int = 1
        if level.kind == "blocks":
            step = self.frame.word(level.size, ("sum block", level.loop, at))

        def turn(counter: str, now: Carry) -> Carry:
            inside = self._fresh(slots, now) if level.fresh else now
            if level.kind == "blocks":
                stop = self._least(self.fn.add(counter, step), high)
                with self.frame.scope():
                    found = self._level(levels, at + 1, {**bounds, level.loop: (counter, stop)}, slots, inside, body)
            else:
                with self.frame.turn(level.loop, counter):
                    self._prepare()
                    found = self._level(levels, at + 1, bounds, slots, inside, body)
            return self._added(slots, now, found) if level.fresh else found

        if level.kind == "blocks":
            return self._looped(low, high, step, carry, turn)
        return self._repeated(level.loop, (low, high), carry, turn)

    def _fresh(self, slots: list[Slot], now: Carry) -> Carry:
        """What is carried, with the floating-point sums at zero."""
        fresh = list(now)
        for slot in slots:
            if slot.accumulator.is_float_sum and isinstance(slot.owner.source, Reduce):
                fresh[slot.at] = (now[slot.at][0], slot.accumulator.start(slot.lanes)[0])
        return fresh

    def _added(self, slots: list[Slot], now: Carry, found: Carry) -> Carry:
        """What is carried on: the sums of a block added to those before it."""
        added = list(found)
        for slot in slots:
            if slot.accumulator.is_float_sum and isinstance(slot.owner.source, Reduce):
                whole = slot.accumulator.merge([now[slot.at][1]], [found[slot.at][1]], slot.lanes)
                added[slot.at] = (now[slot.at][0], whole[0])
        return added

    # --- an inner point

    def _inner_point(self, step: Pass, slots: list[Slot], keeps: list[Value], carry: Carry) -> Carry:
        frame, values = self.frame, self.values
        state = list(carry)
        with frame.scope():
            for copy in range(frame.span.copies):
                frame.copy = copy
                for slot in slots:
                    vector = self._slot_is_here(slot)
                    if not vector or slot.copy != copy:
                        continue
                    self._update(slot, state)
                for value in keeps:
                    if copy == 0 or values.is_vector(value) or self.lane_is_inner:
                        values.keep(value)
                for store in step.stores:
                    if copy == 0 or store.loops & values.memory.lane_bit():
                        values.store(store)
            frame.copy = 0
        return state

    def _slot_is_here(self, slot: Slot) -> bool:
        """Whether the vectors at hand go into this slot."""
        if self.lane_is_inner:
            return slot.lanes == self.frame.span.lanes
        return True

    def _update(self, slot: Slot, state: Carry) -> None:
        frame, values = self.frame, self.values
        element = slot.owner.args[0]
        names = [state[slot.at + k][1] for k in range(slot.width)]
        value = values.wide(element, slot.lanes)
        mask = frame.mask() if self.lane_is_inner and slot.lanes > 1 else None
        index = values.linear() if slot.accumulator.is_arg else "0"
        names = slot.accumulator.update(names, value, mask, slot.lanes, index, walks=self.lane_is_inner)
        for k, name in enumerate(names):
            state[slot.at + k] = (state[slot.at + k][0], name)
        if isinstance(slot.owner.source, Scan):
            values.remember(slot.owner, slot.accumulator.value(names, slot.lanes))

    # --- the end of a pass

    def _finish(self, slots: list[Slot], carry: Carry) -> None:
        done: set[int] = set()
        for slot in slots:
            if not isinstance(slot.owner.source, Reduce) or slot.owner.number in done:
                continue
            mine = [s for s in slots if s.owner is slot.owner]
            states = [[carry[s.at + k][1] for k in range(s.width)] for s in mine]
            if self.lane_is_inner:
                done.add(slot.owner.number)
                total = self._combined(mine, states)
                for owner, accumulator in {slot.owner: slot.accumulator, **slot.others}.items():
                    self.values.remember(owner, accumulator.value(total, 1))
                continue
            done.add(slot.owner.number)
            for one, state in zip(mine, states, strict=True):
                self.frame.copy = one.copy
                for owner, accumulator in {slot.owner: one.accumulator, **slot.others}.items():
                    self.values.remember(owner, accumulator.value(state, one.lanes))
            self.frame.copy = 0

    def _combined(self, slots: list[Slot], states: list[list[str]]) -> list[str]:
        """All vectors of one reduction as the state of one lane: copies in pairs, halves of lanes, the remainder."""
        accumulator = slots[0].accumulator
        vectors = [state for slot, state in zip(slots, states, strict=True) if slot.lanes > 1]
        single = [state for slot, state in zip(slots, states, strict=True) if slot.lanes == 1]
        while len(vectors) > 1:
            vectors = [
                accumulator.merge(a, b, slots[0].lanes) for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
        parts = [accumulator.across(vectors[0], slots[0].lanes)] if vectors else []
        parts += single
        total = parts[0]
        for part in parts[1:]:
            total = accumulator.merge(total, part, 1)
        return total
