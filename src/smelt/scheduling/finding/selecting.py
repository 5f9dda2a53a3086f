"""From matches that a user holds to a selector: data that finds them again, in this and in other models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.ir import is_under
from smelt.scheduling.finding.finding import reader, same_place
from smelt.scheduling.finding.match import Match, Matches
from smelt.scheduling.finding.selector import Selector
from smelt.scheduling.finding.target import Target
from smelt.scheduling.graphs.editing import hooked
from smelt.scheduling.graphs.scope_graphs import ScopeGraph
from smelt.scheduling.modules.copying import has_hooks
from smelt.scheduling.state import State


def as_matches(given: Any) -> list[Match]:
    """What a step was given to be taken on. Raises: ScheduleError (S0607) for what is no match and no list of them."""
    if isinstance(given, Matches) and not given and given.sought:
        raise ScheduleError(
            f"there is no match of {given.sought} to apply the step to",
            why=given.why_none or "find gave none", fix="print(s.find(...)) shows what is found", code="S0607",
        )  # fmt: skip
    found = [given] if isinstance(given, Match) or not isinstance(given, Iterable) else list(given)
    for item in found:
        if not isinstance(item, Match):
            raise ScheduleError(
                f"{item!r} is no match", why=f"it is of type {type(item).__name__}",
                fix="give what s.find(...) gave, or some of it", code="S0607",
            )  # fmt: skip
    return found


def scope_of(state: State, matches: Sequence[Match]) -> str:
    """The smallest module whose own code holds all of the matches, layers of torch's own left aside."""
    paths = [match.path.split(".") if match.path else [] for match in matches]
    common = paths[0]
    for path in paths[1:]:
        same = 0
        while same < min(len(common), len(path)) and common[same] == path[same]:
            same += 1
        common = common[:same]
    while common and not _has_code(state.modules.get(".".join(common))):
        common = common[:-1]
    return ".".join(common)


def selector_of(state: State, matches: Sequence[Match], paths: Sequence[str]) -> Selector:
    """What finds these matches again in the graphs of the modules at these paths.

    Raises: ScheduleError: S0607 where they are none, or not of one pattern; S0609 where they are not there any more, or
        not the same ones in each module.
    """
    first = matches[0] if matches else None
    if first is None or first.source is None:
        raise ScheduleError(
            "there is no match to apply the step to", why="find gave none, or it was made by hand",
            fix="see s.find(...)", code="S0607",
        )  # fmt: skip
    source = first.source
    if any(match.source is None or match.source.given is not source.given for match in matches):
        raise ScheduleError(
            "the matches are of several patterns", why="a step is about the matches of one pattern",
            fix="apply one step for each", code="S0607",
        )  # fmt: skip
    given = source.pattern.graph if source.pattern is not None else source.given
    find = remembering(reader(given, source.escaping))
    _prepare(state, paths, matches)
    chosen: set[tuple[int, ...]] = set()
    is_all = True
    for path in paths:
        own = [match for match in matches if is_under(match.path, path)]
        scope = state.scope(path)
        # Which it is of the matches is the same in a graph that is alike.
        model = scope.like if scope.like is not None and all(_is_of_whole(match) for match in own) else scope
        found = find(model.target)
        ordinals = tuple(sorted(_index(match, found, scope, model, find) for match in own))
        chosen.add(ordinals)
        is_all = is_all and ordinals == tuple(range(len(found)))
    if len(paths) > 1 and is_all:
        return Selector(given, None, source.escaping)
    if len(chosen) != 1 or not next(iter(chosen)):
        raise ScheduleError(
            "the matches are not the same ones in each module", why=f"the step is applied at {', '.join(paths)}",
            fix="apply a step for each module", code="S0609",
        )  # fmt: skip
    return Selector(given, next(iter(chosen)), source.escaping)


def _prepare(state: State, paths: Sequence[str], matches: Sequence[Match]) -> None:
    """Make the graphs of the modules at these paths.

    Raises: ScheduleError: S0610 where it is a hook inside the matches that keeps a module from having one; as of
        `State.prepare` elsewhere.
    """
    try:
        state.prepare(paths)
    except ScheduleError as error:
        for match in matches:
            for node in match.nodes:
                for path in _between(match.target.path_of(node), paths):
                    module = state.modules.get(path)
                    if module is not None and has_hooks(module):
                        raise hooked(module, path, node.span) from error
        raise


def _between(path: str, above: Sequence[str]) -> list[str]:
    """A module's path and those around it that lie below one of some modules."""
    parts = path.split(".")
    around = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return [name for name in around if any(name != top and is_under(name, top) for top in above)]


def remembering(find: Callable[[Target], list[Match]]) -> Callable[[Target], list[Match]]:
    """The same, searching each graph once."""
    known: dict[int, list[Match]] = {}

    def once(target: Target) -> list[Match]:
        if id(target) not in known:
            known[id(target)] = find(target)
        return known[id(target)]

    return once


def _is_of_whole(match: Match) -> bool:
    """Whether a match was found in the graph of the whole model, not in that of one module's forward."""
    return match.target.root is None


def _index(
    match: Match, found: list[Match], scope: ScopeGraph, model: ScopeGraph, find: Callable[[Target], list[Match]]
) -> int:
    """Which of the matches in a module's graph, or one like it, lies where this one does."""
    if not _is_of_whole(match) and match.target is scope.target:
        return next(i for i, other in enumerate(found) if set(other.nodes) == set(match.nodes))
    if not _is_of_whole(match) and match.target.root is scope.original:
        same = match
    else:
        among = [other for other in find(match.target) if is_under(other.path, scope.path)]
        same = same_place(match, among, find(model.original_target), scope.path, model.path)
    names = _names(same)
    for i, other in enumerate(found):
        if _names(other) == names:
            return i
    return found.index(same_place(same, [same], found, model.path, model.path))


def _names(match: Match) -> set[str]:
    return {result.name for node in match.nodes for result in node.results}


def _has_code(module: torch.nn.Module | None) -> bool:
    """Whether steps are taken on a module's own graph: not on that of torch's layers, nor of lists, which have none."""
    if module is None:
        return False
    own = type(module).__module__.startswith("torch.nn.")
    return not own or (bool(module._modules) and type(module).forward is not torch.nn.Module.forward)
