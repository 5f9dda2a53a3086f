"""What a search found: nodes of the program, with names for what the pattern left free, and the user's lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Any

from smelt.diag import Span
from smelt.diag.records import distinct_record, record
from smelt.ir import Arg, Node, Region, Value, values_in
from smelt.scheduling.finding.forms import STATE, is_arithmetic, is_idle
from smelt.scheduling.finding.patterns import Pattern
from smelt.scheduling.finding.search import Found
from smelt.scheduling.finding.target import Call, Target
from smelt.scheduling.finding.terms import Term


@record
class Source:
    """What a match was found by: the pattern as given to `find`, as read (None for calls and single nodes)."""

    given: Any
    pattern: Pattern | None
    escaping: bool


@distinct_record
class Match:
    """A part of the program that a pattern describes.

    nodes: in program order; sizes that only these need are among them, parameters are not. inputs: what the nodes use
    from outside, in order of use. outputs: what may be used outside. captures: values and numbers by the pattern's
    names, also as `match["name"]`. escaping: inner values that are used outside all the same (`find(escaping=True)`).
    path: the innermost module that contains all of it. source: what it was found by. bound: the values or plain numbers
        of the pattern's parameters, in their order. results: the values that the pattern returns, in that order.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    captures: Mapping[str, Any]
    escaping: tuple[Value, ...]
    path: str
    target: Target
    source: Source | None = None
    bound: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[Value, ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.captures[name]

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def lines(self) -> tuple[Span, ...]:
        """The user's source lines, each once, in the order of the nodes."""
        return tuple(dict.fromkeys(node.span for node in self.nodes if node.span is not None))

    def overlaps(self, other: Match) -> bool:
        """Whether two matches share a node."""
        return not set(self.nodes).isdisjoint(other.nodes)

    def __str__(self) -> str:
        module = self.target.module(self.path)
        kind = f" ({type(module).__name__})" if module is not None else ""
        count = f"{len(self.nodes)} node{'s' if len(self.nodes) != 1 else ''}"
        rows = [f"{self.path or 'the whole'}{kind}: {count}"]
        rows += [f"  {span}        {span.text}".rstrip() for span in self.lines]
        named = ", ".join(f"{name} = {_shown(value)}" for name, value in self.captures.items())
        return "\n".join(rows + ([f"  {named}"] if named else []))

    def __repr__(self) -> str:
        return f"<Match in {self.path or 'the whole'}: {', '.join(node.op for node in self.nodes)}>"


class Matches(list[Match]):
    """Matches in program order: by their first node, then by the next.

    sought: what was looked for, as a person calls it. why_none: what may be amiss where nothing was found.
    """

    sought: str = ""
    why_none: str = ""

    def disjoint(self) -> Matches:
        """Those that share no node with an earlier one of the result."""
        kept, taken = Matches(), set[Node]()
        for match in self:
            if taken.isdisjoint(match.nodes):
                kept.append(match)
                taken.update(match.nodes)
        return kept

    def __str__(self) -> str:
        return "\n".join(f"{i}. {match}" for i, match in enumerate(self)) or self._none()

    def _none(self) -> str:
        of = f" of {self.sought}" if self.sought else ""
        return f"no match{of}" + (f": {self.why_none}" if self.why_none else "")


def match_of(found: Found, pattern: Pattern, target: Target, *, escaping: bool) -> Match | None:
    """The match of a place, None where what is free comes from inside, or an inner value is used outside unasked."""
    nodes: set[Node] = set(found.items)
    outputs: set[Value] = set()
    for place in found.places.values():
        nodes.update([*place.nodes, *place.writes] if isinstance(place, Call) else [place])
    nodes |= _arithmetic(found.compared, nodes)
    if any(_comes_from(found.values.get(value), nodes) for value in pattern.inputs):
        return None
    for value in pattern.outputs:
        given = found.values.get(value)
        if isinstance(given, Value):
            outputs.add(given)
    match = make_match(nodes, outputs, captures_of(found, pattern), target)
    if match.escaping and not escaping:
        return None
    stand = [found.values.get(pattern.resolve(value)) for arg in pattern.graph.outputs for value in values_in(arg)]
    results = tuple(value for value in stand if isinstance(value, Value))
    return replace(match, bound=_bound(found, pattern), results=results)


def make_match(nodes: Iterable[Node], outputs: set[Value], captures: Mapping[str, Any], target: Target) -> Match:
    """A match of these nodes; what else of them is used outside escapes."""
    inside = set(nodes)
    ordered = tuple(sorted(inside, key=target.position.__getitem__))
    given, made, escaped = dict[Value, None](), list[Value](), list[Value]()
    for node in ordered:
        for value in node.operands():
            made_by = value.node
            if value.owner not in inside and (made_by is None or made_by.op not in STATE) and not _owned(value, inside):
                given[value] = None
        for result in node.results:
            if result in outputs:
                made.append(result)
            elif any(not _is_inside(user, inside) and not is_idle(user) for user in result.users):
                escaped.append(result)
    path = _common(target.path_of(node) for node in ordered if node.op != "write" and not is_arithmetic(node))
    return Match(ordered, tuple(given), tuple(made), captures, tuple(escaped), path, target)


def captures_of(found: Found, pattern: Pattern) -> dict[str, Any]:
    """What the pattern's names stand for."""
    captures: dict[str, Any] = {}
    for value, name in pattern.inputs.items():
        if value in found.numbers:
            captures[name] = _plain(found.numbers[value])
        elif value in found.values:
            captures[name] = found.values[value]
    for name, value in pattern.names.items():
        if value in found.values:
            captures[name] = found.values[value]
    return captures


def _bound(found: Found, pattern: Pattern) -> dict[str, Any]:
    bound: dict[str, Any] = {}
    for value in pattern.graph.inputs:
        if value in found.numbers:
            plain = _plain(found.numbers[value])
            if plain is None or isinstance(plain, bool | int | float):
                bound[value.name] = plain
        elif value in found.values:
            bound[value.name] = found.values[value]
    return bound


def _arithmetic(args: Iterable[Arg], nodes: set[Node]) -> set[Node]:
    """What computes the sizes that are compared, as far as nothing outside needs it too."""
    found: set[Node] = set()
    waiting = [value for arg in args for value in values_in(arg)]
    while waiting:
        node = waiting.pop().node
        if node is not None and node not in found and is_arithmetic(node):
            found.add(node)
            waiting.extend(node.operands())
    while True:
        inside = nodes | found
        shared = {
            node
            for node in found
            if any(not _is_inside(u, inside) and not is_idle(u) for result in node.results for u in result.users)
        }
        if not shared:
            return found
        found -= shared


def _comes_from(arg: Arg, nodes: set[Node]) -> bool:
    return isinstance(arg, Value) and arg.node is not None and arg.node in nodes


def _is_inside(user: Node | Region, nodes: set[Node]) -> bool:
    node = user.owner if isinstance(user, Region) else user
    return isinstance(node, Node) and node in nodes


def _owned(value: Value, nodes: set[Node]) -> bool:
    """Whether a value is a parameter of a region of one of the nodes."""
    owner = value.owner.owner if isinstance(value.owner, Region) else None
    return isinstance(owner, Node) and owner in nodes


def _common(paths: Iterable[str]) -> str:
    common: list[str] | None = None
    for path in paths:
        parts = path.split(".") if path else []
        if common is None:
            common = parts
        else:
            same = 0
            while same < min(len(common), len(parts)) and common[same] == parts[same]:
                same += 1
            common = common[:same]
    return ".".join(common or [])


def _plain(term: Term) -> Any:
    """A number's term as the number or value itself; sizes as they would be written."""
    if term[0] in ("is", "dim"):
        return term[2] if term[0] == "is" else term[1]
    if term[0] == "var":
        return term[1]
    if term[0] == "size":
        return f"%{term[1].name}.size({term[2]})"
    if term[0] == "op":
        return f"{term[1]}({', '.join(_shown(_plain(item)) for item in term[2:])})"
    return f"[{', '.join(_shown(_plain(item)) for item in term[1:])}]"


def _shown(value: Any) -> str:
    return f"%{value.name}" if isinstance(value, Value) else str(value)
