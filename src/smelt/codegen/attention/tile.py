"""Attention over tiles of queries: keys and values are packed a block at a time, scores stay in the nearest cache.

    for a chunk of queries of one key/value head:                       # a work item
      for a block of keys:
        pack values [keys, width], keys [panels, size, lanes]
        for a tile of queries:
          scores = queries @ keys; powers = exp(scores - largest so far); sums, products fade by what "largest" grew
          products += powers @ values
      result = products / sums

Invariant: a row's numbers do not depend on the tile or item that it is in.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from smelt.codegen.attention.parts import Parts
from smelt.codegen.attention.variant import BLOCK, ROW_PADDING, Tile, Variant
from smelt.codegen.attention.vectors import down, least, most, number, up
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource

# Keys and columns that are transposed at once.
_SQUARE = 8


@lru_cache(maxsize=64)
def tile_kernel(variant: Variant, isa: Isa) -> KernelSource:
    """The kernel of a variant; what it takes is in `variant.WORDS`."""
    return KernelSource.of(_TileKernel(variant, isa).text())


def scratch_numbers(
    variant: Variant, isa: Isa, *, size: int, value_width: int, block: int, chunk: int, lanes: int
) -> int:
    """How many numbers of scratch memory a thread needs."""
    tile = Tile.of(isa)
    panel = tile.vectors * lanes
    fixed = tile.rows * (variant.row_size + BLOCK + 2 * ROW_PADDING) + BLOCK + ROW_PADDING
    rows = _rounded(chunk + tile.rows, 16)
    return fixed + rows * (2 + value_width) + _rounded(block, panel) * size + block * value_width


def _rounded(count: int, to: int) -> int:
    return -(-count // to) * to


@dataclass(frozen=True, slots=True)
class _Item:
    """Names of what one work item is about: bases of its head, its rows, and keys that any of them sees."""

    bases: dict[str, str]
    first: str
    last: str
    sees: str


@dataclass(frozen=True, slots=True)
class _Block:
    """Keys `start` to `start + count` of an item."""

    item: _Item
    start: str
    count: str


class _TileKernel(Parts):
    def __init__(self, variant: Variant, isa: Isa) -> None:
        super().__init__(variant, isa)
        self.tile = Tile.of(isa)
        self.panel = self.tile.vectors * self.lanes.count
        self.score_row = BLOCK + ROW_PADDING
        fn = self.fn
        at = 0
        self.queries = fn.gep(self.kind, "%scratch", at)
        at += self.tile.rows * self.tile_row
        self.scores = fn.gep(self.kind, "%scratch", at)
        at += self.tile.rows * self.score_row
        self.mask = fn.gep(self.kind, "%scratch", at)
        at += self.score_row
        self.largest = fn.gep(self.kind, "%scratch", at)
        rows = up(fn, fn.add(self.words["chunk"], self.tile.rows), 16)
        self.sums = fn.gep(self.kind, self.largest, rows)
        self.products = fn.gep(self.kind, self.sums, rows)
        self.values = fn.gep(self.kind, self.products, fn.mul(rows, self.words["value_width"]))
        self.keys = fn.gep(self.kind, self.values, fn.mul(self.words["block"], self.words["value_width"]))
        self.limits = fn.alloca("i64", self.tile.rows)
        self.mask_rows = fn.alloca("ptr", self.tile.rows)
        self.origins = fn.alloca(self.kind, self.tile.rows)
        self.fades = fn.alloca(self.kind, self.tile.rows + self.lanes.count)
        self.last_mask = fn.alloca("ptr")
        self.failed = fn.alloca("i32")

    def text(self) -> str:
        """The whole module."""
        fn = self.fn
        fn.store("i32", "0", self.failed)
        with fn.loop("%begin", "%end") as loop:
            self._do(self._item(loop.index))
        return fn.finish(f"i32 {fn.load('i32', self.failed)}")

    # --- an item

    def _item(self, index: str) -> _Item:
        fn, words = self.fn, self.words
        chunk = fn.let(f"urem i64 {index}, {words['chunks']}", "i")
        rest = fn.let(f"udiv i64 {index}, {words['chunks']}", "i")
        head = fn.let(f"urem i64 {rest}, {words['heads']}", "i")
        batch = fn.let(f"udiv i64 {rest}, {words['heads']}", "i")
        bases = {name: self.base(name, batch, head) for name in self.buffers}
        first = fn.mul(chunk, words["chunk"])
        last = least(fn, fn.add(first, words["chunk"]), words["rows"])
        query = self._latest_query(first, last)
        sees = self.seen(query)
        return _Item(bases, first, last, sees)

    def _latest_query(self, first: str, last: str) -> str:
        """The largest position of a query among the rows of an item, which may be of several heads."""
        fn, queries = self.fn, self.words["queries"]
        row = fn.add(last, -1)
        here, there = (fn.let(f"udiv i64 {r}, {queries}", "i") for r in (first, row))
        position = fn.let(f"sub i64 {row}, {fn.mul(there, queries)}", "i")
        is_one = fn.let(f"icmp eq i64 {here}, {there}")
        return fn.let(f"select i1 {is_one}, i64 {position}, i64 {fn.add(queries, -1)}", "i")

    def _do(self, item: _Item) -> None:
        fn, words = self.fn, self.words
        rows = fn.add(fn.let(f"sub i64 {item.last}, {item.first}"), self.tile.rows)
        with fn.loop("0", rows) as loop:
            fn.store(self.kind, number(float("-inf")), fn.gep(self.kind, self.largest, loop.index))
            fn.store(self.kind, number(0.0), fn.gep(self.kind, self.sums, loop.index))
        with fn.loop("0", fn.mul(rows, words["value_width"]), self.lanes.count) as loop:
            self.lanes.store("zeroinitializer", fn.gep(self.kind, self.products, loop.index))
        # Past the last key that is seen, values are packed only to be looked at.
        with fn.loop("0", words["keys"], words["block"]) as loop:
            end = least(fn, fn.add(loop.index, words["block"]), words["keys"])
            block = _Block(item, loop.index, fn.let(f"sub i64 {end}, {loop.index}"))
            self._pack_values(block)
            with fn.when(fn.let(f"icmp slt i64 {block.start}, {item.sees}")):
                self._pack_keys(block)
                fn.store("ptr", "null", self.last_mask)
                with fn.loop(item.first, item.last, self.tile.rows) as tiles:
                    self._tile(block, tiles.index)
        self._write(item)

    # --- packing

    def _pack_values(self, block: _Block) -> None:
        """[keys, value_size] to numbers in rows of whole vectors."""
        fn, words = self.fn, self.words
        source = self.at(self.dtype, block.item.bases["v"], self.offset((block.start, "v_row")))
        is_checked = fn.let(f"icmp ne i64 {words['checked']}, 0")
        found = fn.alloca("i32")
        fn.store("i32", "0", found)
        with fn.loop("0", block.count) as loop:
            target = fn.gep(self.kind, self.values, fn.mul(loop.index, words["value_width"]))
            row = self.at(self.dtype, source, self.offset((loop.index, "v_row")))
            stride, following = words["v_column"], words["v_row"]
            self.copy_row(self.dtype, row, stride, words["value_size"], target, check=found, next_row=following)
            with fn.loop(words["value_size"], words["value_width"]) as rest:
                fn.store(self.kind, number(0.0), fn.gep(self.kind, target, rest.index))
        with fn.when(is_checked):
            fn.store("i32", fn.let(f"or i32 {fn.load('i32', found)}, {fn.load('i32', self.failed)}"), self.failed)

    def _pack_keys(self, block: _Block) -> None:
        """[keys, size] to panels [size, panel]; past the last key it is repeated."""
        fn, words = self.fn, self.words
        # Small squares: few instructions to compile, and packing is a small part of the work.
        square = replace(self.lanes, count=min(self.lanes.count, _SQUARE))
        is_dense = fn.let(f"icmp eq i64 {words['k_column']}, 1")
        whole = fn.let(f"select i1 {is_dense}, i64 {down(fn, words['size'], square.count)}, i64 0", "i")
        last = fn.add(fn.add(block.start, block.count), -1)
        rows = fn.alloca("ptr", square.count)
        with fn.loop("0", block.count, square.count) as loop:
            panel = down(fn, loop.index, self.panel)
            column = fn.let(f"sub i64 {loop.index}, {panel}", "i")
            target = fn.gep(self.kind, self.keys, fn.add(fn.mul(panel, words["size"]), column))
            key = fn.add(block.start, loop.index)

            def row(i: str | int, key: str = key) -> str:
                place = self.offset((least(fn, fn.add(key, i), last), "k_row"))
                return self.at(self.dtype, block.item.bases["k"], place)

            ahead = fn.mul(words["k_row"], self.panel)
            with fn.loop("0", square.count) as single:
                fn.store("ptr", row(single.index), fn.gep("ptr", rows, single.index))
                with fn.loop("0", whole, self.lanes.count) as line:
                    self.fetch(self.at(self.dtype, row(single.index), fn.add(line.index, ahead)))
            with fn.loop("0", whole, square.count) as columns:
                read = []
                for i in range(square.count):
                    source = fn.load("ptr", fn.gep("ptr", rows, i))
                    read.append(square.read(self.dtype, self.at(self.dtype, source, columns.index)))
                into = fn.gep(self.kind, target, fn.mul(columns.index, self.panel))
                for i, vector in enumerate(square.transposed(read)):
                    square.store(vector, fn.gep(self.kind, into, i * self.panel))
            with fn.loop("0", square.count) as single:
                source = fn.load("ptr", fn.gep("ptr", rows, single.index))
                into = fn.gep(self.kind, target, single.index)
                with fn.loop(whole, words["size"]) as rest:
                    x = square.read_one(self.dtype, self.at(self.dtype, source, self.offset((rest.index, "k_column"))))
                    fn.store(self.kind, x, fn.gep(self.kind, into, fn.mul(rest.index, self.panel)))

    # --- a tile

    def _tile(self, block: _Block, row: str) -> None:
        fn = self.fn
        sees = self._take_queries(block, row)
        count = least(fn, fn.let(f"sub i64 {sees}, {block.start}"), block.count)
        with fn.when(fn.let(f"icmp sgt i64 {count}, 0")):
            vectors = fn.let(f"udiv i64 {fn.add(count, self.lanes.count - 1)}, {self.lanes.count}", "i")
            self._score(vectors)
            self._soften(block, row, count, fn.mul(vectors, self.lanes.count))
            self._mix(block, row, count)

    def _take_queries(self, block: _Block, row: str) -> str:
        """Copy the tile's queries, the last one again where there are fewer; the most keys that one of them sees."""
        fn, words = self.fn, self.words
        final = fn.add(block.item.last, -1)
        with fn.loop("0", self.tile.rows, 1, [("i64", "0")]) as loop:
            here = least(fn, fn.add(row, loop.index), final)
            group, query = self.position(here)
            sees = self.seen(query)
            fn.store("i64", sees, fn.gep("i64", self.limits, loop.index))
            if self.variant.mask is not None:
                place = self.offset((group, "m_group"), (query, "m_row"), (block.start, "m_column"))
                mask = self.at(self.variant.mask, block.item.bases["m"], place)
                fn.store("ptr", mask, fn.gep("ptr", self.mask_rows, loop.index))
            source = self.at(self.dtype, block.item.bases["q"], self.offset((group, "q_group"), (query, "q_row")))
            target = fn.gep(self.kind, self.queries, fn.mul(loop.index, self.tile_row))
            scale, following = self.numbers["scale_before"], words["q_row"]
            self.copy_row(self.dtype, source, words["q_column"], words["size"], target, scale=scale, next_row=following)
            loop.carried[0].next = most(fn, loop.carried[0].now, sees)
        return loop.carried[0].last

    def _score(self, vectors: str) -> None:
        """queries @ keys for that many vectors of keys."""
        fn, words, width = self.fn, self.words, self.tile.vectors
        whole = fn.let(f"sub i64 {vectors}, {fn.let(f'urem i64 {vectors}, {width}')}", "i")
        for start, stop, step in (("0", whole, width), (whole, vectors, 1)):
            with fn.loop(start, stop, step) as loop:
                panel = fn.let(f"udiv i64 {loop.index}, {width}", "i")
                lane = fn.mul(fn.let(f"urem i64 {loop.index}, {width}", "i"), self.lanes.count)
                keys = fn.gep(self.kind, self.keys, fn.add(fn.mul(fn.mul(panel, self.panel), words["size"]), lane))
                sums = self.product(self.queries, self.tile_row, keys, self.panel, words["size"], self.tile.rows, step)
                into = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.lanes.count))
                for r, row in enumerate(sums):
                    for v, value in enumerate(row):
                        self.lanes.store(value, fn.gep(self.kind, into, r * self.score_row + v * self.lanes.count))

    def _soften(self, block: _Block, row: str, count: str, width: str) -> None:
        """The softmax of each row of scores as far as this block goes.

        One loop over rows for the largest, one for exp, so that rows need not wait for one another.
        """
        fn = self.fn
        local = fn.let(f"sub i64 {row}, {block.item.first}", "i")
        largest = fn.gep(self.kind, self.largest, local)
        with fn.loop("0", self.tile.rows) as loop:
            scores = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.score_row))
            limit_at = fn.gep("i64", self.limits, loop.index)
            limit = most(fn, least(fn, fn.let(f"sub i64 {fn.load('i64', limit_at)}, {block.start}"), count), "0")
            fn.store("i64", limit, limit_at)
            if self.variant.mask is not None:
                self._fetch_mask(fn.load("ptr", fn.gep("ptr", self.mask_rows, loop.index)), block.count)
            here = self.scaled_row(scores, limit, self.mask if self.variant.mask is not None else None)
            past = fn.load(self.kind, fn.gep(self.kind, largest, loop.index))
            now = self.lanes.larger_one(here, past)
            origin = self.origin(now)
            fn.store(self.kind, now, fn.gep(self.kind, largest, loop.index))
            fn.store(self.kind, origin, fn.gep(self.kind, self.origins, loop.index))
            faded = fn.let(f"fsub {self.kind} {past}, {origin}")
            fn.store(self.kind, faded, fn.gep(self.kind, self.fades, loop.index))
        with fn.loop("0", self.tile.rows, self.lanes.count) as loop:
            at = fn.gep(self.kind, self.fades, loop.index)
            self.lanes.store(self.lanes.exp(self.lanes.load(at)), at)
        with fn.loop("0", self.tile.rows) as loop:
            scores = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.score_row))
            limit = fn.load("i64", fn.gep("i64", self.limits, loop.index))
            origin = fn.load(self.kind, fn.gep(self.kind, self.origins, loop.index))
            total = self.powers_row(scores, limit, width, origin)
            sum_at = fn.gep(self.kind, self.sums, fn.add(local, loop.index))
            fade = fn.load(self.kind, fn.gep(self.kind, self.fades, loop.index))
            fn.store(self.kind, self.lanes.fma_one(fn.load(self.kind, sum_at), fade, total), sum_at)

    def _fetch_mask(self, row: str, count: str) -> None:
        """Read a row of the mask unless it is the one that was read last, as in masks that all queries share."""
        fn = self.fn
        with fn.when(fn.let(f"icmp ne ptr {row}, {fn.load('ptr', self.last_mask)}")):
            self.mask_row(row, count, self.mask)
            fn.store("ptr", row, self.last_mask)

    def _mix(self, block: _Block, row: str, count: str) -> None:
        """products = products * fades + powers @ values."""
        fn, lanes, words = self.fn, self.lanes, self.words
        local = fn.let(f"sub i64 {row}, {block.item.first}", "i")
        rows = fn.gep(self.kind, self.products, fn.mul(local, words["value_width"]))
        step = self.panel
        rest = fn.let(f"urem i64 {words['value_width']}, {step}", "i")
        whole = fn.let(f"sub i64 {words['value_width']}, {rest}", "i")
        for start, stop, vectors in (("0", whole, self.tile.vectors), (whole, words["value_width"], 1)):
            with fn.loop(start, stop, vectors * lanes.count) as loop:
                values = fn.gep(self.kind, self.values, loop.index)
                sums = self.product(
                    self.scores, self.score_row, values, words["value_width"], count, self.tile.rows, vectors
                )
                for r, row_sums in enumerate(sums):
                    fade = lanes.splat(fn.load(self.kind, fn.gep(self.kind, self.fades, r)))
                    place = fn.add(fn.mul(words["value_width"], r), loop.index)
                    for v, value in enumerate(row_sums):
                        at = fn.gep(self.kind, fn.gep(self.kind, rows, place), v * lanes.count)
                        lanes.store(lanes.fma(lanes.load(at), fade, value), at)

    # --- the result

    def _write(self, item: _Item) -> None:
        fn, words = self.fn, self.words
        with fn.loop(item.first, item.last) as loop:
            local = fn.let(f"sub i64 {loop.index}, {item.first}", "i")
            group, query = self.position(loop.index)
            target = self.at(self.dtype, item.bases["o"], self.offset((group, "o_group"), (query, "o_row")))
            total = fn.load(self.kind, fn.gep(self.kind, self.sums, local))
            source = fn.gep(self.kind, self.products, fn.mul(local, words["value_width"]))
            self.write_row(source, self.inverse(total), words["value_size"], target)
        if self.variant.keeps_sums:
            self._write_logarithms(item)

    def _write_logarithms(self, item: _Item) -> None:
        """largest + log(sum) of each row, as the library has it: 0 where no score is more than -inf."""
        fn, lanes = self.fn, self.lanes
        count = fn.let(f"sub i64 {item.last}, {item.first}", "i")
        with fn.loop("0", count, lanes.count) as loop:
            at = fn.gep(self.kind, self.sums, loop.index)
            lanes.store(lanes.log(lanes.load(at)), at)
        with fn.loop("0", count) as loop:
            row = fn.add(item.first, loop.index)
            group, query = self.position(row)
            largest = fn.load(self.kind, fn.gep(self.kind, self.largest, loop.index))
            found = fn.let(
                f"fadd {self.kind} {largest}, {fn.load(self.kind, fn.gep(self.kind, self.sums, loop.index))}"
            )
            is_empty = fn.let(f"fcmp oeq {self.kind} {largest}, {number(float('-inf'))}")
            found = fn.let(f"select i1 {is_empty}, {self.kind} {number(0.0)}, {self.kind} {found}")
            place = self.offset((group, "l_group"), (query, "l_row"))
            fn.store(self.kind, found, fn.gep(self.kind, item.bases["l"], place))
