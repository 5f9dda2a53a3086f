"""The path tree: a program whose way depends on data, as the paths that calls took.

Each path is an entry of its own, told apart by what Python read (`expect` in its graph); those under the same guards
are tried in turn, the last one that fitted first. Invariant: a path that does not fit leaves nothing behind; when none
does, the program itself runs, and is recorded as the next path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from smelt.analysis.aliases import alias_analysis, is_external
from smelt.capture import Captured
from smelt.capture.recording.spans import Spans
from smelt.compiler.deciding.trial import Trial
from smelt.diag import CaptureError, Miss, Span, limits
from smelt.diag.records import record
from smelt.ir import Graph, Node, Value
from smelt.ops.effects import effects
from smelt.ops.ranks import collectives
from smelt.passes.early_expects import expects_first
from smelt.rewrite import Rewriter

PATH_LIMIT = limits.RECORDED_PATHS  # paths kept under one set of guards; the least recently used one goes
_VALUES_SHOWN = 6
_TEST = "test"
PATIENCE = 8  # paths recorded, or evicted, before it is asked whether they pay


def is_path(graph: Graph) -> bool:
    """Whether a graph holds only for what it expects of data."""
    return any(node.op == "expect" for node in graph.body)


def check_path(graph: Graph) -> None:
    """A path may end as a miss until its last expectation, so that nothing may be seen of it before.

    Raises: CaptureError (S0104) that names what cannot be held back.
    """
    nodes = expects_first(graph)
    last = max((i for i, node in enumerate(nodes) if node.op == "expect"), default=0)
    held = [(node, effects(node)) for node in nodes[:last] if node.op != "expect"]
    aliases = alias_analysis(graph) if any(found.writes for _, found in held) else None
    for node, found in held:
        # What the run itself made, and lets nobody have before its end, is not seen.
        if found.io or (aliases is not None and any(map(is_external, aliases.of_all(found.writes)))):
            raise CaptureError(
                f"{node.op} acts outside before Python reads what it reads of data",
                node.span,
                why="whether the recorded path holds is known only then, and this cannot be undone",
                fix="read the data first, or stay in tensors (torch.where, masks)",
                code="S0104",
            )


def expectations(graph: Graph) -> Graph:
    """The part of a path's graph that tells whether the path holds; it has no outputs and writes nothing."""
    part = graph.clone()
    nodes = expects_first(part)
    last = max((i for i, node in enumerate(nodes) if node.op == "expect"), default=-1)
    rewriter = Rewriter(part)
    rewriter.set_yields(part.body, ())
    for node in reversed(nodes[last + 1 :]):
        rewriter.erase(node)
    return part


def other_path(miss: Miss, path: Sequence[Outcome]) -> CaptureError:
    """The error of a call that takes another way than the one that was captured."""
    there = [o for o in path if o.where == miss.where]  # several in a loop
    met = (o for o in there if type(o.value) is type(miss.expected) and o.value == miss.expected)
    found = next(met, there[0] if there else None)
    what, value = (
        ("what Python reads of a tensor", miss.expected) if found is None else (reading(found.what), found.value)
    )
    now = _short(miss.found) if type(miss.found) is type(value) else "another"
    is_size = found is not None and "." in found.what
    return CaptureError(
        f"{what} was {_short(value)} when the program was captured, and is {now} now",
        miss.where,
        why="the program holds only for the path of the recorded run",
        fix="capture it for these arguments, or use smelt.compile, which keeps a path for each outcome",
        code="S0102" if is_size else "S0101",
    )


def draws(graph: Graph) -> bool:
    """Whether a run advances the random generator, which a miss has to put back."""
    return any(effects(node).rng for node in graph.walk())


def draws_in_python(graph: Graph) -> bool:
    """Whether a run advances a generator of Python's or NumPy's."""
    return any(node.op == "py.draw" for node in graph.walk())


def exchanges(graph: Graph) -> bool:
    """Whether a run talks to other processes."""
    return any(collectives.exchanges(node.op) for node in graph.walk())


@record
class Outcome:
    """What Python read at one place of a path."""

    where: Span | None
    what: str
    value: Any

    def __str__(self) -> str:
        at = f" at {self.where}" if self.where is not None else ""
        return f"{reading(self.what)} was {_short(self.value)}{at}"


def lines_of(path: Sequence[Outcome]) -> Iterator[tuple[Span | None, str]]:
    """For each line that read data all that it read, in order: `the value of a tensor was 3, then 0, then 5`."""
    found: dict[tuple[str, int] | None, list[Outcome]] = {}
    for outcome in path:
        where = outcome.where
        found.setdefault(None if where is None else (where.file, where.line), []).append(outcome)
    for outcomes_there in found.values():
        where = outcomes_there[0].where
        values: dict[str, list[str]] = {}
        for outcome in outcomes_there:
            values.setdefault(reading(outcome.what), []).append(_short(outcome.value))
        said = [f"{what} was {_in_turn(each)}" for what, each in values.items()]
        yield where, " and ".join(said) + (f" at {where}" if where is not None else "")


def _in_turn(values: Sequence[str]) -> str:
    """`True, then False, then True (12 times in all)`; values that are alike throughout are one."""
    if len(set(values)) == 1:
        return values[0]
    more = f" ({len(values)} times in all)" if len(values) > _VALUES_SHOWN else ""
    return ", then ".join(values[:_VALUES_SHOWN]) + more


def reading(what: str) -> str:
    """What was read, as words."""
    if what in ("is_nonzero", "item", "_local_scalar_dense"):
        return "the truth value of a tensor" if what == "is_nonzero" else "the value of a tensor"
    if what == _TEST:
        return "a test of what data gave"
    if what.startswith("error of "):
        return f"the {what}"
    return f"the size of the result of {what}" if "." in what else f"the result of {what}"


def outcomes(captured: Captured) -> tuple[Outcome, ...]:
    """What Python read of tensors on a path, in order."""
    if captured.graph is not None and (captured.sizes is not None or captured.is_way):
        # What follows from sizes and numbers alone is no conversion of data, but another at other sizes. A graph of the
        # way that tests of numbers led to asks for these, not for the numbers.
        expected = (node for node in captured.graph.body if node.op == "expect")
        return tuple(Outcome(node.span, _asked(node), node.args[1]) for node in expected)
    spans = Spans()
    return tuple(Outcome(None if c.site is None else spans.of(c.site), c.what, c.value) for c in captured.conversions)


def _asked(expect: Node) -> str:
    """What an `expect` is about, as the recorder names it."""
    value = expect.args[0]
    made = value.node if isinstance(value, Value) else None
    return _TEST if made is not None and made.op.startswith("py.") and expect.args[1] in (True, False) else "item"


def contradicts(missed: Sequence[Outcome], miss: Miss, other: Sequence[Outcome]) -> bool:
    """Whether a path is left where another one, which leads there the same way, has just been left.

    missed: the outcomes of the path that was left, and `miss` at which of them; other: those of the path in question.
    """
    if type(miss.found) not in (bool, int, float) or type(miss.found) is not type(miss.expected):
        return False
    places = [i for i, outcome in enumerate(missed) if outcome.where == miss.where]
    if len(places) != 1 or miss.where is None or len(other) <= places[0]:
        return False
    (at,) = places
    mine, yours = missed[at], other[at]
    leads_there = tuple(missed[:at]) == tuple(other[:at]) and (mine.where, mine.what) == (yours.where, yours.what)
    return leads_there and type(yours.value) is type(miss.found) and bool(yours.value != miss.found)


def difference(before: Sequence[Outcome], now: Sequence[Outcome]) -> str:
    """The first thing that Python read otherwise on one path than on another, as a sentence."""
    for one, other in zip(before, now, strict=False):
        if (one.where, one.what) != (other.where, other.what):
            break
        if repr(one.value) != repr(other.value):
            at = f" (read at {one.where})" if one.where is not None else ""
            return f"{reading(one.what)} was {_short(one.value)}, now {_short(other.value)}{at}"
    return "the recorded path was left, at what Python reads of a tensor"


def _short(value: Any, limit: int = 60) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


@dataclass(eq=False)
class ManyWays(CaptureError):
    """Data lead a program another way at nearly each call; places: where Python reads them."""

    places: tuple[Span, ...] = ()


@dataclass(slots=True, eq=False)
class Paths:
    """What all paths under one set of guards share.

    recorded: how many were made; evicted: of these, and past_hits: how often they fitted; misses: runs
    of a path that did not fit; contradicted: of these, how many were then recorded to take the way of the path that
    had missed; seen: values read, by place. clock: counts paths that fitted; hits_in_front: of the first row, then.
    why_many: why one graph does not hold them all, as the first build that tried said. trial: of calls that they serve
    with eager ones, while it is not over.
    """

    recorded: int = 0
    misses: int = 0
    evicted: int = 0
    past_hits: int = 0
    contradicted: int = 0
    seen: dict[tuple[Span | None, str], dict[str, None]] = field(default_factory=dict)
    clock: int = 0
    hits_in_front: int = 0
    why_many: str = ""
    trial: Trial | None = None

    def note(self, path: tuple[Outcome, ...]) -> None:
        """Count a path."""
        self.recorded += 1
        for outcome in path:
            self.seen.setdefault((outcome.where, outcome.what), {})[repr(outcome.value)] = None

    def contradict(self, hits: int) -> None:
        """Count a path that is recorded again in the place of one that missed, and fitted so often before."""
        self.contradicted += 1
        self.past_hits += hits

    def hopeless(self, why: str) -> ManyWays:
        """The error that says so, with the places that Python reads otherwise at nearly each call."""
        places = [where for (where, _), values in self.seen.items() if where and 2 * len(values) > self.recorded]
        return ManyWays(why, places[0] if places else None, code="S0101", places=tuple(places))

    def why_hopeless(self, hits: int) -> str:
        """Why the original is faster than path after path, given how often those kept fitted; empty if it may pay."""
        if self.evicted >= PATIENCE:
            return f"it has more paths than are cached ({PATH_LIMIT}): {self.storming()}"
        if self.recorded >= PATIENCE and hits + self.past_hits < 2 * self.recorded:
            if 2 * self.contradicted > self.recorded:
                return f"compiled, it does not come to the values that Python reads: {self.storming()}"
            return f"its path differs at nearly each call: {self.storming()}"
        return ""

    def storming(self) -> str:
        """The place whose value changed most often, with some of the values."""
        if not self.seen:
            return "what Python reads of tensors"
        (where, what), values = max(self.seen.items(), key=lambda item: len(item[1]))
        shown = ", ".join(v if len(v) <= 24 else v[:21] + "..." for v in list(values)[:4])
        more = ", ..." if len(values) > 4 else ""
        at = f" at {where}" if where is not None else ""
        return f"{reading(what)}{at} was {shown}{more}"
