"""The text of one kernel in the making: its lines, the loop that is open, its words, counters and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import Index, loop_name
from smelt.codegen.kernels.simplify import indices
from smelt.codegen.triton.kernel import PLACEHOLDER, Word
from smelt.codegen.triton.layout import Layout
from smelt.ir.sizes import ceil_div

_LIMIT = 2**31 - 2**20
"""Beyond it, words and numbers of elements are 64 bits long; a block's reach below."""

_BAND = 8
"""Rows of tiles of a product's result that are computed beside one another."""

ACROSS, ALONG = 1, 2
"""Bits of the axes of a block."""


@dataclass(slots=True)
class Text:
    """What all frames of one kernel write to. lines: once a program; loop (if open): in each iteration of its loop."""

    lines: list[str] = field(default_factory=list)
    loop: list[str] | None = None
    words: list[Word] = field(default_factory=list)
    known: dict[int, str] = field(default_factory=dict)
    numbers: int = 0
    can_fail: bool = False

    def word(self, value: int) -> str:
        """A number as text: 0 and 1 themselves, others a word, the same for equal ones."""
        if value in (0, 1):
            return str(value)
        if value not in self.known:
            self.known[value] = f"w{len(self.words)}"
            self.words.append(Word.of(value))
        return self.known[value]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a block by the names that a text has: of its size, and of the mask of its points ("": all are)."""

    size: str
    mask: str


class Frame:
    """Lines, words and counters of one block; several frames write one text where a product has blocks of its own."""

    def __init__(
        self,
        graph: Graph,
        layout: Layout,
        text: Text | None = None,
        across: Axis = Axis("R", "rows"),
        along: Axis = Axis("B", "columns"),
    ) -> None:
        self.graph, self.layout, self.nest = graph, layout, graph.nest
        self.text = text or Text()
        self.across, self.along = across, along
        self.counters: dict[int, str] = {}
        self.is_wide = max([prod(self.nest.sizes), *map(self._reach, indices(self.nest))]) >= _LIMIT
        self.has_two = bool(layout.across and layout.along)

    # --- lines

    @property
    def lines(self) -> list[str]:
        """The lines that run once a program."""
        return self.text.lines

    @property
    def loop(self) -> list[str] | None:
        """The lines of the open loop."""
        return self.text.loop

    @property
    def words(self) -> list[Word]:
        """The numbers that a launch passes."""
        return self.text.words

    @property
    def can_fail(self) -> bool:
        """Whether some line refuses data."""
        return self.text.can_fail

    def refuses(self) -> None:
        """Some line refuses data."""
        self.text.can_fail = True

    def emit(self, line: str, is_inner: bool = False) -> None:
        """Append a line, to the open loop if it changes there."""
        text = self.text
        (text.loop if is_inner and text.loop is not None else text.lines).append(line)

    def let(self, text: str, is_inner: bool = False, prefix: str = "v") -> str:
        """Name a text's value."""
        name = self.fresh(prefix)
        self.emit(f"{name} = {bare(text)}", is_inner)
        return name

    def fresh(self, prefix: str) -> str:
        """A name that is not in use."""
        self.text.numbers += 1
        return f"{prefix}{self.text.numbers}"

    def close(self, head: str) -> None:
        """Put the open loop behind the lines so far."""
        assert self.text.loop is not None
        if self.layout.unroll > 1:
            bounds = head.removesuffix("):").replace("in range(", "in tl.range(")
            head = f"{bounds}, loop_unroll_factor={self.layout.unroll}):"
        self.text.lines += [head, *(f"    {line}" for line in self.text.loop)]
        self.text.loop = None

    # --- words

    def word(self, value: int) -> str:
        """A number as text: 0 and 1 themselves, others a word, the same for equal ones."""
        return self.text.word(value)

    def _reach(self, index: Index) -> int:
        reach = abs(index.offset)
        reach += sum(abs(stride) * size for stride, size in zip(index.strides, self.nest.sizes, strict=True))
        return reach + sum(abs(gather.stride) * gather.size for gather in index.gathers)

    # --- axes

    def shape(self, axes: int) -> str:
        """The shape of a value that changes along these axes."""
        rows, columns = self.across.size, self.along.size
        if not self.has_two:
            return {0: "()", ACROSS: f"({rows},)", ALONG: f"({columns},)"}[axes]
        return f"({rows if axes & ACROSS else '1'}, {columns if axes & ALONG else '1'})" if axes else "()"

    @property
    def all_axes(self) -> int:
        """The axes that a block has."""
        return (ACROSS if self.layout.across else 0) | (ALONG if self.layout.along else 0)

    def mask(self, axes: int) -> str:
        """Where a block's points along these axes are points of the nest; "" if all are."""
        if axes == ACROSS | ALONG and self.layout.form != "dot":
            return "inside"
        masks = [self.across.mask if axes & ACROSS else "", self.along.mask if axes & ALONG else ""]
        return " & ".join(mask for mask in masks if mask)

    def head(self) -> None:
        """Emit the counters of the loops that a program has one block of."""
        layout, sizes = self.layout, self.nest.sizes
        blocks: list[tuple[str, int]] = [(loop_name(self.nest, k), sizes[k]) for k in layout.grid]
        if layout.form == "dot":
            self.tiles(blocks)
            return
        if layout.across:
            blocks.append(("block", ceil_div(prod(sizes[k] for k in layout.across), layout.r)))
        if layout.form == "tile":
            blocks.append(("column", ceil_div(prod(sizes[k] for k in layout.along), layout.b)))
        names = self._split(self.program, blocks)
        for loop in layout.grid:
            self.counters[loop] = names[loop_name(self.nest, loop)]
        if layout.across:
            self._axis(ACROSS, f"{names['block']} * R", layout.across, False)
        if layout.form == "tile":
            self._axis(ALONG, f"{names['column']} * B", layout.along, False)
        if layout.form == "rows":
            self._axis(ALONG, "", layout.along, False)
        if self.has_two and not layout.is_looped:
            self.emit("inside = rows & columns")

    @property
    def program(self) -> str:
        """The program's number as text."""
        return "tl.program_id(0)" + (".to(tl.int64)" if self.is_wide else "")

    def tiles(self, grid: Sequence[tuple[str, int]]) -> None:
        """The counters of a tile of a product's result. grid: loops of which a program has one step."""
        layout, sizes = self.layout, self.nest.sizes
        rows = ceil_div(prod(sizes[k] for k in layout.across), layout.r)
        columns = ceil_div(prod(sizes[k] for k in layout.along), layout.b)
        names = self._split(self.program, [*grid, ("tile", rows * columns)])
        for loop in layout.grid:
            self.counters[loop] = names[loop_name(self.nest, loop)]
        if rows == 1 or columns == 1:
            block, column = ("0", names["tile"]) if rows == 1 else (names["tile"], "0")
        else:
            # Tiles of few rows of tiles after one another, which need few blocks of the right factor at once.
            high, wide = self.word(rows), self.word(columns)
            self.emit(f"band = tile // ({_BAND} * {wide}) * {_BAND}")
            self.emit(f"height = tl.minimum({high} - band, {_BAND})")
            self.emit(f"rest = tile % ({_BAND} * {wide})")
            block, column = self.let("band + rest % height", prefix="p"), self.let("rest // height", prefix="p")
        self._axis(ACROSS, f"{block} * R", layout.across, False)
        self._axis(ALONG, f"{column} * B", layout.along, False)

    def depth(self, axis: int, start: str, name: str, is_even: bool) -> None:
        """In the open loop: the counters of the inner points of a product's block, along one of a frame's axes."""
        lanes = f"tl.arange(0, K){'[:, None]' if axis == ACROSS else '[None, :]'}"
        self.emit(f"{name} = {start} + {lanes}", True)
        inner = tuple(range(len(self.nest.outer), len(self.nest.sizes)))
        if not is_even:
            mask = (self.across if axis == ACROSS else self.along).mask
            self.emit(f"{mask} = {name} < {self.word(prod(self.nest.inner))}", True)
        self._digits(name, inner, True, name)

    def open(self) -> str:
        """Open a loop over the inner points; the line that it begins with, for `close`."""
        inner = range(len(self.nest.outer), len(self.nest.sizes))
        length = self.word(prod(self.nest.inner))
        self.text.loop = []
        if self.layout.along:
            self._axis(ALONG, "start", tuple(inner), True)
            if self.has_two:
                self.emit("inside = rows & columns", True)
            return f"for start in range(0, {length}, B):"
        self._digits("number", tuple(inner), True)
        return f"for number in range(0, {length}):"

    def _split(self, number: str, blocks: Sequence[tuple[str, int]]) -> dict[str, str]:
        """Counters of which a program's number is made, the last the fastest."""
        many = [(name, count) for name, count in blocks if count != 1]
        found = {name: "0" for name, count in blocks if count == 1}
        if not many:
            return found
        self.emit(f"program = {number}")
        rest = "program"
        for name, count in reversed(many[1:]):
            self.emit(f"{name} = {rest} % {self.word(count)}")
            found[name] = name
            rest = self.let(f"{rest} // {self.word(count)}", prefix="p")
        found[many[0][0]] = many[0][0]
        self.emit(f"{many[0][0]} = {rest}")
        return found

    def _axis(self, axis: int, start: str, loops: tuple[int, ...], is_inner: bool) -> None:
        size, name, mask = ("R", "row", "rows") if axis == ACROSS else ("B", "column_", "columns")
        lanes = f"tl.arange(0, {size})"
        if self.has_two:
            lanes += "[:, None]" if axis == ACROSS else "[None, :]"
        if len(loops) == 1:
            name = loop_name(self.nest, loops[0])
        begin = "" if start.startswith("0 *") else start
        self.emit(f"{name} = {f'{begin} + ' if begin else ''}{lanes}", is_inner)
        self.emit(f"{mask} = {name} < {self.word(prod(self.nest.sizes[k] for k in loops))}", is_inner)
        self._digits(name, loops, is_inner)

    def _digits(self, name: str, loops: tuple[int, ...], is_inner: bool, prefix: str = "") -> None:
        """The counters of loops of whose points one number counts, row-major."""
        rest = name
        for loop in reversed(loops[1:]):
            size = self.word(self.nest.sizes[loop])
            self.counters[loop] = f"{prefix}{'_' if prefix else ''}{loop_name(self.nest, loop)}"
            self.emit(f"{self.counters[loop]} = {rest} % {size}", is_inner)
            rest = self.let(f"{rest} // {size}", is_inner, "p")
        if loops:
            self.counters[loops[0]] = rest

    def inner_number(self) -> str:
        """The row-major number of the inner point at hand."""
        inner = range(len(self.nest.outer), len(self.nest.sizes))
        if not self.layout.along:
            return f"(number + tl.zeros({self.shape(0)}, tl.int32))"
        return loop_name(self.nest, inner[0]) if len(inner) == 1 else "column_"

    def finish(self, lines: Sequence[str]) -> str:
        """The function's text around its lines."""
        names = [f"b{k}" for k in range(len(self.nest.buffers))]
        names += ["error"] * self.can_fail + [f"w{k}" for k in range(len(self.words))]
        names += [f"{name}: tl.constexpr" for name, _ in self.constants()]
        body = "\n".join(f"    {line}" for line in lines)
        return f"def {PLACEHOLDER}({', '.join(names)}):\n{body}"

    def constants(self) -> tuple[tuple[str, int], ...]:
        """The block sizes that the text uses."""
        layout = self.layout
        pairs = (("R", layout.r, layout.across), ("B", layout.b, layout.along), ("K", layout.k, layout.k > 1))
        return tuple((name, size) for name, size, loops in pairs if loops)


def bare(text: str) -> str:
    """A text without the brackets around all of it."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 or (depth == 1 and letter == ","):
            return text[1:-1] if depth == 0 and text[0] == "(" and at == len(text) - 1 else text
    return text
