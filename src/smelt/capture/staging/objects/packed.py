"""Sequences of different lengths, packed one step behind the other: how many rows and steps that gives only data tell.

    data, batch_sizes = _pack_padded_sequence(x, lengths)    x: f32[B, T, 8]  ->  f32[_, 8], i64[_]
    n = int(batch_sizes[0])                                  B: no sequence is empty, or eager has raised
    y, lengths = _pad_packed_sequence(data, batch_sizes)     f32[B, _, 8], i64[B]

Invariant: what is told of the steps of a packed batch is told of those that packing gave, unwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.capture.recording.tensor_slots import Slot
from smelt.capture.staging.fakes.elements import Elements
from smelt.ops.catalogue.packed import PACK


class Packed:
    """Of one staged run: how many sequences there are in each packed batch, by the slot of its steps."""

    def __init__(self) -> None:
        self._batches: dict[Slot, object] = {}

    def note(
        self, op: str, args: Sequence[object], slots: Sequence[object], size: Callable[[object, int], object]
    ) -> None:
        """An operator gave these. size: of a tensor, as the program is told."""
        if op == PACK and isinstance(slots[1], Slot):
            self._batches[slots[1]] = size(args[1], 0)

    def batch(self, steps: Slot) -> object:
        """The number of sequences, by the steps of a batch; None where it is not known."""
        return None if steps.family.written else self._batches.get(steps)

    def first(self, item: Slot, elements: Elements) -> Any:
        """The number of sequences where this is the first item of the steps of a batch; else None."""
        found = elements.item_of(item)
        return self.batch(found[0]) if found is not None and found[1:] == (0, 0) else None
