"""The innermost loop of a product: a tile of sums in registers over a block of K.

    sums[i][j] += sum over k of a[i * a.row + k * a.k] * b[k * b.k + j]        strides in bytes; j over a panel

Invariant: a row beyond %rows reads the last row's elements instead and its sums mean nothing, so one tile serves fewer
rows than its own and reads nothing outside the matrix.
"""

from __future__ import annotations

from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import splat
from smelt.codegen.llvm.text import FunctionText

_PARAMETERS = "ptr %a, i64 %a.row, i64 %a.k, ptr %b, i64 %b.k, i64 %k, ptr %sums, i64 %rows"


def tile_name(rows: int, vectors: int) -> str:
    """The function of a tile of rows x vectors."""
    return f"tile.{rows}x{vectors}"


def tile_call(rows: int, vectors: int, **arguments: str) -> str:
    """The call of a tile: a, a_row, a_k, b, b_k, k (groups), sums, height."""
    a = arguments
    return (
        f"call void @{tile_name(rows, vectors)}(ptr {a['a']}, i64 {a['a_row']}, i64 {a['a_k']}, ptr {a['b']}, "
        f"i64 {a['b_k']}, i64 {a['k']}, ptr {a['sums']}, i64 {a['height']})"
    )


def tile_function(tiling: Tiling, rows: int, vectors: int) -> FunctionText:
    """A tile of `rows` x `vectors` registers; finish it with `finish("")`."""
    fn = FunctionText(tile_name(rows, vectors), _PARAMETERS, result="internal void")
    starts = _row_starts(fn, rows)
    zeros = [(tiling.vector, "zeroinitializer")] * (rows * vectors)
    with fn.loop(0, "%k", 1, [*zeros, ("i64", "0"), ("ptr", "%b")]) as loop:
        *sums, offset, at = loop.carried
        right = [_load_right(fn, tiling, fn.gep("i8", at.now, j * tiling.lanes * _right_nbytes(tiling)))
                 for j in range(vectors)]  # fmt: skip
        for i in range(rows):
            left = _broadcast_left(fn, tiling, fn.let(f"getelementptr i8, ptr {starts[i]}, i64 {offset.now}", "p"))
            for j in range(vectors):
                one = sums[i * vectors + j]
                one.next = multiply_add(fn, tiling, left, right[j], one.now)
        offset.next = fn.let(f"add nsw i64 {offset.now}, %a.k", "i")
        at.next = fn.let(f"getelementptr i8, ptr {at.now}, i64 %b.k", "p")
    for i in range(rows):
        for j in range(vectors):
            to = fn.gep("i8", "%sums", (i * tiling.panel + j * tiling.lanes) * tiling.sum_nbytes)
            before = fn.load(tiling.vector, to, tiling.sum_nbytes)
            total = fn.let(f"fadd {tiling.vector} {before}, {sums[i * vectors + j].last}")
            fn.store(tiling.vector, total, to, tiling.sum_nbytes)
    return fn


def _row_starts(fn: FunctionText, rows: int) -> list[str]:
    starts = ["%a"]
    last = fn.let("sub nsw i64 %rows, 1", "i")
    for i in range(1, rows):
        inside = fn.let(f"icmp slt i64 {i}, {last}", "b")
        row = fn.let(f"select i1 {inside}, i64 {i}, i64 {last}", "i")
        starts.append(fn.gep("i8", "%a", fn.mul(row, "%a.row")))
    return starts


def _right_nbytes(tiling: Tiling) -> int:
    return tiling.element_nbytes * tiling.group


def _load_right(fn: FunctionText, tiling: Tiling, at: str) -> str:
    if tiling.kind == "bf16":
        return fn.load(f"<{2 * tiling.lanes} x bfloat>", at, 2)
    return fn.load(tiling.vector, at, tiling.element_nbytes)


def _broadcast_left(fn: FunctionText, tiling: Tiling, at: str) -> str:
    if tiling.kind == "bf16":
        pair = splat(fn, "i32", tiling.lanes, fn.load("i32", at, 2))
        return fn.let(f"bitcast <{tiling.lanes} x i32> {pair} to <{2 * tiling.lanes} x bfloat>")
    return splat(fn, tiling.sum_type, tiling.lanes, fn.load(tiling.sum_type, at, tiling.element_nbytes))


def multiply_add(fn: FunctionText, tiling: Tiling, left: str, right: str, total: str) -> str:
    """left * right + total over a register of sums; without the fused instruction as two operations."""
    vector = tiling.vector
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
