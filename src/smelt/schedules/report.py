"""What a ready schedule did: how many of each pattern were found and took a step, and why others did not."""

from __future__ import annotations

from smelt.diag.records import record
from smelt.scheduling import Schedule


@record
class Ready:
    """A schedule after a ready one was applied to it.

    schedule: with its ordinary steps in `schedule.log`. found: how many places there are, by pattern. taken: in how
    many of them a step was taken. skipped: what was not, each with its place and the reason.
    notes: what needs no step, as it is so already.
    """

    schedule: Schedule
    found: dict[str, int]
    applied: dict[str, int]
    skipped: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [f"{name}: {count} found, {self.applied.get(name, 0)} applied" for name, count in self.found.items()]
        return "\n".join([*(rows or ["nothing found"]), *self.notes, *(f"skipped {text}" for text in self.skipped)])
