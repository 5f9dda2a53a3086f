"""Pieces of the attention kernels: rows to f32, products of tiles, and the softmax of a row of scores."""

from __future__ import annotations

from smelt.codegen.attention.variant import NUMBERS, ROW_PADDING, Variant
from smelt.codegen.attention.vectors import Lanes, down, least, number, up
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import KERNEL_PARAMETERS, FunctionText
from smelt.ir import DType

# Rows of an operand that are asked for before they are copied.
_ROWS_AHEAD = 16


class Steps:
    """A function's text in the making, and what is done in several of them: with rows, and with tiles in registers."""

    def __init__(self, fn: FunctionText, variant: Variant, isa: Isa) -> None:
        self.fn, self.variant = fn, variant
        self.lanes = Lanes.of(fn, isa, variant.compute, variant.lanes)
        self.kind, self.dtype = self.lanes.kind, variant.dtype

    def element_kind(self, dtype: DType) -> str:
        """The integer type that steps over elements of a dtype."""
        return f"i{8 * dtype.itemsize}"

    def at(self, dtype: DType, base: str, index: str | int) -> str:
        """The address of an element."""
        return self.fn.gep(self.element_kind(dtype), base, index)

    # --- rows

    def copy_row(
        self, dtype: DType, source: str, stride: str, count: str, target: str, scale: str = "", check: str = "",
        bound: str = "", next_row: str = "",
    ) -> None:  # fmt: skip
        """Widen `count` elements of a row that lie `stride` apart into `target`, times `scale`.

        check: address of an i32 that becomes 1 where an element is larger than `bound`, or NaN. next_row: elements
        from one row to the next, of which one to come is asked for: rows of heads lie too far apart for the hardware to
        see where they go.
        """
        fn, lanes = self.fn, self.lanes
        is_dense = fn.let(f"icmp eq i64 {stride}, 1")
        whole = fn.let(f"select i1 {is_dense}, i64 {down(fn, count, lanes.count)}, i64 0", "i")
        factors = lanes.splat(scale) if scale else ""
        bits, many = lanes.bits, f"<{lanes.count} x {lanes.bits}>"
        ahead = self.at(dtype, source, fn.mul(next_row, _ROWS_AHEAD)) if next_row else ""
        with fn.loop("0", whole, lanes.count, [(many, "zeroinitializer")] if check else []) as loop:
            x = lanes.read(dtype, self.at(dtype, source, loop.index))
            if ahead:
                self.fetch(self.at(dtype, ahead, loop.index))
            if scale:
                x = lanes.op("fmul", x, factors)
            if check:
                loop.carried[0].next = self.worse(x, lanes.type, many, loop.carried[0].now)
            lanes.store(x, fn.gep(self.kind, target, loop.index))
        worst = self.worst(lanes, loop.carried[0].last) if check else ""
        with fn.loop(whole, count, 1, [(bits, worst)] if check else []) as loop:
            x = lanes.read_one(dtype, self.at(dtype, source, fn.mul(loop.index, stride)))
            if scale:
                x = fn.let(f"fmul {self.kind} {x}, {scale}")
            if check:
                loop.carried[0].next = self.worse(x, self.kind, bits, loop.carried[0].now)
            fn.store(self.kind, x, fn.gep(self.kind, target, loop.index))
        if check:
            self.mark_large(check, loop.carried[0].last, bound)

    @property
    def _magnitude(self) -> int:
        """All bits of a number but its sign."""
        return (1 << (8 * self.lanes.nbytes - 1)) - 1

    def worse(self, x: str, kind: str, bits: str, worst: str) -> str:
        """The larger of |x| and the worst so far, as integers, where NaN is larger than infinity."""
        is_vector = bits.startswith("<")
        magnitude = f"splat ({self.lanes.bits} {self._magnitude})" if is_vector else str(self._magnitude)
        size = self.fn.let(f"and {bits} {self.fn.let(f'bitcast {kind} {x} to {bits}')}, {magnitude}")
        is_worse = self.fn.let(f"icmp sgt {bits} {size}, {worst}")
        mask = f"<{bits[1:].partition(' ')[0]} x i1>" if is_vector else "i1"
        return self.fn.let(f"select {mask} {is_worse}, {bits} {size}, {bits} {worst}")

    def worst(self, lanes: Lanes, worst: str) -> str:
        """The largest lane of integers."""
        name = f"@llvm.vector.reduce.smax.v{lanes.count}{lanes.bits}"
        type_ = f"<{lanes.count} x {lanes.bits}>"
        self.fn.declare(f"declare {lanes.bits} {name}({type_})")
        return self.fn.let(f"call {lanes.bits} {name}({type_} {worst})")

    def mark_large(self, flag: str, magnitude: str, bound: str) -> None:
        """Set a flag where a magnitude (bits of |x|) is larger than a bound's, or a NaN's."""
        bits = self.lanes.bits
        limit = self.fn.let(f"bitcast {self.kind} {bound} to {bits}")
        self._mark(flag, self.fn.let(f"icmp sgt {bits} {magnitude}, {limit}"))

    def _mark(self, flag: str, condition: str) -> None:
        bit = self.fn.let(f"zext i1 {condition} to i32")
        self.fn.store("i32", self.fn.let(f"or i32 {self.fn.load('i32', flag)}, {bit}"), flag)

    def write_row(self, source: str, factor: str, count: str, target: str, stride: str) -> None:
        """Write `count` numbers times a factor as a row of a result, whose elements lie `stride` apart."""
        fn, lanes = self.fn, self.lanes
        is_dense = fn.let(f"icmp eq i64 {stride}, 1")
        whole = fn.let(f"select i1 {is_dense}, i64 {down(fn, count, lanes.count)}, i64 0", "i")
        factors = lanes.splat(factor)
        with fn.loop("0", whole, lanes.count) as loop:
            x = lanes.op("fmul", lanes.load(fn.gep(self.kind, source, loop.index)), factors)
            lanes.write(self.dtype, x, self.at(self.dtype, target, loop.index))
        with fn.loop(whole, count) as loop:
            x = fn.let(f"fmul {self.kind} {fn.load(self.kind, fn.gep(self.kind, source, loop.index))}, {factor}")
            lanes.write_one(self.dtype, x, self.at(self.dtype, target, fn.mul(loop.index, stride)))

    # --- products

    def product(
        self, left: str, left_row: str | int, right: str, right_row: str | int, depth: str, rows: int, vectors: int,
        dtype: DType | None = None, ahead: int = 0, left_step: int = 1,
    ) -> list[list[str]]:  # fmt: skip
        """left[rows, depth] @ right[depth, vectors], in registers; rows of `left` and `right` lie that far apart.

        dtype: of `right`, if it is not what is computed in. ahead: rows of `right` that are fetched early. left_step:
        from one column of `left` to the next.
        """
        fn, lanes = self.fn, self.lanes
        dtype = dtype or self.variant.compute
        sums = [(lanes.type, "zeroinitializer")] * (rows * vectors)
        with fn.loop("0", depth, 1, [*sums, ("ptr", right)]) as loop:
            columns = loop.carried[-1].now
            if ahead:
                self.fetch(self.at(dtype, columns, fn.mul(right_row, ahead)), vectors)
            b = [lanes.read(dtype, self.at(dtype, columns, v * lanes.count)) for v in range(vectors)]
            here = fn.gep(self.kind, left, loop.index if left_step == 1 else fn.mul(loop.index, left_step))
            for r in range(rows):
                a = lanes.splat(fn.load(self.kind, fn.gep(self.kind, here, fn.mul(left_row, r))))
                for v in range(vectors):
                    value = loop.carried[r * vectors + v]
                    value.next = lanes.fma(a, b[v], value.now)
            loop.carried[-1].next = self.at(dtype, columns, right_row)
        last = [value.last for value in loop.carried]
        return [last[r * vectors : (r + 1) * vectors] for r in range(rows)]

    def fetch(self, at: str, vectors: int = 1) -> None:
        """Ask for a cache line for each vector; an address past the end does no harm."""
        self.fn.declare("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for v in range(vectors):
            line = self.fn.gep("i8", at, 64 * v)
            self.fn.do(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 3, i32 1)")


class Parts(Steps):
    """A kernel's text in the making, with its words and buffers loaded."""

    def __init__(self, variant: Variant, isa: Isa) -> None:
        super().__init__(FunctionText("KERNEL", KERNEL_PARAMETERS), variant, isa)
        fn, names, words = self.fn, variant.operands, variant.words
        self.buffers = {name: fn.address(i) for i, name in enumerate(names)}
        self.words = {name: fn.word(len(names) + i) for i, name in enumerate(words)}
        self.numbers = {name: self._number(name) for name in NUMBERS if name in words}

    def _number(self, name: str) -> str:
        wide = self.fn.let(f"bitcast i64 {self.words[name]} to double")
        return wide if self.kind == "double" else self.fn.let(f"fptrunc double {wide} to float")

    def offset(self, *terms: tuple[str, str]) -> str:
        """Sum of index * stride, the strides given as names of words."""
        total = "0"
        for index, stride in terms:
            total = self.fn.add(total, self.fn.mul(index, self.words[stride]))
        return total

    def base(self, buffer: str, batch: str, head: str) -> str:
        """Where a key/value head of a batch begins in a buffer."""
        dtype = {"m": self.variant.mask, "l": self.variant.compute}.get(buffer) or self.dtype
        place = self.offset((batch, f"{buffer}_batch"), (head, f"{buffer}_head"))
        return self.at(dtype, self.buffers[buffer], place)

    def position(self, row: str) -> tuple[str, str]:
        """Head within the group, and query, of a row."""
        fn, queries = self.fn, self.words["queries"]
        group = fn.let(f"udiv i64 {row}, {queries}", "i")
        return group, fn.let(f"sub i64 {row}, {fn.mul(group, queries)}", "i")

    # --- softmax

    def mask_row(self, source: str, count: str, target: str) -> None:
        """A row of the mask as numbers to add."""
        assert self.variant.mask is not None
        self.copy_row(self.variant.mask, source, self.words["m_column"], count, target)

    def powers_row(self, scores: str, limit: str, width: str, origin: str, first: str = "0") -> str:
        """exp(scores - origin) in place from `first` to `limit`, 0 from there to `width` (whole vectors); their sum."""
        fn, lanes = self.fn, self.lanes
        origins = lanes.splat(origin)
        end = up(fn, limit, lanes.count)
        with fn.loop(first, end, lanes.count, [(lanes.type, "zeroinitializer")]) as loop:
            at = fn.gep(self.kind, scores, loop.index)
            power = lanes.exp(lanes.op("fsub", lanes.load(at), origins))
            lanes.store(power, at)
            loop.carried[0].next = lanes.op("fadd", loop.carried[0].now, power)
        with fn.loop(end, width, lanes.count) as rest:
            lanes.store("zeroinitializer", fn.gep(self.kind, scores, rest.index))
        return lanes.sum(loop.carried[0].last)

    def origin(self, largest: str) -> str:
        """What is taken from scores before exp: the largest, but 0 where all are -inf and would become NaN."""
        fn = self.fn
        is_empty = fn.let(f"fcmp oeq {self.kind} {largest}, {number(float('-inf'))}")
        return fn.let(f"select i1 {is_empty}, {self.kind} {number(0.0)}, {self.kind} {largest}")

    def scaled_row(self, scores: str, limit: str, mask: str | None, first: str = "0") -> str:
        """Scale and mask scores from `first` on in place, -inf past `limit` in its vector; the largest of them."""
        fn, lanes = self.fn, self.lanes
        scales = lanes.splat(self.numbers["scale_after"])
        whole = down(fn, limit, lanes.count)

        def scaled(index: str) -> str:
            x = lanes.op("fmul", lanes.load(fn.gep(self.kind, scores, index)), scales)
            return x if mask is None else lanes.op("fadd", x, lanes.load(fn.gep(self.kind, mask, index)))

        none = lanes.constant(float("-inf"))
        with fn.loop(first, whole, lanes.count, [(lanes.type, none)]) as loop:
            x = scaled(loop.index)
            lanes.store(x, fn.gep(self.kind, scores, loop.index))
            loop.carried[0].next = lanes.larger(x, loop.carried[0].now)
        with fn.loop(whole, limit, lanes.count, [(lanes.type, loop.carried[0].last)]) as last:
            seen = lanes.before(fn.let(f"sub i64 {limit}, {whole}"))
            x = lanes.select(seen, scaled(last.index), none)
            lanes.store(x, fn.gep(self.kind, scores, last.index))
            last.carried[0].next = lanes.larger(x, last.carried[0].now)
        return lanes.largest(last.carried[0].last)

    # --- places

    @property
    def tile_row(self) -> int:
        """Elements from one row of a tile to the next."""
        return self.variant.row_size + ROW_PADDING

    def seen(self, query: str) -> str:
        """How many keys a query sees."""
        fn = self.fn
        return least(fn, self.words["keys"], fn.add(self.words["limit"], fn.mul(query, self.words["limit_step"])))

    def inverse(self, total: str) -> str:
        """1 / total, `empty` for 0."""
        fn = self.fn
        is_empty = fn.let(f"fcmp oeq {self.kind} {total}, {number(0.0)}")
        inverse = fn.let(f"fdiv {self.kind} {number(1.0)}, {total}")
        return fn.let(f"select i1 {is_empty}, {self.kind} {self.numbers['empty']}, {self.kind} {inverse}")
