"""Values, at the sizes at hand, of tensors that follow from sizes and numbers alone (positions, masks of positions).

Where Python reads such a tensor, the value is the answer, and the graph expects it: at other sizes it is computed when
the graph runs, and where it comes out otherwise the run is a miss.

Invariant: a value stands for a tensor that nothing wrote to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.library.schemas import OpArgs, OpKwargs, Overload
from smelt._torch.seen.dispatch import unseen
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.slots import SizeSlot
from smelt.capture.dynamic.values import is_sized, number_of
from smelt.capture.recording.opinfo import OpInfo
from smelt.capture.recording.tensor_slots import Slot

if TYPE_CHECKING:
    from smelt.capture.recording.recorder import Recorder

_MOST_ELEMENTS = 1 << 16


class KnownValues:
    """The values of one run, by slot."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.values: dict[Slot, torch.Tensor] = {}

    def of(self, slot: Slot) -> torch.Tensor | None:
        """The value of a tensor, None where it depends on data."""
        return None if slot.family.written else self.values.get(slot)

    def note(
        self, overload: Overload, info: OpInfo, args: OpArgs, kwargs: OpKwargs, operands: Sequence[Slot],
        slots: Sequence[object], results: Any,
    ) -> None:  # fmt: skip
        """Compute an operator's results where all its operands are known."""
        if (
            info.is_random
            or info.written(tuple(args), kwargs)
            or info.result_count != 1
            or not isinstance(slots[0], Slot)
        ):
            return
        if not all(isinstance(s, SizeSlot) or not s.family.tainted or self.of(s) is not None for s in operands):
            return
        elements = 1
        for size in results.shape:
            elements *= int(at_hand(number_of(size)))
        if elements > _MOST_ELEMENTS:
            return
        try:
            with unseen():
                found = overload(*map(self._plain, args), **{k: self._plain(v) for k, v in kwargs.items()})
        except Exception:
            # Nobody needs it yet: who reads it is told that it depends on data.
            return
        self.values[slots[0]] = found

    def _plain(self, arg: object) -> object:
        if isinstance(arg, torch.Tensor):
            slot = self.recorder.slot_of(arg)
            found = self.of(slot)
            return arg if found is None else found
        if is_sized(arg):
            return at_hand(number_of(arg))
        if isinstance(arg, (list, tuple)):
            return [self._plain(item) for item in arg]
        return arg
