"""Attention of a handful of queries: keys and values are read once, where they lie.

    for a key/value head:                                               # a work item
      for as many keys as a vector has lanes, for a query:
        scores = the sums of keys * query, gathered from one vector a key
      powers = exp(scores - largest)
      for a block of keys: products += powers @ values
      result = products / sums

Invariant: rows are dense in their columns and whole vectors long, and there are at least as many keys as lanes and at
most `MAX_KEYS`. Where that is not known before the run (`Variant.any_keys`) the last key stands for those that are
missing, whose scores are not looked at, and powers are summed in blocks, so that no chain of additions is long.
"""

from __future__ import annotations

from functools import lru_cache

from smelt.codegen.attention.parts import Parts
from smelt.codegen.attention.variant import AHEAD, BLOCK, Variant
from smelt.codegen.attention.vectors import least, most, number, up
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.objects import KernelSource

MAX_ROWS = 4
"""Queries of a group beyond which tiles are faster."""

MAX_KEYS = 16384
"""Keys whose scores may lie in scratch memory at once, and be summed by one chain of additions a lane."""

# Keys that are read side by side: enough chains of additions, few enough streams that hardware fetches ahead.
_TOGETHER = 4
# Keys whose powers are summed by one chain of additions a lane.
_SUMMED = 4096
# Columns of the values that are summed at once, in vectors.
_VECTORS = 4


@lru_cache(maxsize=64)
def few_kernel(variant: Variant, isa: Isa) -> KernelSource:
    """The kernel of a variant; what it takes is in `variant.WORDS`."""
    return KernelSource.of(_FewKernel(variant, isa).text())


def scratch_numbers(variant: Variant, *, size: int, value_width: int, keys: int) -> int:
    """How many numbers of scratch memory a thread needs."""
    room = -(-keys // 16) * 16
    return variant.rows * (size + value_width + room) + room


class _FewKernel(Parts):
    def __init__(self, variant: Variant, isa: Isa) -> None:
        super().__init__(variant, isa)
        fn, words, rows = self.fn, self.words, variant.rows
        self.room = up(fn, words["keys"], 16)
        self.queries = "%scratch"
        self.products = fn.gep(self.kind, self.queries, fn.mul(words["size"], rows))
        self.scores = fn.gep(self.kind, self.products, fn.mul(words["value_width"], rows))
        self.mask = fn.gep(self.kind, self.scores, fn.mul(self.room, rows))
        self.sums = fn.alloca(self.kind, rows)

    def text(self) -> str:
        """The whole module."""
        fn, words = self.fn, self.words
        with fn.loop("%begin", "%end") as loop:
            head = fn.let(f"urem i64 {loop.index}, {words['heads']}", "i")
            batch = fn.let(f"udiv i64 {loop.index}, {words['heads']}", "i")
            bases = {name: self.base(name, batch, head) for name in self.buffers}
            self._take_queries(bases["q"])
            self._score(bases["k"])
            self._soften(bases.get("m"))
            self._mix(bases["v"])
            self._write(bases["o"])
        return fn.finish()

    def _take_queries(self, base: str) -> None:
        fn, words = self.fn, self.words
        with fn.loop("0", self.variant.rows) as loop:
            group, query = self.position(loop.index)
            source = self.at(self.dtype, base, self.offset((group, "q_group"), (query, "q_row")))
            target = fn.gep(self.kind, self.queries, fn.mul(loop.index, words["size"]))
            scale = self.numbers["scale_before"]
            self.copy_row(self.dtype, source, words["q_column"], words["size"], target, scale=scale)

    def _score(self, base: str) -> None:
        """As many scores at once as there are lanes; the last ones overlap with those before."""
        fn, lanes, words = self.fn, self.lanes, self.words
        count = lanes.count
        last = fn.add(words["keys"], -count)
        numbers: list[str | int] = list(range(count))
        if self.variant.any_keys:
            final = fn.add(words["keys"], -1)
            last, numbers = most(fn, last, "0"), [least(fn, i, final) for i in numbers]
        places = [fn.mul(words["k_row"], i) for i in numbers]
        with fn.loop("0", words["keys"], count) as keys:
            first = least(fn, keys.index, last)
            here = self.at(self.dtype, base, self.offset((first, "k_row")))
            with fn.loop("0", self.variant.rows) as row:
                query = fn.gep(self.kind, self.queries, fn.mul(row.index, words["size"]))
                sums: list[str] = []
                for i in range(0, count, _TOGETHER):
                    sums += self._products(here, places[i : i + _TOGETHER], query)
                scores = fn.gep(self.kind, self.scores, fn.add(fn.mul(row.index, self.room), first))
                lanes.store(lanes.row_sums(sums), scores)

    def _products(self, keys: str, places: list[str], query: str) -> list[str]:
        """A vector of partial sums for each of a few keys."""
        fn, lanes = self.fn, self.lanes
        start = [(lanes.type, "zeroinitializer")] * len(places)
        ahead = fn.mul(self.words["k_row"], AHEAD)
        with fn.loop("0", self.words["size"], lanes.count, start) as loop:
            q = lanes.load(fn.gep(self.kind, query, loop.index))
            column = self.at(self.dtype, keys, loop.index)
            for place, value in zip(places, loop.carried, strict=True):
                at = self.at(self.dtype, column, place)
                self.fetch(self.at(self.dtype, at, ahead))
                value.next = lanes.fma(lanes.read(self.dtype, at), q, value.now)
        return [value.last for value in loop.carried]

    def _soften(self, mask: str | None) -> None:
        """Powers in the place of scores; spelled out, they are divided here, else the result is."""
        fn, words = self.fn, self.words
        with fn.loop("0", self.variant.rows) as loop:
            scores = fn.gep(self.kind, self.scores, fn.mul(loop.index, self.room))
            group, query = self.position(loop.index)
            if mask is not None and self.variant.mask is not None:
                row = self.at(self.variant.mask, mask, self.offset((group, "m_group"), (query, "m_row")))
                self.mask_row(row, words["keys"], self.mask)
            largest = self.scaled_row(scores, words["keys"], None if mask is None else self.mask)
            total = self._powers(scores, self.origin(largest))
            fn.store(self.kind, self.inverse(total), fn.gep(self.kind, self.sums, loop.index))
            with fn.when(fn.let(f"icmp ne i64 {words['checked']}, 0")):
                self._divide(scores, fn.gep(self.kind, self.sums, loop.index))

    def _powers(self, scores: str, origin: str) -> str:
        """Powers of a row in the place of its scores; their sum."""
        fn, keys = self.fn, self.words["keys"]
        if not self.variant.any_keys:
            return self.powers_row(scores, keys, keys, origin)
        with fn.loop("0", keys, _SUMMED, [(self.kind, number(0.0))]) as block:
            count = least(fn, fn.let(f"sub i64 {keys}, {block.index}"), _SUMMED)
            part = self.powers_row(fn.gep(self.kind, scores, block.index), count, count, origin)
            block.carried[0].next = fn.let(f"fadd {self.kind} {block.carried[0].now}, {part}")
        return block.carried[0].last

    def _divide(self, scores: str, inverse_at: str) -> None:
        fn, lanes = self.fn, self.lanes
        factors = lanes.splat(fn.load(self.kind, inverse_at))
        with fn.loop("0", self.words["keys"], lanes.count) as loop:
            at = fn.gep(self.kind, scores, loop.index)
            lanes.store(lanes.op("fmul", lanes.load(at), factors), at)
        fn.store(self.kind, number(1.0), inverse_at)

    def _mix(self, base: str) -> None:
        """products = powers @ values, a block of keys after the other so that no chain of additions is long."""
        fn, lanes, words = self.fn, self.lanes, self.words
        width, rows = words["value_width"], self.variant.rows
        with fn.loop("0", fn.mul(width, rows), lanes.count) as loop:
            lanes.store("zeroinitializer", fn.gep(self.kind, self.products, loop.index))
        whole = fn.let(f"sub i64 {width}, {fn.let(f'urem i64 {width}, {_VECTORS * lanes.count}')}", "i")
        with fn.loop("0", words["keys"], BLOCK) as keys:
            depth = least(fn, fn.let(f"sub i64 {words['keys']}, {keys.index}"), BLOCK)
            powers = fn.gep(self.kind, self.scores, keys.index)
            values = self.at(self.dtype, base, self.offset((keys.index, "v_row")))
            for start, stop, vectors in (("0", whole, _VECTORS), (whole, width, 1)):
                with fn.loop(start, stop, vectors * lanes.count) as column:
                    right = self.at(self.dtype, values, column.index)
                    sums = self.product(
                        powers, self.room, right, words["v_row"], depth, rows, vectors, self.dtype, AHEAD
                    )
                    for r, row in enumerate(sums):
                        into = fn.gep(self.kind, self.products, fn.add(fn.mul(width, r), column.index))
                        for v, value in enumerate(row):
                            at = fn.gep(self.kind, into, v * lanes.count)
                            lanes.store(lanes.op("fadd", lanes.load(at), value), at)

    def _write(self, base: str) -> None:
        fn, words = self.fn, self.words
        with fn.loop("0", self.variant.rows) as loop:
            group, query = self.position(loop.index)
            target = self.at(self.dtype, base, self.offset((group, "o_group"), (query, "o_row")))
            source = fn.gep(self.kind, self.products, fn.mul(loop.index, words["value_width"]))
            factor = fn.load(self.kind, fn.gep(self.kind, self.sums, loop.index))
            self.write_row(source, factor, words["value_size"], target, words["o_column"])
