"""3x3 convolutions of stride 1 with 16 products where the definition has 36: F(2x2, 3x3).

    a tile is 4x4 inputs d and 2x2 results:   Y = At [ (G g Gt) * (Bt d B) ] A     (* element by element, summed over c)

    for a block of tiles and of channels of the result:
      V[16][c / 32][tile][32] = Bt d B;  for each panel:  M[16][tile][n] = V[16] @ U[16];  Y = At M A, epilogue, store

Along a row alone, F(2, 3), 4 products for 6: a tile is 4 inputs and 2 results that lie as far apart as taps do.

Invariant: a sum over channels is made of blocks of `BLOCK` products, so that the error stays that of the direct
kernels. Where an input or a sum is not finite, a whole tile would be: the kernel then refuses (eager computes it).
Source: arXiv:1509.09308, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Finite, Target, store_tile
from smelt.codegen.conv.micro import Ahead, Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.runtime.filters import POINTS, ROW_POINTS

BLOCK = 32

WORDS = (
    "panels", "panel_blocks", "panel_step", "tiles", "tile_step", "th", "tw", "oh", "ow", "h", "w", "top", "left",
    "x_n", "x_h", "x_w", "cin", "out_pixel", "panel_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WinogradVariant:
    """What the text depends on: cin is a multiple of `BLOCK`, cout one of the tile's channels.

    live: as of `DenseVariant`. is_row: windows of one row; the word "gap" follows, how far apart its taps are.
    """

    tile: Tile
    epilogue: Epilogue
    live: bool = False
    is_row: bool = False

    @property
    def points(self) -> int:
        """Products of a tile."""
        return ROW_POINTS if self.is_row else POINTS

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the words."""
        return (*WORDS, "gap") if self.is_row else WORDS


def scratch_nbytes(variant: WinogradVariant, tiles: int, cin: int) -> int:
    """Memory of a thread for a block of so many tiles."""
    return variant.points * tiles * (cin + variant.tile.columns) * 4


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
            products = fn.gep("float", "%scratch", fn.mul(fn.mul(w["tile_step"], w["cin"]), self.variant.points))
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
        """Image, and row and column of the first result, of a tile."""
        fn, w = self.fn, self.words
        area = fn.mul(w["th"], w["tw"])
        image, inside = fn.let(f"udiv i64 {number}, {area}"), fn.let(f"urem i64 {number}, {area}")
        row, col = fn.let(f"udiv i64 {inside}, {w['tw']}"), fn.let(f"urem i64 {inside}, {w['tw']}")
        if self.variant.is_row:
            block, place = fn.let(f"udiv i64 {col}, {w['gap']}"), fn.let(f"urem i64 {col}, {w['gap']}")
            return image, row, fn.add(fn.mul(fn.mul(block, 2), w["gap"]), place)
        return image, fn.mul(row, 2), fn.mul(col, 2)

    # --- V = Bt d B

    def _inputs(self, first: str, count: str) -> None:
        """Transform the inputs of `count` tiles from `first` on into scratch[16][tile_step][cin]."""
        fn, w = self.fn, self.words
        with fn.loop(0, count) as t:
            image, row, col = self._corner(fn.add(first, t.index))
            top, left = fn.let(f"sub i64 {row}, {w['top']}"), fn.let(f"sub i64 {col}, {w['left']}")
            base = fn.gep("float", self.x, fn.mul(image, w["x_n"]))
            if self.variant.is_row:
                places = [self._place(base, top, fn.add(left, fn.mul(w["gap"], j))) for j in range(4)]
            else:
                places = [self._place(base, fn.add(top, i), fn.add(left, j)) for i in range(4) for j in range(4)]
            to = fn.gep("float", "%scratch", fn.mul(t.index, BLOCK))
            block, step = fn.mul(w["tile_step"], BLOCK), fn.mul(w["tile_step"], w["cin"])
            with fn.loop(0, w["cin"], BLOCK) as k:
                into = fn.gep("float", to, fn.mul(fn.let(f"udiv i64 {k.index}, {BLOCK}"), block))
                with fn.loop(0, BLOCK, self.variant.tile.lanes) as c:
                    d = [self.one.load(fn.gep("float", place, fn.add(k.index, c.index))) for place in places]
                    for number, value in enumerate(self._points_of(d)):
                        self.one.store(value, fn.gep("float", fn.gep("float", into, fn.mul(step, number)), c.index))

    def _points_of(self, d: list[str]) -> Iterator[str]:
        """Bt d B, or Bt d of a row; a row of them is computed when its first is asked for, so that few are alive."""
        if self.variant.is_row:
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
        weights = fn.gep("float", packed, fn.mul(fn.mul(point, w["cin"]), tile.columns))
        values = fn.gep("float", "%scratch", fn.mul(fn.mul(point, w["tile_step"]), w["cin"]))
        into = fn.gep("float", products, fn.mul(fn.mul(point, w["tile_step"]), tile.columns))
        last = fn.let(f"sub i64 {count}, 1")
        groups = fn.let(f"udiv i64 {fn.add(count, tile.pixels - 1)}, {tile.pixels}")
        # A tile's share of the weights that follow, a line for each k.
        step = fn.let(f"udiv i64 {fn.add(groups, tile.columns * 4 - 1)}, {groups}")
        with fn.loop(0, w["cin"], BLOCK) as k:
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
        """At M A, or At m of a row."""
        if self.variant.is_row:
            return self._backward(m)
        rows = [self._backward([m[4 * i + k] for i in range(4)]) for k in range(4)]
        return [value for i in range(2) for value in self._backward([rows[k][i] for k in range(4)])]

    def _store(self, value: str, image: str, corner: tuple[str, str], number: int, column: str) -> None:
        """Store one of the results of a tile where it lies inside the image."""
        fn, w = self.fn, self.words
        if self.variant.is_row:
            y, x = corner[0], fn.add(corner[1], fn.mul(w["gap"], number))
        else:
            y, x = fn.add(corner[0], number // 2), fn.add(corner[1], number % 2)
        in_rows, in_cols = fn.let(f"icmp slt i64 {y}, {w['oh']}"), fn.let(f"icmp slt i64 {x}, {w['ow']}")
        with fn.when(fn.let(f"and i1 {in_rows}, {in_cols}")):
            pixel = fn.add(fn.mul(fn.add(fn.mul(image, w["oh"]), y), w["ow"]), x)
            target = Target(self.out, self.operands, column, (fn.add(fn.mul(pixel, w["out_pixel"]), column),))
            store_tile(self.one, self.ops, self.variant.epilogue, [value], target, None)

    def _backward(self, m: list[str]) -> list[str]:
        """At m of a column: m0 + m1 + m2, m1 - m2 - m3."""
        return [self._add(self._add(m[0], m[1]), m[2]), self._sub(self._sub(m[1], m[2]), m[3])]
