"""Runs passes in order: verified, timed, dumped, skipped by name, stopped early; and finds the pass that is wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import is_
from pathlib import Path
from typing import Any, Protocol

import torch

from smelt.diag import InternalError, SmeltError
from smelt.diag.logs import tell, wants
from smelt.diag.records import record
from smelt.ir import Graph, Node, Type, verify
from smelt.ops.check import check as check_node
from smelt.ops.convert import strided_copy
from smelt.ops.evaluate import Lookup, evaluate, no_state
from smelt.passes.base import Pass, PassContext, Peak
from smelt.passes.sized import sized
from smelt.rewrite.rewriter import Event


@record
class PassReport:
    """What one pass did: seconds it took, whether it changed the graph, nodes before and after.

    peak: the most memory alive at once, before and after, where the pass is about that.
    """

    name: str
    seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int
    peak: Peak | None = None


class Watcher(Protocol):
    """Whoever wants to see passes at work: the graph before the first, each edit, and the end of each pass."""

    def begin(self, graph: Graph) -> None: ...

    def edited(self, event: Event) -> None: ...

    def passed(self, one: Pass, report: PassReport) -> None: ...


def run_passes(
    graph: Graph,
    passes: Sequence[Pass],
    context: PassContext | None = None,
    *,
    check: bool = True,
    dump: str | Path = "",
    skip: Sequence[str] = (),
    stop_after: int | None = None,
    watcher: Watcher | None = None,
) -> tuple[PassReport, ...]:
    """Run passes over a graph in place; what each did.

    check: run the verifier after each, not only after the last. dump: a directory into which the graph's text is
    written before the first and after each. skip: names of passes to leave out; stop_after: run only the first so many.
    watcher: is told of all that passes do.
    Raises: InternalError (S0901) that names the pass which raised or broke the graph, or with `check` off those that
    may have, SmeltError (S0301) for an unknown name in `skip`.
    """
    context = context or PassContext()
    if watcher is not None:
        context = replace(context, listeners=(*context.listeners, watcher.edited))
    _check_names(passes, skip)
    dump_graph(graph, dump, 0, "captured")
    with sized(graph, context.sizes):
        # Types, and what they say of each other, are others in a trace.
        context.seen.forget()
        if watcher is not None:
            watcher.begin(graph)
        reports = _run_all(graph, passes[:stop_after], context, check, dump, skip, watcher)
    context.seen.forget()
    return reports


def _run_all(
    graph: Graph,
    passes: Sequence[Pass],
    context: PassContext,
    check: bool,
    dump: str | Path,
    skip: Sequence[str],
    watcher: Watcher | None,
) -> tuple[PassReport, ...]:
    reports = []
    checked = _Checked() if check else None
    edits_before = context.seen.edits
    after = sum(1 for _ in graph.walk())
    for number, one in enumerate(passes, 1):
        if one.name in skip:
            continue
        before = after
        started = time.perf_counter()
        edits = context.seen.edits
        changed = _run_one(graph, one, context, checked)
        seconds = time.perf_counter() - started
        if changed or context.seen.edits != edits:
            after = sum(1 for _ in graph.walk())
        peak = context.peaks.pop() if context.peaks else None
        reports.append(PassReport(one.name, seconds, changed, before, after, peak))
        if changed and wants("passes"):
            tell("passes", f"{graph.name}: {one.name}, {before} to {after} nodes, {seconds * 1e3:.1f} ms")
        if watcher is not None:
            watcher.passed(one, reports[-1])
        dump_graph(graph, dump, number, one.name)
    if checked is None:
        _check_last(graph, reports, context.seen.edits != edits_before)
    return tuple(reports)


def _check_last(graph: Graph, reports: Sequence[PassReport], is_edited: bool) -> None:
    """Raises: InternalError where the graph is not well formed behind the passes."""
    changed = [report.name for report in reports if report.changed]
    if not changed and not is_edited:
        return
    try:
        verify(graph, check_node)
    except SmeltError as known:
        names = changed or [report.name for report in reports]
        raise InternalError(
            f"pass {' or '.join(names)} failed on graph {graph.name}: {known.what}",
            known.where,
            why=known.why,
            fix="options={'verify': True} tells which one; report the graph that `dump` writes",
            code="S0901",
            notes=known.notes,
        ) from known


def _check_names(passes: Sequence[Pass], skip: Sequence[str]) -> None:
    names = {p.name for p in passes}
    for name in skip:
        if name not in names:
            raise SmeltError(
                f"there is no pass {name!r} to skip",
                why=f"the passes are {', '.join(p.name for p in passes)}",
                fix="correct the name",
                code="S0301",
            )


class _Checked:
    """`smelt.ops.check` for nodes that are not as they were when it last found no fault in them."""

    def __init__(self) -> None:
        self._known: dict[Node, tuple[Any, Any, str, list[Type]]] = {}
        self.is_begun = False

    def __call__(self, node: Node) -> Sequence[str]:
        # Arguments are replaced as a whole, so that the same objects are the same arguments.
        known = self._known.get(node)
        results = node.results
        if known is not None and known[0] is node.args and known[1] is node.kwargs and known[2] is node.op:
            types = known[3]
            if len(types) == len(results) and all(map(is_, types, [result.type for result in results])):
                return ()
        found = list(check_node(node))
        if not found:
            self._known[node] = node.args, node.kwargs, node.op, [result.type for result in results]
        return found


def _run_one(graph: Graph, one: Pass, context: PassContext, checked: _Checked | None) -> bool:
    edits = context.seen.edits
    try:
        changed = one.run(graph, context)
        if checked is not None and (changed or context.seen.edits != edits or not checked.is_begun):
            verify(graph, checked)
            checked.is_begun = True
    except Exception as error:  # whatever a defect of a pass raises
        known = error if isinstance(error, SmeltError) else None
        what = known.what if known is not None else f"{type(error).__name__}: {error}"
        raise InternalError(
            f"pass {one.name} failed on graph {graph.name}: {what}",
            known.where if known is not None else None,
            why=known.why if known is not None else "",
            fix=f"compile with options={{'skip': ['{one.name}']}}, and report the graph that `dump` writes",
            code="S0901",
            notes=known.notes if known is not None else (),
        ) from error
    return changed


def dump_graph(graph: Graph, directory: str | Path, number: int, name: str) -> None:
    """Write a graph's text into a directory, behind the rewrite of a number and name; nowhere where that is empty."""
    if not directory:
        return
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{graph.name}.{number:02d}-{name}.txt").write_text(str(graph) + "\n", encoding="utf-8")


@record
class Culprit:
    """The first pass after which the answer differs, and how."""

    name: str
    number: int
    difference: str


def bisect(
    graph: Graph,
    passes: Sequence[Pass],
    inputs: Sequence[Any],
    lookup: Lookup = no_state,
    *,
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> Culprit | None:
    """The first pass after which the evaluator's answer differs from the answer before it, or None.

    Outputs, written inputs and written state are compared: bit for bit, or within the tolerances after a pass that
    may round. The graph and the inputs stay as they are.
    """
    current = graph.clone()
    context = PassContext(lookup)
    expected = observe(current, inputs, lookup)
    for number, one in enumerate(passes, 1):
        try:
            one.run(current, context)
            verify(current)
            found = observe(current, inputs, lookup)
        except Exception as error:
            # Whatever a broken pass leads to is the difference that was looked for.
            return Culprit(one.name, number, f"{type(error).__name__}: {error}")
        tolerances = (rtol, atol) if one.rounding else (0.0, 0.0)
        difference = compare(found, expected, *tolerances)
        if difference:
            return Culprit(one.name, number, difference)
        expected = found
    return None


@record
class Observation:
    """Everything that a run leaves behind: outputs, inputs and state as they are afterwards, which outputs share."""

    outputs: list[Any]
    inputs: list[Any]
    state: dict[tuple[str, str], Any]
    draws: torch.Tensor
    sharing: list[tuple[int, int]]


def observe(
    graph: Graph,
    inputs: Sequence[Any],
    lookup: Lookup = no_state,
    *,
    seed: int = 0,
    watch: Callable[[Node, Sequence[Any]], None] | None = None,
) -> Observation:
    """Run a graph on copies of inputs and state; what it leaves behind. watch: called with nodes and their results."""
    copies = [_copied(i) for i in inputs]
    state: dict[tuple[str, str], Any] = {}

    def private(kind: str, path: str) -> Any:
        if (kind, path) not in state:
            state[(kind, path)] = _copied(lookup(kind, path))
        return state[(kind, path)]

    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        outputs = evaluate(graph, copies, private, observe=watch)
        draws = torch.get_rng_state()
    return Observation(outputs, copies, state, draws, _sharing([*outputs, *copies, *state.values()]))


def _copied(item: Any) -> Any:
    """A copy with the same strides, stride 0 included."""
    return strided_copy(item.detach()) if isinstance(item, torch.Tensor) else item


def _flat(items: Sequence[Any]) -> list[Any]:
    """What is in lists, tuples and dictionaries, in their place."""
    found: list[Any] = []
    for item in items:
        if isinstance(item, dict):
            found.extend(_flat([*item.keys(), *item.values()]))
        elif isinstance(item, (list, tuple)):
            found.extend(_flat(item))
        else:
            found.append(item)
    return found


def _sharing(items: Sequence[Any]) -> list[tuple[int, int]]:
    items = _flat(items)
    starts = [i.untyped_storage().data_ptr() if isinstance(i, torch.Tensor) and i.numel() else None for i in items]
    return [
        (a, b)
        for a in range(len(items))
        for b in range(a + 1, len(items))
        if starts[a] is not None and starts[a] == starts[b]
    ]


def compare(found: Observation, expected: Observation, rtol: float = 0.0, atol: float = 0.0) -> str:
    """How two runs differ, or "". State that only one of them asked for does not count."""
    shared = sorted(found.state.keys() & expected.state.keys())
    parts: list[tuple[str, Callable[[Observation], list[Any]]]] = [
        ("output", lambda o: o.outputs),
        ("input", lambda o: o.inputs),
        ("state", lambda o: [o.state[k] for k in shared]),
    ]
    for what, take in parts:
        left, right = take(found), take(expected)
        if len(left) != len(right):
            return f"{len(left)} {what}s for {len(right)}"
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            difference = _difference(a, b, rtol, atol)
            if difference:
                return f"{what} {i}: {difference}"
    if not torch.equal(found.draws, expected.draws):
        return "the random generator was advanced differently"
    return ""


def _difference(a: Any, b: Any, rtol: float, atol: float) -> str:
    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return f"{type(a).__name__} for {type(b).__name__}"
    if isinstance(a, (list, tuple, dict)):
        left, right = _flat([a]), _flat([b])
        if type(a) is not type(b) or len(left) != len(right):
            return f"{a!r} for {b!r}"
        inside = (_difference(x, y, rtol, atol) for x, y in zip(left, right, strict=True))
        return next((text for text in inside if text), "")
    if not isinstance(a, torch.Tensor):
        return "" if type(a) is type(b) and (a == b or a != a) else f"{a!r} for {b!r}"
    # The strides of a tensor without elements mean nothing, and eager itself is not consistent about them.
    if a.dtype != b.dtype or a.shape != b.shape or (a.numel() and a.stride() != b.stride()):
        return f"{a.dtype}{list(a.shape)}{a.stride()} for {b.dtype}{list(b.shape)}{b.stride()}"
    try:
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return str(error).splitlines()[0]
    if rtol == 0 and a.is_floating_point() and not torch.equal(a.signbit() & (a == 0), b.signbit() & (b == 0)):
        return "zeros of the other sign"
    return ""
