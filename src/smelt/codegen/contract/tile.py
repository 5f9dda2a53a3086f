"""The innermost loop of a product: a tile of sums in registers over a block of K.

    sums[i][j] += sum over k of a[i * a.row + k * a.k] * b[k * b.k + j]        strides in bytes; j over a panel

of panels that lie `b.panel` apart, where the matrix is packed in narrower ones.

Tiles take several k at a turn, and with each turn ask for lines of what is read next, so that weights come from memory
while others are multiplied.

Invariant: a row beyond %rows reads the last row's elements instead and its sums mean nothing, so one tile serves fewer
rows than its own and reads nothing outside the matrix.
"""

from __future__ import annotations

from smelt.codegen.contract.tiling import LINE_NBYTES, Tiling
from smelt.codegen.contract.vectors import prefetch, splat
from smelt.codegen.llvm.text import FunctionText
from smelt.diag.records import record

_PARAMETERS = (
    "ptr %a, i64 %a.row, i64 %a.k, ptr %b, i64 %b.k, i64 %b.panel, i64 %k, ptr %sums, i64 %rows, ptr %next, "
    "i64 %next.step"
)
TURN = 4
"""Groups of K that a tile takes at once."""


@record
class Walk:
    """How a kernel's tiles go along K: what is known of both strides, and whether they ask for lines in advance.

    unit: elements of the left matrix lie side by side; dense: rows of the right matrix do; ahead: lines are asked for.
    tiled: a tile's rows of the left matrix lie side by side instead, one k after the other, whole tiles of them.
    packed: the right matrix is packed, in panels of `Tiling.packed`. lines: how many of each panel a turn asks for;
    near: for the first-level cache.
    """

    unit: bool
    dense: bool
    ahead: bool
    tiled: bool = False
    packed: bool = False
    lines: int = 1
    near: bool = False

    def panel(self, tiling: Tiling) -> Tiling:
        """How the right matrix lies that a tile goes along."""
        return tiling.packed if self.packed else tiling

    @property
    def turn(self) -> int:
        """`TURN`, or one if each needs an address of its own."""
        return TURN if self.unit or self.tiled else 1


def tile_name(rows: int, vectors: int) -> str:
    """The function of a tile of rows x vectors."""
    return f"tile.{rows}x{vectors}"


def tile_call(rows: int, vectors: int, **arguments: str) -> str:
    """The call of a tile: a, a_row, a_k, b, b_k, b_panel, k (groups), sums, height; next, next_step (bytes a turn)."""
    a = arguments
    return (
        f"call void @{tile_name(rows, vectors)}(ptr {a['a']}, i64 {a['a_row']}, i64 {a['a_k']}, ptr {a['b']}, "
        f"i64 {a['b_k']}, i64 {a['b_panel']}, i64 {a['k']}, ptr {a['sums']}, i64 {a['height']}, "
        f"ptr {a['next']}, i64 {a['next_step']})"
    )


def tile_function(tiling: Tiling, rows: int, vectors: int, walk: Walk) -> FunctionText:
    """A tile of `rows` x `vectors` registers; finish it with `finish("")`."""
    fn = FunctionText(tile_name(rows, vectors), _PARAMETERS, result="internal void", reduced=True)
    starts = _tile_rows(fn, tiling, rows) if walk.tiled else _row_starts(fn, rows)
    is_whole = (rows, vectors) == (tiling.rows, tiling.vectors)
    chains = chains_of(tiling, rows, vectors)
    # Of whole numbers LLVM adds the products of a turn up first, for which there are no registers.
    is_asking = walk.ahead and vectors == tiling.vectors
    turn = 1 if is_whole and tiling.kind == "pairs" else walk.turn if is_whole or is_asking else chains
    carried = [("i64", "0"), ("ptr", "%b"), *[(tiling.vector, "zeroinitializer")] * (rows * vectors * chains)]
    parts = [("0", "%k", 1)]
    if turn > 1:
        middle = fn.let(f"and i64 %k, {-turn}", "i")
        parts = [("0", middle, turn), (middle, "%k", 1)]
    for first, last, count in parts:
        ahead = [("ptr", "%next")] if is_asking and count == turn else []
        with fn.loop(first, last, count, [*carried, *ahead]) as loop:
            state = loop.carried[: len(carried)]
            now = [one.now for one in state]
            for i in range(count):
                at = 2 + i % chains * rows * vectors
                there = slice(at, at + rows * vectors)
                now[:2], now[there] = _one_k(fn, tiling, walk, starts, vectors, now[:2], now[there])
            for one, value in zip(state, now, strict=True):
                one.next = value
            for one in loop.carried[len(carried) :]:
                for line in _panels(fn, one.now, tiling.vectors // walk.panel(tiling).vectors):
                    for i in range(walk.lines):
                        prefetch(fn, fn.gep("i8", line, i * LINE_NBYTES), near=walk.near)
                one.next = fn.let(f"getelementptr i8, ptr {one.now}, i64 %next.step", "p")
        carried = [(one.type, one.last) for one in state]
    sums, plus = [one.last for one in state[2:]], "add" if tiling.is_integer else "fadd"
    while len(sums) > rows * vectors:
        half = len(sums) // 2
        sums = [fn.let(f"{plus} {tiling.vector} {a}, {b}") for a, b in zip(sums[:half], sums[half:], strict=True)]
    for i in range(rows):
        for j in range(vectors):
            to = fn.gep("i8", "%sums", (i * tiling.panel + j * tiling.lanes) * tiling.sum_nbytes)
            before = fn.load(tiling.vector, to, tiling.sum_nbytes)
            total = fn.let(f"{plus} {tiling.vector} {before}, {sums[i * vectors + j]}")
            fn.store(tiling.vector, total, to, tiling.sum_nbytes)
    return fn


def chains_of(tiling: Tiling, rows: int, vectors: int) -> int:
    """Registers that share each sum: a low tile has too few sums to hide the latency of a multiply-add."""
    fitting = tiling.rows * tiling.vectors // (rows * vectors)
    return 4 if fitting >= 4 else 2 if fitting >= 2 else 1


def _one_k(
    fn: FunctionText, tiling: Tiling, walk: Walk, starts: list[str], vectors: int, places: list[str], sums: list[str]
) -> tuple[list[str], list[str]]:
    """Add one group of K: places (offset in rows of the left matrix, address of the right's row) and sums behind it."""
    offset, at = places
    sums = list(sums)
    nbytes, width = tiling.right_nbytes, walk.panel(tiling).vectors
    panels = _panels(fn, at, -(-vectors // width))
    right = [
        _load_right(fn, tiling, fn.gep("i8", panels[j // width], j % width * tiling.lanes * nbytes))
        for j in range(vectors)
    ]
    for i, start in enumerate(starts):
        left = _broadcast_left(fn, tiling, fn.let(f"getelementptr i8, ptr {start}, i64 {offset}", "p"))
        for j in range(vectors):
            sums[i * vectors + j] = multiply_add(fn, tiling, left, right[j], sums[i * vectors + j])
    left_nbytes = tiling.left_nbytes
    step = str(left_nbytes if walk.unit else tiling.rows * left_nbytes if walk.tiled else "%a.k")
    offset = fn.let(f"add nsw i64 {offset}, {step}", "i")
    at = fn.let(f"getelementptr i8, ptr {at}, i64 {walk.panel(tiling).row_nbytes if walk.dense else '%b.k'}", "p")
    return [offset, at], sums


def _panels(fn: FunctionText, first: str, count: int) -> list[str]:
    """The same place in so many panels."""
    offsets = [fn.mul("%b.panel", i) for i in range(1, count)]
    return [first, *(fn.let(f"getelementptr i8, ptr {first}, i64 {offset}", "p") for offset in offsets)]


def _tile_rows(fn: FunctionText, tiling: Tiling, rows: int) -> list[str]:
    return ["%a", *(fn.gep("i8", "%a", i * tiling.element_nbytes) for i in range(1, rows))]


def _row_starts(fn: FunctionText, rows: int) -> list[str]:
    starts = ["%a"]
    last = fn.let("sub nsw i64 %rows, 1", "i")
    for i in range(1, rows):
        inside = fn.let(f"icmp slt i64 {i}, {last}", "b")
        row = fn.let(f"select i1 {inside}, i64 {i}, i64 {last}", "i")
        starts.append(fn.gep("i8", "%a", fn.mul(row, "%a.row")))
    return starts


def _load_right(fn: FunctionText, tiling: Tiling, at: str) -> str:
    if tiling.kind == "bf16":
        return fn.load(f"<{2 * tiling.lanes} x bfloat>", at, 2)
    if tiling.kind == "pairs":
        words = f"<{2 * tiling.lanes} x i16>"
        return fn.let(f"sext <{2 * tiling.lanes} x i8> {fn.load(f'<{2 * tiling.lanes} x i8>', at, 1)} to {words}")
    if tiling.kind == "quads":
        return fn.load(f"<{4 * tiling.lanes} x i8>", at, 1)
    return fn.load(tiling.vector, at, tiling.element_nbytes)


def _broadcast_left(fn: FunctionText, tiling: Tiling, at: str) -> str:
    if tiling.kind == "bf16":
        pair = splat(fn, "i32", tiling.lanes, fn.load("i32", at, 2))
        return fn.let(f"bitcast <{tiling.lanes} x i32> {pair} to <{2 * tiling.lanes} x bfloat>")
    if tiling.is_integer:
        group = splat(fn, "i32", tiling.lanes, fn.load("i32", at, tiling.element_nbytes))
        elements = f"<{tiling.group * tiling.lanes} x i{8 * tiling.element_nbytes}>"
        return fn.let(f"bitcast <{tiling.lanes} x i32> {group} to {elements}")
    return splat(fn, tiling.sum_type, tiling.lanes, fn.load(tiling.sum_type, at, tiling.element_nbytes))


def multiply_add(fn: FunctionText, tiling: Tiling, left: str, right: str, total: str) -> str:
    """left * right + total over a register of sums; without the fused instruction as several operations."""
    vector = tiling.vector
    if tiling.kind == "pairs":
        words, of = f"<{2 * tiling.lanes} x i16>", "avx512.pmaddw.d.512" if tiling.lanes == 16 else "avx2.pmadd.wd"
        fn.declare(f"declare {vector} @llvm.x86.{of}({words}, {words})")
        products = fn.let(f"call {vector} @llvm.x86.{of}({words} {left}, {words} {right})")
        return fn.let(f"add {vector} {total}, {products}")
    if tiling.kind == "quads" and not tiling.fused:
        return _sum_of_quads(fn, tiling, left, right, total)
    if tiling.kind == "quads":
        quads, name = f"<{4 * tiling.lanes} x i8>", f"llvm.x86.avx512.vpdpbusd.{tiling.lanes * 32}"
        fn.declare(f"declare {vector} @{name}({vector}, {quads}, {quads})")
        return fn.let(f"call {vector} @{name}({vector} {total}, {quads} {left}, {quads} {right})")
    if tiling.kind == "bf16":
        pairs = f"<{2 * tiling.lanes} x bfloat>"
        name = f"llvm.x86.avx512bf16.dpbf16ps.{tiling.lanes * 32}"
        fn.declare(f"declare {vector} @{name}({vector}, {pairs}, {pairs})")
        return fn.let(f"call {vector} @{name}({vector} {total}, {pairs} {left}, {pairs} {right})")
    if not tiling.fused:
        return fn.let(f"fadd {vector} {fn.let(f'fmul {vector} {left}, {right}')}, {total}")
    name = f"llvm.fma.v{tiling.lanes}f{8 * tiling.sum_nbytes}"
    fn.declare(f"declare {vector} @{name}({vector}, {vector}, {vector})")
    return fn.let(f"call {vector} @{name}({vector} {left}, {vector} {right}, {vector} {total})")


def _sum_of_quads(fn: FunctionText, tiling: Tiling, left: str, right: str, total: str) -> str:
    """The dot products of four bytes by operations of every instruction set."""
    quads, short = f"<{4 * tiling.lanes} x i8>", f"<{tiling.lanes} x i8>"
    for i in range(4):
        indices = ", ".join(f"i32 {4 * lane + i}" for lane in range(tiling.lanes))
        factors = []
        for register, extend in ((left, "zext"), (right, "sext")):
            picked = fn.let(f"shufflevector {quads} {register}, {quads} poison, <{tiling.lanes} x i32> <{indices}>")
            factors.append(fn.let(f"{extend} {short} {picked} to {tiling.vector}"))
        total = fn.let(f"add {tiling.vector} {total}, {fn.let(f'mul {tiling.vector} {factors[0]}, {factors[1]}')}")
    return total
