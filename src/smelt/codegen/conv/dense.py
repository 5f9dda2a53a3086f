"""Kernels of dense convolutions over channels-last tensors, straight from the input: no copy of it is made.

    1x1:      out[m, n] = sum_k x[m * pixel stride + k] * w[k, n]
    window:   for each segment (one tap, up to `BLOCK` channels): every pixel of the tile points at its input position,
              or at zeros where that lies outside; then the same products

    for panels of an item:
      for blocks of k:            a block of weights stays in the first-level cache, the next one is prefetched
        for tiles of pixels:      totals[tile] += sums of the block
      for tiles of pixels:        epilogue, store

Invariant: sums are made of blocks of at most `BLOCK` products, each started at zero (DESIGN, numerics: two levels).
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Finite, Target, store_tile
from smelt.codegen.conv.micro import Ahead, Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record

BLOCK = 128

_ITEM_WORDS = ("panels", "pixels", "panel_step", "pixel_step", "panel_blocks", "pixel_blocks", "panel_every",
               "pixel_every")  # fmt: skip
FLAT_WORDS = (*_ITEM_WORDS, "depth", "block", "x_pixel", "out_pixel", "columns", "group_panels", "group_in",
              "panel_size")  # fmt: skip
WINDOW_WORDS = (
    *FLAT_WORDS, "oh", "ow", "h", "w", "stride_h", "stride_w", "top", "left", "x_n", "x_h", "x_w", "blocks", "segments",
    "places",
)  # fmt: skip
SPACED_WORDS = ("out_n", "out_h", "out_w", "out_first")


def scratch_nbytes(variant: DenseVariant, pixels: int) -> tuple[int, int]:
    """A thread's memory for an item of so many pixels (whole tiles): all of it, and where the places begin."""
    places = pixels * variant.tile.columns * 4 if variant.blocked else 0
    return places + (0 if variant.flat else pixels * variant.place_words * 8), places


@record
class DenseVariant:
    """What a dense kernel's text depends on.

    flat: a 1x1 window without border whose pixels lie at one stride. blocked: more than one block of the sum.
    masked: the last panel of a group is not full. spread: how far a tap lies from its pixel follows from strides that
    are known at run time only, and the table has the channel alone. live: the weight is packed in the same call, so
    nobody has looked at it: what is not finite is left to eager, for which the weight as it lies follows the operands.
    spaced: pixels of the result lie apart, as those that one tap of a strided convolution reads.
    """

    tile: Tile
    flat: bool
    blocked: bool
    masked: bool
    epilogue: Epilogue
    spread: bool = False
    live: bool = False
    spaced: bool = False

    @property
    def place_words(self) -> int:
        """Words of a pixel's place: row and column of the window's corner, its offset in x (and in the result)."""
        return 4 if self.spaced else 3


@record
class _Panel:
    """A panel of channels of one item: addresses of x and weights, first channel, lanes to store, range of pixels."""

    x: str
    packed: str
    column: str
    masks: list[str] | None
    pixel: str
    pixel_end: str
    tiles: str


@record
class _Block:
    """A block of a sum: a range of k where pixels lie at one stride, else of segments."""

    first: str
    after: str


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
        first = len(names) + len(self.operands) + variant.live
        words = FLAT_WORDS if variant.flat else (*WINDOW_WORDS, *(SPACED_WORDS if variant.spaced else ()))
        # Without a border no zeros are multiplied: what comes out is what eager has.
        self.finite = Finite(self.micro) if variant.live and not variant.flat else None
        self.words = {name: fn.word(first + i) for i, name in enumerate(words)}
        self.nothing = self.micro.totals() if variant.blocked else ""
        self.places = "" if variant.flat else fn.gep("i8", "%scratch", self.words["places"])

    def text(self) -> str:
        fn, w, pixels = self.fn, self.words, self.variant.tile.pixels
        if self.variant.blocked:
            self.micro.clear(self.nothing)
        with fn.loop("%begin", "%end") as item:
            panel, panel_end = self._range(item.index, "panel")
            pixel, pixel_end = self._range(item.index, "pixel")
            tiles = fn.let(f"udiv i64 {fn.add(fn.let(f'sub i64 {pixel_end}, {pixel}'), pixels - 1)}, {pixels}")
            if not self.variant.flat:
                self._note_places(pixel, pixel_end, tiles)
            with fn.loop(panel, panel_end) as q:
                packed = fn.gep("float", self.at["packed"], fn.mul(q.index, w["panel_size"]))
                group = fn.let(f"udiv i64 {q.index}, {w['group_panels']}")
                inside = fn.mul(fn.let(f"urem i64 {q.index}, {w['group_panels']}"), self.variant.tile.columns)
                column = fn.add(fn.mul(group, w["columns"]), inside)
                x = fn.gep("float", self.at["x"], fn.mul(group, w["group_in"]))
                masks = None
                if self.variant.masked:
                    masks = self.micro.masks(fn.let(f"sub i64 {w['columns']}, {inside}"))
                self._panel(_Panel(x, packed, column, masks, pixel, pixel_end, tiles))
        return fn.finish() if self.finite is None else fn.finish(self.finite.code())

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

    # --- a panel

    def _panel(self, panel: _Panel) -> None:
        """Sums, epilogue and results of an item's pixels in one panel."""
        fn, w = self.fn, self.words
        if not self.variant.blocked:
            whole = _Block("0", w["depth"]) if self.variant.flat else _Block("0", w["segments"])
            with fn.loop(0, panel.tiles) as t:
                self._store(panel, t.index, self._sums(panel, whole, t.index, None))
            return
        if self.variant.flat:
            with fn.loop(0, w["depth"], w["block"]) as k:
                end = self._least(fn.add(k.index, w["block"]), w["depth"])
                is_first = fn.let(f"icmp eq i64 {k.index}, 0")
                self._block(panel, _Block(k.index, end), k.index, is_first)
        else:
            with fn.loop(0, w["blocks"]) as number:
                at = fn.gep("i64", self.at["table"], number.index)
                first, after = (fn.load("i64", fn.gep("i64", at, i), 8) for i in range(2))
                is_first = fn.let(f"icmp eq i64 {number.index}, 0")
                start = fn.load("i64", fn.gep("i64", self._segment(first), 3), 8)
                self._block(panel, _Block(first, after), start, is_first)
        with fn.loop(0, panel.tiles) as t:
            self._store(panel, t.index, self.micro.read(self._totals(t.index)))

    def _block(self, panel: _Panel, block: _Block, start: str, is_first: str) -> None:
        """Add one block's products, the first at k = `start`, to the totals of all tiles.

        Each tile prefetches its share of the weights that follow, which may be the next panel's: one line for each k
        covers them once all tiles are done.
        """
        fn, w, nbytes = self.fn, self.words, self.variant.tile.columns * 4
        step = fn.let(f"udiv i64 {fn.add(panel.tiles, nbytes - 1)}, {panel.tiles}")
        share = fn.mul(w["block"], step)
        with fn.loop(0, panel.tiles) as t:
            skipped = fn.let(f"sub i64 {fn.mul(t.index, share)}, {fn.mul(start, step)}")
            at = fn.add(fn.mul(fn.add(start, w["block"]), nbytes), skipped)
            acc = self._sums(panel, block, t.index, Ahead(fn.gep("i8", panel.packed, at), step))
            totals = self._totals(t.index)
            self.micro.add_to(totals, acc, fn.let(f"select i1 {is_first}, ptr {self.nothing}, ptr {totals}"))

    def _totals(self, tile: str) -> str:
        return self.fn.gep(self.micro.type, "%scratch", self.fn.mul(tile, self.micro.registers))

    def _pixels(self, panel: _Panel, tile: str) -> list[str]:
        """The pixels of a tile. Past the item's pixels the last one is repeated: equal values to the same place."""
        fn, pixels = self.fn, self.variant.tile.pixels
        m = fn.add(panel.pixel, fn.mul(tile, pixels))
        last = fn.let(f"sub i64 {panel.pixel_end}, 1")
        return [m, *(self._least(fn.add(m, p), last) for p in range(1, pixels))]

    def _store(self, panel: _Panel, tile: str, acc: list[str]) -> None:
        if self.finite is not None:
            self.finite.note(acc)
        offsets = [self.fn.add(at, panel.column) for at in self._results(panel, tile)]
        target = Target(self.at["out"], self.operands, panel.column, tuple(offsets))
        store_tile(self.micro, self.ops, self.variant.epilogue, acc, target, panel.masks)

    def _results(self, panel: _Panel, tile: str) -> list[str]:
        """Where the pixels of a tile begin in the result."""
        fn = self.fn
        if not self.variant.spaced:
            return [fn.mul(p, self.words["out_pixel"]) for p in self._pixels(panel, tile)]
        size, pixels = self.variant.place_words, self.variant.tile.pixels
        places = fn.gep("i64", self.places, fn.mul(tile, pixels * size))
        return [fn.load("i64", fn.gep("i64", places, p * size + 3), 8) for p in range(pixels)]

    # --- sums

    def _sums(self, panel: _Panel, block: _Block, tile: str, ahead: Ahead | None) -> list[str]:
        """The sums of one block of a tile; `ahead` is where k = 0 would prefetch."""
        fn, w, micro = self.fn, self.words, self.micro
        if self.variant.flat:
            rows = [fn.gep("float", panel.x, fn.mul(p, w["x_pixel"])) for p in self._pixels(panel, tile)]
            rows = [fn.gep("float", row, block.first) for row in rows]
            length = fn.let(f"sub i64 {block.after}, {block.first}")
            return self._products(rows, block.first, length, panel.packed, micro.zeros(), ahead)
        places = fn.gep("i64", self.places, fn.mul(tile, self.variant.tile.pixels * self.variant.place_words))
        with fn.loop(block.first, block.after, 1, [(micro.type, v) for v in micro.zeros()]) as segment:
            acc = self._segment_sums(panel, places, segment.index, [c.now for c in segment.carried], ahead)
            for c, value in zip(segment.carried, acc, strict=True):
                c.next = value
        return [c.last for c in segment.carried]

    def _products(
        self, rows: list[str], start: str, length: str, packed: str, acc: list[str], ahead: Ahead | None
    ) -> list[str]:
        """acc after the products of k from `start` on, of the channels at `rows`."""
        fn = self.fn
        weights = fn.gep("float", packed, fn.mul(start, self.micro.tile.columns))
        if ahead is not None:
            ahead = Ahead(fn.gep("i8", ahead.first, fn.mul(start, ahead.step)), ahead.step)
        return self.micro.sum_over(length, weights, acc, lambda k, p: fn.gep("float", rows[p], k), ahead)

    def _segment(self, number: str) -> str:
        """A row of the table: dy, dx, offset in x, first k, length."""
        rows = self.fn.gep("i64", self.at["table"], self.fn.add(self.words["blocks"], 1))
        return self.fn.gep("i64", rows, self.fn.mul(number, 5))

    def _segment_sums(self, panel: _Panel, places: str, number: str, acc: list[str], ahead: Ahead | None) -> list[str]:
        """acc after one segment."""
        fn, w = self.fn, self.words
        entry = self._segment(number)
        dy, dx, offset, first, length = (fn.load("i64", fn.gep("i64", entry, i), 8) for i in range(5))
        if self.variant.spread:
            offset = fn.add(offset, fn.add(fn.mul(dy, w["x_h"]), fn.mul(dx, w["x_w"])))
        rows = []
        is_some = "false"
        for p in range(self.variant.tile.pixels):
            at = self.variant.place_words * p
            ih, iw, base = (fn.load("i64", fn.gep("i64", places, at + i), 8) for i in range(3))
            in_rows = fn.let(f"icmp ult i64 {fn.add(ih, dy)}, {w['h']}")
            in_cols = fn.let(f"icmp ult i64 {fn.add(iw, dx)}, {w['w']}")
            source = fn.gep("float", panel.x, fn.add(base, offset))
            is_inside = fn.let(f"and i1 {in_rows}, {in_cols}")
            is_some = fn.let(f"or i1 {is_some}, {is_inside}")
            rows.append(fn.let(f"select i1 {is_inside}, ptr {source}, ptr {self.at['zeros']}"))
        # A tap that no pixel of the tile has inside (above the first row) adds nothing.
        length = fn.let(f"select i1 {is_some}, i64 {length}, i64 0")
        return self._products(rows, first, length, panel.packed, acc, ahead)

    # --- places

    def _note_places(self, pixel: str, end: str, tiles: str) -> None:
        """Write the places of the pixels of whole tiles from `pixel` on, the last one repeated past the item's end."""
        fn, w = self.fn, self.words
        area = fn.mul(w["oh"], w["ow"])
        image, inside = fn.let(f"udiv i64 {pixel}, {area}"), fn.let(f"urem i64 {pixel}, {area}")
        row, col = fn.let(f"udiv i64 {inside}, {w['ow']}"), fn.let(f"urem i64 {inside}, {w['ow']}")
        slots = fn.mul(tiles, self.variant.tile.pixels)
        last = fn.let(f"sub i64 {fn.let(f'sub i64 {end}, {pixel}')}, 1")
        with fn.loop(0, slots, 1, [("i64", image), ("i64", row), ("i64", col)]) as slot:
            image, row, col = (c.now for c in slot.carried)
            ih = fn.let(f"sub i64 {fn.mul(row, w['stride_h'])}, {w['top']}")
            iw = fn.let(f"sub i64 {fn.mul(col, w['stride_w'])}, {w['left']}")
            offset = fn.add(fn.add(fn.mul(image, w["x_n"]), fn.mul(ih, w["x_h"])), fn.mul(iw, w["x_w"]))
            to = fn.gep("i64", self.places, fn.mul(slot.index, self.variant.place_words))
            for i, value in enumerate((ih, iw, offset, *self._result_place(image, row, col))):
                fn.store("i64", value, fn.gep("i64", to, i), 8)
            goes_on = fn.let(f"icmp slt i64 {slot.index}, {last}")
            col, carry = self._wrap(fn.add(col, fn.let(f"zext i1 {goes_on} to i64")), w["ow"])
            row, carry = self._wrap(fn.add(row, carry), w["oh"])
            image = fn.add(image, carry)
            for c, value in zip(slot.carried, (image, row, col), strict=True):
                c.next = value

    def _result_place(self, image: str, row: str, col: str) -> list[str]:
        """Where a pixel begins in the result, if they lie apart there."""
        if not self.variant.spaced:
            return []
        fn, w = self.fn, self.words
        inside = fn.add(fn.mul(row, w["out_h"]), fn.mul(col, w["out_w"]))
        return [fn.add(fn.add(w["out_first"], fn.mul(image, w["out_n"])), inside)]

    def _wrap(self, value: str, size: str) -> tuple[str, str]:
        """(0, 1) where value is size, else (value, 0)."""
        fn = self.fn
        is_over = fn.let(f"icmp eq i64 {value}, {size}")
        return fn.let(f"select i1 {is_over}, i64 0, i64 {value}"), fn.let(f"zext i1 {is_over} to i64")
