"""Reductions and scans: at once over a row in registers, or one after another with an accumulator for each lane.

rows                                        chunk
  v = tl.where(columns, x, 0.0)               sum = tl.full((R, B), 0.0, tl.float32)
  s = tl.sum(v, 1, keep_dims=True)            for start in range(0, n, B): sum = sum + tl.where(columns, x, 0.0)
                                              s = tl.sum(sum, 1, keep_dims=True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from smelt.codegen.kernels.graph import Value
from smelt.codegen.kernels.nest import POSITIONS, Reduce, Scan
from smelt.codegen.kernels.operations import KERNEL_OPS
from smelt.codegen.triton.frame import ACROSS, Frame
from smelt.codegen.triton.values import Values, digits
from smelt.codegen.triton.vmath import cast, register_type
from smelt.ir import DType

_COMBINES: Final = {op.reduces: f"{op.name}_" for op in KERNEL_OPS if op.reduces}
"""The functions of `helpers` that reductions and scans combine by."""
_FIRST: Final = {"max": "first_largest", "min": "first_least"}


@dataclass(slots=True)
class Carried:
    """A reduction or scan under way in a loop: the names of what is carried from iteration to iteration."""

    value: Value
    names: tuple[str, ...]


class Reducer:
    """Emits the reductions and scans of a frame's nest."""

    def __init__(self, frame: Frame, values: Values) -> None:
        self.frame, self.values = frame, values

    # --- at once

    def whole(self, value: Value) -> None:
        """A reduction over rows that are in registers."""
        source = value.source
        assert isinstance(source, Reduce)
        parts = [self.frame.let(text) for text in self._elements(value)]
        self._finish(value, parts)

    def scanned(self, value: Value) -> None:
        """A scan along rows that are in registers."""
        element = self.frame.let(self._elements(value)[0])
        self.values.remember(value, self.frame.let(self._scan(value, element)))

    # --- in a loop

    def begin(self, value: Value) -> Carried:
        """Before the loop: what holds of no elements."""
        kind, dtype = _kind(value)
        shape = self.frame.shape(
            self.frame.all_axes if isinstance(value.source, Reduce) else self.frame.all_axes & ACROSS
        )
        register = _register(dtype)
        names = [self.frame.let(f"tl.full({shape}, {identity(kind, dtype)}, {register})", prefix="s")]
        if kind.startswith("arg"):
            names.append(self.frame.let(f"tl.full({shape}, {_LAST}, {self._counter_type()})", prefix="s"))
        return Carried(value, tuple(names))

    def combine(self, carried: Carried) -> None:
        """Inside the loop: combine with the elements of this iteration."""
        kind, _ = _kind(carried.value)
        elements = self._elements(carried.value)
        if kind.startswith("arg"):
            names = ", ".join(carried.names)
            self.frame.emit(f"{names} = {_FIRST[kind[3:6]]}({names}, {', '.join(elements)})", True)
            return
        (name,) = carried.names
        self.frame.emit(f"{name} = {self._combined(kind, name, elements[0])}", True)

    def scan(self, carried: Carried) -> None:
        """Inside the loop: a scan's values of this iteration, after those before."""
        frame, value = self.frame, carried.value
        kind, _ = _kind(value)
        (name,) = carried.names
        element = frame.let(self._elements(value)[0], True)
        if not frame.layout.along:
            frame.emit(f"{name} = {self._combined(kind, name, element)}", True)
            self.values.remember(value, frame.let(name, True))
            return
        scanned = frame.let(self._scan(value, element), True)
        self.values.remember(value, frame.let(self._combined(kind, name, scanned), True))
        frame.emit(f"{name} = {self._combined(kind, name, self._reduced(kind, element, value))}", True)

    def end(self, carried: Carried) -> None:
        """Behind the loop: the lanes' accumulators as one."""
        if isinstance(carried.value.source, Reduce):
            self._finish(carried.value, list(carried.names), is_done=not self.frame.layout.along)

    # --- parts

    def _elements(self, value: Value) -> list[str]:
        """What a reduction combines, as an accumulator holds it; outside the nest what changes no result."""
        frame = self.frame
        kind, dtype = _kind(value)
        (operand,) = value.args
        text = self.values.at(operand)
        if kind in ("any", "all"):
            text = cast(text, operand.dtype, DType.BOOL)
            text = f"{text}.to(tl.int32)"
        else:
            text = cast(text, operand.dtype, dtype)
            if dtype is DType.BOOL:
                text = f"{text}.to(tl.int32)"
        # Accumulators have all axes, whatever their elements change along.
        mask = frame.mask(frame.all_axes) if frame.layout.along else ""
        text = f"tl.where({mask}, {text}, {identity(kind, dtype)})" if mask else text
        if not kind.startswith("arg"):
            return [text]
        counter = frame.inner_number()
        whole = f"{counter} + tl.zeros({frame.shape(frame.all_axes)}, {self._counter_type()})"
        return [text, whole]

    def _counter_type(self) -> str:
        return "tl.int64" if self.frame.is_wide else "tl.int32"

    def _combined(self, kind: str, a: str, b: str) -> str:
        if kind in ("sum", "prod"):
            return f"{a} {'+' if kind == 'sum' else '*'} {b}"
        return f"{_COMBINES[kind]}({a}, {b})"

    def _over(self, function: str, elements: str, *more: str) -> str:
        """A call that reduces the second axis of a block of two, or the only one."""
        keep = ("keep_dims=True",) if self.frame.has_two else ()
        return f"{function}({', '.join((elements, '1' if self.frame.has_two else '0', *more, *keep))})"

    def _reduced(self, kind: str, text: str, value: Value) -> str:
        _, dtype = _kind(value)
        if kind == "sum" and (dtype.is_floating or dtype.itemsize >= 4):
            return self._over("tl.sum", text)
        return self._over("tl.reduce", text, _COMBINES[kind])

    def _finish(self, value: Value, parts: list[str], is_done: bool = False) -> None:
        """The reduction's value of its elements in a block, or of accumulators that are all there is."""
        frame = self.frame
        kind, dtype = _kind(value)
        if not kind.startswith("arg"):
            text = parts[0] if is_done else self._reduced(kind, parts[0], value)
        else:
            names = parts
            if not is_done:
                names = [frame.fresh("v"), frame.fresh("v")]
                pair = f"({', '.join(parts)})"
                frame.emit(f"{', '.join(names)} = {self._over('tl.reduce', pair, _FIRST[kind[3:6]])}")
            text = f"{names[1]}.to(tl.int64)" if kind in POSITIONS else names[0]
        is_bool = dtype is DType.BOOL and kind not in POSITIONS
        self.values.result(value, f"({text} != 0)" if is_bool else text)

    def _scan(self, value: Value, element: str) -> str:
        kind, _ = _kind(value)
        return f"tl.associative_scan({element}, {1 if self.frame.has_two else 0}, {_COMBINES[kind]})"


_LAST = 2**31 - 1


def _kind(value: Value) -> tuple[str, DType]:
    source = value.source
    assert isinstance(source, Reduce | Scan)
    return source.kind, source.dtype


def _register(dtype: DType) -> str:
    """The type of an accumulator: a bool's is a number."""
    return "tl.int32" if dtype is DType.BOOL else register_type(dtype)


def identity(kind: str, dtype: DType) -> str:
    """What changes no result, as text."""
    match kind:
        case "sum" | "any":
            return digits(0, DType.I32 if dtype is DType.BOOL else dtype)
        case "prod" | "all":
            return digits(1, DType.I32 if dtype is DType.BOOL else dtype)
    is_up = kind.startswith(("max", "argmax"))
    if dtype.is_floating:
        return digits(-math.inf if is_up else math.inf, dtype)
    whole = DType.I32 if dtype is DType.BOOL else dtype
    if whole.kind != "int":
        return "0" if is_up else str((1 << 8 * whole.itemsize) - 1)
    bound = 1 << 8 * whole.itemsize - 1
    return str(-bound if is_up else bound - 1)
