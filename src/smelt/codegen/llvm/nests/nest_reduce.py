"""Accumulators of reductions and scans: what they start from, how an element goes in, how two are combined.

Invariant: combining is in a fixed order that depends on the loop's size alone, so a result has the same bits whatever
the ranges of work items were. arg kinds take the first extreme, NaN being the extreme (as torch).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from smelt.codegen.kernels.nest import POSITIONS, Reduce, Scan
from smelt.codegen.kernels.operations import KERNEL_OPS
from smelt.codegen.llvm.lanes.lanes import ExprEmitter
from smelt.codegen.llvm.lanes.lanes_types import register_type, vector_type
from smelt.codegen.llvm.text import FunctionText
from smelt.ir import DType

_COMBINE = {op.reduces: op.name for op in KERNEL_OPS if op.reduces}
_NO_INDEX = {"i32": 2**31 - 1, "i64": 2**63 - 1}


class Accumulator:
    """A reduction's state on vectors of any width: one value, for arg kinds a value and its index.

    shared: what another reduction needs to be found in the same state, None for those that share none.
    """

    def __init__(
        self,
        source: Reduce | Scan,
        operand: DType,
        emitters: Callable[[int], ExprEmitter],
        fn: FunctionText,
        index: str,
    ) -> None:
        self.kind = source.kind
        self.is_arg = source.kind.startswith("arg")
        self.is_position = source.kind in POSITIONS
        self.is_up = source.kind.startswith("argmax")
        self.result = source.dtype
        self.fn, self.emitters, self.index = fn, emitters, index
        # bf16 and f16 accumulate in f32, and are rounded at the end; extremes of bools are found among bytes.
        self.dtype: DType = DType.F32 if source.dtype.is_half else source.dtype
        if self.is_arg:
            self.dtype = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.BOOL: DType.U8}.get(operand, operand)
        self.operand = operand
        self.shared = (self.is_up, self.dtype) if self.is_arg else None

    @property
    def is_float_sum(self) -> bool:
        """Whether the order of the additions matters."""
        return self.kind == "sum" and self.dtype.is_floating

    def types(self, lanes: int) -> list[str]:
        """LLVM types of the state."""
        value = vector_type(register_type(self.dtype), lanes)
        return [value, vector_type(self.index, lanes)] if self.is_arg else [value]

    def start(self, lanes: int) -> list[str]:
        """The state of no element."""
        emitter = self.emitters(lanes)
        if self.is_arg:
            value = emitter.const(self._extreme(least=self.is_up), self.dtype)
            return [value, self._index_const(_NO_INDEX[self.index], lanes)]
        if self.kind in ("max", "min"):
            return [emitter.const(self._extreme(least=self.kind == "max"), self.dtype)]
        return [emitter.const({"sum": 0, "any": 0, "prod": 1, "all": 1}[self.kind], self.dtype)]

    def _extreme(self, *, least: bool) -> float | int:
        if self.dtype.is_floating:
            return -math.inf if least else math.inf
        if self.dtype is DType.BOOL:
            return 0 if least else 1
        bits = 8 * self.dtype.itemsize
        if self.dtype is DType.U8:
            return 0 if least else 255
        return -(1 << (bits - 1)) if least else (1 << (bits - 1)) - 1

    def _index_const(self, value: int, lanes: int) -> str:
        return str(value) if lanes == 1 else f"splat ({self.index} {value})"

    # --- steps

    def update(
        self, state: list[str], value: str, mask: str | None, lanes: int, index: str, *, walks: bool = False
    ) -> list[str]:
        """Put a vector of elements in; lanes that the mask leaves out stay.

        index: the scalar i64 number of lane 0's element, and of every lane's unless the lanes walk along the row.
        """
        emitter = self.emitters(lanes)
        if self.is_arg:
            return self._update_arg(state, value, mask, lanes, index, walks)
        if mask is not None:
            value = emitter.emit("select", self.dtype, [mask, value, self.start(lanes)[0]])
        return [self._combine(emitter, state[0], value)]

    def _combine(self, emitter: ExprEmitter, a: str, b: str) -> str:
        return emitter.emit(_COMBINE[self.kind], self.dtype, [a, b])

    def merge(self, a: list[str], b: list[str], lanes: int) -> list[str]:
        """Two states as one; for arg kinds of equals the smaller index."""
        emitter = self.emitters(lanes)
        if not self.is_arg:
            return [self._combine(emitter, a[0], b[0])]
        mask = vector_type("i1", lanes)
        index_type = vector_type(self.index, lanes)
        better = self._better(b[0], a[0], lanes)
        worse = self._better(a[0], b[0], lanes)
        earlier = self.fn.let(f"icmp slt {index_type} {b[1]}, {a[1]}")
        level = self.fn.let(f"xor {mask} {self.fn.let(f'or {mask} {better}, {worse}')}, {_true(lanes)}")
        take = self.fn.let(f"or {mask} {better}, {self.fn.let(f'and {mask} {level}, {earlier}')}")
        return self._choose(take, b, a, lanes)

    def _better(self, new: str, old: str, lanes: int) -> str:
        """Where a value goes before another: more extreme, or NaN where the other is not."""
        emitter, mask = self.emitters(lanes), vector_type("i1", lanes)
        up = self.is_up
        if not self.dtype.is_floating:
            return emitter.emit("gt" if up else "lt", DType.BOOL, [new, old], self.dtype)
        type_ = emitter.type(self.dtype)
        beyond = self.fn.let(f"fcmp {'ugt' if up else 'ult'} {type_} {new}, {old}")
        number = self.fn.let(f"fcmp ord {type_} {old}, {old}")
        return self.fn.let(f"and {mask} {beyond}, {number}")

    def _choose(self, take: str, a: list[str], b: list[str], lanes: int) -> list[str]:
        mask = vector_type("i1", lanes)
        return [
            self.fn.let(f"select {mask} {take}, {t} {x}, {t} {y}")
            for t, x, y in zip(self.types(lanes), a, b, strict=True)
        ]

    def _update_arg(
        self, state: list[str], value: str, mask: str | None, lanes: int, index: str, walks: bool
    ) -> list[str]:
        emitter = self.emitters(lanes)
        if self.operand is DType.BOOL:
            value = emitter.emit("cast", DType.U8, [value], DType.BOOL)
        take = self._better(value, state[0], lanes)
        if mask is not None:
            take = self.fn.let(f"and {vector_type('i1', lanes)} {take}, {mask}")
        if self.index == "i32":
            index = self.fn.let(f"trunc i64 {index} to i32")
        places = index
        if lanes > 1:
            type_ = vector_type(self.index, lanes)
            dtype = DType.I32 if self.index == "i32" else DType.I64
            iota = f"<{', '.join(f'{self.index} {k}' for k in range(lanes))}>"
            places = emitter.splat(index, dtype)
            if walks:
                places = self.fn.let(f"add {type_} {places}, {iota}")
        return self._choose(take, [value, places], state, lanes)

    # --- the end

    def across(self, state: list[str], lanes: int) -> list[str]:
        """The lanes of a state combined, half with half."""
        while lanes > 1:
            half = lanes // 2
            parts = []
            for first in (0, half):
                picked = []
                for type_, element, name in zip(self.types(lanes), self._elements(), state, strict=True):
                    picked.append(self._part(type_, element, name, first, half))
                parts.append(picked)
            state, lanes = self.merge(parts[0], parts[1], half), half
        return state

    def _elements(self) -> list[str]:
        value = register_type(self.dtype)
        return [value, self.index] if self.is_arg else [value]

    def _part(self, type_: str, element: str, name: str, first: int, count: int) -> str:
        if count == 1:
            return self.fn.let(f"extractelement {type_} {name}, i64 {first}")
        lanes = ", ".join(f"i32 {first + k}" for k in range(count))
        return self.fn.let(f"shufflevector {type_} {name}, {type_} poison, <{count} x i32> <{lanes}>")

    def value(self, state: list[str], lanes: int) -> str:
        """The result: rounded to the reduction's dtype; of positions the index as i64."""
        emitter = self.emitters(lanes)
        if not self.is_position:
            return emitter.emit("cast", self.result, [state[0]], self.dtype) if self.result != self.dtype else state[0]
        type_ = vector_type(self.index, lanes)
        # Nothing beat the start: every element equals it, and the first is the answer.
        none = self.fn.let(f"icmp eq {type_} {state[1]}, {self._index_const(_NO_INDEX[self.index], lanes)}")
        zero = self._index_const(0, lanes)
        index = self.fn.let(f"select {vector_type('i1', lanes)} {none}, {type_} {zero}, {type_} {state[1]}")
        return index if self.index == "i64" else self.fn.let(f"zext {type_} {index} to {vector_type('i64', lanes)}")


def _true(lanes: int) -> str:
    return "true" if lanes == 1 else "splat (i1 true)"
