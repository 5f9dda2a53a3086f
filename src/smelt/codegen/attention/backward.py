"""Gradients of attention in one pass: probabilities come again from scores and the logarithms of their sums.

    for a key/value head:                                               # a work item
      row_dots = sums of grad * result, of each query
      for a block of keys:
        pack keys and values [keys, size] and as panels [panels, size, lanes]
        for a band of queries:
          for a tile of them:
            powers = exp(scale * queries @ keys^T + mask - logarithms)
            changes = powers * (grad @ values^T - row_dots)             # gradients of the scores
            of_queries += changes @ keys
          of_values += powers^T @ grad;  of_keys += changes^T @ queries
        write of_values, scale * of_keys
      write scale * of_queries

Invariant: an item writes the gradients of its own head alone, so no sum is shared by threads.
Source: Dao et al., "FlashAttention", arXiv:2205.14135.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.attention.backward_functions import Functions
from smelt.codegen.attention.parts import Parts
from smelt.codegen.attention.variant import ROW_PADDING, Tile, Variant
from smelt.codegen.attention.vectors import down, least, most, number, up
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource
from smelt.diag.records import record

KEYS = 128
"""Keys of a block, at most: with these, what a band works on stays in the second cache."""

# Tiles of a band.
_TILES = 4
# Room behind a block's keys: for whole panels, and for whole tiles of keys.
_MORE_KEYS = 64
_SCORE_ROW = KEYS + ROW_PADDING


@lru_cache(maxsize=64)
def backward_kernel(variant: Variant, isa: Isa) -> KernelSource:
    """The kernel of a variant; what it takes is in `variant.BACKWARD_WORDS`."""
    return KernelSource.of(_BackwardKernel(variant, isa).text())


def scratch_numbers(isa: Isa, *, width: int, value_width: int, rows: int, groups: int, block: int) -> int:
    """How many numbers of scratch memory a thread needs. rows: queries of one head."""
    tile = Tile.of(isa).rows
    band = _TILES * tile
    scores = (2 * band + 1) * _SCORE_ROW
    # Queries and gradients of a band; of a block's keys and values rows, panels and gradients; gradients of queries.
    rows_nelements = (band + 3 * (block + _MORE_KEYS)) * (width + value_width)
    return scores + rows_nelements + groups * (rows + tile) * (width + 2) + value_width


@record
class _Block:
    """Keys `start` to `start + count` of an item, and where the item's head begins in each buffer."""

    bases: dict[str, str]
    start: str
    count: str


@record
class _Band:
    """Queries `first` to `last` of a head of the group; keys of the block that any of them sees.

    row: the first one's among all rows, which are counted with room for a whole tile behind each head.
    """

    block: _Block
    group: str
    first: str
    last: str
    row: str
    sees: str


class _BackwardKernel(Parts):
    def __init__(self, variant: Variant, isa: Isa) -> None:
        super().__init__(variant, isa)
        fn, words = self.fn, self.words
        self.tile = Tile.of(isa)
        self.band = _TILES * self.tile.rows
        self._taken: str = "%scratch"
        keys = fn.add(words["block"], _MORE_KEYS)
        self.room = fn.add(words["queries"], self.tile.rows)
        rows = fn.mul(words["groups"], self.room)
        width, value_width = words["width"], words["value_width"]
        self.powers, self.changes = (self._take(self.band * _SCORE_ROW) for _ in range(2))
        self.mask = self._take(_SCORE_ROW)
        self.queries, self.grads = (self._take(fn.mul(w, self.band)) for w in (width, value_width))
        self.keys, self.values = (self._take(fn.mul(w, keys)) for w in (width, value_width))
        self.key_panels, self.value_panels = (self._take(fn.mul(w, keys)) for w in (width, value_width))
        self.of_keys, self.of_values = (self._take(fn.mul(w, keys)) for w in (width, value_width))
        self.of_queries = self._take(fn.mul(width, rows))
        self.logarithms, self.row_dots = (self._take(rows) for _ in range(2))
        self.result = self._take(value_width)
        self.failed = fn.alloca("i32")
        self.functions = Functions(fn, variant, isa, _SCORE_ROW)

    def _take(self, count: str | int) -> str:
        """The next numbers of the scratch memory."""
        at = self._taken
        self._taken = self.fn.gep(self.kind, at, count)
        return at

    def text(self) -> str:
        """The whole module."""
        fn = self.fn
        fn.store("i32", "0", self.failed)
        with fn.loop("%begin", "%end") as loop:
            head = fn.let(f"urem i64 {loop.index}, {self.words['heads']}", "i")
            batch = fn.let(f"udiv i64 {loop.index}, {self.words['heads']}", "i")
            self._do({name: self.base(name, batch, head) for name in self.buffers})
        with fn.when(fn.let(f"icmp eq i64 {self.words['checked']}, 0")):
            fn.store("i32", "0", self.failed)
        return fn.finish(f"i32 {fn.load('i32', self.failed)}")

    def _do(self, bases: dict[str, str]) -> None:
        fn, words = self.fn, self.words
        with fn.loop("0", words["groups"]) as group:
            self._prepare(bases, group.index)
        self._clear(self.of_queries, fn.mul(fn.mul(words["groups"], self.room), words["width"]))
        with fn.loop("0", words["keys"], words["block"]) as keys:
            end = least(fn, fn.add(keys.index, words["block"]), words["keys"])
            block = _Block(bases, keys.index, fn.let(f"sub i64 {end}, {keys.index}", "i"))
            self._pack(block)
            self._clear(self.of_keys, fn.mul(fn.add(block.count, self.tile.rows), words["width"]))
            self._clear(self.of_values, fn.mul(fn.add(block.count, self.tile.rows), words["value_width"]))
            with fn.loop("0", words["groups"]) as group, fn.loop("0", words["queries"], self.band) as first:
                last = least(fn, fn.add(first.index, self.band), words["queries"])
                sees = self._seen_of(block, fn.add(last, -1))
                row = fn.add(fn.mul(group.index, self.room), first.index)
                with fn.when(fn.let(f"icmp sgt i64 {sees}, 0")):
                    self._do_band(_Band(block, group.index, first.index, last, row, sees))
            self._write(bases, "dk", self.of_keys, block.start, block.count)
            self._write(bases, "dv", self.of_values, block.start, block.count)
        with fn.loop("0", words["groups"]) as group:
            source = fn.gep(self.kind, self.of_queries, fn.mul(fn.mul(group.index, self.room), words["width"]))
            self._write(bases, "dq", source, "0", words["queries"], group.index)

    def _clear(self, at: str, count: str) -> None:
        with self.fn.loop("0", count, self.lanes.count) as loop:
            self.lanes.store("zeroinitializer", self.fn.gep(self.kind, at, loop.index))

    def _seen_of(self, block: _Block, query: str) -> str:
        """How many keys of a block a query sees."""
        fn = self.fn
        return most(fn, least(fn, fn.let(f"sub i64 {self.seen(query)}, {block.start}", "i"), block.count), "0")

    # --- rows

    def _row(self, bases: dict[str, str], name: str, row: str, group: str = "0") -> str:
        """The address of a row of a buffer."""
        dtype = self.variant.compute if name == "l" else self.dtype
        stride = [(row, f"{name}_row"), *([(group, f"{name}_group")] if f"{name}_group" in self.words else [])]
        return self.at(dtype, bases[name], self.offset(*stride))

    def _take_row(self, source: str, name: str, target: str) -> None:
        """Widen a row into scratch memory, zeros up to whole vectors; keep in mind whether it holds what is refused."""
        words = self.words
        size, width = (words[w] for w in (("value_size", "value_width") if name in "gov" else ("size", "width")))
        self.functions.take_row(
            source=source, stride=words[f"{name}_column"], count=size, target=target, width=width,
            next_row=words[f"{name}_row"], flag=self.failed, bound=self.numbers["bound"],
        )  # fmt: skip

    def _prepare(self, bases: dict[str, str], group: str) -> None:
        """Logarithms of the sums of a head's queries, and the products of each one's gradient with its result."""
        fn, lanes, words = self.fn, self.lanes, self.words
        with fn.loop("0", words["queries"]) as loop:
            row = fn.add(fn.mul(group, self.room), loop.index)
            logarithm = fn.load(self.kind, self._row(bases, "l", loop.index, group))
            fn.store(self.kind, logarithm, fn.gep(self.kind, self.logarithms, row))
            self._take_row(self._row(bases, "o", loop.index, group), "o", self.result)
            self._take_row(self._row(bases, "g", loop.index, group), "g", self.grads)
            with fn.loop("0", words["value_width"], lanes.count, [(lanes.type, "zeroinitializer")]) as columns:
                a, b = (lanes.load(fn.gep(self.kind, at, columns.index)) for at in (self.result, self.grads))
                columns.carried[0].next = lanes.fma(a, b, columns.carried[0].now)
            fn.store(self.kind, lanes.sum(columns.carried[0].last), fn.gep(self.kind, self.row_dots, row))

    def _write(self, bases: dict[str, str], name: str, source: str, first: str, count: str, group: str = "0") -> None:
        """Rows `first` to `first + count` of a gradient, from scratch memory."""
        fn, words = self.fn, self.words
        size, width = ("value_size", "value_width") if name == "dv" else ("size", "width")
        factor = number(1.0) if name == "dv" else self.numbers["scale"]
        with fn.loop("0", count) as loop:
            target = self._row(bases, name, fn.add(first, loop.index), group)
            row = fn.gep(self.kind, source, fn.mul(loop.index, words[width]))
            self.functions.write_row(
                source=row, factor=factor, count=words[size], target=target, stride=words[f"{name}_column"]
            )

    # --- keys and values

    def _pack(self, block: _Block) -> None:
        """Keys and values in rows, and in panels [size, panel] whose numbers past the last key are arbitrary."""
        fn, words = self.fn, self.words
        for name, width, rows, panels in (
            ("k", words["width"], self.keys, self.key_panels),
            ("v", words["value_width"], self.values, self.value_panels),
        ):
            with fn.loop("0", block.count) as loop:
                source = self._row(block.bases, name, fn.add(block.start, loop.index))
                self._take_row(source, name, fn.gep(self.kind, rows, fn.mul(loop.index, width)))
            self.functions.turn(rows=rows, panels=panels, width=width, count=block.count)

    # --- a band of queries

    def _do_band(self, band: _Band) -> None:
        fn, words, bases = self.fn, self.words, band.block.bases
        rows = fn.let(f"sub i64 {band.last}, {band.first}", "i")
        with fn.loop("0", rows) as loop:
            query = fn.add(band.first, loop.index)
            for name, at, width in (("q", self.queries, "width"), ("g", self.grads, "value_width")):
                target = fn.gep(self.kind, at, fn.mul(loop.index, words[width]))
                self._take_row(self._row(bases, name, query, band.group), name, target)
        with fn.loop("0", rows, self.tile.rows) as tile:
            self._do_tile(band, tile.index, rows)
        with fn.loop("0", band.sees, self.tile.rows) as key:
            # Queries of the band before the first one that sees a key add nothing.
            first = fn.mul(fn.add(band.block.start, key.index), words["limit_step"])
            skipped = most(fn, fn.let(f"sub i64 {first}, {band.first}", "i"), "0")
            for left, right, into, width in (
                (self.powers, self.grads, self.of_values, words["value_width"]),
                (self.changes, self.queries, self.of_keys, words["width"]),
            ):
                left_at = fn.gep(self.kind, fn.gep(self.kind, left, fn.mul(skipped, _SCORE_ROW)), key.index)
                right_at = fn.gep(self.kind, right, fn.mul(skipped, width))
                depth = fn.let(f"sub i64 {rows}, {skipped}", "i")
                target = fn.gep(self.kind, into, fn.mul(key.index, width))
                self.functions.add_product(
                    1, _SCORE_ROW, left=left_at, right=right_at, width=width, depth=depth, into=target
                )

    def _do_tile(self, band: _Band, first: str, rows: str) -> None:
        """Probabilities and gradients of the scores of a tile; its queries' gradients grow."""
        fn, words = self.fn, self.words
        last = least(fn, fn.add(first, self.tile.rows), rows)
        sees = self._seen_of(band.block, fn.add(fn.add(band.first, last), -1))
        at = fn.mul(first, _SCORE_ROW)
        powers, changes = (fn.gep(self.kind, scores, at) for scores in (self.powers, self.changes))
        queries = fn.gep(self.kind, self.queries, fn.mul(first, words["width"]))
        grads = fn.gep(self.kind, self.grads, fn.mul(first, words["value_width"]))
        for left, width, depth, panels, into in (
            (queries, "width", "size", self.key_panels, powers),
            (grads, "value_width", "value_size", self.value_panels, changes),
        ):
            self.functions.score(
                left=left, left_row=words[width], depth=words[depth], panels=panels, count=sees, into=into
            )
        # All rows of the band are read as far as its last one sees.
        seen = up(fn, fn.add(band.sees, self.tile.rows), self.lanes.count)
        with fn.loop(first, last) as row:
            self._soften(band, row.index, seen)
        target = fn.gep(self.kind, self.of_queries, fn.mul(fn.add(band.row, first), words["width"]))
        self.functions.add_product(
            _SCORE_ROW, 1, left=changes, right=self.keys, width=words["width"], depth=sees, into=target
        )

    def _soften(self, band: _Band, row: str, width: str) -> None:
        """Scores to probabilities, and gradients of these to gradients of the scores, in place; 0 where not seen."""
        fn, lanes = self.fn, self.lanes
        query = fn.add(band.first, row)
        limit = self._seen_of(band.block, query)
        at = fn.mul(row, _SCORE_ROW)
        powers, changes = (fn.gep(self.kind, scores, at) for scores in (self.powers, self.changes))
        local = fn.add(band.row, row)
        logarithm, dots = (
            lanes.splat(fn.load(self.kind, fn.gep(self.kind, of, local))) for of in (self.logarithms, self.row_dots)
        )
        scales = lanes.splat(self.numbers["scale"])
        if self.variant.mask is not None:
            place = self.offset((band.group, "m_group"), (query, "m_row"), (band.block.start, "m_column"))
            self.mask_row(self.at(self.variant.mask, band.block.bases["m"], place), limit, self.mask)
        whole = down(fn, limit, lanes.count)

        def both(index: str) -> tuple[str, str]:
            score = lanes.op("fmul", lanes.load(fn.gep(self.kind, powers, index)), scales)
            if self.variant.mask is not None:
                score = lanes.op("fadd", score, lanes.load(fn.gep(self.kind, self.mask, index)))
            power = lanes.exp(lanes.op("fsub", score, logarithm))
            change = lanes.op("fsub", lanes.load(fn.gep(self.kind, changes, index)), dots)
            return power, lanes.op("fmul", power, change)

        def put(index: str, found: tuple[str, str]) -> None:
            for scores, value in zip((powers, changes), found, strict=True):
                lanes.store(value, fn.gep(self.kind, scores, index))

        with fn.loop("0", whole, lanes.count) as loop:
            put(loop.index, both(loop.index))
        with fn.loop(whole, limit, lanes.count) as last:
            seen = lanes.before(fn.let(f"sub i64 {limit}, {whole}", "i"))
            power, change = (lanes.select(seen, x, "zeroinitializer") for x in both(last.index))
            put(last.index, (power, change))
        with fn.loop(up(fn, limit, lanes.count), width, lanes.count) as rest:
            put(rest.index, ("zeroinitializer", "zeroinitializer"))
