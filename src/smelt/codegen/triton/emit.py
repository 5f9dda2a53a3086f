"""A loop nest as Triton source: lines of a program that computes one block of the nest's points.

    nest(%x: f32, %out: f32)                      def KERNEL(b0, b1, w0, R: tl.constexpr):
      for i0 < 4096:                        ==>       program = tl.program_id(0)
        %out[i0] = mul(%x[i0], 2.5)                   i0 = program * R + tl.arange(0, R)
                                                      rows = i0 < w0
                                                      v1 = tl.load(b0 + i0, mask=rows, other=0.0)
                                                      tl.store(b1 + i0, v1 * 2.5, mask=rows)

Sizes, strides and offsets are words, so nests of one structure have one text. Invariant: all that a point loads is
loaded before it stores.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from smelt.codegen.kernels.graph import Graph, StoreValue, Value, operand_dtype
from smelt.codegen.kernels.nest import Load, Nest, Op, Reduce
from smelt.codegen.kernels.operations import DTYPES
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.triton.contraction import Tile, contraction
from smelt.codegen.triton.directed import directed
from smelt.codegen.triton.dot import Dots
from smelt.codegen.triton.frame import Frame
from smelt.codegen.triton.helpers import HEADER, functions
from smelt.codegen.triton.kernel import TritonKernel, TritonSource
from smelt.codegen.triton.layout import FORMS, Form, Layout, choose, fits, with_tile
from smelt.codegen.triton.reduce import Reducer
from smelt.codegen.triton.values import Values
from smelt.codegen.triton.vmath import is_supported, pointer_type
from smelt.diag import InternalError
from smelt.diag.loops import LoopStep
from smelt.ir import DType
from smelt.ir.sizes import MARK, ceil_div

_ADDED = (DType.I32, DType.I64, DType.F16, DType.BF16, DType.F32, DType.F64)
"""Elements that a GPU adds to in memory."""


def unsupported(nest: Nest) -> str | None:
    """Why a nest has no Triton form; None if it has one."""
    return _obstacle(Graph(nest))


def emit_triton(
    nest: Nest,
    form: Form | None = None,
    r: int = 0,
    b: int = 0,
    is_aligned: bool = True,
    tile: Tile | None = None,
    has_tf32: bool = False,
    steps: Sequence[LoopStep] = (),
) -> TritonKernel:
    """A nest's kernel. form, r, b: the form and its block sizes, chosen where they are None and 0. tile: those of a
    product. has_tf32: products of f32 may round their operands to 10 bits of mantissa, as torch's flag allows.
    steps: of a schedule, on its loops (`directed`), in the place of a form and its blocks.

    is_aligned: every buffer's address is a multiple of 16. Raises: InternalError if the nest holds something that
    `unsupported` names, or has not this form; ScheduleError (S0614) for a step that does not fit.
    """
    nest = simplify_nest(nest)
    graph = Graph(nest)
    reason = _obstacle(graph)
    if reason is not None:
        raise InternalError(f"a nest cannot be emitted: {reason}", notes=(str(nest),))
    layout = directed(graph, steps) if steps else choose(graph, form, r, b)
    if not fits(graph, layout.form):
        raise InternalError(f"a nest cannot be emitted in the form {layout.form}", notes=(str(nest),))
    if tile is not None and layout.form == "dot":
        layout = with_tile(layout, tile)
    frame = Frame(graph, layout)
    _Program(frame, "tf32" if has_tf32 else "ieee").emit()
    return _kernel(frame, layout, is_aligned)


def _kernel(frame: Frame, layout: Layout, is_aligned: bool) -> TritonKernel:
    lines = frame.lines
    text = f"{HEADER}{functions(lines)}\n\n@triton.jit\n{frame.finish(lines)}\n"
    pointers = tuple(pointer_type(buffer.dtype) for buffer in frame.nest.buffers)
    multiples = tuple(word.multiple for word in frame.words)
    source = TritonSource(
        "", text, pointers, multiples, frame.is_wide, frame.constants(), layout.warps, frame.can_fail, is_aligned,
        layout.stages,
    )  # fmt: skip
    source = source.named(layout.form)
    return TritonKernel(source, layout.form, tuple(word.value for word in frame.words), _programs(frame.nest, layout))


def _programs(nest: Nest, layout: Layout) -> int:
    count = prod(nest.sizes[k] for k in layout.grid)
    count *= ceil_div(prod(nest.sizes[k] for k in layout.across), layout.r)
    return count * (
        ceil_div(prod(nest.sizes[k] for k in layout.along), layout.b) if layout.form in ("tile", "dot") else 1
    )


def _obstacle(graph: Graph) -> str | None:
    nest = graph.nest
    if MARK in repr(nest):
        return "its sizes are known at run time only"
    if graph.scans and len(nest.inner) > 1:
        return "a scan runs along a single inner loop"
    for buffer in nest.buffers:
        if buffer.dtype not in DTYPES:
            return f"%{buffer.name} has elements of {buffer.dtype}"
    for value in graph.values:
        if value.dtype not in DTYPES:
            return f"there is no Triton code for {value.dtype}"
        if isinstance(value.source, Op) and not is_supported(value.source.op, operand_dtype(value)):
            return f"there is no Triton code for {value.source.op} of {operand_dtype(value)}"
    if nest.inner and not any(fits(graph, form) for form in FORMS):
        return "an iteration would load what one before it stored, and rows are too long to be whole"
    for store in graph.stores:
        if (reason := _store_obstacle(nest, store)) is not None:
            return reason
    return None


def _store_obstacle(nest: Nest, store: StoreValue) -> str | None:
    """Why a store has no place in a kernel whose points run at once."""
    source = store.source
    many = [k for k, size in enumerate(nest.sizes) if size != 1]
    moves = {k for k, stride in enumerate(source.index.strides) if stride}
    for position in store.positions:
        moves |= {k for k in many if position.loops >> k & 1}
    name = nest.buffers[source.buffer].name
    if source.mode == "add":
        if nest.buffers[source.buffer].dtype not in _ADDED:
            return f"nothing adds to elements of {nest.buffers[source.buffer].dtype} in memory"
        alike = [k for k in many[: len(nest.outer)] if k < len(nest.outer) and not store.loops >> k & 1]
        return f"points that do not differ add to %{name}" if alike else None
    if nest.ordered:
        return f"the last of several stores to one element of %{name} counts"
    if any(store.loops >> k & 1 and k not in moves for k in many):
        return f"several points store to one element of %{name}"
    return None


class _Program:
    """Emits the lines of one program."""

    def __init__(self, frame: Frame, precision: str) -> None:
        self.frame, self.graph, self.precision = frame, frame.graph, precision
        self.values = Values(frame)
        self.reducer = Reducer(frame, self.values)
        written = set(frame.nest.writes)
        self.read_again = [v for v in self.graph.values if isinstance(v.source, Load) and v.source.buffer in written]

    def emit(self) -> None:
        """The whole program."""
        self.frame.head()
        found = contraction(self.graph) if self.frame.layout.form == "dot" else None
        if found is not None:
            Dots(self.frame, found, self.precision).emit(self.values)
            self._store(self.graph.stores)
        elif self.frame.layout.is_looped:
            self._looped()
        else:
            for step in self.graph.passes:
                for value in sorted([*step.scans, *step.reduces], key=lambda v: v.number):
                    (self.reducer.whole if isinstance(value.source, Reduce) else self.reducer.scanned)(value)
            self._store(self.graph.stores)

    def _looped(self) -> None:
        inner = [s for s in self.graph.stores if s.loops & self.graph.inner_bits]
        outer = [s for s in self.graph.stores if not s.loops & self.graph.inner_bits]
        last = len(self.graph.passes) - 1
        for number, step in enumerate(self.graph.passes):
            stores = inner if number == last else []
            if step.reduces or stores:
                self._walk(number, step.reduces, stores, outer if number == last else [])
        self._store(outer)

    def _walk(self, number: int, reduces: list[Value], stores: list[StoreValue], later: list[StoreValue]) -> None:
        """One walk over the inner points: what it reduces, and in the last one the stores."""
        frame = self.frame
        self.values.iterate()
        scans = [v for v in self.graph.scans if v.stage <= number and self._is_needed(v, reduces, stores)]
        carried = [self.reducer.begin(v) for v in (*scans, *reduces)]
        if stores and self.read_again:
            # Before the first store; what waits for a reduction of this walk waits on.
            for store in later:
                for value in store.roots:
                    self._load_now(value)
        head = frame.open()
        for one in carried:
            if isinstance(one.value.source, Reduce):
                self.reducer.combine(one)
            else:
                self.reducer.scan(one)
        self._store(stores)
        frame.close(head)
        self.values.iterate()
        for one in carried:
            self.reducer.end(one)

    def _is_needed(self, scan: Value, reduces: list[Value], stores: list[StoreValue]) -> bool:
        stack = [*(r.args[0] for r in reduces), *(root for store in stores for root in store.roots)]
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            if value is scan:
                return True
            if value.number not in seen:
                seen.add(value.number)
                stack += value.args if not isinstance(value.source, Reduce) else ()
        return False

    def _load_now(self, value: Value) -> None:
        """Make the loads that a value needs, as far as nothing else has to be finished first."""
        stack = [value]
        while stack:
            found = stack.pop()
            if isinstance(found.source, Load) and not any(self._waits(a) for a in found.args):
                self.values.at(found)
            if not isinstance(found.source, Reduce):
                stack += found.args

    def _waits(self, value: Value) -> bool:
        if isinstance(value.source, Reduce):
            return self.values.known(value) is None
        return any(self._waits(a) for a in value.args)

    def _store(self, stores: list[StoreValue]) -> None:
        """Stores, behind all that they need: threads that load an element again must not see it stored."""
        for store in stores:
            for root in store.roots:
                self.values.at(root)
        if stores and self.read_again:
            self.frame.emit("tl.debug_barrier()", any(s.loops & self.graph.inner_bits for s in stores))
        for store in stores:
            self.values.store(store)
