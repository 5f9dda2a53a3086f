"""What the gradients of attention do again and again, as private functions of their kernels.

    @rows, @panels, @scores, @product.1, @product.144, @result

A kernel takes six kinds of rows and multiplies five times. Spelled out at each place this was most of its text; a
function is compiled once, for every kernel of a dtype (`llvm.parted`), whatever its mask and sizes are.

Invariant: a function knows of a kernel no more than its arguments, its dtype and the instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.codegen.attention.parts import Steps
from smelt.codegen.attention.variant import Tile, Variant
from smelt.codegen.attention.vectors import number
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.text import FunctionText

# Keys and columns that are transposed at once.
_SQUARE = 8
_POINTERS = frozenset(("source", "target", "flag", "left", "right", "into", "rows", "panels"))
_NUMBERS = frozenset(("bound", "factor"))


class Functions:
    """The private functions of one kernel: each is written when it is first called.

    score_row: numbers from one row of scores to the next.
    """

    def __init__(self, fn: FunctionText, variant: Variant, isa: Isa, score_row: int) -> None:
        self.fn, self.isa = fn, isa
        # What differs in kernels does not in their functions.
        self.variant = replace(variant, mask=None)
        self.score_row = score_row
        self._known: set[str] = set()

    def take_row(self, **arguments: str) -> None:
        """Widen a row into scratch memory, zeros up to `width`, and set `flag` where it holds what is refused.

        Arguments: source, stride, count, target, width, next_row, flag, bound.
        """
        self._call("rows", _take_row, arguments)

    def turn(self, **arguments: str) -> None:
        """Numbers in rows [count, width] as panels [width, panel]. Arguments: rows, panels, width, count."""
        self._call("panels", _turn, arguments)

    def score(self, **arguments: str) -> None:
        """A tile of rows times panels, as far as there are keys: `into` = `left` @ `panels`.

        Arguments: left, left_row, depth, panels, count, into.
        """
        self._call("scores", lambda steps, isa: _score(steps, isa, self.score_row), arguments)

    def add_product(self, left_row: int, left_step: int, **arguments: str) -> None:
        """`into`[rows of a tile, width] += `left` @ `right`[depth, width]; rows and columns of `left` lie so far apart.

        Arguments: left, right, width, depth, into.
        """
        self._call(f"product.{left_row}", lambda steps, isa: _add_product(steps, isa, left_row, left_step), arguments)

    def write_row(self, **arguments: str) -> None:
        """A row of a result, times a factor. Arguments: source, factor, count, target, stride."""
        self._call("result", _write_row, arguments)

    def _call(self, name: str, write: Callable[[Steps, Isa], None], arguments: dict[str, str]) -> None:
        kinds = {argument: self._kind(argument) for argument in arguments}
        if name not in self._known:
            self._known.add(name)
            parameters = ", ".join(f"{kind} %{argument}" for argument, kind in kinds.items())
            steps = Steps(FunctionText(name, parameters, result="internal void"), self.variant, self.isa)
            write(steps, self.isa)
            self.fn.private(steps.fn, "")
        passed = ", ".join(f"{kinds[argument]} {value}" for argument, value in arguments.items())
        self.fn.do(f"call void @{name}({passed})")

    def _kind(self, argument: str) -> str:
        if argument in _POINTERS:
            return "ptr"
        return ("double" if self.variant.compute.itemsize == 8 else "float") if argument in _NUMBERS else "i64"


def _take_row(steps: Steps, isa: Isa) -> None:
    fn = steps.fn
    steps.copy_row(
        steps.dtype, "%source", "%stride", "%count", "%target", check="%flag", bound="%bound", next_row="%next_row"
    )
    with fn.loop("%count", "%width") as rest:
        fn.store(steps.kind, number(0.0), fn.gep(steps.kind, "%target", rest.index))


def _write_row(steps: Steps, isa: Isa) -> None:
    steps.write_row("%source", "%factor", "%count", "%target", "%stride")


def panel_of(steps: Steps, isa: Isa) -> int:
    """Numbers of a panel's row."""
    return Tile.of(isa).vectors * steps.lanes.count


def _turn(steps: Steps, isa: Isa) -> None:
    fn, panel_size = steps.fn, panel_of(steps, isa)
    square = replace(steps.lanes, count=min(steps.lanes.count, _SQUARE))
    with fn.loop("0", "%count", square.count) as key, fn.loop("0", "%width", square.count) as column:
        panel = fn.let(f"and i64 {key.index}, {-panel_size}", "i")
        lane = fn.let(f"sub i64 {key.index}, {panel}", "i")
        source = fn.gep(steps.kind, "%rows", fn.add(fn.mul(key.index, "%width"), column.index))
        read = [square.load(fn.gep(steps.kind, source, fn.mul("%width", i))) for i in range(square.count)]
        into = fn.gep(steps.kind, "%panels", fn.add(fn.mul(panel, "%width"), lane))
        into = fn.gep(steps.kind, into, fn.mul(column.index, panel_size))
        for i, vector in enumerate(square.transposed(read)):
            square.store(vector, fn.gep(steps.kind, into, i * panel_size))


def _score(steps: Steps, isa: Isa, score_row: int) -> None:
    fn, lanes, tile, panel_size = steps.fn, steps.lanes, Tile.of(isa), panel_of(steps, isa)
    vectors = fn.let(f"udiv i64 {fn.add('%count', lanes.count - 1)}, {lanes.count}", "i")
    whole = fn.let(f"sub i64 {vectors}, {fn.let(f'urem i64 {vectors}, {tile.vectors}', 'i')}", "i")
    for start, stop, count in (("0", whole, tile.vectors), (whole, vectors, 1)):
        with fn.loop(start, stop, count) as loop:
            panel = fn.let(f"udiv i64 {loop.index}, {tile.vectors}", "i")
            lane = fn.mul(fn.let(f"urem i64 {loop.index}, {tile.vectors}", "i"), lanes.count)
            right = fn.gep(steps.kind, "%panels", fn.add(fn.mul(fn.mul(panel, panel_size), "%left_row"), lane))
            sums = steps.product("%left", "%left_row", right, panel_size, "%depth", tile.rows, count)
            target = fn.gep(steps.kind, "%into", fn.mul(loop.index, lanes.count))
            for r, row in enumerate(sums):
                for v, value in enumerate(row):
                    lanes.store(value, fn.gep(steps.kind, target, r * score_row + v * lanes.count))


def _add_product(steps: Steps, isa: Isa, left_row: int, left_step: int) -> None:
    fn, lanes, tile = steps.fn, steps.lanes, Tile.of(isa)
    rest = fn.let(f"urem i64 %width, {panel_of(steps, isa)}", "i")
    whole = fn.let(f"sub i64 %width, {rest}", "i")
    for start, stop, vectors in (("0", whole, tile.vectors), (whole, "%width", 1)):
        with fn.loop(start, stop, vectors * lanes.count) as column:
            right = fn.gep(steps.kind, "%right", column.index)
            sums = steps.product("%left", left_row, right, "%width", "%depth", tile.rows, vectors, left_step=left_step)
            target = fn.gep(steps.kind, "%into", column.index)
            for r, row in enumerate(sums):
                here = fn.gep(steps.kind, target, fn.mul("%width", r))
                for v, value in enumerate(row):
                    at = fn.gep(steps.kind, here, v * lanes.count)
                    lanes.store(lanes.op("fadd", lanes.load(at), value), at)
