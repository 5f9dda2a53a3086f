"""All steps of a recurrent layer in one launch; the products of the inputs come finished.

    for item in (direction, block of rows):                     # items are independent: no thread waits for another
      h, c = those before the first step
      for step, from the last one backwards in the second direction:
        for a line of units (`UNITS_NBYTES`):
          sums[gate][row][unit] = sum over k of h[row][k] * weight[unit line][gate][k][unit]
          out[step][row][units] = the cell of gates[step][row] + sums, and c
        h = out[step]

The weight of a direction is read once a step, from the core's own cache where it fits; what is pointwise is applied to
the sums of a line of units at once. `projected`: out is a second product, of what the cells gave.

Invariant: the state of a row changes in its own steps only, so sequences of different lengths, longest first
(`packed`), need no more than the number of rows of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from smelt.codegen.contract.gemm import strip_call, strip_function
from smelt.codegen.contract.integers import ceil_div, div_rem, minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.tile import Walk, tile_function
from smelt.codegen.contract.tiling import LINE_NBYTES, Tiling, tiling_for
from smelt.codegen.contract.vectors import lane_mask, load_some, masked_store, prefetch
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes_types import Arith
from smelt.codegen.llvm.lanes.vmath import VectorMath
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record
from smelt.ir import DType

Kind = Literal["lstm", "gru", "tanh", "relu"]
GATES: dict[Kind, int] = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}

MAX_ROWS = 24
"""Rows of an item at most, so that their sums stay in the first-level cache."""
_SUM_ROWS = MAX_ROWS + 8  # the last tile of an item stores all its rows
_HEIGHTS = (6, 4, 3, 2, 1)
_FOURS = _HEIGHTS[1:]
_WALK = Walk(unit=True, dense=True, ahead=False, packed=True)


_Part = Callable[[str, str, str | None, str, str], None]
"""What emits a part of the cell: of row, unit, mask, the row's gates and its outputs."""


class StepWords(NamedTuple):
    """The words of a launch: sizes, the rows of an item, the terms of a chain of multiply-adds, elements from one step,
    or row, to the next.
    """

    steps: int
    batch: int
    hidden: int
    outputs: int
    block_rows: int
    block_terms: int
    gates_step: int
    gates_row: int
    out_step: int
    out_row: int


@record
class Steps:
    """A kernel. Its buffers: gates, weight, the bias inside of the new state (gru), the projection's weight
    (projected), h, c (lstm), how many rows each step has (packed), out, the last h, the last c (lstm); its words:
    `StepWords`.

    ragged: hidden units, or outputs, that are no whole registers.
    """

    kind: Kind
    tiling: Tiling
    ragged: bool
    packed: bool
    projected: bool

    @property
    def buffers(self) -> tuple[str, ...]:
        """The names of the buffers, in order."""
        is_lstm = self.kind == "lstm"
        named = {
            "gates": True, "weight": True, "inner": self.kind == "gru", "projection": self.projected, "first_h": True,
            "first_c": is_lstm, "counts": self.packed, "out": True, "h": True, "c": is_lstm,
        }  # fmt: skip
        return tuple(name for name, there in named.items() if there)

    @property
    def units(self) -> int:
        """Units of a line."""
        return LINE_NBYTES // self.tiling.sum_nbytes

    def scratch_nbytes(self, hidden: int) -> int:
        """Sums of a line of units, and where a projection comes, what the cells gave."""
        sums = GATES[self.kind] * _SUM_ROWS * LINE_NBYTES
        return sums + (_SUM_ROWS * hidden * self.tiling.sum_nbytes if self.projected else 0)


def steps_of(
    kind: Kind, isa: Isa, dtype: DType, sizes: Sequence[int], rows: int | None, *, packed: bool, projected: bool
) -> Steps | None:
    """The kernel for hidden units and outputs of these sizes; None where there is none of that dtype.

    rows: of an item, where they are known: as fours where sixes would leave two, whose tile reads a weight for little.
    """
    tiling = tiling_for(isa, dtype) if dtype in (DType.F32, DType.F64) else None
    if tiling is None:
        return None
    # As many gates of a line in one tile as there are registers for six rows of them.
    line = LINE_NBYTES // (tiling.lanes * tiling.sum_nbytes)
    gates, registers = GATES[kind], isa.vector_registers - 4
    most = max(1, registers // _HEIGHTS[0] // line)
    beside = next(n for n in range(min(most, gates), 0, -1) if gates % n == 0)
    wanted = _FOURS if rows is not None and rows % 4 == 0 and rows % 6 else _HEIGHTS
    heights = tuple(height for height in wanted if height * beside * line <= registers)
    tiling = replace(tiling, rows=heights[0], vectors=beside * line, heights=heights)
    return Steps(kind, tiling, any(size % tiling.lanes for size in sizes), packed, projected)


@lru_cache(maxsize=64)
def steps_source(steps: Steps, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(_Driver(steps, isa).text())


class _Driver:
    """The kernel's function under construction."""

    def __init__(self, steps: Steps, isa: Isa) -> None:
        self.steps, self.tiling = steps, steps.tiling
        self.gates, self.size = GATES[steps.kind], steps.tiling.sum_nbytes
        fn = self.fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.at = {name: fn.address(i) for i, name in enumerate(steps.buffers)}
        self.word = {name: fn.word(len(self.at) + i) for i, name in enumerate(StepWords._fields)}
        self.rows, self.ahead, self.here = "0", "", dict[str, str]()
        bits = 8 * self.size
        self.m, self.math = Arith(fn, isa, self.tiling.lanes, bits), VectorMath(fn, isa, self.tiling.lanes, bits)

    def text(self) -> str:
        """The whole module."""
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        tiling = self.tiling
        helpers = [strip_function(tiling, tiling.vectors, tiling.heights, _WALK)]
        helpers += [tile_function(tiling, height, tiling.vectors, _WALK) for height in tiling.heights]
        return module_text(self.fn, helpers)

    # --- addresses

    def _element(self, base: str, number: str) -> str:
        return self.fn.gep("i8", base, self.fn.mul(number, self.size))

    def _item(self, item: str) -> None:
        fn, word = self.fn, self.word
        direction, number = div_rem(fn, item, ceil_div(fn, word["batch"], word["block_rows"]))
        row = fn.mul(number, word["block_rows"])
        self.rows = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['batch']}, {row}", "i"))
        first = fn.add(fn.mul(direction, word["batch"]), row)
        here: dict[str, str] = {name: self._state(name, first) for name in ("h", "c") if name in self.at}
        units = fn.mul(direction, word["hidden"])
        line = fn.mul(self._lines(word["hidden"]), fn.mul(word["outputs"], self.gates * LINE_NBYTES))
        here["weight"] = fn.gep("i8", self.at["weight"], fn.mul(direction, line))
        if "inner" in self.at:
            here["inner"] = self._element(self.at["inner"], units)
        if "projection" in self.at:
            line = fn.mul(self._lines(word["outputs"]), fn.mul(word["hidden"], LINE_NBYTES))
            here["projection"] = fn.gep("i8", self.at["projection"], fn.mul(direction, line))
        column = fn.add(fn.mul(units, self.gates), fn.mul(row, word["gates_row"]))
        here["gates"] = self._element(self.at["gates"], column)
        column = fn.add(fn.mul(direction, word["outputs"]), fn.mul(row, word["out_row"]))
        here["out"] = self._element(self.at["out"], column)
        self.here = here
        is_back = fn.let(f"icmp ne i64 {direction}, 0", "b")
        if self.steps.packed:
            self._packed_steps(is_back, row)
            return
        last = fn.let(f"sub nsw i64 {word['steps']}, 1", "i")
        ahead = fn.mul(word["gates_step"], self.size)
        self.ahead = fn.let(f"select i1 {is_back}, i64 {fn.let(f'sub nsw i64 0, {ahead}', 'i')}, i64 {ahead}", "i")
        with fn.loop(0, word["steps"]) as at:
            mirrored = fn.let(f"sub nsw i64 {last}, {at.index}", "i")
            step = fn.let(f"select i1 {is_back}, i64 {mirrored}, i64 {at.index}", "i")
            self._step(fn.mul(step, word["gates_step"]), fn.mul(step, word["out_step"]))

    def _lines(self, count: str) -> str:
        return ceil_div(self.fn, count, str(self.steps.units))

    def _state(self, name: str, first: str) -> str:
        """Where the state of the item's rows lies, filled with what it is before the first step."""
        width = self.word["outputs" if name == "h" else "hidden"]
        offset = self.fn.mul(first, width)
        to, source = self._element(self.at[name], offset), self._element(self.at[f"first_{name}"], offset)
        self._copy(to, source, self.fn.mul(self.rows, width))
        return to

    def _copy(self, to: str, source: str, count: str) -> None:
        fn = self.fn
        fn.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
        fn.do(f"call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {fn.mul(count, self.size)}, i1 false)")

    def _packed_steps(self, is_back: str, row: str) -> None:
        """Steps with rows of their own number, one behind the other."""
        fn, word = self.fn, self.word
        with fn.loop(0, word["steps"], carried=[("i64", "0")]) as sum_:
            (total,) = sum_.carried
            total.next = fn.add(total.now, fn.load("i64", fn.gep("i64", self.at["counts"], sum_.index), 8))
        start = fn.let(f"select i1 {is_back}, i64 {total.last}, i64 0", "i")
        last = fn.let(f"sub nsw i64 {word['steps']}, 1", "i")
        whole = self.rows
        with fn.loop(0, word["steps"], carried=[("i64", start)]) as at:
            (place,) = at.carried
            mirrored = fn.let(f"sub nsw i64 {last}, {at.index}", "i")
            step = fn.let(f"select i1 {is_back}, i64 {mirrored}, i64 {at.index}", "i")
            count = fn.load("i64", fn.gep("i64", self.at["counts"], step), 8)
            before = fn.let(f"sub nsw i64 {place.now}, {count}", "i")
            behind = fn.add(place.now, count)
            begin = fn.let(f"select i1 {is_back}, i64 {before}, i64 {place.now}", "i")
            place.next = fn.let(f"select i1 {is_back}, i64 {before}, i64 {behind}", "i")
            self.rows = minimum(fn, whole, fn.let(f"sub nsw i64 {count}, {row}", "i"))
            with fn.when(fn.let(f"icmp sgt i64 {self.rows}, 0", "b")):
                self._step(fn.mul(begin, word["gates_row"]), fn.mul(begin, word["out_row"]))

    # --- a step

    def _step(self, gates: str, out: str) -> None:
        """One step of the item's rows; gates, out: elements to where it begins."""
        fn, here, word = self.fn, self.here, self.word
        into, result = self._element(here["gates"], gates), self._element(here["out"], out)
        cells, cells_row = result, word["out_row"]
        if self.steps.projected:
            cells, cells_row = fn.gep("i8", "%scratch", self.gates * _SUM_ROWS * LINE_NBYTES), word["hidden"]
        with fn.loop(0, self._lines(word["hidden"])) as line:
            self._ask_ahead(into, line.index)
            self._sums(here["h"], word["outputs"], here["weight"], line.index, self.gates)
            for part in self._cell_parts():
                self._each(line.index, word["hidden"], self._at_rows(part, into, (cells, cells_row)))
        if self.steps.projected:
            with fn.loop(0, self._lines(word["outputs"])) as line:
                self._sums(cells, word["hidden"], here["projection"], line.index, 1)
                self._each(line.index, word["outputs"], lambda row, unit, mask: self._put(
                    self._sum(0, row, unit), self._element(self._row(result, word["out_row"], row), unit), mask
                ))  # fmt: skip
        with fn.loop(0, self.rows) as row:
            to, source = (self._row(at, step, row.index) for at, step in (
                (here["h"], word["outputs"]), (result, word["out_row"])
            ))  # fmt: skip
            self._copy(to, source, word["outputs"])

    def _at_rows(self, part: _Part, into: str, cells: tuple[str, str]) -> Callable[[str, str, str | None], None]:
        """A part of the cell, of row, unit and mask. into: the step's gates; cells: its outputs, and a row of them."""

        def emit(row: str, unit: str, mask: str | None) -> None:
            part(row, unit, mask, self._row(into, self.word["gates_row"], row), self._row(*cells, row))

        return emit

    def _ask_ahead(self, into: str, line: str) -> None:
        """Ask for the gates of a line of units in the next step, while this one's sums are made."""
        if not self.ahead:
            return
        fn = self.fn
        at = fn.gep("i8", fn.gep("i8", into, self.ahead), fn.mul(line, LINE_NBYTES))
        with fn.loop(0, self.rows) as row:
            here = self._row(at, self.word["gates_row"], row.index)
            for gate in range(self.gates):
                prefetch(fn, self._element(here, fn.mul(self.word["hidden"], gate)))

    def _row(self, base: str, step: str, row: str) -> str:
        return self._element(base, self.fn.mul(row, step))

    def _sums(self, left: str, terms: str, weight: str, line: str, gates: int) -> None:
        """The products of a line of units with the rows' `terms` numbers, into scratch: [group of gates][row][unit]."""
        fn, tiling = self.fn, self.tiling
        panel = fn.mul(terms, LINE_NBYTES)
        beside = tiling.panel // self.steps.units
        first = fn.gep("i8", weight, fn.mul(line, fn.mul(panel, gates)))
        for group in range(0, gates, beside):
            sums = fn.gep("i8", "%scratch", group * _SUM_ROWS * LINE_NBYTES)
            with fn.loop(0, fn.mul(self.rows, tiling.vectors)) as z:
                to = fn.gep("i8", sums, fn.mul(z.index, tiling.lanes * self.size))
                fn.store(tiling.vector, "zeroinitializer", to, self.size)
            b = fn.gep("i8", first, fn.mul(panel, group))
            with fn.loop(0, terms, self.word["block_terms"]) as k:
                count = minimum(fn, self.word["block_terms"], fn.let(f"sub nsw i64 {terms}, {k.index}", "i"))
                fn.do(strip_call(
                    tiling.vectors, a=self._element(left, k.index), a_row=fn.mul(terms, self.size), a_k=str(self.size),
                    b=fn.gep("i8", b, fn.mul(k.index, LINE_NBYTES)), b_k=str(LINE_NBYTES), b_panel=panel, k=count,
                    sums=sums, height=self.rows, next="null", next_step="0", out="null", out_row="0",
                ))  # fmt: skip

    def _each(self, line: str, count: str, emit: Callable[[str, str, str | None], None]) -> None:
        """For the registers of a line of so many units in each row."""
        fn, lanes = self.fn, self.tiling.lanes
        first = fn.mul(line, self.steps.units)
        last = minimum(fn, fn.add(first, self.steps.units), count)
        size = fn.let(f"sub nsw i64 {last}, {first}", "i")
        whole = fn.add(first, fn.let(f"and i64 {size}, {-lanes}", "i"))
        with fn.loop(0, self.rows) as row:
            with fn.loop(first, whole, lanes) as unit:
                emit(row.index, unit.index, None)
            if self.steps.ragged:
                rest = fn.let(f"sub nsw i64 {last}, {whole}", "i")
                with fn.when(fn.let(f"icmp sgt i64 {rest}, 0", "b")):
                    emit(row.index, whole, lane_mask(fn, lanes, rest))

    def _sum(self, gate: int, row: str, unit: str) -> str:
        """The sums of a gate for a register of units."""
        return self.fn.load(self.tiling.vector, self._sum_at(gate, row, unit), self.size)

    def _sum_at(self, gate: int, row: str, unit: str) -> str:
        fn, beside = self.fn, self.tiling.panel // self.steps.units
        base = fn.gep("i8", "%scratch", gate // beside * beside * _SUM_ROWS * LINE_NBYTES + gate % beside * LINE_NBYTES)
        inside = fn.let(f"and i64 {unit}, {self.steps.units - 1}", "i")
        return self._element(fn.gep("i8", base, fn.mul(row, beside * LINE_NBYTES)), inside)

    def _get(self, at: str, mask: str | None) -> str:
        return load_some(self.fn, self.tiling.vector, at, mask, self.size)

    def _put(self, value: str, at: str, mask: str | None) -> None:
        if mask is None:
            self.fn.store(self.tiling.vector, value, at, self.size)
        else:
            masked_store(self.fn, self.tiling.vector, value, at, mask, self.size)

    # --- cells: eager's formulas, with one division where a sigmoid multiplies

    def _cell_parts(self) -> tuple[_Part, ...]:
        """What gives the next state of a register of units, each for all rows before the next: a function of another
        one's result is a chain of operations as long as a core looks ahead, and rows overlap where chains are short.
        """
        match self.steps.kind:
            case "lstm":
                return self._lstm_cell, self._lstm_out
            case "gru":
                return self._gru_new, self._gru_out
            case "tanh":
                return (self._tanh,)
            case "relu":
                return (self._relu,)

    def _gate(self, number: int, into: str, unit: str, mask: str | None) -> str:
        at = self._element(into, self.fn.add(self.fn.mul(self.word["hidden"], number), unit))
        return self._get(at, mask)

    def _both(self, number: int, row: str, unit: str, mask: str | None, into: str) -> str:
        """A gate: what the input and the state say of it."""
        return self.m.add(self._sum(number, row, unit), self._gate(number, into, unit, mask))

    def _state_at(self, name: str, row: str, unit: str) -> str:
        return self._element(self._row(self.here[name], self.word["hidden"], row), unit)

    def _lstm_cell(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        m, at = self.m, self._state_at("c", row, unit)
        kept = m.div(self._get(at, mask), self._opened(self._both(1, row, unit, mask, into)))
        new, below = self.math.tanh_parts(self._both(2, row, unit, mask, into))
        self._put(m.add(kept, m.div(new, m.mul(self._opened(self._both(0, row, unit, mask, into)), below))), at, mask)

    def _lstm_out(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        m = self.m
        new, below = self.math.tanh_parts(self._get(self._state_at("c", row, unit), mask))
        opened = self._opened(self._both(3, row, unit, mask, into))
        self._put(m.div(new, m.mul(opened, below)), self._element(out, unit), mask)

    def _gru_new(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        """What the new state's tanh is of, in place of the sums of its gate."""
        m = self.m
        past = m.add(self._sum(2, row, unit), self._get(self._element(self.here["inner"], unit), mask))
        past = m.div(past, self._opened(self._both(0, row, unit, mask, into)))
        self.fn.store(
            self.tiling.vector, m.add(self._gate(2, into, unit, mask), past), self._sum_at(2, row, unit), self.size
        )  # fmt: skip

    def _gru_out(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        m = self.m
        state = self._get(self._state_at("h", row, unit), mask)
        new = m.div(*self.math.tanh_parts(self._sum(2, row, unit)))
        opened = self._opened(self._both(1, row, unit, mask, into))
        self._put(m.add(m.div(m.sub(state, new), opened), new), self._element(out, unit), mask)

    def _tanh(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        self._put(
            self.m.div(*self.math.tanh_parts(self._both(0, row, unit, mask, into))), self._element(out, unit), mask
        )  # fmt: skip

    def _relu(self, row: str, unit: str, mask: str | None, into: str, out: str) -> None:
        m, x = self.m, self._both(0, row, unit, mask, into)
        self._put(
            m.select(m.cmp("uno", x, x), x, m.select(m.cmp("ogt", x, 0.0), x, 0.0)), self._element(out, unit), mask
        )  # fmt: skip

    def _opened(self, x: str) -> str:
        """What a number is divided by where it is multiplied by sigmoid(x)."""
        return self.m.add(self.math.exp_above_normal(self.m.neg(x)), 1.0)
