"""Kernels of the gradient of a convolution's weight, over channels-last tensors, straight from both.

    for an item (a tile of output channels x vectors of input channels):
      for blocks of pixels, taps:  totals[tap] += sum over the block's pixels whose window has the tap inside:
                                     acc[o][j] = fma(g[pixel][o], x[pixel at tap][j], acc[o][j])
      store totals: where the taps of a channel are adjacent, in squares turned in registers

Invariant: what lies outside the image is not read and not multiplied. The order of a sum depends on the shape alone; it
is made of blocks of some pixels, each started at zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from smelt.codegen.contract.panels import transposed
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.conv.shape import ConvShape, Window
from smelt.codegen.conv.tiles import dense_tile, nanoseconds
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record

WORDS = (
    "out_tiles", "in_panels", "group_out", "group_in", "images", "oh", "ow", "g_pixel", "x_n", "x_h", "x_w", "stride_h",
    "stride_w", "row_block", "column_block", "out_o", "out_i", "out_tap",
)  # fmt: skip
BLOCK, FLAT_BLOCK = 32, 64
"""Pixels of one chain of a sum: the library's chains are longer where the window is a single pixel."""
_TAP = 5
"""Words of a tap: first row and column of the result for which it is inside, those after the last, its offset in x."""


@record
class GradientVariant:
    """What the text depends on: pixels of the tile are output channels.

    masked: input channels of a group are no multiple of the tile's. ragged: its output channels neither. squares: the
    taps of a channel are adjacent in the result, else the channels of a tap.
    """

    tile: Tile
    taps: int
    masked: bool
    ragged: bool
    squares: bool


@record
class GradientPlan:
    """A kernel with its words. Buffers: x (channels-last), the result's gradient (dense channels-last), out, table."""

    text: str
    words: tuple[int, ...]
    items: int
    item_ns: float
    scratch_nbytes: int
    table: torch.Tensor


def plan_gradient(
    isa: Isa, shape: ConvShape, x: tuple[int, int, int, int], out: tuple[int, int, int]
) -> GradientPlan | None:
    """The kernel for an x of these strides; out: strides of the result's output channels, input channels and taps.

    None where there is none: few input channels in a group, or a result that lies otherwise.
    """
    taps, at = shape.kh * shape.kw, shape.window
    squares = taps > 1 and out[2] == 1
    if shape.group_in < isa.f32_lanes or x[1] != 1 or not (squares or out[1] == 1):
        return None
    if taps == 1 and at == Window() and x[2] == shape.w * x[3] and x[0] == shape.h * x[2]:
        # One row of all pixels.
        shape = replace(shape, n=1, h=1, w=shape.pixels)
    tile = dense_tile(isa, shape.group_in, shape.group_out)
    block = min(FLAT_BLOCK, max(BLOCK, shape.pixels // 2)) if taps == 1 else BLOCK
    tiles, panels = -(-shape.group_out // tile.pixels), -(-shape.group_in // tile.columns)
    variant = GradientVariant(
        tile, taps, shape.group_in % tile.columns != 0, shape.group_out % tile.pixels != 0, squares
    )
    words = (
        tiles, panels, shape.group_out, shape.group_in, shape.n, shape.oh, shape.ow, shape.cout, x[0], x[2], x[3],
        *at.stride, max(1, block // shape.ow), block, *out,
    )  # fmt: skip
    table = [
        number
        for ky in range(shape.kh)
        for kx in range(shape.kw)
        for number in _tap(shape, ky * at.dilation[0], kx * at.dilation[1], (x[2], x[3]))
    ]
    return GradientPlan(
        _text(isa, variant), words, tiles * panels * shape.groups,
        nanoseconds(isa, shape.pixels * taps * tile.pixels * tile.columns), taps * tile.pixels * tile.columns * 4,
        torch.tensor(table, dtype=torch.int64),
    )  # fmt: skip


def _tap(shape: ConvShape, dy: int, dx: int, steps: tuple[int, int]) -> tuple[int, ...]:
    rows = _inside(dy - shape.window.before[0], shape.window.stride[0], shape.h, shape.oh)
    columns = _inside(dx - shape.window.before[1], shape.window.stride[1], shape.w, shape.ow)
    offset = (dy - shape.window.before[0]) * steps[0] + (dx - shape.window.before[1]) * steps[1]
    return rows[0], columns[0], rows[1], columns[1], offset


def _inside(shift: int, stride: int, size: int, count: int) -> tuple[int, int]:
    """For which of `count` results the place result * stride + shift lies in [0, size)."""
    first = max(0, -(shift // stride))
    return first, max(first, min(count, (size - 1 - shift) // stride + 1))


@record
class _Item:
    """Addresses of the item's channels in x, the gradient and the result; lanes that exist; output channels left."""

    x: str
    g: str
    out: str
    masks: list[str] | None
    rows: str
    channels: str


@lru_cache(maxsize=64)
def _text(isa: Isa, variant: GradientVariant) -> str:
    return _Gradient(isa, variant).text()


class _Gradient:
    def __init__(self, isa: Isa, variant: GradientVariant) -> None:
        self.variant = variant
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, variant.tile)
        self.x, self.g, self.out, self.table = (fn.address(i) for i in range(4))
        self.words = {name: fn.word(4 + i) for i, name in enumerate(WORDS)}
        self.nothing = self.micro.totals()

    def text(self) -> str:
        fn, w, tile = self.fn, self.words, self.variant.tile
        self.micro.clear(self.nothing)
        with fn.loop("%begin", "%end") as item:
            # Neighbouring items have the same input channels.
            tiles = fn.let(f"udiv i64 {item.index}, {w['out_tiles']}")
            first = fn.mul(fn.let(f"urem i64 {item.index}, {w['out_tiles']}"), tile.pixels)
            group = fn.let(f"udiv i64 {tiles}, {w['in_panels']}")
            column = fn.mul(fn.let(f"urem i64 {tiles}, {w['in_panels']}"), tile.columns)
            channels = fn.let(f"sub i64 {w['group_in']}, {column}")
            out = fn.add(fn.mul(group, w["group_out"]), first)
            self._item(
                _Item(
                    fn.gep("float", self.x, fn.add(fn.mul(group, w["group_in"]), column)),
                    fn.gep("float", self.g, out),
                    fn.gep("float", self.out, fn.add(fn.mul(out, w["out_o"]), fn.mul(column, w["out_i"]))),
                    self.micro.masks(channels) if self.variant.masked else None,
                    self._least(fn.let(f"sub i64 {w['group_out']}, {first}"), str(tile.pixels)),
                    channels,
                )
            )
        return fn.finish()

    def _item(self, item: _Item) -> None:
        fn, w = self.fn, self.words
        last = fn.let(f"sub i64 {item.rows}, 1")
        lanes = [
            str(o) if not self.variant.ragged else self._least(str(o), last) for o in range(self.micro.tile.pixels)
        ]
        with fn.loop(0, w["images"]) as image:
            g_image = fn.mul(fn.mul(image.index, w["oh"]), w["ow"])
            x_image = fn.gep("float", item.x, fn.mul(image.index, w["x_n"]))
            with fn.loop(0, w["oh"], w["row_block"]) as row, fn.loop(0, w["ow"], w["column_block"]) as column:
                ends = (
                    self._least(fn.add(row.index, w["row_block"]), w["oh"]),
                    self._least(fn.add(column.index, w["column_block"]), w["ow"]),
                )
                begun = fn.let(f"or i64 {fn.let(f'or i64 {image.index}, {row.index}')}, {column.index}")
                is_first = fn.let(f"icmp eq i64 {begun}, 0")
                with fn.loop(0, self.variant.taps) as tap:
                    entry = fn.gep("i64", self.table, fn.mul(tap.index, _TAP))
                    top, left, bottom, right, offset = (fn.load("i64", fn.gep("i64", entry, i), 8) for i in range(_TAP))
                    rows = self._most(top, row.index), self._least(bottom, ends[0])
                    columns = self._most(left, column.index), self._least(right, ends[1])
                    acc = self._sums(item, (fn.gep("float", x_image, offset), g_image), (rows, columns), lanes)
                    totals = self._totals(tap.index)
                    self.micro.add_to(totals, acc, fn.let(f"select i1 {is_first}, ptr {self.nothing}, ptr {totals}"))
        with fn.loop(0, item.rows) as o, fn.loop(0, self.micro.tile.vectors) as j:
            (self._store_squares if self.variant.squares else self._store_vectors)(item, o.index, j.index)

    def _sums(
        self, item: _Item, at: tuple[str, str], area: tuple[tuple[str, str], tuple[str, str]], lanes: Sequence[str]
    ) -> list[str]:
        """One tap over an area of an image. at: the tap's x for the first pixel, the image's first pixel."""
        fn, w, micro = self.fn, self.words, self.micro
        (top, bottom), (left, right) = area
        step_h, step_w = fn.mul(w["stride_h"], w["x_h"]), fn.mul(w["stride_w"], w["x_w"])
        carried = [(micro.type, value) for value in micro.zeros()]
        with fn.loop(top, bottom, 1, carried) as row:
            x = fn.gep("float", at[0], fn.add(fn.mul(row.index, step_h), fn.mul(left, step_w)))
            pixel = fn.add(fn.add(at[1], fn.mul(row.index, w["ow"])), left)
            g = fn.gep("float", item.g, fn.mul(pixel, w["g_pixel"]))
            inner = [(micro.type, c.now) for c in row.carried]
            with fn.loop(left, right, 1, [*inner, ("ptr", x), ("ptr", g)]) as column:
                *sums, x_at, g_at = column.carried
                grown = self._grown(
                    item, x_at.now, [fn.gep("float", g_at.now, o) for o in lanes], [c.now for c in sums]
                )
                for c, value in zip(sums, grown, strict=True):
                    c.next = value
                x_at.next, g_at.next = fn.gep("float", x_at.now, step_w), fn.gep("float", g_at.now, w["g_pixel"])
            for c, made in zip(row.carried, column.carried, strict=False):
                c.next = made.last
        return [c.last for c in row.carried]

    def _grown(self, item: _Item, x: str, g: Sequence[str], acc: Sequence[str]) -> list[str]:
        """acc with one pixel's products."""
        fn, micro, tile = self.fn, self.micro, self.micro.tile
        vectors = [
            micro.load(fn.gep("float", x, j * tile.lanes), None if item.masks is None else item.masks[j])
            for j in range(tile.vectors)
        ]
        made = []
        for o in range(tile.pixels):
            a = micro.splat(fn.load("float", g[o], 4))
            made += [micro.fma(a, vectors[j], acc[o * tile.vectors + j]) for j in range(tile.vectors)]
        return made

    def _totals(self, tap: str) -> str:
        return self.fn.gep(self.micro.type, "%scratch", self.fn.mul(tap, self.micro.registers))

    def _least(self, a: str, b: str) -> str:
        return self.fn.let(f"select i1 {self.fn.let(f'icmp slt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    def _most(self, a: str, b: str) -> str:
        return self.fn.let(f"select i1 {self.fn.let(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")

    # --- results

    def _total(self, tap: str, o: str, j: str) -> str:
        register = self.fn.add(self.fn.mul(o, self.micro.tile.vectors), j)
        return self.fn.load(self.micro.type, self.fn.gep(self.micro.type, self._totals(tap), register), 4)

    def _mask(self, left: str) -> str:
        """The first `left` lanes."""
        lanes = self.micro.tile.lanes
        numbers = ", ".join(f"i32 {i}" for i in range(lanes))
        many = self.micro.splat(self.fn.let(f"trunc i64 {left} to i32"), "i32")
        return self.fn.let(f"icmp slt <{lanes} x i32> <{numbers}>, {many}")

    def _store_vectors(self, item: _Item, o: str, j: str) -> None:
        """A vector of input channels for each tap."""
        fn, w, lanes = self.fn, self.words, self.micro.tile.lanes
        column = fn.mul(j, lanes)
        mask = self._mask(fn.let(f"sub i64 {item.channels}, {column}")) if self.variant.masked else None
        with fn.loop(0, self.variant.taps) as tap:
            at = fn.add(fn.add(fn.mul(o, w["out_o"]), column), fn.mul(tap.index, w["out_tap"]))
            self.micro.store(self._total(tap.index, o, j), fn.gep("float", item.out, at), mask)

    def _store_squares(self, item: _Item, o: str, j: str) -> None:
        """All taps of each input channel of a vector."""
        fn, w, lanes, taps = self.fn, self.words, self.micro.tile.lanes, self.variant.taps
        first = fn.mul(j, lanes)
        at = fn.gep("float", item.out, fn.add(fn.mul(o, w["out_o"]), fn.mul(first, w["out_i"])))
        left = fn.let(f"sub i64 {item.channels}, {first}")
        for start in range(0, taps, lanes):
            count = min(lanes, taps - start)
            rows = [self._total(str(start + i), o, j) for i in range(count)]
            rows += ["zeroinitializer"] * (lanes - count)
            for lane, value in enumerate(transposed(fn, self.micro.type, lanes, rows)):
                many = str(count)
                if self.variant.masked:
                    is_there = fn.let(f"icmp sgt i64 {left}, {lane}")
                    many = fn.let(f"select i1 {is_there}, i64 {count}, i64 0")
                mask = None if many == str(lanes) else self._mask(many)
                self.micro.store(value, fn.gep("float", at, fn.add(fn.mul(w["out_i"], lane), start)), mask)
