"""Attention over tiles of queries: keys and values are packed a block at a time, scores stay in the nearest cache.

    for a chunk of queries of one key/value head:                       # a work item
      for a block of keys:
        pack values [keys, width], keys [panels, size, lanes]
        for a tile of queries:
          keys from the first to the last that the mask leaves to one of them, if there is any:
          scores = queries @ keys; powers = exp(scores - largest so far); sums, products fade by what "largest" grew
          products += powers @ values
      result = products / sums

Invariant: a row's numbers do not depend on the tile or item that it is in. What a mask of -inf hides is not computed,
so numbers whose products with it might not be finite are refused where something was left out.
Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from smelt.codegen.attention.parts import Parts
from smelt.codegen.attention.variant import BLOCK, ROW_PADDING, Tile, Variant
from smelt.codegen.attention.vectors import Lanes, down, least, most, number, up
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record

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


@record
class _Item:
    """Names of what one work item is about: bases of its head, its rows, and keys that any of them sees."""

    bases: dict[str, str]
    first: str
    last: str
    sees: str


@record
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
        if self.variant.mask is not None:
            # Of a tile: the keys that are seen, and for which of them the mask was read last. Of a block: whether its
            # keys have not been looked at. Of an item: whether keys were left out, and whether a number is so large
            # that this may make a difference.
            self.first_key, self.last_key = fn.alloca("i64"), fn.alloca("i64")
            self.mask_first, self.mask_last = fn.alloca("i64"), fn.alloca("i64")
            self.leaves_out, self.is_large = fn.alloca("i32"), fn.alloca("i32")
            self.unknown = fn.alloca("i1")

    @property
    def _square(self) -> Lanes:
        """What keys are transposed in: few instructions to compile, and packing is a small part of the work."""
        return replace(self.lanes, count=min(self.lanes.count, _SQUARE))

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
        if self.variant.mask is not None:
            fn.store("i32", "0", self.leaves_out)
            fn.store("i32", "0", self.is_large)
        # Past the last key that is seen, values are packed only to be looked at.
        with fn.loop("0", words["keys"], words["block"]) as loop:
            end = least(fn, fn.add(loop.index, words["block"]), words["keys"])
            block = _Block(item, loop.index, fn.let(f"sub i64 {end}, {loop.index}"))
            self._pack_values(block)
            with fn.when(fn.let(f"icmp slt i64 {block.start}, {item.sees}")):
                self._pack_keys(block)
                fn.store("ptr", "null", self.last_mask)
                if self.variant.mask is not None:
                    fn.store("i64", "0", self.mask_first)
                    fn.store("i64", "0", self.mask_last)
                    fn.store("i1", "true", self.unknown)
                with fn.loop(item.first, item.last, self.tile.rows) as tiles:
                    self._tile(block, tiles.index)
        if self.variant.mask is not None:
            refused = fn.let(f"and i32 {fn.load('i32', self.leaves_out)}, {fn.load('i32', self.is_large)}")
            fn.store("i32", fn.let(f"or i32 {fn.load('i32', self.failed)}, {refused}"), self.failed)
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
            self.copy_row(
                self.dtype,
                row,
                stride,
                words["value_size"],
                target,
                check=found,
                bound=self.numbers["bound"],
                next_row=following,
            )
            with fn.loop(words["value_size"], words["value_width"]) as rest:
                fn.store(self.kind, number(0.0), fn.gep(self.kind, target, rest.index))
        with fn.when(is_checked):
            fn.store("i32", fn.let(f"or i32 {fn.load('i32', found)}, {fn.load('i32', self.failed)}"), self.failed)
        if self.variant.mask is not None:
            large = fn.load("i32", self.is_large)
            fn.store("i32", fn.let(f"or i32 {fn.load('i32', found)}, {large}"), self.is_large)

    def _pack_keys(self, block: _Block) -> None:
        """[keys, size] to panels [size, panel]; past the last key it is repeated."""
        fn, words, square = self.fn, self.words, self._square
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
            if self.variant.mask is None:
                self._attend(block, row, "0", count)
                return
            self._find_seen(count)
            first, last = fn.load("i64", self.first_key), fn.load("i64", self.last_key)
            with fn.when(fn.let(f"icmp slt i64 {first}, {last}")):
                self._attend(block, row, first, last)

    def _attend(self, block: _Block, row: str, first: str, last: str) -> None:
        """A tile and the keys of a block from `first`, where a panel begins, to `last`."""
        fn = self.fn
        vectors = fn.let(f"udiv i64 {fn.add(last, self.lanes.count - 1)}, {self.lanes.count}", "i")
        self._score(first, vectors)
        self._soften(block, row, first, last, fn.mul(vectors, self.lanes.count))
        self._mix(block, row, first, last)

    def _find_seen(self, count: str) -> None:
        """Where the keys begin and end, of `count` of a block, that the mask leaves to a query of the tile."""
        fn, lanes = self.fn, self.lanes.count
        is_dense = fn.let(f"icmp eq i64 {self.words['m_column']}, 1")
        whole = fn.let(f"select i1 {is_dense}, i64 {down(fn, count, lanes)}, i64 0", "i")
        fn.store("i64", "0", self.first_key)
        fn.store("i64", count, self.last_key)
        # Most masks leave the first key to the first query, or the last one to the last.
        ends = [self._is_one_seen(0, "0"), self._is_one_seen(self.tile.rows - 1, fn.add(count, -1))]
        is_open = fn.let(f"xor i1 {fn.let(f'and i1 {ends[0]}, {ends[1]}')}, true")
        with fn.when(fn.let(f"and i1 {is_open}, {fn.let(f'icmp sgt i64 {whole}, 0')}")):
            self._walk(self.first_key, lanes, lambda at: (fn.let(f"icmp slt i64 {at}, {whole}"), at))
            first = fn.load("i64", self.first_key)
            # What is no whole vector is looked at with keys in front of it.
            tail = self._is_seen(fn.add(count, -lanes))
            fn.store("i64", fn.let(f"select i1 {tail}, i64 {count}, i64 {whole}", "i"), self.last_key)
            with fn.when(fn.let(f"xor i1 {tail}, true")):
                self._walk(
                    self.last_key, -lanes, lambda at: (fn.let(f"icmp sgt i64 {at}, {first}"), fn.add(at, -lanes))
                )
            last = fn.load("i64", self.last_key)
            is_empty = fn.let(f"icmp sge i64 {first}, {last}")
            begin = fn.let(f"select i1 {is_empty}, i64 {last}, i64 {down(fn, first, self.panel)}", "i")
            fn.store("i64", begin, self.first_key)
            with fn.when(fn.let(f"icmp ne i64 {fn.let(f'sub i64 {last}, {begin}')}, {count}")):
                self._leave_out(count)

    def _leave_out(self, count: str) -> None:
        """Note that keys of the block, which has `count`, are left out, and look for large numbers."""
        fn, words, square = self.fn, self.words, self._square
        fn.store("i32", "1", self.leaves_out)
        many = f"<{square.count} x {square.bits}>"
        self._look_at_queries(many)
        with fn.when(fn.load("i1", self.unknown)):
            fn.store("i1", "false", self.unknown)
            with fn.loop("0", count, square.count, [(many, "zeroinitializer")]) as keys:
                panel = down(fn, keys.index, self.panel)
                column = fn.let(f"sub i64 {keys.index}, {panel}", "i")
                source = fn.gep(self.kind, self.keys, fn.add(fn.mul(panel, words["size"]), column))
                with fn.loop("0", words["size"], 1, [(many, keys.carried[0].now)]) as depth:
                    x = square.load(fn.gep(self.kind, source, fn.mul(depth.index, self.panel)))
                    depth.carried[0].next = self.worse(x, square.type, many, depth.carried[0].now)
                keys.carried[0].next = depth.carried[0].last
            self.mark_large(self.is_large, self.worst(square, keys.carried[0].last), self.numbers["reach"])

    def _look_at_queries(self, many: str) -> None:
        fn, words, square = self.fn, self.words, self._square
        whole = down(fn, words["size"], square.count)
        with fn.loop("0", self.tile.rows, 1, [(many, "zeroinitializer"), (square.bits, "0")]) as rows:
            row = fn.gep(self.kind, self.queries, fn.mul(rows.index, self.tile_row))
            with fn.loop("0", whole, square.count, [(many, rows.carried[0].now)]) as vectors:
                x = square.load(fn.gep(self.kind, row, vectors.index))
                vectors.carried[0].next = self.worse(x, square.type, many, vectors.carried[0].now)
            with fn.loop(whole, words["size"], 1, [(square.bits, rows.carried[1].now)]) as rest:
                one = fn.load(self.kind, fn.gep(self.kind, row, rest.index))
                rest.carried[0].next = self.worse(one, self.kind, square.bits, rest.carried[0].now)
            rows.carried[0].next, rows.carried[1].next = vectors.carried[0].last, rest.carried[0].last
        self.mark_large(self.is_large, self.worst(square, rows.carried[0].last), self.numbers["reach"])
        self.mark_large(self.is_large, rows.carried[1].last, self.numbers["reach"])

    def _is_one_seen(self, row: int, column: str) -> str:
        """Whether the mask leaves a key to a query of the tile."""
        fn, mask = self.fn, self.variant.mask
        assert mask is not None
        at = self.at(mask, fn.load("ptr", fn.gep("ptr", self.mask_rows, row)), self.offset((column, "m_column")))
        return fn.let(f"fcmp une {self.kind} {self.lanes.read_one(mask, at)}, {number(float('-inf'))}")

    def _walk(self, at: str, step: int, look: Callable[[str], tuple[str, str]]) -> None:
        """Step a place along while there is more, up to the first vector that a query sees.

        look: from the place, whether there is more, and where the vector begins.
        """
        fn = self.fn
        head, body, following, done = (fn.fresh(stem) for stem in ("walk", "look", "step", "found"))
        fn.do(f"br label %{head}")
        fn.label(head)
        here = fn.load("i64", at)
        has_more, column = look(here)
        fn.do(f"br i1 {has_more}, label %{body}, label %{done}")
        fn.label(body)
        fn.do(f"br i1 {self._is_seen(column)}, label %{done}, label %{following}")
        fn.label(following)
        fn.store("i64", fn.add(here, step), at)
        fn.do(f"br label %{head}")
        fn.label(done)

    def _is_seen(self, column: str) -> str:
        """Whether the mask leaves one of a vector of keys to a query of the tile."""
        fn, lanes, mask = self.fn, self.lanes, self.variant.mask
        assert mask is not None
        bits = f"<{lanes.count} x i1>"
        hidden = lanes.constant(float("-inf"))
        with fn.loop("0", self.tile.rows, 1, [(bits, "zeroinitializer")]) as loop:
            row = fn.load("ptr", fn.gep("ptr", self.mask_rows, loop.index))
            seen = fn.let(f"fcmp une {lanes.type} {lanes.read(mask, self.at(mask, row, column))}, {hidden}")
            loop.carried[0].next = fn.let(f"or {bits} {loop.carried[0].now}, {seen}")
        packed = fn.let(f"bitcast {bits} {loop.carried[0].last} to i{lanes.count}")
        return fn.let(f"icmp ne i{lanes.count} {packed}, 0")

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

    def _score(self, first: str, vectors: str) -> None:
        """queries @ keys for the vectors of keys from `first` on."""
        fn, words, width = self.fn, self.words, self.tile.vectors
        whole = fn.let(f"sub i64 {vectors}, {fn.let(f'urem i64 {vectors}, {width}')}", "i")
        begin = first if first == "0" else fn.let(f"udiv i64 {first}, {self.lanes.count}", "i")
        for start, stop, step in ((begin, whole, width), (whole, vectors, 1)):
            with fn.loop(start, stop, step) as loop:
                panel = fn.let(f"udiv i64 {loop.index}, {width}", "i")
                lane = fn.mul(fn.let(f"urem i64 {loop.index}, {width}", "i"), self.lanes.count)
                keys = fn.gep(self.kind, self.keys, fn.add(fn.mul(fn.mul(panel, self.panel), words["size"]), lane))
                sums = self.product(self.queries, self.tile_row, keys, self.panel, words["size"], self.tile.rows, step)
                into = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.lanes.count))
                for r, row in enumerate(sums):
                    for v, value in enumerate(row):
                        self.lanes.store(value, fn.gep(self.kind, into, r * self.score_row + v * self.lanes.count))

    def _soften(self, block: _Block, row: str, first: str, last: str, width: str) -> None:
        """The softmax of each row of scores as far as this block goes, of its keys from `first` to `last`.

        One loop over rows for the largest, one for exp, so that rows need not wait for one another.
        """
        fn = self.fn
        local = fn.let(f"sub i64 {row}, {block.item.first}", "i")
        largest = fn.gep(self.kind, self.largest, local)
        with fn.loop("0", self.tile.rows) as loop:
            scores = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.score_row))
            limit_at = fn.gep("i64", self.limits, loop.index)
            limit = most(fn, least(fn, fn.let(f"sub i64 {fn.load('i64', limit_at)}, {block.start}"), last), first)
            fn.store("i64", limit, limit_at)
            if self.variant.mask is not None:
                self._fetch_mask(fn.load("ptr", fn.gep("ptr", self.mask_rows, loop.index)), first, last)
            here = self.scaled_row(scores, limit, self.mask if self.variant.mask is not None else None, first)
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
            total = self.powers_row(scores, limit, width, origin, first)
            sum_at = fn.gep(self.kind, self.sums, fn.add(local, loop.index))
            fade = fn.load(self.kind, fn.gep(self.kind, self.fades, loop.index))
            fn.store(self.kind, self.lanes.fma_one(fn.load(self.kind, sum_at), fade, total), sum_at)

    def _fetch_mask(self, row: str, first: str, last: str) -> None:
        """Read a row of the mask unless it is the one that was read last, as in masks that all queries share."""
        fn = self.fn
        known = ((row, "ptr", self.last_mask), (first, "i64", self.mask_first), (last, "i64", self.mask_last))
        is_other = ""
        for value, kind, at in known:
            differs = fn.let(f"icmp ne {kind} {value}, {fn.load(kind, at)}")
            is_other = fn.let(f"or i1 {is_other}, {differs}") if is_other else differs
        with fn.when(is_other):
            assert self.variant.mask is not None
            source = self.at(self.variant.mask, row, self.offset((first, "m_column")))
            self.mask_row(source, fn.let(f"sub i64 {last}, {first}"), fn.gep(self.kind, self.mask, first))
            for value, kind, at in known:
                fn.store(kind, value, at)

    def _mix(self, block: _Block, row: str, first: str, last: str) -> None:
        """products = products * fades + powers @ values, of the keys from `first` to `last`."""
        fn, lanes, words = self.fn, self.lanes, self.words
        count = last if first == "0" else fn.let(f"sub i64 {last}, {first}")
        local = fn.let(f"sub i64 {row}, {block.item.first}", "i")
        rows = fn.gep(self.kind, self.products, fn.mul(local, words["value_width"]))
        step = self.panel
        rest = fn.let(f"urem i64 {words['value_width']}, {step}", "i")
        whole = fn.let(f"sub i64 {words['value_width']}, {rest}", "i")
        for start, stop, vectors in (("0", whole, self.tile.vectors), (whole, words["value_width"], 1)):
            with fn.loop(start, stop, vectors * lanes.count) as loop:
                values = fn.gep(self.kind, self.values, fn.add(fn.mul(first, words["value_width"]), loop.index))
                sums = self.product(
                    fn.gep(self.kind, self.scores, first),
                    self.score_row,
                    values,
                    words["value_width"],
                    count,
                    self.tile.rows,
                    vectors,
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
            self.write_row(source, self.inverse(total), words["value_size"], target, words["o_column"])
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
