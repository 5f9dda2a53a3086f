"""Where values lie, and which values lie in a piece of memory.

Invariant: whatever is bound to a place in some memory, now or earlier, is found by that memory.
"""

from __future__ import annotations

from smelt.codegen.lower.builder import Place, Storage
from smelt.ir import Value


class Places(dict[Value, Place]):
    """The place of each value that is bound."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[Storage, dict[Value, None]] = {}

    def __setitem__(self, value: Value, place: Place) -> None:
        super().__setitem__(value, place)
        self._known.setdefault(place.storage, {})[value] = None

    def copy(self) -> Places:
        """The same places, to go back to."""
        made = Places()
        made.update(self)
        made._known = self._known
        return made

    def lying_in(self, storage: Storage) -> list[Value]:
        """The values that lie in this memory."""
        found = ((value, self.get(value)) for value in self._known.get(storage, ()))
        return [value for value, place in found if place is not None and place.storage is storage]
