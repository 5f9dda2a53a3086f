"""Copies of a block of K rows and one panel of columns into scratch, in the order in which a tile reads it.

    block[k][j] = b[k * b.k + j * b.n]        k < %k, j < %columns; bf16: pairs of k side by side, the odd one with 0

Invariant: columns from %columns on get what they get (their sums are never stored), but nothing outside the matrix is
read; nothing outside the block is written, whose rows are a multiple of a register's lanes.
"""

from __future__ import annotations

from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import lane_mask, masked_load, shuffled
from smelt.codegen.llvm.text import FunctionText

PACK = "pack"
PARAMETERS = "ptr %b, i64 %stride, i64 %k, i64 %columns, ptr %block"
"""What such a function takes."""


def pack_call(b: str, stride: str, k: str, columns: str, block: str) -> str:
    """The call of the function that `pack_rows` or `pack_columns` defines."""
    return f"call void @{PACK}(ptr {b}, i64 {stride}, i64 {k}, i64 {columns}, ptr {block})"


def pack_rows(tiling: Tiling) -> FunctionText:
    """`b.n` is 1: rows of the panel are copied. %stride: bytes from one k to the next."""
    fn = FunctionText(PACK, PARAMETERS, result="internal void")
    lanes, nbytes = tiling.lanes, tiling.element_nbytes
    vector = f"<{lanes} x i16>" if tiling.kind == "bf16" else tiling.vector
    masks = [lane_mask(fn, lanes, fn.let(f"sub nsw i64 %columns, {j * lanes}", "i")) for j in range(tiling.vectors)]
    with fn.loop(0, "%k", tiling.group) as k:
        row = fn.gep("i8", "%b", fn.mul(k.index, "%stride"))
        group = fn.let(f"udiv i64 {k.index}, {tiling.group}", "i")
        to = fn.gep("i8", "%block", fn.mul(group, tiling.row_nbytes))
        for j, mask in enumerate(masks):
            at = fn.gep("i8", row, j * lanes * nbytes)
            value, type_ = masked_load(fn, vector, at, mask, nbytes), vector
            if tiling.kind == "bf16":
                second = fn.let(f"icmp slt i64 {fn.add(k.index, 1)}, %k", "b")
                both = fn.let(f"select i1 {second}, <{lanes} x i1> {mask}, <{lanes} x i1> zeroinitializer")
                below = masked_load(fn, vector, fn.gep("i8", at, "%stride"), both, nbytes)
                value, type_ = _pairs(fn, lanes, value, below), f"<{lanes} x i32>"
            fn.store(type_, value, fn.gep("i8", to, j * lanes * nbytes * tiling.group), 4)
    return fn


def _pairs(fn: FunctionText, lanes: int, low: str, high: str) -> str:
    """Lanes of two bf16: the low half from `low`, the high half from `high`."""
    wide = f"<{lanes} x i32>"
    low = fn.let(f"zext <{lanes} x i16> {low} to {wide}")
    high = fn.let(f"zext <{lanes} x i16> {high} to {wide}")
    shift = f"<{', '.join(['i32 16'] * lanes)}>"
    return fn.let(f"or {wide} {low}, {fn.let(f'shl {wide} {high}, {shift}')}")


def pack_columns(tiling: Tiling) -> FunctionText:
    """`b.k` is 1: squares are transposed in registers. %stride: bytes from one column to the next."""
    fn = FunctionText(PACK, PARAMETERS, result="internal void")
    lanes, group = tiling.lanes, tiling.group
    vector = f"<{lanes} x i32>" if tiling.kind == "bf16" else tiling.vector
    last = fn.let("sub nsw i64 %columns, 1", "i")
    with fn.loop(0, "%columns", lanes) as column:
        lines = []
        for i in range(lanes):
            one = fn.add(column.index, i)
            inside = fn.let(f"icmp slt i64 {one}, {last}", "b")
            lines.append(
                fn.gep("i8", "%b", fn.mul(fn.let(f"select i1 {inside}, i64 {one}, i64 {last}", "i"), "%stride"))
            )
        to = fn.gep("i8", "%block", fn.mul(column.index, tiling.element_nbytes * group))
        with fn.loop(0, "%k", lanes * group) as k:
            mask = lane_mask(fn, lanes * group, fn.let(f"sub nsw i64 %k, {k.index}", "i"))
            offset = fn.mul(k.index, tiling.element_nbytes)
            rows = [_line(fn, tiling, fn.gep("i8", line, offset), mask) for line in lines]
            at = fn.gep("i8", to, fn.mul(fn.let(f"udiv i64 {k.index}, {group}", "i"), tiling.row_nbytes))
            for i, value in enumerate(transposed(fn, vector, lanes, rows)):
                fn.store(vector, value, fn.gep("i8", at, i * tiling.row_nbytes), 4)
    return fn


def _line(fn: FunctionText, tiling: Tiling, at: str, mask: str) -> str:
    """A register of consecutive elements (bf16: of pairs), 0 where the mask is off."""
    if tiling.kind != "bf16":
        return masked_load(fn, tiling.vector, at, mask, tiling.element_nbytes)
    many = 2 * tiling.lanes
    value = masked_load(fn, f"<{many} x i16>", at, mask, 2)
    return fn.let(f"bitcast <{many} x i16> {value} to <{tiling.lanes} x i32>")


def transposed(fn: FunctionText, vector: str, lanes: int, rows: list[str]) -> list[str]:
    """The columns of a square of `lanes` registers, by log2(lanes) rounds of pairwise shuffles."""
    width = 1
    while width < lanes:
        first = [i if not i & width else i - width + lanes for i in range(lanes)]
        second = [i + width if not i & width else i + lanes for i in range(lanes)]
        made = list(rows)
        for i in range(lanes):
            if i & width:
                continue
            made[i] = shuffled(fn, vector, rows[i], rows[i + width], first)
            made[i + width] = shuffled(fn, vector, rows[i], rows[i + width], second)
        rows = made
        width *= 2
    return rows
