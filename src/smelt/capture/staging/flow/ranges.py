"""Between what integers lie that are drawn: a crop of 56 rows from a place between 0 and 8 of 64 has 56 rows.

    top = random.randint(0, h - 56)          0 <= top <= h - 56
    top = int(torch.randint(0, 9, (1,)))     0 <= top <= 8, also where one item of several is read

Invariant: only what the generator promises is told. Of a tensor that was written nothing is, nor of one from before a
branch or loop, which a later turn may write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.capture.dynamic.values import number_of
from smelt.capture.recording.tensor_slots import Slot, slot_type
from smelt.capture.staging.fakes.symbols import is_staged
from smelt.ops.record import Trait
from smelt.ops.sets import where

Range = tuple[Any, Any]
"""The least and the greatest, which may be sizes."""

_INCLUSIVE = frozenset(("random.randint",))
_EXCLUSIVE = frozenset(("random.randrange", "numpy.random.randint"))
_TENSORS = {
    "aten.randint.default": 1, "aten.randint.generator": 1, "aten.randint.low": 2, "aten.randint.low_generator": 2,
}  # fmt: skip
_OF_ITEMS = where(Trait.ITEM_OF)


def range_of_draw(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Range | None:
    """Between what a number drawn by Python or NumPy lies, where its arguments tell."""
    if kwargs or not 1 <= len(args) <= 2:
        return None
    if name in _INCLUSIVE:
        return _range(args[0], args[1], 0) if len(args) == 2 else None
    return _range(0 if len(args) == 1 else args[0], args[-1], 1) if name in _EXCLUSIVE else None


def _range(low: object, end: object, less: int) -> Range | None:
    if is_staged(low) or is_staged(end) or isinstance(low, bool | float) or isinstance(end, bool | float):
        return None
    first, last = number_of(low), number_of(end)
    return None if first is None or last is None else (first, last - less)


class Ranges:
    """Of the tensors of one staged run."""

    def __init__(self) -> None:
        self._found: dict[Slot, tuple[Range, object]] = {}

    def note(
        self, op: str, args: Sequence[object], noted: Sequence[object], results: Sequence[object], region: object
    ) -> None:
        """An operator gave these. noted: its arguments with slots; region: what it is recorded in."""
        found: Range | None = None
        if op in _TENSORS:
            low, high = (0, args[0]) if _TENSORS[op] == 1 else args[:2]
            found = _range(low, high, 1)
        elif op in _OF_ITEMS and isinstance(noted[0], Slot):
            found = self.of(noted[0], region)
        if found is not None:
            flat = (s for r in results for s in (r if isinstance(r, list | tuple) else (r,)))
            self._found.update((slot, (found, region)) for slot in flat if isinstance(slot, Slot))

    def of(self, slot: Slot, region: object) -> Range | None:
        """Between what the elements of a tensor lie, where they are read in this region."""
        found, made_in = self._found.get(slot, (None, None))
        is_int = slot_type(slot).dtype.kind in ("int", "uint")
        return found if is_int and made_in is region and not slot.family.written else None
