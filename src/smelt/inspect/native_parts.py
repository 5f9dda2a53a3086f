"""The entries of a compiled object or program as what has native code: one part, or one for each tuple of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from smelt.compiler import SizedUnit, Unit
from smelt.compiler.training.training import TrainingUnit
from smelt.diag.records import record
from smelt.inspect.shown import Row


@record
class Part:
    """A unit with its entry's number; sizes: those that it was made for, where its entry has several. half: forward or
    backward, of an entry that is trained.
    """

    entry: int
    unit: Unit
    sizes: str = ""
    half: str = ""

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        """These rows with the entry in front and, behind, the sizes where there are any."""
        behind = {key: value for key, value in (("sizes", self.sizes), ("half", self.half)) if value}
        return [{"entry": self.entry, **row, **behind} for row in rows]


def parts_of(entries: Iterable[tuple[int, Unit]]) -> list[Part]:
    """The parts of these entries, in order."""
    found = []
    for entry, unit in entries:
        if isinstance(unit, TrainingUnit) and unit.halves:
            found += [Part(entry, half, half=name) for name, half in unit.halves.items()]
        elif isinstance(unit, SizedUnit):
            found += [Part(entry, plan, unit.shown(sizes)) for sizes, plan in list(unit.plans.items())]
        else:
            found.append(Part(entry, unit))
    return found
