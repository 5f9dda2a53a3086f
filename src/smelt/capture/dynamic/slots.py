"""Sizes and numbers as operands of records."""

from __future__ import annotations

from smelt.capture.dynamic.dims import number_type
from smelt.capture.dynamic.trace import CaptureTrace, Number
from smelt.capture.recording.tensor_slots import Family, Slot


def _nothing() -> None:
    return None


class SizeSlot(Slot):
    """A number that the graph computes from its inputs' sizes and numbers. One expression has one slot."""

    __slots__ = ("number", "trace")

    def __init__(self, trace: CaptureTrace, number: Number) -> None:
        self.ref = _nothing
        self.family = Family(True)
        self.kind = "size"
        self.type = number_type(number)
        self.trace, self.number = trace, number

    def in_worlds(self, count: int) -> tuple[int | float, ...]:
        """Examples for a staged run, all of them different: what is computed from it is no constant."""
        value = self.number.value
        return tuple(value + step for step in (0, 2, 5, 11, 1_000_003)[:count])
