"""The graph before and after each pass, seen while the passes run again on a copy.

Invariant: a node keeps its uid as long as it stands in the graph; a record is made anew only if what it says changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from smelt.analysis.cost import cost
from smelt.diag import Span
from smelt.inspect.page.model import Arm, NodeRecord, Stage
from smelt.inspect.page.places import Places
from smelt.ir import Arg, Graph, Node, Region, Value, values_in
from smelt.ir.printer import print_node
from smelt.ir.sizes import value as at_hand
from smelt.ops.effects import alias_of
from smelt.passes.base import Pass
from smelt.passes.manager import PassReport
from smelt.rewrite.rewriter import Event

_ARMS = {"if": ("then", "else"), "while": ("test", "body"), "for": ("body",)}
_LONGEST = 400  # characters of a node's text


class Stages:
    """Watches passes (`passes.manager.Watcher`) and keeps what a page shows of them."""

    def __init__(self, places: Places) -> None:
        self.nodes: list[NodeRecord] = []
        self.stages: list[Stage] = []
        self._places = places
        self._graph: Graph | None = None
        self._uids: dict[Node, int] = {}
        self._known: dict[NodeRecord, int] = {}
        self._edits: Counter[str] = Counter()
        self._inserted: set[Node] = set()
        self._led: dict[int, list[int]] = {}
        self._erased: dict[Node, Span] = {}

    # --- what happens

    def begin(self, graph: Graph) -> None:
        """The graph as it is before the first pass; one that is a copy of the last stage's goes on from there."""
        if self._graph is not None:
            for mine, copy in zip(self._graph.walk(), graph.walk(), strict=True):
                self._uids[copy] = self._uid(mine)
            self._graph = graph
            return
        self._graph = graph
        self._keep("captured", "", 0.0, None)

    @property
    def text(self) -> str:
        """The graph of the last stage, as text."""
        return str(self._graph)

    def edited(self, event: Event) -> None:
        """An edit by the pass that runs."""
        self._edits[event.kind] += 1
        if event.kind == "insert" and event.node is not None:
            self._inserted.add(event.node)
        if event.kind == "erase" and event.node is not None and event.node.span is not None:
            self._erased[event.node] = event.node.span
        if event.kind == "replace" and event.node is not None:
            found = [self._uid(node) for node in self._made_for(event.new)]
            if found:
                self._led.setdefault(self._uid(event.node), []).extend(found)

    def passed(self, one: Pass, report: PassReport) -> None:
        """The end of a pass; one that changed nothing is no stage."""
        if report.changed or self._edits:
            self._keep(report.name, one.picture, report.seconds * 1000, report)

    def last(self, name: str, graph: Graph) -> None:
        """The graph that was lowered, where it is another than the last stage's."""
        if self._graph is not None and str(self._graph) == str(graph):
            return
        self._graph = graph
        self._keep(name, "", 0.0, None)

    # --- what is kept of it

    def _uid(self, node: Node) -> int:
        return self._uids.setdefault(node, len(self._uids))

    def _made_for(self, new: Arg) -> list[Node]:
        """What stands for a replaced value: its node, and what the same pass put in for that."""
        found: list[Node] = []
        pending = [value.node for value in values_in(new)]
        while pending:
            node = pending.pop()
            if node is None or node in found:
                continue
            found.append(node)
            if node in self._inserted:
                pending += [value.node for value in node.operands() if value.node in self._inserted]
        return found

    def _keep(self, name: str, picture: str, ms: float, report: PassReport | None) -> None:
        assert self._graph is not None
        self._lead_by_place()
        records: list[int] = []
        self._walk(self._graph.body, -1, 0, records)
        peak = None if report is None or report.peak is None else (report.peak.before, report.peak.after)
        outputs = _names(self._graph.outputs)
        led = self._led_to(present=[self._uid(node) for node in self._graph.walk()])
        self.stages.append(Stage(name, picture, round(ms, 3), records, outputs, dict(self._edits), led, peak))
        self._edits.clear()
        self._inserted.clear()
        self._erased.clear()
        self._led = {}

    def _led_to(self, present: Sequence[int]) -> dict[int, list[int]]:
        """What stands for nodes that are gone, followed through what came and went within the same pass."""
        here, found = set(present), dict[int, list[int]]()
        for uid in self._led:
            ends: dict[int, None] = {}
            seen, pending = {uid}, [*self._led[uid]]
            while pending:
                to = pending.pop(0)
                if to in here:
                    ends[to] = None
                elif to not in seen:
                    pending += self._led.get(to, ())
                seen.add(to)
            if ends:
                found[uid] = list(ends)
        return found

    def _lead_by_place(self) -> None:
        """A node that was erased and put in place of by hand is followed to what came in from the very same place."""
        made: dict[Span, list[int]] = {}
        for node in self._graph.walk() if self._graph is not None and self._erased else ():
            if node in self._inserted and node.span is not None:
                made.setdefault(node.span, []).append(self._uid(node))
        for node, span in self._erased.items():
            uid = self._uid(node)
            if span in made and uid not in self._led:
                self._led[uid] = made[span]

    def _walk(self, region: Region, parent: int, arm: int, records: list[int]) -> None:
        for node in region:
            record = self._record(node, parent, arm)
            index = self._known.setdefault(record, len(self.nodes))
            if index == len(self.nodes):
                self.nodes.append(record)
            records.append(index)
            for number, inner in enumerate(node.regions):
                self._walk(inner, record.uid, number, records)

    def _record(self, node: Node, parent: int, arm: int) -> NodeRecord:
        spent = cost(node)
        names = _ARMS.get(node.op, ())
        return NodeRecord(
            self._uid(node),
            node.op,
            tuple(result.name for result in node.results),
            tuple(_plain(str(result.type)) for result in node.results),
            tuple(dict.fromkeys(value.name for value in node.operands())),
            _text(node),
            node.scope,
            node.mode,
            tuple(self._places.at(node.span)),
            parent,
            arm,
            alias_of(node) is not None,
            at_hand(spent.nbytes),
            at_hand(spent.flops),
            tuple(
                Arm(
                    names[i] if i < len(names) else f"region {i}",
                    tuple(p.name for p in region.params),
                    _names(region.yields),
                )
                for i, region in enumerate(node.regions)
            ),
        )


def _names(args: Sequence[Arg]) -> tuple[str, ...]:
    return tuple(value.name for arg in args for value in values_in(arg))


def _text(node: Node) -> str:
    """A node in one line, without its place, of one with regions the first line."""
    line = _plain(print_node(node).splitlines()[0])
    if not node.regions and node.span is not None:
        line = line[: line.rfind("@ ")].rstrip()
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 4]} ..."


def _plain(text: str) -> str:
    """Sizes by their names, as outside of a trace."""
    return text.replace("⟨", "").replace("⟩", "")


def value_names(text: str) -> list[str]:
    """The names of values in `%0, %1 = op` or `%0 = op at place`."""
    head, equals, _ = text.partition(" = ")
    if not equals:
        return []
    return [name.strip().removeprefix("%").strip('"') for name in head.split(",")]


def typed(values: Sequence[Value]) -> list[tuple[str, str]]:
    """Names and types."""
    return [(value.name, str(value.type)) for value in values]
