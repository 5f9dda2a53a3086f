"""What a nest's text is made from: the function, its constant words, the loops that are open, and what is known inside.

Sizes, strides and offsets are words, numbered in the order of first use, so that nests of one structure have one text.
Words are read at the function's entry. What is computed in a loop is remembered until the loop closes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import FAILED, Index
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.lanes.lanes_bits import LaneBits
from smelt.codegen.llvm.lanes.lanes_types import register_type, vector_type
from smelt.codegen.llvm.nests.nest_schedule import Schedule, calls_functions
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.ir import DType
from smelt.ir.sizes import equals, is_one

FAIL_LABEL = "refused"


@dataclass(slots=True)
class Span:
    """The vectors at hand along the lane loop: `copies` of `lanes`, each with the counter of its first lane.

    masks: lanes in use, for each copy; None where all are. left: how many those are (an i32), if they are the first.
    """

    lanes: int
    copies: int
    starts: list[str]
    masks: list[str] | None = None
    left: str = ""


class Frame:
    """State of a nest's emission."""

    def __init__(self, graph: Graph, schedule: Schedule, isa: Isa) -> None:
        self.graph, self.schedule, self.isa = graph, schedule, isa
        self.nest = graph.nest
        # Loops over windows take few turns, so that products in them would cost.
        self.fn = FunctionText("KERNEL", KERNEL_PARAMETERS, reduced=len(self.nest.inner) > 1)
        self.words: list[float] = []
        self._word_names: dict[Hashable, str] = {}
        self.counters: dict[int, str] = {}
        self.open_bits = 0
        self.span = Span(1, 1, ["0"])
        self.copy = 0
        self.refuses = False
        self.calls = calls_functions(graph)
        self._known: list[dict[Hashable, str]] = [{}]
        self._emitters: dict[int, ExprEmitter] = {}
        self._bits: dict[int, LaneBits] = {}
        self.bases = [self._base(k) for k in range(len(self.nest.buffers))]

    def _base(self, number: int) -> str:
        at = self.fn.at_entry(f"getelementptr i64, ptr %args, i64 {number}", "p") if number else "%args"
        return self.fn.at_entry(f"load ptr, ptr {at}, align 8", "base")

    # --- words

    def word(self, value: float, key: Hashable) -> str:
        """A constant that the launch gives, one for each key; a float as the bits of a double."""
        name = self._word_names.get(key)
        if name is None:
            place = len(self.nest.buffers) + len(self.words)
            at = self.fn.at_entry(f"getelementptr i64, ptr %args, i64 {place}", "p")
            name = self.fn.at_entry(f"load i64, ptr {at}, align 8")
            self.words.append(value)
            self._word_names[key] = name
        return name

    def number(self, value: float, dtype: DType) -> str:
        """A number of a dtype (rounded to it already) that is known when the kernel runs, in a register."""
        key = ("number", repr(value), dtype)
        name = self._word_names.get(key)
        if name is None:
            name = self.word(value, (*key, "word"))
            element = register_type(dtype)
            if dtype.is_floating:
                name = self.fn.at_entry(f"bitcast i64 {name} to double")
            if element == "float":
                name = self.fn.at_entry(f"fptrunc double {name} to float")
            elif element not in ("double", "i64"):
                name = self.fn.at_entry(f"trunc i64 {name} to {element}")
            self._word_names[key] = name
        return name

    def size(self, loop: int) -> str:
        """The number of turns of a loop."""
        return self.word(self.nest.sizes[loop], ("size", loop))

    # --- what is known

    def recall(self, key: Hashable) -> str | None:
        """A value computed in a loop that is still open."""
        for known in reversed(self._known):
            if key in known:
                return known[key]
        return None

    def remember(self, key: Hashable, name: str) -> str:
        """Keep a value until the innermost open loop closes."""
        self._known[-1][key] = name
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is remembered inside is forgotten after."""
        self._known.append({})
        yield
        self._known.pop()

    @contextmanager
    def turn(self, loop: int, counter: str) -> Iterator[None]:
        """Inside the body of a loop, whose counter is given."""
        before = self.counters.get(loop), self.open_bits
        self.counters[loop] = counter
        self.open_bits |= 1 << loop
        with self.scope():
            yield
        if before[0] is None:
            del self.counters[loop]
        else:
            self.counters[loop] = before[0]
        self.open_bits = before[1]

    @contextmanager
    def lanes(self, loop: int, span: Span) -> Iterator[None]:
        """Inside vectors along a loop."""
        before = self.span, self.copy
        self.span, self.copy = span, 0
        with self.turn(loop, span.starts[0]):
            yield
        self.span, self.copy = before

    # --- tools

    def emitter(self, lanes: int) -> ExprEmitter:
        """Operations on vectors of so many lanes."""
        made = self._emitters.get(lanes)
        if made is None:
            made = ExprEmitter(self.fn, self.isa, lanes, lambda lane: self.refuse(lane, lanes), calls=self.calls)
            self._emitters[lanes] = made
        return made

    def bits(self, lanes: int) -> LaneBits:
        """Memory forms of vectors of so many lanes."""
        made = self._bits.get(lanes)
        if made is None:
            made = self._bits[lanes] = LaneBits(self.fn, self.isa, lanes)
        return made

    def mask(self) -> str | None:
        """The lanes in use of the vector at hand; None if all."""
        return None if self.span.masks is None else self.span.masks[self.copy]

    def refuse(self, wrong: str, lanes: int) -> None:
        """Leave the kernel with `FAILED` if a lane that is in use is wrong."""
        mask = self.mask()
        if lanes > 1:
            type_ = vector_type("i1", lanes)
            if mask is not None:
                wrong = self.fn.let(f"and {type_} {wrong}, {mask}")
            self.fn.declare(f"declare i1 @llvm.vector.reduce.or.v{lanes}i1({type_})")
            wrong = self.fn.let(f"call i1 @llvm.vector.reduce.or.v{lanes}i1({type_} {wrong})")
        self.refuses = True
        good = self.fn.fresh("good")
        self.fn.do(f"br i1 {wrong}, label %{FAIL_LABEL}, label %{good}")
        self.fn.label(good)

    def offset(self, index: Index) -> str:
        """The element that an index names, gathers and its constant left out, at the counters of the open loops.

        Computed loop by loop in the nesting order, so that what the outer loops give is computed there.
        """
        schedule = self.schedule
        order = [*schedule.order, *range(len(self.nest.outer), len(self.nest.sizes))]
        total, seen = "0", []
        for loop in order:
            if loop not in self.counters or equals(index.strides[loop], 0):
                continue
            counter = self.span.starts[self.copy] if loop == schedule.lane else self.counters[loop]
            seen.append((loop, counter))
            key = ("offset", index.strides, tuple(seen))
            known = self.recall(key)
            if known is None:
                step: Any = index.strides[loop]
                if not (loop == schedule.lane and is_one(step)):
                    step = self.word(step, ("stride", index.strides, loop))
                known = self.remember(key, self.fn.add(total, self.fn.mul(counter, step)))
            total = known
        return total

    def base(self, buffer: int, index: Index, element: str) -> str:
        """The address of the element where an index begins."""
        if equals(index.offset, 0):
            return self.bases[buffer]
        key = ("base", buffer, index.offset)
        name = self._word_names.get(key)
        if name is None:
            offset = self.word(index.offset, ("begin", buffer, index.offset))
            name = self.fn.at_entry(f"getelementptr {element}, ptr {self.bases[buffer]}, i64 {offset}", "base")
            self._word_names[key] = name
        return name

    def finish(self) -> str:
        """The module's text."""
        if not self.refuses:
            return self.fn.finish()
        self.fn.do("ret i32 0")
        self.fn.label(FAIL_LABEL)
        return self.fn.finish(f"i32 {FAILED}")
