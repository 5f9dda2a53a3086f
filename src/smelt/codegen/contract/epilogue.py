"""What is done with each sum of a product before it is stored: an expression over `Ref("acc")` and loads.

    out[r][c] = expr(acc = sums[r][c], loads at (r, c))

Invariant: the expression is canonical: a load's strides and offset are words of the launch (`Bound.words`), only
whether it runs along the columns is in the text, so that equal computations are equal kernels whatever their shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from smelt.codegen.contract.tiling import Tiling
from smelt.codegen.contract.vectors import MEMORY, lane_mask, read, read_one, write
from smelt.codegen.kernels.nest import ACC, Const, Expr, Index, Load, Op, Ref, walk
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.lanes.lanes import ExprEmitter, is_supported
from smelt.codegen.llvm.text import FunctionText
from smelt.diag import InternalError
from smelt.diag.records import record
from smelt.ir import DType
from smelt.ir.sizes import equals, is_one, is_symbolic

_WORDS_PER_LOAD = 4


@record
class Epilogue:
    """A canonical expression: the offset of a load's index is its number, its one stride is 1 along columns or 0.

    out: the dtype that is stored; buffers: those of the loads' buffers.
    """

    expr: Expr
    out: DType
    buffers: tuple[DType, ...] = ()
    nloads: int = 0


@record
class Bound:
    """An epilogue with the words of its loads: for each the offset and the strides of both batch loops and the rows."""

    epilogue: Epilogue
    words: tuple[int, ...] = ()


def plain(out: DType) -> Bound:
    """The sums as they are, rounded where `out` is narrower."""
    acc = DType.F64 if out is DType.F64 else DType.F32
    expr: Expr = Ref(ACC, acc)
    return Bound(Epilogue(expr if out is acc else Op("cast", (expr,), out), out))


def bound(expr: Expr, out: DType, buffers: Sequence[DType]) -> Bound | None:
    """An epilogue from an expression whose loops are (row, column), or (outer, inner, row, column) with batches.

    None where it holds what no epilogue can: positions, gathers, masked loads, another stride along columns, a constant
    that is known at run time only.
    """
    words: list[int] = []
    numbers: dict[tuple[int, Index], Load] = {}

    def canonical(item: Expr) -> Expr | None:
        match item:
            case Const(value=number):
                return None if is_symbolic(number) else item
            case Ref():
                return item
            case Op(args=args):
                made = [canonical(a) for a in args]
                return None if None in made else replace(item, args=tuple(a for a in made if a is not None))
            case Load(index=index, where=None) if not index.gathers and _is_line(index.strides[-1]):
                known = numbers.get((item.buffer, index))
                if known is None:
                    batch = index.strides[:-2] or (0, 0)
                    known = replace(item, index=Index(len(numbers), (index.strides[-1],)))
                    words.extend((index.offset, *batch, index.strides[-2]))
                    numbers[item.buffer, index] = known
                return known
            case _:
                return None

    made = canonical(expr)
    if made is None:
        return None
    return Bound(Epilogue(made, out, tuple(buffers), len(numbers)), tuple(words))


def _is_line(step: int) -> bool:
    return is_one(step) or equals(step, 0)


@record
class Block:
    """The part of a result that is stored at once: names of i64 values, but for the addresses `sums` and `out`.

    at: (outer, inner, first row, first column). `out_row`: elements between rows. Sums of a row begin every
    `tiling.panel`.
    """

    sums: str
    rows: str
    columns: str
    out: str
    out_row: str
    at: tuple[str, str, str, str]


def emit_epilogue(
    fn: FunctionText,
    isa: Isa,
    tiling: Tiling,
    epilogue: Epilogue,
    block: Block,
    buffers: Sequence[str],
    first_word: int,
) -> None:
    """Append the loops that store `block`; `buffers` are addresses, the loads' words begin at `first_word`."""
    body = _Body(fn, isa, tiling, epilogue)
    body.place(buffers, first_word, block.at)
    full = fn.let(f"udiv i64 {block.columns}, {tiling.lanes}", "i")
    whole = fn.mul(full, tiling.lanes)
    rest = fn.let(f"sub nsw i64 {block.columns}, {whole}", "i")
    mask = lane_mask(fn, tiling.lanes, rest)
    some = fn.let(f"icmp ne i64 {rest}, 0", "b")
    with fn.loop(0, block.rows) as row:
        body.row(row.index, block)
        with fn.loop(0, whole, tiling.lanes) as column:
            body.store(column.index, None)
        with fn.when(some):
            body.store(whole, mask)


class _Body:
    """One register of results."""

    def __init__(self, fn: FunctionText, isa: Isa, tiling: Tiling, epilogue: Epilogue) -> None:
        self.fn, self.tiling, self.epilogue = fn, tiling, epilogue
        self.emitter = ExprEmitter(fn, isa, tiling.lanes)
        self.loads = _loads(epilogue.expr)
        self.starts: dict[int, str] = {}
        self.steps: dict[int, str] = {}
        self.lines: dict[int, str] = {}
        self.sums = self.out = ""

    def place(self, buffers: Sequence[str], first_word: int, at: tuple[str, str, str, str]) -> None:
        """Where each load begins in the block at hand."""
        fn = self.fn
        outer, inner, row, column = at
        for number, load in self.loads.items():
            offset, *strides = (fn.word(first_word + _WORDS_PER_LOAD * number + i) for i in range(_WORDS_PER_LOAD))
            for position, stride in zip((outer, inner, row), strides, strict=True):
                offset = fn.add(offset, fn.mul(position, stride))
            offset = fn.add(offset, fn.mul(column, load.index.strides[0]))
            self.starts[number] = fn.gep("i8", buffers[load.buffer], fn.mul(offset, load.dtype.itemsize))
            self.steps[number] = fn.mul(strides[2], load.dtype.itemsize)

    def row(self, row: str, block: Block) -> None:
        """Go to a row of the block."""
        fn = self.fn
        self.sums = fn.gep("i8", block.sums, fn.mul(row, self.tiling.panel * self.tiling.sum_nbytes))
        self.out = fn.gep("i8", block.out, fn.mul(fn.mul(row, block.out_row), self.epilogue.out.itemsize))
        for number in self.loads:
            self.lines[number] = fn.gep("i8", self.starts[number], fn.mul(row, self.steps[number]))

    def store(self, column: str, mask: str | None) -> None:
        """Compute and store the register at a column; with a mask only its lanes."""
        fn, tiling, out = self.fn, self.tiling, self.epilogue.out
        at = fn.gep("i8", self.sums, fn.mul(column, tiling.sum_nbytes))
        acc = fn.load(tiling.vector, at, tiling.sum_nbytes)
        value = self._value(self.epilogue.expr, acc, column, mask, {})
        to = fn.gep("i8", self.out, fn.mul(column, out.itemsize))
        write(fn, tiling.lanes, out, value, to, mask)

    def _value(self, expr: Expr, acc: str, column: str, mask: str | None, seen: dict[Expr, str]) -> str:
        """The register of an expression; equal parts are computed once."""
        known = seen.get(expr)
        if known is not None:
            return known
        match expr:
            case Ref():
                made = acc
            case Load(index=index, dtype=dtype):
                line = self.lines[index.offset]
                if index.strides[0]:
                    at = self.fn.gep("i8", line, self.fn.mul(column, dtype.itemsize))
                    made = read(self.fn, self.tiling.lanes, dtype, at, mask)
                else:
                    made = read_one(self.fn, self.tiling.lanes, dtype, line)
            case Op(op=op, args=args, dtype=dtype):
                values = [self._value(a, acc, column, mask, seen) for a in args]
                made = self.emitter.emit(op, dtype, values, operand_dtype(expr))
            case Const(value=number, dtype=dtype):
                made = self.emitter.const(number, dtype)
            case _:
                raise InternalError(f"an epilogue holds {expr}")
        seen[expr] = made
        return made


def operand_dtype(op: Op) -> DType:
    """The dtype of an operation's operands (of a select: of what is chosen)."""
    return op.args[-1].dtype


def is_emittable(expr: Expr, isa: Isa) -> bool:
    """Whether the expression's operations and loads have vector code."""
    return all(
        (not isinstance(item, Op) or is_supported(item.op, operand_dtype(item), isa))
        and (not isinstance(item, Load) or item.dtype in MEMORY)
        for item in walk(expr)
    )


def _loads(expr: Expr) -> dict[int, Load]:
    return {item.index.offset: item for item in walk(expr) if isinstance(item, Load)}
