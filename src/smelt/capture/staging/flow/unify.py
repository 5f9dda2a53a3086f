"""Two runs of one stretch of a program are the same: what each recorded stands for what the other did.

Invariant: only what is equal in operators, structure, literals and constants is noted as the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt._torch.seen.dispatch import unseen
from smelt.capture.recording.tensor_slots import Slot, StateSlot
from smelt.capture.staging.flow.stops import CannotStage
from smelt.capture.staging.objects.unconverted_code import unwatched
from smelt.capture.staging.records import Structured
from smelt.ops.convert import element_bytes


@unwatched
def unify(ours: Any, theirs: Any, aliases: dict[Slot, Slot], constants: Mapping[Slot, Any]) -> None:
    """Note that two runs of the same code recorded the same. Raises: CannotStage where they did not."""
    match = _Unify(aliases, constants)
    try:
        with unseen():  # constants are compared by their elements
            match.records(ours[0], theirs[0])
            match.value(ours[1], theirs[1])
    except _DifferentError:
        raise CannotStage(
            "the program did not repeat itself", "a part of it was run twice and did not do the same", ours[2]
        ) from None


class _DifferentError(Exception):
    pass


class _Unify:
    def __init__(self, aliases: dict[Slot, Slot], constants: Mapping[Slot, Any]) -> None:
        self.aliases, self.constants = aliases, constants

    def records(self, ours: Sequence[Any], theirs: Sequence[Any]) -> None:
        if len(ours) != len(theirs):
            raise _DifferentError
        for a, b in zip(ours, theirs, strict=True):
            if isinstance(a, Structured) != isinstance(b, Structured):
                raise _DifferentError
            if isinstance(a, Structured):
                if a.op != b.op or len(a.regions) != len(b.regions):
                    raise _DifferentError
                self.value(a.args, b.args)
                for one, two in zip(a.regions, b.regions, strict=True):
                    self.define(one.params, two.params)
                    self.records(one.records, two.records)
                    self.value(one.yields, two.yields)
                self.define(a.results, b.results)
                continue
            if a[0].name != b[0].name:
                raise _DifferentError
            self.value(a[1], b[1])
            self.value(list(a[2].items()), list(b[2].items()))
            self.define(a[3], b[3])

    def define(self, ours: Any, theirs: Any) -> None:
        if isinstance(ours, Slot):
            if self.first(ours) is not self.first(theirs):
                self.aliases[theirs] = ours
        elif isinstance(ours, (list, tuple)):
            if len(ours) != len(theirs):
                raise _DifferentError
            for a, b in zip(ours, theirs, strict=True):
                self.define(a, b)

    def first(self, slot: Slot) -> Slot:
        """What the first run of all has in the place of a slot: what is noted leads to earlier runs only."""
        while slot in self.aliases:
            slot = self.aliases[slot]
        return slot

    def value(self, ours: Any, theirs: Any) -> None:
        if isinstance(ours, Slot):
            if not isinstance(theirs, Slot):
                raise _DifferentError
            # What stands in an arm may have come of a later run than what it reads, on both sides.
            if self.first(ours) is self.first(theirs):
                return
            if isinstance(ours, StateSlot) and isinstance(theirs, StateSlot) and ours.entry is theirs.entry:
                self.aliases[theirs] = ours
                return
            if ours in self.constants and theirs in self.constants:
                a, b = self.constants[ours], self.constants[theirs]
                if a.dtype == b.dtype and a.shape == b.shape and element_bytes(a) == element_bytes(b):
                    self.aliases[theirs] = ours
                    return
            raise _DifferentError
        if isinstance(ours, (list, tuple)):
            if not isinstance(theirs, (list, tuple)) or len(ours) != len(theirs):
                raise _DifferentError
            for a, b in zip(ours, theirs, strict=True):
                self.value(a, b)
        elif type(ours) is not type(theirs) or (ours is not theirs and repr(ours) != repr(theirs)):
            raise _DifferentError
