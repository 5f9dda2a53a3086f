"""In which module's graph a match takes its step.

The smallest module that holds a match is often too small: attention weights that it returns, and that its caller drops,
are used outside of it. The repeated block around it is tried first, then the smallest module, then what is around the
block. Invariant: layers that are alike are asked once, by the first of them; what is found has been captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from smelt.diag import ScheduleError, SmeltError
from smelt.scheduling import Match, Schedule
from smelt.scheduling.finding.selecting import scope_of, selector_of

Place = tuple[str | None, Sequence[Match]]
"""The path of the module whose graph takes a step (None: there is none), and the matches in it."""
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


class Homes:
    """The module of each match whose graph takes the step."""

    def __init__(self, found: dict[int, str | None]) -> None:
        self._found = found

    def places(self, matches: Sequence[Match]) -> list[Place]:
        """Matches of one pattern by their module."""
        places: dict[str | None, list[Match]] = {}
        for match in matches:
            places.setdefault(self._found.get(id(match)), []).append(match)
        return list(places.items())


def with_wildcards(path: str) -> str:
    """A path with `*` for each number: the name of all layers."""
    return _NUMBER.sub("*", path)


def homes_of(schedule: Schedule, groups: Iterable[Sequence[Match]]) -> Homes:
    """The homes of the matches of several patterns (each group of one)."""
    found: dict[int, str | None] = {}
    kinds: dict[tuple[int, str], list[Match]] = {}
    for number, group in enumerate(groups):
        for match in group:
            kinds.setdefault((number, with_wildcards(match.path)), []).append(match)
    ways = {key: _candidates(schedule, matches[0]) for key, matches in kinds.items()}
    refused: set[str] = set()
    while ways:
        wanted = {candidates[0] for candidates in ways.values()} - refused
        refused |= _prepare(schedule, {path: _alike(schedule, path, kinds, ways) for path in wanted})
        for key, candidates in list(ways.items()):
            path, matches = candidates[0], kinds[key]
            if path not in refused and _holds(schedule, path, matches):
                found.update({id(match): _home(path, match) for match in matches})
                del ways[key]
            elif len(candidates) == 1:
                del ways[key]
            else:
                ways[key] = candidates[1:]
    return Homes(found)


def _candidates(schedule: Schedule, match: Match) -> list[str]:
    """Modules around a match, in the order in which they are tried."""
    state = schedule._state
    smallest = scope_of(state, [match])
    around = [smallest]
    while around[-1] != schedule.path and around[-1]:
        parent = scope_of(state, [match]) if not around[-1] else _parent(schedule, around[-1])
        around.append(parent)
    block = next((path for path in around if path.rpartition(".")[2].isdigit()), smallest)
    above = around[around.index(block) + 1 :]
    return list(dict.fromkeys([block, smallest, *above]))


def _parent(schedule: Schedule, path: str) -> str:
    """The next module around with code of its own: lists have none."""
    parts = path.split(".")[:-1]
    while parts and not _has_code(schedule, ".".join(parts)):
        parts = parts[:-1]
    return ".".join(parts)


def _has_code(schedule: Schedule, path: str) -> bool:
    module = schedule._state.modules[path]
    return "forward" in dir(type(module)) and not type(module).__module__.startswith("torch.nn.modules.container")


def _alike(
    schedule: Schedule, path: str, kinds: dict[tuple[int, str], list[Match]], ways: dict[tuple[int, str], list[str]]
) -> list[str]:
    """The modules that stand to the other matches as this one stands to the first of its kind."""
    return list(
        dict.fromkeys(
            _home(path, match) for key, candidates in ways.items() if candidates[0] == path for match in kinds[key]
        )
    )


def _home(path: str, match: Match) -> str:
    """The module around a match that is as far up as a path is from the first of its kind."""
    return ".".join(match.path.split(".")[: path.count(".") + 1]) if path else ""


def _prepare(schedule: Schedule, wanted: dict[str, list[str]]) -> set[str]:
    """Capture modules in one run of the model. Those that are refused, by the first of their kind."""
    refused = set[str]()
    if not _is_captured(schedule, dict.fromkeys(path for paths in wanted.values() for path in paths)):
        refused = {first for first, paths in wanted.items() if not _is_captured(schedule, paths)}
    return refused


def _is_captured(schedule: Schedule, paths: Iterable[str]) -> bool:
    try:
        schedule._state.prepare(paths)
    except SmeltError:
        return False
    return True


def _holds(schedule: Schedule, path: str, matches: Sequence[Match]) -> bool:
    """Whether the pattern is found in a module's own graph, too, of a call that the model makes."""
    if schedule._state.examples is not None and not schedule._state.scope(path).is_concrete:
        return False
    first = [match for match in matches if _home(path, match) == path][:1]
    try:
        selector_of(schedule._state, first, [path])
    except ScheduleError:
        return False
    return True
