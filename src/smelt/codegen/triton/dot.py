"""Sums of products on tensor cores: nests whose points sum, over the inner loops, what two operands multiply to.

    for i0 < M, i1 < N: s = sum f32 over (j0 < K) of mul(%x[K*i0 + j0], %w[K*i1 + j0]); %y[N*i0 + i1] = relu(s)
        ==>
    for start in range(0, w0, K):        x: a block [R, K], w: a block [K, B]
        s = tl.dot(x, w, s)              then the block [R, B] of what is stored

Matrix products, batched ones and convolutions are such nests: whatever indices, masks and operations (casts, an
activation) stand between memory and the product are emitted for its operands' blocks, and what follows the sum for the
result's. Invariant: beyond the last inner point both operands are 0.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from smelt.codegen.kernels.graph import Value
from smelt.codegen.kernels.nest import Load
from smelt.codegen.triton.contraction import Contraction
from smelt.codegen.triton.frame import ACROSS, ALONG, Axis, Frame
from smelt.codegen.triton.values import Values
from smelt.codegen.triton.vmath import memory_type
from smelt.ir import DType


class Dots:
    """Emits the loop over a tile's inner points."""

    def __init__(self, frame: Frame, found: Contraction, precision: str) -> None:
        self.frame, self.found, self.precision = frame, found, precision
        self.length = prod(frame.nest.inner)
        self.is_even = self.length % frame.layout.k == 0
        nouter = len(frame.nest.outer)
        inner = tuple(range(nouter, len(frame.nest.sizes)))
        depth = [Axis("K", "" if self.is_even else f"depth_{side}") for side in ("a", "b")]
        layouts = replace(frame.layout, along=inner), replace(frame.layout, across=inner)
        self.sides = (
            Frame(frame.graph, layouts[0], frame.text, frame.across, depth[0]),
            Frame(frame.graph, layouts[1], frame.text, depth[1], frame.along),
        )

    def emit(self, values: Values) -> None:
        """The accumulators, the loop, and the names of the sums; the main frame's counters are there already."""
        frame = self.frame
        kinds = [f"tl.float{8 * factors.sums.itemsize}" for factors in self.found.factors]
        names = [frame.let(f"tl.full((R, B), 0.0, {kind})", prefix="s") for kind in kinds]
        frame.text.loop = []
        for side in self.sides:
            side.counters |= frame.counters
        self.sides[0].depth(ALONG, "start", "ka", self.is_even)
        self.sides[1].depth(ACROSS, "start", "kb", self.is_even)
        made = [Values(side) for side in self.sides]
        for name, kind, factors in zip(names, kinds, self.found.factors, strict=True):
            a, b = (self._block(m, v) for m, v in zip(made, (factors.left, factors.right), strict=True))
            # Triton's default is f32.
            wide = f", out_dtype={kind}" if factors.sums is DType.F64 else ""
            frame.emit(f'{name} = tl.dot({a}, {b}, {name}, input_precision="{self.precision}"{wide})', True)
        frame.close(f"for start in range(0, {frame.word(self.length)}, K):")
        for name, factors in zip(names, self.found.factors, strict=True):
            values.remember(factors.reduce, name)

    def _block(self, values: Values, value: Value) -> str:
        """An operand's block, 0 beyond the last inner point."""
        frame = values.frame
        text = known = values.at(value)
        source = value.source
        mask = (frame.along if frame is self.sides[0] else frame.across).mask
        is_zero = isinstance(source, Load) and (source.other is None or not source.other.value)
        if mask and not is_zero:
            text = f"tl.where({mask}, {text}, 0.0)"
        if values.axes(value) != ACROSS | ALONG:
            text = f"({text} + tl.zeros({frame.shape(ACROSS | ALONG)}, tl.float{max(32, 8 * value.dtype.itemsize)}))"
        if value.dtype.is_half:
            text = f"{text}.to(tl.{memory_type(value.dtype)})"
        return known if text == known else frame.let(text, True)
