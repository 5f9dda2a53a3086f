"""All matches of a pattern in one prepared graph, in program order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.ir import Node, Value
from smelt.pattern import Where, fits_module, type_text
from smelt.scheduling.finding.forms import STATE
from smelt.scheduling.finding.match import Match, Source, make_match, match_of
from smelt.scheduling.finding.patterns import Pattern, check_regex, read_pattern
from smelt.scheduling.finding.search import Search
from smelt.scheduling.finding.target import Call, Target, join
from smelt.scheduling.graphs.running import CALL


def reader(given: Any, escaping: bool) -> Callable[[Target], list[Match]]:
    """What finds the matches of a pattern in a graph; the pattern is read once.

    given: as of `Schedule.find`, a plain function only where it is a predicate wrapped in `Where`.
    Raises: ScheduleError: S0602 where the pattern cannot be read, S0603 where there is nothing to look for.
    """
    if isinstance(given, Where):
        return lambda target: _told(_nodes_where(target, given), Source(given, None, escaping))
    if isinstance(given, str):
        check_regex(given)
        return lambda target: _told(_calls(target, given), Source(given, None, escaping))
    if isinstance(given, type) and issubclass(given, torch.nn.Module):
        return lambda target: _told(_calls(target, type_text(given)), Source(given, None, escaping))
    pattern = read_pattern(given)
    return lambda target: _told(_places(target, pattern, escaping), Source(given, pattern, escaping))


def _told(found: Iterator[Match], source: Source) -> list[Match]:
    return [replace(match, source=source) for match in found]


def _places(target: Target, pattern: Pattern, escaping: bool) -> Iterator[Match]:
    known: dict[frozenset[Node], Match] = {}
    for found in Search(pattern, target, escaping=escaping).run():
        match = match_of(found, pattern, target, escaping=escaping)
        if match is not None:
            known.setdefault(frozenset(match.nodes), match)
    yield from sorted(known.values(), key=lambda match: [target.position[node] for node in match.nodes])


def _calls(target: Target, which: str) -> Iterator[Match]:
    """Calls of modules, and those that steps put there under a name (`fused_0`)."""
    found = [
        _match_of_call(call, target)
        for call in target.calls
        if call.path and fits_module(which, call.path, target.module(call.path))
    ]
    known = {node for match in found for node in match.nodes}
    made = (node for node in target.nodes if node.op == CALL and node not in known)
    found += [_match_of_step(node, target) for node in made if fits_module(which, _made_path(node, target), None)]
    yield from sorted(found, key=lambda match: target.position[match.nodes[0]])


def _nodes_where(target: Target, holds: Callable[[Node], bool]) -> Iterator[Match]:
    for node in target.nodes:
        if node.op not in STATE and node.results and holds(node):
            yield make_match([node], set(node.results), {}, target)


def _match_of_call(call: Call, target: Target) -> Match:
    outputs: set[Value] = set(call.outputs)
    found = make_match([*call.nodes, *call.writes], outputs, {}, target)
    return replace(found, inputs=tuple(call.inputs), path=call.path)


def _match_of_step(call: Node, target: Target) -> Match:
    parts = [user for user in call.result.users if isinstance(user, Node)]
    return make_match([call, *parts], {value for part in parts for value in part.results}, {}, target)


def _made_path(call: Node, target: Target) -> str:
    return join(target.path_of(call), str(call.args[0]))


def identity(match: Match, root: str) -> tuple[Any, ...]:
    """What two matches of one place have in common in two graphs of one program: operators, modules from a root."""
    cut = len(root) + 1 if root else 0
    return tuple((node.op, match.target.path_of(node)[cut:]) for node in match.nodes if node.op != "write")


def same_place(
    match: Match, among: list[Match], target_matches: list[Match], root: str, target_root: str
) -> Match:  # fmt: skip
    """The match of another graph of the same program that lies in the same place.

    among: all matches of the pattern in the graph that the match is from, inside `root`. target_matches: those of the
    other graph, inside `target_root`. Raises: ScheduleError (S0609) where there is none.
    """
    key = identity(match, root)
    alike = [other for other in target_matches if identity(other, target_root) == key]
    if not alike:
        raise ScheduleError(
            "what was found is not there any more", match.lines[0] if match.lines else None,
            why="an earlier step replaced or fused a part of it, or it spans more than one module's own code",
            fix="call find again", code="S0609",
        )  # fmt: skip
    twins = [other for other in among if identity(other, root) == key]
    index = next((i for i, other in enumerate(twins) if set(other.nodes) == set(match.nodes)), 0)
    return alike[index % len(alike)]
