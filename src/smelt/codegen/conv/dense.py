"""Kernels of dense convolutions over channels-last tensors, straight from the input: no copy of it is made.

    1x1:      out[m, n] = sum_k x[m * pixel stride + k] * w[k, n]
    window:   for each segment (one tap, up to 192 channels): every pixel of the tile points at its input position, or
              at zeros where that lies outside; then the same products

Invariant: sums are made of blocks of at most `BLOCK` products, each started at zero (DESIGN, numerics: two levels).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Target, store_tile
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText

BLOCK = 192

_ITEM_WORDS = ("panels", "pixels", "panel_step", "pixel_step", "panel_blocks", "pixel_blocks", "panel_every",
               "pixel_every")  # fmt: skip
FLAT_WORDS = (*_ITEM_WORDS, "depth", "block", "x_pixel", "out_pixel", "columns", "group_panels", "group_in",
              "panel_size")  # fmt: skip
WINDOW_WORDS = (
    *FLAT_WORDS, "oh", "ow", "h", "w", "stride_h", "stride_w", "top", "left", "x_n", "x_h", "x_w", "blocks", "segments",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DenseVariant:
    """What a dense kernel's text depends on.

    flat: a 1x1 window without border whose pixels lie at one stride. blocked: more than one block of the sum.
    masked: the last panel of a group is not full.
    """

    tile: Tile
    flat: bool
    blocked: bool
    masked: bool
    epilogue: Epilogue


@lru_cache(maxsize=128)
def dense_text(isa: Isa, variant: DenseVariant) -> str:
    """The kernel's module. Buffers: x, out, packed weight, (table, zeros,) epilogue operands; words as listed."""
    return _Dense(isa, variant).text()


class _Dense:
    def __init__(self, isa: Isa, variant: DenseVariant) -> None:
        self.variant = variant
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, variant.tile)
        self.ops = ExprEmitter(fn, isa, variant.tile.lanes)
        names = ["x", "out", "packed", *(() if variant.flat else ("table", "zeros"))]
        self.at = {name: fn.address(i) for i, name in enumerate(names)}
        self.operands = tuple(fn.address(len(names) + i) for i in range(len(variant.epilogue.operands)))
        first = len(names) + len(self.operands)
        words = FLAT_WORDS if variant.flat else WINDOW_WORDS
        self.words = {name: fn.word(first + i) for i, name in enumerate(words)}
        self.totals = self.micro.totals() if variant.blocked else ""

    def text(self) -> str:
        fn, w = self.fn, self.words
        with fn.loop("%begin", "%end") as item:
            panel, panel_end = self._range(item.index, "panel")
            pixel, pixel_end = self._range(item.index, "pixel")
            with fn.loop(panel, panel_end) as q:
                packed = fn.gep("float", self.at["packed"], fn.mul(q.index, w["panel_size"]))
                group = fn.let(f"udiv i64 {q.index}, {w['group_panels']}")
                inside = fn.mul(fn.let(f"urem i64 {q.index}, {w['group_panels']}"), self.variant.tile.columns)
                column = fn.add(fn.mul(group, w["columns"]), inside)
                x = fn.gep("float", self.at["x"], fn.mul(group, w["group_in"]))
                masks = None
                if self.variant.masked:
                    masks = self.micro.masks(fn.let(f"sub i64 {w['columns']}, {inside}"))
                with fn.loop(pixel, pixel_end, self.variant.tile.pixels) as m:
                    self._tile(x, packed, column, m.index, pixel_end, masks)
        return fn.finish()

    def _range(self, item: str, what: str) -> tuple[str, str]:
        """The item's panels or pixels: begin, end."""
        fn, w = self.fn, self.words
        every, blocks, step = w[f"{what}_every"], w[f"{what}_blocks"], w[f"{what}_step"]
        number = fn.let(f"urem i64 {fn.let(f'udiv i64 {item}, {every}')}, {blocks}")
        begin = fn.mul(number, step)
        return begin, self._least(fn.add(begin, step), w[f"{what}s"])

    def _least(self, a: str, b: str) -> str:
        is_less = self.fn.let(f"icmp slt i64 {a}, {b}")
        return self.fn.let(f"select i1 {is_less}, i64 {a}, i64 {b}")

    def _tile(self, x: str, packed: str, column: str, m: str, end: str, masks: list[str] | None) -> None:
        fn, w = self.fn, self.words
        last = fn.let(f"sub i64 {end}, 1")
        # A tile that reaches past the item's pixels repeats the last one: equal values to the same place.
        pixels = [m, *(self._least(fn.add(m, p), last) for p in range(1, self.variant.tile.pixels))]
        if self.variant.flat:
            acc = self._flat_sums(packed, [fn.gep("float", x, fn.mul(p, w["x_pixel"])) for p in pixels])
        else:
            acc = self._window_sums(packed, x, m, last)
        offsets = tuple(fn.add(fn.mul(p, w["out_pixel"]), column) for p in pixels)
        target = Target(self.at["out"], self.operands, column, offsets)
        store_tile(self.micro, self.ops, self.variant.epilogue, acc, target, masks)

    def _products(self, rows: list[str], start: str | int, length: str, weights: str, acc: list[str]) -> list[str]:
        """acc after the products of `length` channels from `start` on."""
        fn = self.fn
        at = [fn.gep("float", row, start) for row in rows]
        return self.micro.sum_over(length, weights, acc, lambda k, p: fn.gep("float", at[p], k))

    def _flat_sums(self, packed: str, rows: list[str]) -> list[str]:
        fn, w, micro = self.fn, self.words, self.micro
        if not self.variant.blocked:
            return self._products(rows, 0, w["depth"], packed, micro.zeros())
        micro.clear(self.totals)
        with fn.loop(0, w["depth"], w["block"]) as k:
            length = self._least(w["block"], fn.let(f"sub i64 {w['depth']}, {k.index}"))
            weights = fn.gep("float", packed, fn.mul(k.index, micro.tile.columns))
            micro.add_to(self.totals, self._products(rows, k.index, length, weights, micro.zeros()))
        return micro.read(self.totals)

    def _window_sums(self, packed: str, x: str, m: str, last: str) -> list[str]:
        fn, w, micro = self.fn, self.words, self.micro
        places = self._places(m, last)
        rows = fn.gep("i64", self.at["table"], fn.add(w["blocks"], 1))
        if not self.variant.blocked:
            return self._segments(packed, x, places, rows, "0", w["segments"])
        micro.clear(self.totals)
        with fn.loop(0, w["blocks"]) as block:
            first = fn.load("i64", fn.gep("i64", self.at["table"], block.index), 8)
            after = fn.load("i64", fn.gep("i64", self.at["table"], fn.add(block.index, 1)), 8)
            micro.add_to(self.totals, self._segments(packed, x, places, rows, first, after))
        return micro.read(self.totals)

    def _segments(
        self, packed: str, x: str, places: list[tuple[str, str, str]], rows: str, first: str, after: str
    ) -> list[str]:
        """The sums over the segments first..after-1 of the table at `rows`."""
        fn, micro = self.fn, self.micro
        with fn.loop(first, after, 1, [(micro.type, v) for v in micro.zeros()]) as segment:
            entry = fn.gep("i64", rows, fn.mul(segment.index, 5))
            acc = self._segment(packed, x, places, entry, [c.now for c in segment.carried])
            for c, value in zip(segment.carried, acc, strict=True):
                c.next = value
        return [c.last for c in segment.carried]

    def _places(self, m: str, last: str) -> list[tuple[str, str, str]]:
        """For each pixel of the tile: input row and column of the window's corner, and its offset in x."""
        fn, w = self.fn, self.words
        area = fn.mul(w["oh"], w["ow"])
        image, inside = fn.let(f"udiv i64 {m}, {area}"), fn.let(f"urem i64 {m}, {area}")
        row, col = fn.let(f"udiv i64 {inside}, {w['ow']}"), fn.let(f"urem i64 {inside}, {w['ow']}")
        places = []
        for p in range(self.variant.tile.pixels):
            if p:
                goes_on = fn.let(f"icmp sle i64 {fn.add(m, p)}, {last}")
                one = fn.let(f"zext i1 {goes_on} to i64")
                col = fn.add(col, one)
                col, carry = self._wrap(col, w["ow"])
                row, carry = self._wrap(fn.add(row, carry), w["oh"])
                image = fn.add(image, carry)
            ih = fn.let(f"sub i64 {fn.mul(row, w['stride_h'])}, {w['top']}")
            iw = fn.let(f"sub i64 {fn.mul(col, w['stride_w'])}, {w['left']}")
            offset = fn.add(fn.add(fn.mul(image, w["x_n"]), fn.mul(ih, w["x_h"])), fn.mul(iw, w["x_w"]))
            places.append((ih, iw, offset))
        return places

    def _wrap(self, value: str, size: str) -> tuple[str, str]:
        """(0, 1) where value is size, else (value, 0)."""
        fn = self.fn
        is_over = fn.let(f"icmp eq i64 {value}, {size}")
        return fn.let(f"select i1 {is_over}, i64 0, i64 {value}"), fn.let(f"zext i1 {is_over} to i64")

    def _segment(
        self, packed: str, x: str, places: list[tuple[str, str, str]], entry: str, acc: list[str]
    ) -> list[str]:
        """acc after one segment; `entry` is its row of the table: dy, dx, offset in x, first k, length."""
        fn, w = self.fn, self.words
        dy, dx, offset, first, length = (fn.load("i64", fn.gep("i64", entry, i), 8) for i in range(5))
        rows = []
        is_some = "false"
        for ih, iw, base in places:
            in_rows = fn.let(f"icmp ult i64 {fn.add(ih, dy)}, {w['h']}")
            in_cols = fn.let(f"icmp ult i64 {fn.add(iw, dx)}, {w['w']}")
            at = fn.gep("float", x, fn.add(base, offset))
            is_inside = fn.let(f"and i1 {in_rows}, {in_cols}")
            is_some = fn.let(f"or i1 {is_some}, {is_inside}")
            rows.append(fn.let(f"select i1 {is_inside}, ptr {at}, ptr {self.at['zeros']}"))
        # A tap that no pixel of the tile has inside (above the first row) adds nothing.
        length = fn.let(f"select i1 {is_some}, i64 {length}, i64 0")
        return self._products(rows, 0, length, fn.gep("float", packed, fn.mul(first, self.micro.tile.columns)), acc)
