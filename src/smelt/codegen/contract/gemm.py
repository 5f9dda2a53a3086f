"""Products with many rows: panels of columns, blocks of K, tiles of sums in registers, then the epilogue.

    for item in (batch, block of rows, panel):                 # items are independent
      sums[rows][panel] = 0
      for block of K:                                          # block_terms of them
        b = the block of the panel: packed before the run, or packed into scratch here
        for tile of rows:  sums[tile] += a[tile, block] @ b
      out[rows, panel] = epilogue(sums)

Items that follow one another share the rows of the left matrix, which stay in the second-level cache; the right matrix
goes by, asked for a block ahead if it is packed.

Invariant: what an item computes depends on no other item and on no thread, so any split gives the same bits. Sizes and
strides are words (`Problem`), so one kernel serves all shapes with one epilogue; but tiles for rows and columns left
over, which are most of its code, are there only where there may be such.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from smelt.codegen.contract.driver import Driver, Part
from smelt.codegen.contract.epilogue import Epilogue
from smelt.codegen.contract.integers import ceil_div, maximum, minimum
from smelt.codegen.contract.module import module_text
from smelt.codegen.contract.panels import pack_call, pack_columns, pack_rows
from smelt.codegen.contract.tile import TURN, Walk, tile_call, tile_function
from smelt.codegen.contract.tiling import BLOCK, LINE_NBYTES, Tiling, paired_rest
from smelt.codegen.contract.vectors import prefetch
from smelt.codegen.llvm.isa import Isa, has_wide_multipliers
from smelt.codegen.llvm.objects import KernelSource
from smelt.codegen.llvm.text import FunctionText
from smelt.diag.records import record

Right = Literal["packed", "rows", "columns"]
"""How the right matrix lies: in panels [panel][k][columns], with rows of unit stride, with columns of unit stride."""

MAX_ROWS = 128
"""Rows of one item at most: with the sums and the block of the right matrix they stay in the second-level cache."""


@record
class Gemm:
    """A kernel. Its buffers: left, right, those of the epilogue, out; its words: `Problem`, then the epilogue's.

    unit: `left_k` is 1. tiled: the left matrix is packed in tiles ([tile][k][row]): `left_row` is K, `left_k` the rows
    of a tile, and an item's rows are whole tiles. whole_rows: each item's rows are tiles of the greatest height.
    widths: how many registers the columns of items fill, ascending; all that there can be, where it is empty. lines:
    how many of each panel a tile asks for with each turn.
    """

    tiling: Tiling
    right: Right
    epilogue: Epilogue
    unit: bool
    tiled: bool = False
    whole_rows: bool = False
    widths: tuple[int, ...] = ()
    lines: int = 1

    @property
    def walk(self) -> Walk:
        """How tiles go along K."""
        is_packed = self.right == "packed"
        is_ahead = is_packed and self.tiling.kind != "pairs"
        is_dense = self.right != "rows"
        return Walk(self.unit, dense=is_dense, ahead=is_ahead, tiled=self.tiled, packed=is_packed, lines=self.lines)

    @property
    def scratch_nbytes(self) -> int:
        """Sums of one item, and the block of the panel where it is packed here."""
        block = 0 if self.right == "packed" else BLOCK // self.tiling.group * self.tiling.row_nbytes
        return _SUM_ROWS * self.tiling.panel * self.tiling.sum_nbytes + block


_SUM_ROWS = MAX_ROWS + 8  # The last tile of an item stores all its rows.


@lru_cache(maxsize=256)
def gemm_source(gemm: Gemm, isa: Isa) -> KernelSource:
    """The text of a kernel."""
    return KernelSource.of(module_text(*GemmDriver(gemm, isa).functions()))


class GemmDriver(Driver):
    """The kernel's function under construction."""

    def __init__(self, gemm: Gemm, isa: Isa, part: Part | None = None) -> None:
        super().__init__(gemm.tiling, gemm.epilogue, isa, part)
        self.lies, self.walk = gemm.right, replace(gemm.walk, near=_is_asked_nearby(isa, gemm.lines))
        self.panel = self.walk.panel(self.tiling)
        self.widths = gemm.widths or tuple(range(1, gemm.tiling.vectors + 1))
        self.whole_rows = gemm.whole_rows

    def functions(self) -> tuple[FunctionText, list[FunctionText]]:
        """The function but for its `ret`, and those that it calls."""
        tiles = {width: self._heights(width) for width in reversed(self.widths)}
        helpers = [strip_function(self.tiling, width, heights, self.walk) for width, heights in tiles.items()]
        for width, heights in tiles.items():
            helpers.extend(tile_function(self.tiling, height, width, self.walk) for height in heights)
        helpers.extend(self.packings())
        with self.fn.loop("%begin", "%end") as item:
            self._item(item.index)
        return self.fn, helpers

    def packings(self) -> list[FunctionText]:
        """What packs a block of the right matrix into scratch memory, where it lies in no panels."""
        packings = {"rows": pack_rows, "columns": pack_columns}
        return [packings[self.lies](self.tiling)] if self.lies in packings else []

    @property
    def block_at(self) -> int:
        """Where scratch memory has that block."""
        return _SUM_ROWS * self.tiling.panel * self.tiling.sum_nbytes

    def _heights(self, width: int) -> tuple[int, ...]:
        """Row counts with a tile: all in a full panel, the greatest and one in a narrow one, which is rare."""
        heights = self.tiling.heights
        if self.whole_rows:
            return heights[:1]
        return heights if width == self.tiling.vectors else (heights[0], heights[-1])

    def _item(self, item: str) -> None:
        fn, tiling, word = self.fn, self.tiling, self.word
        rest, panel = self.split(item, word["n"], str(tiling.panel))
        if self.lies == "packed":
            last = fn.let(f"sub nsw i64 {ceil_div(fn, word['n'], str(tiling.panel))}, 1", "i")
            is_forward = fn.let(f"icmp ne i64 {word['reading']}, 0", "b")
            mirrored = fn.let(f"sub nsw i64 {last}, {panel}", "i")
            panel = fn.let(f"select i1 {is_forward}, i64 {panel}, i64 {mirrored}", "i")
        batch, number = self.split(rest, word["m"], word["block_rows"])
        outer, inner = self.div_rem(batch, word["inner"])
        row = fn.mul(number, word["block_rows"])
        column = fn.mul(panel, tiling.panel)
        rows = minimum(fn, word["block_rows"], fn.let(f"sub nsw i64 {word['m']}, {row}", "i"))
        columns = minimum(fn, str(tiling.panel), fn.let(f"sub nsw i64 {word['n']}, {column}", "i"))
        left = fn.gep("i8", self.start("left", outer, inner), self.nbytes(fn.mul(row, word["left_row"])))
        panel = fn.mul(panel, tiling.vectors // self.panel.vectors)
        right = fn.gep("i8", self.start("right", outer, inner), self.nbytes(fn.mul(panel, word["right_panel"])))
        following = right
        if self.walk.ahead:
            step = fn.mul(word["right_panel"], tiling.vectors // self.panel.vectors)
            back = fn.let(f"sub nsw i64 0, {step}", "i")
            step = fn.let(f"select i1 {is_forward}, i64 {step}, i64 {back}", "i")
            following = fn.gep("i8", right, self.nbytes(step))
        out = self.out_at(outer, inner, row, column)
        with fn.loop(0, fn.mul(rows, tiling.vectors)) as z:
            to = fn.gep("i8", "%scratch", fn.mul(z.index, tiling.lanes * tiling.sum_nbytes))
            fn.store(tiling.vector, "zeroinitializer", to, tiling.sum_nbytes)
        with fn.loop(0, word["k"], word["block_terms"]) as k:
            self._block(k.index, left, (right, following), out, rows, columns)
        self.finish_block(outer, inner, row, column, rows, columns)

    def _block(self, k: str, left: str, panels: tuple[str, str], out: str, rows: str, columns: str) -> None:
        """Add a block of K. panels: where the right matrix has those at hand, and those of the item that follows."""
        fn, tiling, word = self.fn, self.tiling, self.word
        count = minimum(fn, word["block_terms"], fn.let(f"sub nsw i64 {word['k']}, {k}", "i"))
        a = fn.gep("i8", left, self.nbytes(fn.mul(k, word["left_k"])))
        b, step = self._panel_block(k, count, panels[0], columns)
        groups = fn.let(f"udiv i64 {count}, {tiling.group}", "i") if tiling.group > 1 else count
        arguments = {"a_row": self.nbytes(word["left_row"]), "a_k": self.nbytes(fn.mul(word["left_k"], tiling.group)),
                     "b_k": step, "b_panel": self.nbytes(word["right_panel"]), "sums": "%scratch", "height": rows,
                     **self._ahead(k, count, panels, out, rows)}  # fmt: skip
        self._strips(columns, a=a, b=b, k=groups, **arguments)
        if tiling.kind == "bf16":
            with fn.when(fn.let(f"trunc i64 {count} to i1", "b")):
                # The odd last column of the left matrix, each element with a zero beside it.
                pairs = fn.alloca("i32", _SUM_ROWS)
                at = fn.gep("i8", a, fn.mul(fn.mul(groups, 2), tiling.element_nbytes))
                with fn.loop(0, rows) as i:
                    element = fn.load("i16", fn.gep("i8", at, fn.mul(i.index, arguments["a_row"])), 2)
                    fn.store("i32", fn.let(f"zext i16 {element} to i32"), fn.gep("i32", pairs, i.index))
                last = fn.gep("i8", b, fn.mul(groups, step))
                self._strips(columns, **{**arguments, "a": pairs, "a_row": "4", "a_k": "4", "b": last, "k": "1"})

    def _ahead(self, k: str, count: str, panels: tuple[str, str], out: str, rows: str) -> dict[str, str]:
        """What tiles ask for, once by all of them together: as much as the block at hand, one of `BLOCK` terms further,
        which may be in the panels of the item that follows; with the last block the lines of the result, before it the
        sums', which are near.
        """
        fn, word, row_nbytes = self.fn, self.word, self.panel.row_nbytes
        if not self.walk.ahead:
            return {"next": "null", "next_step": "0", "out": "null", "out_row": "0"}
        step = ceil_div(fn, str(row_nbytes * self.walk.turn), ceil_div(fn, rows, str(self.tiling.rows)))
        whole = fn.mul(ceil_div(fn, word["k"], word["block_terms"]), word["block_terms"])
        term = fn.add(k, maximum(fn, word["block_terms"], str(BLOCK)))
        beyond = fn.let(f"sub nsw i64 {term}, {whole}", "i")
        is_here = fn.let(f"icmp slt i64 {beyond}, 0", "b")
        term = fn.let(f"select i1 {is_here}, i64 {term}, i64 {beyond}", "i")
        groups = fn.let(f"udiv i64 {term}, {self.tiling.group}", "i") if self.tiling.group > 1 else term
        start = fn.let(f"select i1 {is_here}, ptr {panels[0]}, ptr {panels[1]}", "p")
        is_last = fn.let(f"icmp sge i64 {fn.add(k, count)}, {word['k']}", "b")
        out_row, sums_row = fn.mul(word["out_row"], self.epilogue.out.itemsize), self.tiling.panel * 4
        return {
            "next": fn.gep("i8", start, fn.mul(groups, row_nbytes)),
            "next_step": step,
            "out": fn.let(f"select i1 {is_last}, ptr {out}, ptr %scratch", "p"),
            "out_row": fn.let(f"select i1 {is_last}, i64 {out_row}, i64 {sums_row}", "i"),
        }

    def _panel_block(self, k: str, count: str, right: str, columns: str) -> tuple[str, str]:
        """Where the block's rows of the panel lie, and the bytes between them (between groups in bf16)."""
        fn, tiling, word = self.fn, self.tiling, self.word
        step, nbytes = self.nbytes(word["right_step"]), str(self.panel.row_nbytes)
        if self.lies == "packed":
            groups = fn.let(f"udiv i64 {k}, {tiling.group}", "i") if tiling.group > 1 else k
            return fn.gep("i8", right, fn.mul(groups, nbytes)), nbytes
        block = fn.gep("i8", "%scratch", self.block_at)
        if self.lies == "columns":
            fn.do(pack_call(fn.gep("i8", right, self.nbytes(k)), step, count, columns, block))
            return block, nbytes
        at = fn.gep("i8", right, fn.mul(k, step))
        if tiling.group > 1:
            fn.do(pack_call(at, step, count, columns, block))
            return block, nbytes
        full = fn.let(f"icmp eq i64 {columns}, {tiling.panel}", "b")
        wanted = fn.let(f"icmp ne i64 {word['reading']}, 0", "b")
        direct = fn.let(f"and i1 {full}, {wanted}", "b")
        with fn.when(fn.let(f"xor i1 {direct}, true", "b")):
            fn.do(pack_call(at, step, count, columns, block))
        return (
            fn.let(f"select i1 {direct}, ptr {at}, ptr {block}"),
            fn.let(f"select i1 {direct}, i64 {step}, i64 {nbytes}"),
        )

    def _strips(self, columns: str, **arguments: str) -> None:
        """Sums of all rows, over as many registers of columns as are used."""
        fn, tiling = self.fn, self.tiling
        done = fn.fresh("summed")
        for width in self.widths:
            if width == self.widths[-1]:
                fn.do(strip_call(width, **arguments))
                fn.do(f"br label %{done}")
                continue
            narrow, wider = fn.fresh("narrow"), fn.fresh("wider")
            fits = fn.let(f"icmp sle i64 {columns}, {width * tiling.lanes}", "b")
            fn.do(f"br i1 {fits}, label %{narrow}, label %{wider}")
            fn.label(narrow)
            fn.do(strip_call(width, **arguments))
            fn.do(f"br label %{done}")
            fn.label(wider)
        fn.label(done)


def _is_asked_nearby(isa: Isa, lines: int) -> bool:
    """Whether lines are asked for in the first-level cache, too. One of 48 KB is full of what two multipliers are busy
    with; a single tile, or several lines a turn with 256 bits, have more lines on their way than it has buffers for.
    """
    return not has_wide_multipliers(isa) and (lines == 1 or (isa.f32_lanes == 16 and lines < TURN))


_STRIP_PARAMETERS = (
    "ptr %a, i64 %a.row, i64 %a.k, ptr %b, i64 %b.k, i64 %b.panel, i64 %k, ptr %sums, i64 %height, ptr %next, "
    "i64 %next.step, ptr %out, i64 %out.row"
)


def strip_call(width: int, **a: str) -> str:
    return (
        f"call void @strip.{width}(ptr {a['a']}, i64 {a['a_row']}, i64 {a['a_k']}, ptr {a['b']}, "
        f"i64 {a['b_k']}, i64 {a['b_panel']}, i64 {a['k']}, ptr {a['sums']}, i64 {a['height']}, "
        f"ptr {a['next']}, i64 {a['next_step']}, ptr {a['out']}, i64 {a['out_row']})"
    )


def strip_function(tiling: Tiling, width: int, heights: Sequence[int], walk: Walk) -> FunctionText:
    """All rows of a panel: tiles of the greatest height, then the lowest that holds what is left (or `paired_rest`)."""
    fn = FunctionText(f"strip.{width}", _STRIP_PARAMETERS, result="internal void")
    names = {"a_row": "%a.row", "a_k": "%a.k", "b": "%b", "b_k": "%b.k", "b_panel": "%b.panel", "k": "%k",
             "next_step": "%next.step"}  # fmt: skip
    nbytes = tiling.panel * tiling.sum_nbytes
    asked = fn.mul(fn.let(f"udiv i64 %k, {walk.turn}", "i"), "%next.step")
    split, even = ("%height", ()) if walk.tiled else _split(fn, heights)
    following, loops = "%next", [("0", split, heights)]
    if even:
        loops.append((split, "%height", even))
    for first, last, used in loops:
        with fn.loop(first, last, used[0], [("ptr", following)]) as row:
            (asking,) = row.carried
            asking.next = fn.let(f"getelementptr i8, ptr {asking.now}, i64 {asked}", "p")
            a = fn.gep("i8", "%a", fn.mul(row.index, "%a.row"))
            sums = fn.gep("i8", "%sums", fn.mul(row.index, nbytes))
            left = fn.let(f"sub nsw i64 %height, {row.index}", "i")
            if walk.ahead:
                for line in range(used[0]):
                    at = fn.gep("i8", "%out", fn.mul(fn.add(row.index, line), "%out.row"))
                    for i in range(0, width * tiling.lanes * tiling.sum_nbytes, LINE_NBYTES):
                        prefetch(fn, fn.gep("i8", at, i), near=True)
            done = fn.fresh("tiled")
            for lower, height in zip((*used[1:], 0), used, strict=True):
                here, further = fn.fresh("high"), fn.fresh("lower")
                if lower:
                    high = fn.let(f"icmp sgt i64 {left}, {lower}", "b")
                    fn.do(f"br i1 {high}, label %{here}, label %{further}")
                    fn.label(here)
                fn.do(tile_call(height, width, a=a, sums=sums, height=left, next=asking.now, **names))
                fn.do(f"br label %{done}")
                if lower:
                    fn.label(further)
            fn.label(done)
        following = asking.last
    return fn


def _split(fn: FunctionText, heights: Sequence[int]) -> tuple[str, tuple[int, ...]]:
    """The row from which there are two tiles of the second height, and that height; nothing where there are never."""
    rest = paired_rest(heights)
    if not rest:
        return "%height", ()
    both = 2 * heights[1]
    fits = fn.let(f"icmp eq i64 {fn.let(f'urem i64 %height, {heights[0]}', 'i')}, {rest}", "b")
    wanted = fn.let(f"and i1 {fits}, {fn.let(f'icmp sge i64 %height, {both}', 'b')}", "b")
    before = fn.let(f"sub nsw i64 %height, {both}", "i")
    return fn.let(f"select i1 {wanted}, i64 {before}, i64 %height", "i"), (heights[1],)
