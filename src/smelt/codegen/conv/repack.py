"""Kernels that pack a weight inside the call, for weights that change from one call to the next (training).

    squares of a weight are loaded along its own memory, a row for each lane, turned in registers and stored as the
    convolution's kernel reads them (see pack.py); for the gradient of an image, channels change places and taps turn

Invariant: a square's columns beyond the run are stored first, over a place that its first column is stored to last, so
that nothing outside the packed memory is written and no store needs a mask. Lanes beyond a group's last channel hold
that channel once more: nobody stores what they give.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.contract.panels import transposed
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.conv.shape import ConvShape
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record
from smelt.runtime.filters import POINTS, Form

_WORDS = (
    "group_panels", "group_columns", "group_step", "lane_step", "run", "taps", "outer", "outer_step", "to_tap",
    "to_channel", "to_outer", "to_first", "panel_size",
)  # fmt: skip
_ROW_WORDS = ("group_panels", "group_columns", "group_step", "rows", "panel_size")
_POINT_WORDS = ("channels", "lane_step", "channel_step", "panel_size")


@record
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


@record
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
        panels, size = shape.cout // columns, POINTS * shape.cin * columns
        steps = (taps, shape.cout * taps) if packed.turned else (shape.cin * taps, taps)
        words: tuple[int, ...] = (shape.cin, *steps, size)
        return Repacking(_points_text(isa, packed), words, panels, panels * size)
    if packed.form == "depthwise":
        panels, size = -(-shape.cin // columns), taps * columns
        ends = (-columns, 0, 0, (taps - 1) * columns) if packed.turned else (columns, 0, 0, 0)
        words = (panels, shape.cin, 0, taps, taps, taps, 1, 0, *ends, size)
        return Repacking(_squares_text(isa, packed), words, panels, panels * size)
    per_group, inner = -(-shape.group_out // columns), shape.group_in
    size, panels = shape.depth * columns, per_group * shape.groups
    whole = shape.group_out * inner * taps
    if packed.turned and taps == 1:
        words = (per_group, shape.group_out, whole, inner, size)
        return Repacking(_rows_text(isa, packed), words, panels, panels * size)
    if packed.turned:
        steps = (taps, taps, taps, inner, shape.group_out * taps)
        ends = (-inner * columns, 0, columns, (taps - 1) * inner * columns)
    else:
        steps = (inner * taps, inner * taps, taps, 1, 0)
        ends = (inner * columns, columns, 0, 0)
    words = (per_group, shape.group_out, whole, *steps, *ends, size)
    return Repacking(_squares_text(isa, packed), words, panels, panels * size)


class _Squares:
    """What both kernels do: an item's rows, and squares of them."""

    def __init__(self, isa: Isa, packed: Packed, words: tuple[str, ...]) -> None:
        self.packed, self.lanes = packed, packed.lanes
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, Tile(packed.lanes, 1, 1))
        self.weight, self.to = fn.address(0), fn.address(1)
        self.words = {name: fn.word(2 + i) for i, name in enumerate(words)}

    def place(self, panel: str) -> tuple[str, str]:
        """Group of a panel, and its first channel in that."""
        fn, w = self.fn, self.words
        inside = fn.let(f"urem i64 {panel}, {w['group_panels']}")
        return fn.let(f"udiv i64 {panel}, {w['group_panels']}"), fn.mul(inside, self.packed.columns)

    def turned(self, source: str, lane_step: str, left: str, rows: str | None) -> list[str]:
        """The columns of a square: up to `left` elements of each row, 0 behind them. rows: how many there are."""
        fn, loaded = self.fn, []
        mask = self.micro.masks(left)[0]
        last = None if rows is None else fn.let(f"sub i64 {rows}, 1")
        for lane in range(self.lanes):
            row = str(lane)
            if last is not None:
                row = fn.let(f"select i1 {fn.let(f'icmp slt i64 {last}, {lane}')}, i64 {last}, i64 {lane}")
            loaded.append(self.micro.load(fn.gep("float", source, fn.mul(lane_step, row)), mask))
        return transposed(fn, self.micro.type, self.lanes, loaded)


# --- panels of products


@lru_cache(maxsize=64)
def _squares_text(isa: Isa, packed: Packed) -> str:
    """An item is a panel."""
    made = _Squares(isa, packed, _WORDS)
    fn, w, lanes = made.fn, made.words, made.lanes
    with fn.loop("%begin", "%end") as panel:
        group, first = made.place(panel.index)
        source = fn.gep("float", made.weight, fn.add(fn.mul(group, w["group_step"]), fn.mul(first, w["lane_step"])))
        rows = fn.let(f"sub i64 {w['group_columns']}, {first}")
        begin = fn.add(fn.mul(panel.index, w["panel_size"]), w["to_first"])
        back = fn.let(f"sub i64 {w['to_channel']}, {fn.mul(fn.add(w['taps'], -1), w['to_tap'])}")
        with fn.loop(0, w["outer"]) as outer, fn.loop(0, packed.columns, lanes) as j:
            row = fn.gep("float", source, fn.mul(outer.index, w["outer_step"]))
            row = fn.gep("float", row, fn.mul(j.index, w["lane_step"]))
            at = fn.add(fn.add(begin, fn.mul(outer.index, w["to_outer"])), j.index)
            left_rows = fn.let(f"sub i64 {rows}, {j.index}")
            with fn.loop(0, w["run"], lanes, [("i64", "0"), ("i64", at)]) as k:
                left = fn.let(f"sub i64 {w['run']}, {k.index}")
                columns = made.turned(fn.gep("float", row, k.index), w["lane_step"], left, left_rows)
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


@lru_cache(maxsize=64)
def _rows_text(isa: Isa, packed: Packed) -> str:
    """The same where the channels of a panel are adjacent: of a single tap, turned."""
    made = _Squares(isa, packed, _ROW_WORDS)
    fn, w = made.fn, made.words
    with fn.loop("%begin", "%end") as panel:
        group, first = made.place(panel.index)
        source = fn.gep("float", made.weight, fn.add(fn.mul(group, w["group_step"]), first))
        to = fn.gep("float", made.to, fn.mul(panel.index, w["panel_size"]))
        left = fn.let(f"sub i64 {w['group_columns']}, {first}")
        with fn.loop(0, w["rows"]) as row, fn.loop(0, packed.columns, packed.lanes) as j:
            mask = made.micro.masks(fn.let(f"sub i64 {left}, {j.index}"))[0]
            here = fn.gep("float", source, fn.add(fn.mul(row.index, w["group_columns"]), j.index))
            at = fn.add(fn.mul(row.index, packed.columns), j.index)
            made.micro.store(made.micro.load(here, mask), fn.gep("float", to, at))
    return fn.finish()


# --- 3x3 with fewer products


@lru_cache(maxsize=64)
def _points_text(isa: Isa, packed: Packed) -> str:
    """The same, with G g Gt of each input channel's taps (see winograd.py)."""
    made = _Squares(isa, packed, _POINT_WORDS)
    fn, w = made.fn, made.words
    point = fn.mul(w["channels"], packed.columns)
    with fn.loop("%begin", "%end") as panel:
        source = fn.gep("float", made.weight, fn.mul(fn.mul(panel.index, packed.columns), w["lane_step"]))
        to = fn.gep("float", made.to, fn.mul(panel.index, w["panel_size"]))
        with fn.loop(0, w["channels"]) as channel, fn.loop(0, packed.columns, made.lanes) as j:
            at = fn.add(fn.mul(channel.index, w["channel_step"]), fn.mul(j.index, w["lane_step"]))
            row = fn.gep("float", source, at)
            taps: list[str] = []
            for start in range(0, 9, made.lanes):
                columns = made.turned(fn.gep("float", row, start), w["lane_step"], str(9 - start), None)
                taps += columns[: 9 - start]
            if packed.turned:
                taps.reverse()
            into = fn.gep("float", to, fn.add(fn.mul(channel.index, packed.columns), j.index))
            for i, value in enumerate(_points(made.micro, taps)):
                made.micro.store(value, fn.gep("float", into, fn.mul(point, i)))
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
