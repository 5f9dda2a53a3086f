"""Kernels that pack a weight inside the call, for weights that change from one call to the next (training).

    squares of a weight are loaded along its own memory, a row for each lane, turned in registers and stored as the
    convolution's kernel reads them (see pack.py); for the gradient of an image, channels change places and taps turn

Invariant: a square's columns beyond the run are stored first, over a place that its first column is stored to last, so
that nothing outside the packed memory is written and no store needs a mask.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from smelt.codegen.contract.panels import transposed
from smelt.codegen.conv import winograd
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.conv.shape import ConvShape
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText

Form = Literal["dense", "depthwise", "winograd"]

_WORDS = (
    "group_panels", "group_columns", "group_step", "lane_step", "run", "taps", "outer", "outer_step", "to_tap",
    "to_channel", "to_outer", "to_first", "panel_size",
)  # fmt: skip
_POINT_WORDS = ("channels", "lane_step", "channel_step", "panel_size")


@dataclass(frozen=True, slots=True)
class Packed:
    """How a kernel wants its weight: the form, and the lanes and vectors of its panels. turned: the weight is of the
    convolution whose image's gradient this is: f32[cin, cout / groups, kh, kw], with the last tap first.
    """

    form: Form
    lanes: int
    vectors: int
    turned: bool = False

    @property
    def columns(self) -> int:
        """Channels of a panel."""
        return self.lanes * self.vectors


@dataclass(frozen=True, slots=True)
class Repacking:
    """A launch that packs: the kernel's text, its words and items, and how many elements it writes.

    Buffers: weight (row-major), packed.
    """

    text: str
    words: tuple[int, ...]
    items: int
    nelements: int


def repacking(isa: Isa, shape: ConvShape, packed: Packed) -> Repacking:
    """What packs the weight of a convolution; `shape` is that of the convolution which reads it."""
    taps, columns = shape.kh * shape.kw, packed.columns
    steps: tuple[int, ...]
    ends: tuple[int, ...]
    if packed.form == "winograd":
        panels, size = shape.cout // columns, winograd.POINTS * shape.cin * columns
        steps = (taps, shape.cout * taps) if packed.turned else (shape.cin * taps, taps)
        words: tuple[int, ...] = (shape.cin, *steps, size)
        return Repacking(_points_text(isa, packed), words, panels * packed.vectors, panels * size)
    if packed.form == "depthwise":
        panels, size = -(-shape.cin // columns), taps * columns
        ends = (-columns, 0, 0, (taps - 1) * columns) if packed.turned else (columns, 0, 0, 0)
        words = (panels, shape.cin, 0, taps, taps, taps, 1, 0, *ends, size)
        return Repacking(_squares_text(isa, packed), words, panels * packed.vectors, panels * size)
    per_group, inner = -(-shape.group_out // columns), shape.group_in
    size, panels = shape.depth * columns, per_group * shape.groups
    whole = shape.group_out * inner * taps
    if packed.turned:
        steps = (taps, taps, taps, inner, shape.group_out * taps)
        ends = (-inner * columns, 0, columns, (taps - 1) * inner * columns)
    else:
        steps = (inner * taps, inner * taps, taps, 1, 0)
        ends = (inner * columns, columns, 0, 0)
    words = (per_group, shape.group_out, whole, *steps, *ends, size)
    return Repacking(_squares_text(isa, packed), words, panels * packed.vectors, panels * size)


class _Squares:
    """What both kernels do: an item's rows, and squares of them."""

    def __init__(self, isa: Isa, packed: Packed, words: tuple[str, ...]) -> None:
        self.packed, self.lanes = packed, packed.lanes
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, Tile(packed.lanes, 1, 1))
        self.weight, self.to = fn.address(0), fn.address(1)
        self.words = {name: fn.word(2 + i) for i, name in enumerate(words)}

    def numbers(self, item: str) -> tuple[str, str]:
        """Panel of an item, and its first channel in that."""
        fn, vectors = self.fn, self.packed.vectors
        inside = fn.mul(fn.let(f"urem i64 {item}, {vectors}"), self.lanes)
        return fn.let(f"udiv i64 {item}, {vectors}"), inside

    def turned(self, source: str, lane_step: str, left: str, rows: str) -> list[str]:
        """The columns of a square: up to `left` elements of each row, of the first `rows` rows; the rest is 0."""
        fn = self.fn
        mask = self.micro.masks(left)[0]
        loaded = []
        for lane in range(self.lanes):
            is_row = self.micro.splat(fn.let(f"icmp sgt i64 {rows}, {lane}"), "i1")
            both = fn.let(f"and <{self.lanes} x i1> {mask}, {is_row}")
            loaded.append(self.micro.load(fn.gep("float", source, fn.mul(lane_step, lane)), both))
        return transposed(fn, self.micro.type, self.lanes, loaded)


# --- panels of products


@lru_cache(maxsize=64)
def _squares_text(isa: Isa, packed: Packed) -> str:
    """An item is a vector of channels of one panel."""
    made = _Squares(isa, packed, _WORDS)
    fn, w, lanes = made.fn, made.words, made.lanes
    with fn.loop("%begin", "%end") as item:
        panel, inside = made.numbers(item.index)
        group = fn.let(f"udiv i64 {panel}, {w['group_panels']}")
        first = fn.add(fn.mul(fn.let(f"urem i64 {panel}, {w['group_panels']}"), packed.columns), inside)
        source = fn.gep("float", made.weight, fn.add(fn.mul(group, w["group_step"]), fn.mul(first, w["lane_step"])))
        rows = fn.let(f"sub i64 {w['group_columns']}, {first}")
        begin = fn.add(fn.add(fn.mul(panel, w["panel_size"]), inside), w["to_first"])
        back = fn.let(f"sub i64 {w['to_channel']}, {fn.mul(fn.add(w['taps'], -1), w['to_tap'])}")
        with fn.loop(0, w["outer"]) as outer:
            row = fn.gep("float", source, fn.mul(outer.index, w["outer_step"]))
            at = fn.add(begin, fn.mul(outer.index, w["to_outer"]))
            with fn.loop(0, w["run"], lanes, [("i64", "0"), ("i64", at)]) as k:
                left = fn.let(f"sub i64 {w['run']}, {k.index}")
                columns = made.turned(fn.gep("float", row, k.index), w["lane_step"], left, rows)
                tap, place = (c.now for c in k.carried)
                places = []
                for i in range(lanes):
                    is_inside = fn.let(f"icmp sgt i64 {left}, {i}")
                    places.append(fn.let(f"select i1 {is_inside}, i64 {place}, i64 {k.carried[1].now}"))
                    following = fn.add(tap, 1)
                    wraps = fn.let(f"icmp eq i64 {following}, {w['taps']}")
                    tap = fn.let(f"select i1 {wraps}, i64 0, i64 {following}")
                    place = fn.add(place, fn.let(f"select i1 {wraps}, i64 {back}, i64 {w['to_tap']}"))
                for c, value in zip(k.carried, (tap, place), strict=True):
                    c.next = value
                for column, to in reversed(list(zip(columns, places, strict=True))):
                    made.micro.store(column, fn.gep("float", made.to, to))
    return fn.finish()


# --- 3x3 with fewer products


@lru_cache(maxsize=64)
def _points_text(isa: Isa, packed: Packed) -> str:
    """The same, with G g Gt of each input channel's taps (see winograd.py)."""
    made = _Squares(isa, packed, _POINT_WORDS)
    fn, w = made.fn, made.words
    with fn.loop("%begin", "%end") as item:
        panel, inside = made.numbers(item.index)
        first = fn.add(fn.mul(panel, packed.columns), inside)
        source = fn.gep("float", made.weight, fn.mul(first, w["lane_step"]))
        to = fn.gep("float", made.to, fn.add(fn.mul(panel, w["panel_size"]), inside))
        point = fn.mul(w["channels"], packed.columns)
        with fn.loop(0, w["channels"]) as channel:
            row = fn.gep("float", source, fn.mul(channel.index, w["channel_step"]))
            taps: list[str] = []
            for start in range(0, 9, made.lanes):
                columns = made.turned(fn.gep("float", row, start), w["lane_step"], str(9 - start), str(made.lanes))
                taps += columns[: 9 - start]
            if packed.turned:
                taps.reverse()
            at = fn.gep("float", to, fn.mul(channel.index, packed.columns))
            for i, value in enumerate(_points(made.micro, taps)):
                made.micro.store(value, fn.gep("float", at, fn.mul(point, i)))
    return fn.finish()


def _points(micro: Micro, g: list[str]) -> list[str]:
    """G g Gt of nine taps."""
    columns = [_three_to_four(micro, [g[3 * i + j] for i in range(3)]) for j in range(3)]
    return [value for i in range(4) for value in _three_to_four(micro, [columns[j][i] for j in range(3)])]


def _three_to_four(micro: Micro, g: list[str]) -> list[str]:
    """G g of a column: g0, (g0 + g1 + g2) / 2, (g0 - g1 + g2) / 2, g2."""
    fn, type_ = micro.fn, micro.type
    half = micro.splat("0.5")
    ends = fn.let(f"fadd {type_} {g[0]}, {g[2]}")
    both = (fn.let(f"{op} {type_} {ends}, {g[1]}") for op in ("fadd", "fsub"))
    return [g[0], *(fn.let(f"fmul {type_} {value}, {half}") for value in both), g[2]]
