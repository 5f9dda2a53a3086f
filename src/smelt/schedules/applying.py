"""Taking the steps of a ready schedule: one step for all layers where it fits, else one for each; refusals are told.

Invariant: a step that is refused leaves the schedule as it was, and never ends the ready schedule.
"""

from __future__ import annotations

import fnmatch
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.diag import ScheduleError, SmeltWarning, VerifyError
from smelt.schedules.insertion_sites import Homes, Place, homes_of, with_wildcards
from smelt.schedules.report import Ready
from smelt.scheduling import Match, Schedule, Selection, schedule

View = Schedule | Selection
Do = Callable[[Any, list[Match], str | None], object]
"""Takes a step on a part of the schedule, with matches and the module whose graph is edited."""


class Taker:
    """Takes steps on a schedule and counts them."""

    def __init__(self, given: Schedule | torch.nn.Module, example_inputs: Any = None) -> None:
        if isinstance(given, Schedule):
            if example_inputs is not None:
                raise ScheduleError(
                    "a schedule has its example inputs already", fix="give them to smelt.schedule", code="S0605"
                )
            self.schedule = given
        else:
            self.schedule = schedule(given, example_inputs)
        self.found: Counter[str] = Counter()
        self.applied: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.notes: list[str] = []

    @property
    def report(self) -> Ready:
        """What became of it."""
        return Ready(
            self.schedule, dict(self.found), dict(self.applied), tuple(dict.fromkeys(self.skipped)), tuple(self.notes)
        )

    def skip(self, what: str, where: str, why: object) -> None:
        """Tell that a place takes no step."""
        text = why.what if isinstance(why, ScheduleError) else str(why).splitlines()[0]
        self.skipped.append(f"{what} at {where or 'the whole'}: {text}")

    def view(self, path: str) -> Any:
        """The part of the schedule at a path that is counted from the whole model, with wildcards or not."""
        own = self.schedule.path
        if path == own:
            return self.schedule
        return self.schedule[path[len(own) :].lstrip(".")]

    def homes(self, groups: Iterable[Sequence[Match]]) -> Homes:
        """In which module's graph each match of these can take a step."""
        return homes_of(self.schedule, groups)

    def step(self, what: str, places: Sequence[Place], do: Do) -> bool:
        """Take a step at each place: one for all that a wildcard names, where that is one and it is not refused.

        A place without matches is a module. Whether all were taken.
        """
        groups: dict[str, list[tuple[str, Sequence[Match]]]] = {}
        had = len(self.skipped)
        for path, matches in places:
            if path is not None:
                groups.setdefault(with_wildcards(path), []).append((path, matches))
            for match in matches if path is None else ():
                self.skip(what, match.path, "no step can be applied to the graph of a module around it")
        for group in groups.values():
            wild = _common_path([path for path, _ in group])
            own = [match for _, matches in group for match in matches]
            if len(group) > 1 and self._is_all(wild, group) and not self._refusal(self.view(wild), own, do, None):
                self.applied[what] += len(own) or len(group)
                continue
            for path, matches in group:
                refused = self._refusal(self.view(path), list(matches), do, path)
                if refused:
                    self.skip(what, path, refused)
                else:
                    self.applied[what] += len(matches) or 1
        return len(self.skipped) == had

    def _is_all(self, wild: str, group: Sequence[tuple[str, Sequence[Match]]]) -> bool:
        """Whether a path with wildcards names these modules and no other."""
        if not wild.startswith(self.schedule.path):
            return False  # a wildcard would stand for modules outside the part that is scheduled
        parts = wild.split(".")
        named = {
            path
            for path in self.schedule._state.modules
            if path.count(".") == len(parts) - 1 and all(map(fnmatch.fnmatchcase, path.split("."), parts))
        }
        return named == {path for path, _ in group}

    def _refusal(self, view: View, matches: list[Match], do: Do, scope: str | None) -> object:
        """Take one step. Why it was not taken, or None."""
        before = len(self.schedule.log)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                do(view, matches, scope)
            except (ScheduleError, VerifyError) as error:
                return error
        if len(self.schedule.log) == before:
            told = [w.message for w in said if issubclass(w.category, SmeltWarning)]
            return told[-1] if told else "it did not pay"
        for warning in said:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return None


def _common_path(paths: Sequence[str]) -> str:
    """The paths of one length as one, with `*` where they differ."""
    columns = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(column[0] if len(set(column)) == 1 else "*" for column in columns)
