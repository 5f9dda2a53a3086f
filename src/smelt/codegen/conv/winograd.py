"""3x3 convolutions of stride 1 with 16 products where the definition has 36: F(2x2, 3x3).

    a tile is 4x4 inputs d and 2x2 results:   Y = At [ (G g Gt) * (Bt d B) ] A     (* element by element, summed over c)

    for a block of tiles and of channels of the result:
      V[16][c / 32][tile][32] = Bt d B;  for each panel:  M[16][tile][n] = V[16] @ U[16];  Y = At M A, epilogue, store

Along a row alone, F(2, 3), 4 products for 6: a tile is 4 inputs and 2 results that lie as far apart as taps do.

Over frames: squares of each frame that a result sees are transformed like channels of one (`is_deep`); or pairs of
frames are made of four along time, and what a frame's window sees is transformed like channels (`is_over`).

Invariant: a sum over channels is made of blocks of `BLOCK` products, so that the error stays that of the direct
kernels. Where an input or a sum is not finite, a whole tile would be: the kernel then refuses (eager computes it).
Source: arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Finite, Target, store_tile
from smelt.codegen.conv.micro import Ahead, Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record
from smelt.runtime.filters import POINTS, ROW_POINTS

BLOCK = 32

WORDS = (
    "panels", "panel_blocks", "panel_step", "tiles", "tile_step", "th", "tw", "oh", "ow", "h", "w", "top", "left",
    "x_n", "x_h", "x_w", "cin", "depth", "out_pixel", "panel_size",
)  # fmt: skip
_GAP = ("gap",)
_OVER_FRAMES = ("frames", "results", "before", "x_t", "kh", "kw", "stride_h", "stride_w", "down", "right")
_DEEP = ("frames", "results", "step_t", "before", "gap", "taps", "x_t")


@record
class WinogradVariant:
    """What the text depends on: cin is a multiple of `BLOCK`, cout one of the tile's channels.

    live: as of `DenseVariant`. is_row: windows of one row; the word "gap" follows, how far apart its taps are. is_over:
    windows of any size over three frames "gap" apart: tiles are pairs of a result's frames, by pixels; the words of
    both axes of a frame follow. is_deep: squares over any number of frames.
    """

    tile: Tile
    epilogue: Epilogue
    live: bool = False
    is_row: bool = False
    is_over: bool = False
    is_deep: bool = False

    @property
    def is_line(self) -> bool:
        """Whether a tile has inputs and results along one axis."""
        return self.is_row or self.is_over

    @property
    def points(self) -> int:
        """Products of a tile."""
        return ROW_POINTS if self.is_line else POINTS

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the words."""
        if self.is_deep:
            return (*WORDS, *_DEEP)
        return (*WORDS, *(_GAP if self.is_line else ()), *(_OVER_FRAMES if self.is_over else ()))


def scratch_nbytes(variant: WinogradVariant, tiles: int, depth: int) -> int:
    """Memory of a thread for a block of so many tiles, each of so many inputs a point."""
    return variant.points * tiles * (depth + variant.tile.columns) * 4


@lru_cache(maxsize=128)
def winograd_text(isa: Isa, variant: WinogradVariant) -> str:
    """The kernel's module. Buffers: x, out, packed weight, zeros (cin), epilogue operands; words as listed.

    An item is a block of tiles and a block of panels; items run through the panels first.
    """
    return _Winograd(isa, variant).text()


class _Winograd:
    def __init__(self, isa: Isa, variant: WinogradVariant) -> None:
        self.variant = variant
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, variant.tile)
        self.one = Micro(fn, isa, Tile(variant.tile.lanes, 1, 1))
        self.ops = ExprEmitter(fn, isa, variant.tile.lanes)
        self.x, self.out, self.packed, self.zeros = (fn.address(i) for i in range(4))
        count = len(variant.epilogue.operands)
        self.operands = tuple(fn.address(4 + i) for i in range(count))
        self.words = {name: fn.word(4 + count + variant.live + i) for i, name in enumerate(variant.words)}
        self.finite = Finite(self.micro)
        self.nothing = self.micro.totals()

    def text(self) -> str:
        fn, w = self.fn, self.words
        self.micro.clear(self.nothing)
        with fn.loop("%begin", "%end") as item:
            panel = fn.mul(fn.let(f"urem i64 {item.index}, {w['panel_blocks']}"), w["panel_step"])
            panel_end = self._least(fn.add(panel, w["panel_step"]), w["panels"])
            tile = fn.mul(fn.let(f"udiv i64 {item.index}, {w['panel_blocks']}"), w["tile_step"])
            count = self._least(w["tile_step"], fn.let(f"sub i64 {w['tiles']}, {tile}"))
            self._inputs(tile, count)
            products = fn.gep("float", "%scratch", fn.mul(fn.mul(w["tile_step"], w["depth"]), self.variant.points))
            with fn.loop(panel, panel_end) as q:
                packed = fn.gep("float", self.packed, fn.mul(q.index, w["panel_size"]))
                with fn.loop(0, self.variant.points) as point:
                    self._point(packed, products, point.index, count)
                self._results(products, fn.mul(q.index, self.variant.tile.columns), tile, count)
        return fn.finish(self.finite.code())

    def _least(self, a: str, b: str) -> str:
        is_less = self.fn.let(f"icmp slt i64 {a}, {b}")
        return self.fn.let(f"select i1 {is_less}, i64 {a}, i64 {b}")

    def _corner(self, number: str) -> tuple[str, str, str]:
        """Image, and row and column of the first result, of a tile; over frames its frame, and the pixel's number."""
        fn, w = self.fn, self.words
        area = fn.mul(w["th"], w["tw"])
        image, inside = fn.let(f"udiv i64 {number}, {area}"), fn.let(f"urem i64 {number}, {area}")
        row, col = fn.let(f"udiv i64 {inside}, {w['tw']}"), fn.let(f"urem i64 {inside}, {w['tw']}")
        if self.variant.is_row:
            return image, row, self._first_of_pair(col)
        if self.variant.is_over:
            return image, self._first_of_pair(row), col
        return image, fn.mul(row, 2), fn.mul(col, 2)

    def _first_of_pair(self, number: str) -> str:
        """Where the first of two results lies that are as far apart as taps."""
        fn, gap = self.fn, self.words["gap"]
        block, place = fn.let(f"udiv i64 {number}, {gap}"), fn.let(f"urem i64 {number}, {gap}")
        return fn.add(fn.mul(fn.mul(block, 2), gap), place)

    # --- V = Bt d B

    def _inputs(self, first: str, count: str) -> None:
        """Transform the inputs of `count` tiles from `first` on into scratch[points][depth / 32][tile_step][32]."""
        fn, w = self.fn, self.words
        with fn.loop(0, count) as t:
            image, row, col = self._corner(fn.add(first, t.index))
            to = fn.gep("float", "%scratch", fn.mul(t.index, BLOCK))
            if self.variant.is_deep:
                self._frames(image, row, col, to)
            elif self.variant.is_over:
                self._window(fn.gep("float", self.x, fn.mul(image, w["x_n"])), row, col, to)
            else:
                self._channels(self._places(fn.gep("float", self.x, fn.mul(image, w["x_n"])), row, col), to)

    def _frames(self, image: str, row: str, col: str, to: str) -> None:
        """Transform the inputs of a tile in each frame that it sees."""
        fn, w = self.fn, self.words
        sample, result = fn.let(f"udiv i64 {image}, {w['results']}"), fn.let(f"urem i64 {image}, {w['results']}")
        start = fn.let(f"sub i64 {fn.mul(result, w['step_t'])}, {w['before']}")
        base = fn.gep("float", self.x, fn.mul(sample, w["x_n"]))
        size = fn.mul(w["tile_step"], w["cin"])
        with fn.loop(0, w["taps"]) as tap:
            frame = fn.add(start, fn.mul(tap.index, w["gap"]))
            is_there = fn.let(f"icmp ult i64 {frame}, {w['frames']}")
            places = self._places(fn.gep("float", base, fn.mul(frame, w["x_t"])), row, col)
            places = [fn.let(f"select i1 {is_there}, ptr {place}, ptr {self.zeros}") for place in places]
            self._channels(places, fn.gep("float", to, fn.mul(tap.index, size)))

    def _places(self, base: str, row: str, col: str) -> list[str]:
        """The inputs of the tile whose first result is that of a row and a column."""
        fn, w = self.fn, self.words
        top, left = fn.let(f"sub i64 {row}, {w['top']}"), fn.let(f"sub i64 {col}, {w['left']}")
        if self.variant.is_row:
            return [self._place(base, top, fn.add(left, fn.mul(w["gap"], j))) for j in range(4)]
        return [self._place(base, fn.add(top, i), fn.add(left, j)) for i in range(4) for j in range(4)]

    def _window(self, base: str, frame: str, pixel: str, to: str) -> None:
        """Transform what the window of a pixel sees in four frames, tap by tap."""
        fn, w = self.fn, self.words
        first = fn.let(f"sub i64 {frame}, {w['before']}")
        frames = [fn.add(first, fn.mul(w["gap"], j)) for j in range(4)]
        are_inside = [fn.let(f"icmp ult i64 {number}, {w['frames']}") for number in frames]
        starts = [fn.gep("float", base, fn.mul(number, w["x_t"])) for number in frames]
        row, col = fn.let(f"udiv i64 {pixel}, {w['ow']}"), fn.let(f"urem i64 {pixel}, {w['ow']}")
        top = fn.let(f"sub i64 {fn.mul(row, w['stride_h'])}, {w['top']}")
        left = fn.let(f"sub i64 {fn.mul(col, w['stride_w'])}, {w['left']}")
        tap = fn.mul(w["tile_step"], w["cin"])
        with fn.loop(0, w["kh"]) as ky, fn.loop(0, w["kw"]) as kx:
            y, x = fn.add(top, fn.mul(ky.index, w["down"])), fn.add(left, fn.mul(kx.index, w["right"]))
            in_rows, in_cols = fn.let(f"icmp ult i64 {y}, {w['h']}"), fn.let(f"icmp ult i64 {x}, {w['w']}")
            is_inside = fn.let(f"and i1 {in_rows}, {in_cols}")
            offset = fn.add(fn.mul(y, w["x_h"]), fn.mul(x, w["x_w"]))
            places = [
                fn.let(f"select i1 {fn.let(f'and i1 {is_inside}, {is_there}')}, ptr {at}, ptr {self.zeros}")
                for is_there, at in zip(are_inside, (fn.gep("float", start, offset) for start in starts), strict=True)
            ]
            number = fn.add(fn.mul(ky.index, w["kw"]), kx.index)
            self._channels(places, fn.gep("float", to, fn.mul(number, tap)))

    def _channels(self, places: list[str], to: str) -> None:
        """Transform all channels of a tile's inputs."""
        fn, w = self.fn, self.words
        block, step = fn.mul(w["tile_step"], BLOCK), fn.mul(w["tile_step"], w["depth"])
        with fn.loop(0, w["cin"], BLOCK) as k:
            into = fn.gep("float", to, fn.mul(fn.let(f"udiv i64 {k.index}, {BLOCK}"), block))
            with fn.loop(0, BLOCK, self.variant.tile.lanes) as c:
                d = [self.one.load(fn.gep("float", place, fn.add(k.index, c.index))) for place in places]
                for number, value in enumerate(self._points_of(d)):
                    self.one.store(value, fn.gep("float", fn.gep("float", into, fn.mul(step, number)), c.index))

    def _points_of(self, d: list[str]) -> Iterator[str]:
        """Bt d B, or Bt d of a line; a row of them is computed when its first is asked for, so that few are alive."""
        if self.variant.is_line:
            yield from self._forward(d)
            return
        rows = [self._forward([d[4 * i + j] for i in range(4)]) for j in range(4)]
        for i in range(4):
            yield from self._forward([rows[j][i] for j in range(4)])

    def _place(self, base: str, y: str, x: str) -> str:
        """The address of an input pixel, or of zeros where it lies outside."""
        fn, w = self.fn, self.words
        in_rows, in_cols = fn.let(f"icmp ult i64 {y}, {w['h']}"), fn.let(f"icmp ult i64 {x}, {w['w']}")
        at = fn.gep("float", base, fn.add(fn.mul(y, w["x_h"]), fn.mul(x, w["x_w"])))
        return fn.let(f"select i1 {fn.let(f'and i1 {in_rows}, {in_cols}')}, ptr {at}, ptr {self.zeros}")

    def _forward(self, d: list[str]) -> list[str]:
        """Bt d of a column: d0 - d2, d1 + d2, d2 - d1, d1 - d3."""
        return [self._sub(d[0], d[2]), self._add(d[1], d[2]), self._sub(d[2], d[1]), self._sub(d[1], d[3])]

    def _add(self, a: str, b: str) -> str:
        return self.fn.let(f"fadd {self.micro.type} {a}, {b}")

    def _sub(self, a: str, b: str) -> str:
        return self.fn.let(f"fsub {self.micro.type} {a}, {b}")

    # --- M = V U

    def _point(self, packed: str, products: str, point: str, count: str) -> None:
        """The products of one of the points: M[point][tile][columns] of all tiles of the item."""
        fn, w, tile = self.fn, self.words, self.variant.tile
        weights = fn.gep("float", packed, fn.mul(fn.mul(point, w["depth"]), tile.columns))
        values = fn.gep("float", "%scratch", fn.mul(fn.mul(point, w["tile_step"]), w["depth"]))
        into = fn.gep("float", products, fn.mul(fn.mul(point, w["tile_step"]), tile.columns))
        last = fn.let(f"sub i64 {count}, 1")
        groups = fn.let(f"udiv i64 {fn.add(count, tile.pixels - 1)}, {tile.pixels}")
        # A tile's share of the weights that follow, a line for each k.
        step = fn.let(f"udiv i64 {fn.add(groups, tile.columns * 4 - 1)}, {groups}")
        with fn.loop(0, w["depth"], BLOCK) as k:
            block = fn.gep("float", weights, fn.mul(k.index, tile.columns))
            rows = fn.gep("float", values, fn.mul(k.index, w["tile_step"]))
            is_first = fn.let(f"icmp eq i64 {k.index}, 0")
            with fn.loop(0, groups) as group:
                t = fn.mul(group.index, tile.pixels)
                tiles = [t, *(self._least(fn.add(t, p), last) for p in range(1, tile.pixels))]
                ahead = fn.gep("i8", block, fn.add(fn.mul(group.index, fn.mul(step, BLOCK)), BLOCK * tile.columns * 4))
                sums = self._sums(block, [fn.gep("float", rows, fn.mul(i, BLOCK)) for i in tiles], Ahead(ahead, step))
                totals = fn.gep("float", into, fn.mul(t, tile.columns))
                before = fn.let(f"select i1 {is_first}, ptr {self.nothing}, ptr {totals}")
                self.micro.add_to(totals, sums, before)

    def _sums(self, weights: str, rows: list[str], ahead: Ahead) -> list[str]:
        """The sums of one block."""
        micro = self.micro
        return micro.sum_over(str(BLOCK), weights, micro.zeros(), lambda k, p: self.fn.gep("float", rows[p], k), ahead)

    # --- Y = At M A

    def _results(self, products: str, column: str, first: str, count: str) -> None:
        """Transform the products of all tiles back, and store their results."""
        fn, w, tile = self.fn, self.words, self.variant.tile
        step = fn.mul(w["tile_step"], tile.columns)
        with fn.loop(0, count) as t:
            image, row, col = self._corner(fn.add(first, t.index))
            at = fn.gep("float", products, fn.mul(t.index, tile.columns))
            with fn.loop(0, tile.columns, tile.lanes) as j:
                m = [
                    self.one.load(fn.gep("float", fn.gep("float", at, fn.mul(step, i)), j.index))
                    for i in range(self.variant.points)
                ]
                made = self._results_of(m)
                self.finite.note(made)
                for number, value in enumerate(made):
                    self._store(value, image, (row, col), number, fn.add(column, j.index))

    def _results_of(self, m: list[str]) -> list[str]:
        """At M A, or At m of a line."""
        if self.variant.is_line:
            return self._backward(m)
        rows = [self._backward([m[4 * i + k] for i in range(4)]) for k in range(4)]
        return [value for i in range(2) for value in self._backward([rows[k][i] for k in range(4)])]

    def _store(self, value: str, image: str, corner: tuple[str, str], number: int, column: str) -> None:
        """Store one of the results of a tile where it lies inside the image."""
        fn, w = self.fn, self.words
        if self.variant.is_over:
            frame = fn.add(corner[0], fn.mul(w["gap"], number))
            is_inside = fn.let(f"icmp slt i64 {frame}, {w['results']}")
            pixel = fn.add(fn.mul(fn.add(fn.mul(image, w["results"]), frame), w["tw"]), corner[1])
        else:
            if self.variant.is_row:
                y, x = corner[0], fn.add(corner[1], fn.mul(w["gap"], number))
            else:
                y, x = fn.add(corner[0], number // 2), fn.add(corner[1], number % 2)
            in_rows, in_cols = fn.let(f"icmp slt i64 {y}, {w['oh']}"), fn.let(f"icmp slt i64 {x}, {w['ow']}")
            is_inside = fn.let(f"and i1 {in_rows}, {in_cols}")
            pixel = fn.add(fn.mul(fn.add(fn.mul(image, w["oh"]), y), w["ow"]), x)
        with fn.when(is_inside):
            target = Target(self.out, self.operands, column, (fn.add(fn.mul(pixel, w["out_pixel"]), column),))
            store_tile(self.one, self.ops, self.variant.epilogue, [value], target, None)

    def _backward(self, m: list[str]) -> list[str]:
        """At m of a column: m0 + m1 + m2, m1 - m2 - m3."""
        return [self._add(self._add(m[0], m[1]), m[2]), self._sub(self._sub(m[1], m[2]), m[3])]
