"""Kernels of dense convolutions with few input channels, as a network's first layer: rows copied between zeros first.

    for a block of rows of the result:
      copy the input rows that it sees to scratch, zeros around them (planes apart if x is [n, c, h, w], else together)
      for panels of channels, tiles of pixels, k:  acc[p] = fma(scratch[tile + offset[k] + p * step], w[k], acc[p])

Over frames an image is a frame of the result: the rows of all frames that it sees are copied, and the products of taps
in time that lie outside are left out.

Invariant: offset[k] is a table of the shape, so any kernel, dilation and both layouts are one text; only the distance
of two pixels is in it.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.conv.epilogue import Epilogue
from smelt.codegen.conv.finish import Finite, Target, store_tile
from smelt.codegen.conv.micro import Micro, Tile
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.diag.records import record

WORDS = (
    "panels", "panel_blocks", "panel_step", "row_blocks", "row_step", "oh", "ow", "h", "top", "stride_h", "x_n",
    "x_plane", "x_h", "planes", "plane_rows", "row", "lead", "run", "depth", "block", "out_pixel", "columns",
    "panel_size",
)  # fmt: skip
_OVER_FRAMES = ("results", "frames", "step_t", "before", "gap", "taps", "x_t")


@record
class BorderedVariant:
    """What the text depends on. step: elements of scratch between two neighbouring pixels of the result.

    spread: a row's length is known at run time only, and the table has rows and elements apart. live: as of
    `DenseVariant`. is_over: over frames; the words of that axis follow.
    """

    tile: Tile
    step: int
    blocked: bool
    masked: bool
    epilogue: Epilogue
    spread: bool = False
    live: bool = False
    is_over: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the words."""
        return (*WORDS, *(_OVER_FRAMES if self.is_over else ()))


@record
class _Seen:
    """The taps in time that lie inside, and where the frame of tap 0 lies; the first product and those behind it."""

    first: str
    after: str
    base: str
    products: tuple[str, str]


@lru_cache(maxsize=128)
def bordered_text(isa: Isa, variant: BorderedVariant) -> str:
    """The kernel's module. Buffers: x, out, packed weight, offset table, epilogue operands; words as listed.

    An item is a block of rows of one image and a block of panels; items run through the panels first.
    """
    return _Bordered(isa, variant).text()


class _Bordered:
    def __init__(self, isa: Isa, variant: BorderedVariant) -> None:
        self.variant = variant
        self.fn = fn = FunctionText("KERNEL", KERNEL_PARAMETERS)
        self.micro = Micro(fn, isa, variant.tile)
        self.ops = ExprEmitter(fn, isa, variant.tile.lanes)
        self.x, self.out, self.packed, self.table = (fn.address(i) for i in range(4))
        count = len(variant.epilogue.operands)
        self.operands = tuple(fn.address(4 + i) for i in range(count))
        self.words = {name: fn.word(4 + count + variant.live + i) for i, name in enumerate(variant.words)}
        self.totals = self.micro.totals() if variant.blocked else ""
        self.finite = Finite(self.micro) if variant.live else None

    def text(self) -> str:
        fn, w, tile = self.fn, self.words, self.variant.tile
        with fn.loop("%begin", "%end") as item:
            rows_number = fn.let(f"udiv i64 {item.index}, {w['panel_blocks']}")
            panel = fn.mul(fn.let(f"urem i64 {item.index}, {w['panel_blocks']}"), w["panel_step"])
            panel_end = self._least(fn.add(panel, w["panel_step"]), w["panels"])
            image = fn.let(f"udiv i64 {rows_number}, {w['row_blocks']}")
            row = fn.mul(fn.let(f"urem i64 {rows_number}, {w['row_blocks']}"), w["row_step"])
            row_end = self._least(fn.add(row, w["row_step"]), w["oh"])
            seen = self._seen(image)
            self._copy(seen, row)
            with fn.loop(panel, panel_end) as q:
                packed = fn.gep("float", self.packed, fn.mul(q.index, w["panel_size"]))
                column = fn.mul(q.index, tile.columns)
                masks = None
                if self.variant.masked:
                    masks = self.micro.masks(fn.let(f"sub i64 {w['columns']}, {column}"))
                with fn.loop(row, row_end) as r:
                    below = fn.mul(fn.let(f"sub i64 {r.index}, {row}"), w["stride_h"])
                    scratch = fn.gep("float", "%scratch", fn.mul(below, w["row"]))
                    pixel = fn.mul(fn.add(fn.mul(image, w["oh"]), r.index), w["ow"])
                    self._row(scratch, packed, pixel, column, (masks, seen))
        return fn.finish() if self.finite is None else fn.finish(self.finite.code())

    def _least(self, a: str, b: str) -> str:
        is_less = self.fn.let(f"icmp slt i64 {a}, {b}")
        return self.fn.let(f"select i1 {is_less}, i64 {a}, i64 {b}")

    def _seen(self, image: str) -> _Seen:
        """What an image of the result sees along time."""
        fn, w = self.fn, self.words
        if not self.variant.is_over:
            return _Seen("0", "1", fn.gep("float", self.x, fn.mul(image, w["x_n"])), ("0", w["depth"]))
        sample, result = fn.let(f"udiv i64 {image}, {w['results']}"), fn.let(f"urem i64 {image}, {w['results']}")
        start = fn.let(f"sub i64 {fn.mul(result, w['step_t'])}, {w['before']}")
        with fn.loop(0, w["taps"], 1, [("i64", w["taps"]), ("i64", "0")]) as tap:
            first, after = tap.carried
            frame = fn.add(start, fn.mul(tap.index, w["gap"]))
            is_inside = fn.let(f"icmp ult i64 {frame}, {w['frames']}")
            first.next = fn.let(f"select i1 {is_inside}, i64 {self._least(first.now, tap.index)}, i64 {first.now}")
            after.next = fn.let(f"select i1 {is_inside}, i64 {fn.add(tap.index, 1)}, i64 {after.now}")
        begin, end = self._least(first.last, after.last), after.last
        base = fn.gep("float", self.x, fn.add(fn.mul(sample, w["x_n"]), fn.mul(start, w["x_t"])))
        each = fn.let(f"udiv i64 {w['depth']}, {w['taps']}")
        return _Seen(begin, end, base, (fn.mul(begin, each), fn.mul(end, each)))

    def _copy(self, seen: _Seen, row: str) -> None:
        """Fill scratch[taps][planes][plane_rows][row] with the input rows that the result's rows from `row` on see."""
        fn, w = self.fn, self.words
        top = fn.let(f"sub i64 {fn.mul(row, w['stride_h'])}, {w['top']}")
        with (
            fn.loop(seen.first, seen.after) as tap,
            fn.loop(0, w["planes"]) as plane,
            fn.loop(0, w["plane_rows"]) as line,
        ):
            base, number = seen.base, plane.index
            if self.variant.is_over:
                base = fn.gep("float", base, fn.mul(fn.mul(tap.index, w["gap"]), w["x_t"]))
                number = fn.add(fn.mul(tap.index, w["planes"]), number)
            to = fn.gep("float", "%scratch", fn.mul(fn.add(fn.mul(number, w["plane_rows"]), line.index), w["row"]))
            y = fn.add(top, line.index)
            is_inside = fn.let(f"icmp ult i64 {y}, {w['h']}")
            # A row outside is all zeros: nothing is read, and the zeros "after" a run of 0 begin at once.
            lead = fn.let(f"select i1 {is_inside}, i64 {w['lead']}, i64 0")
            run = fn.let(f"select i1 {is_inside}, i64 {w['run']}, i64 0")
            source = fn.gep("float", base, fn.add(fn.mul(plane.index, w["x_plane"]), fn.mul(y, w["x_h"])))
            with fn.loop(0, lead) as i:
                fn.store("float", "0.0", fn.gep("float", to, i.index), 4)
            self._copy_run(source, fn.gep("float", to, lead), run)
            with fn.loop(fn.add(lead, run), w["row"]) as i:
                fn.store("float", "0.0", fn.gep("float", to, i.index), 4)

    def _copy_run(self, source: str, to: str, count: str) -> None:
        fn, lanes = self.fn, self.variant.tile.lanes
        whole = fn.let(f"and i64 {count}, {-lanes}")
        with fn.loop(0, whole, lanes) as i:
            self.micro.store(self.micro.load(fn.gep("float", source, i.index)), fn.gep("float", to, i.index))
        with fn.loop(whole, count) as i:
            fn.store("float", fn.load("float", fn.gep("float", source, i.index), 4), fn.gep("float", to, i.index), 4)

    def _row(self, scratch: str, packed: str, pixel: str, column: str, how: tuple[list[str] | None, _Seen]) -> None:
        """One row of the result in one panel. how: the lanes that are stored, all by default, and what is seen."""
        fn, w, tile = self.fn, self.words, self.variant.tile
        masks, seen = how
        last = fn.let(f"sub i64 {w['ow']}, {tile.pixels}")
        with fn.loop(0, w["ow"], tile.pixels) as t:
            # A tile that would reach past the row begins earlier and computes some pixels again, to the same bits.
            at = self._least(t.index, last)
            acc = self._sums(fn.gep("float", scratch, fn.mul(at, self.variant.step)), packed, seen.products)
            if self.finite is not None:
                self.finite.note(acc)
            first = fn.add(pixel, at)
            offsets = [fn.add(fn.mul(fn.add(first, p), w["out_pixel"]), column) for p in range(tile.pixels)]
            target = Target(self.out, self.operands, column, tuple(offsets))
            store_tile(self.micro, self.ops, self.variant.epilogue, acc, target, masks)

    def _sums(self, corner: str, packed: str, products: tuple[str, str]) -> list[str]:
        """The sums of a tile. products: the first one, and those behind the last."""
        fn, micro, (first, after) = self.fn, self.micro, products
        if not self.variant.blocked:
            return self._products_from(corner, packed, first, fn.let(f"sub i64 {after}, {first}"))
        micro.clear(self.totals)
        with fn.loop(first, after, self.words["block"]) as k:
            length = self._least(self.words["block"], fn.let(f"sub i64 {after}, {k.index}"))
            micro.add_to(self.totals, self._products_from(corner, packed, k.index, length))
        return micro.read(self.totals)

    def _products_from(self, corner: str, packed: str, first: str, length: str) -> list[str]:
        fn = self.fn
        weights = fn.gep("float", packed, fn.mul(first, self.micro.tile.columns))
        table = fn.gep("i64", self.table, fn.mul(first, 2) if self.variant.spread else first)
        return self._products(corner, table, length, weights)

    def _products(self, corner: str, table: str, length: str, weights: str) -> list[str]:
        fn, step = self.fn, self.variant.step
        places: dict[str, str] = {}

        def element(k: str, p: int) -> str:
            if k not in places:
                places[k] = fn.gep("float", corner, self._offset(table, k))
            return fn.gep("float", places[k], p * step)

        return self.micro.sum_over(length, weights, self.micro.zeros(), element)

    def _offset(self, table: str, k: str) -> str:
        """Where product k of a pixel lies, from its first one's corner on."""
        fn = self.fn
        if not self.variant.spread:
            return fn.load("i64", fn.gep("i64", table, k), 8)
        entry = fn.gep("i64", table, fn.mul(k, 2))
        rows, inside = (fn.load("i64", fn.gep("i64", entry, i), 8) for i in range(2))
        return fn.add(fn.mul(rows, self.words["row"]), inside)
