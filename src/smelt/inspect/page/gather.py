"""From a report and the units behind it to the data of a page.

Invariant: the program runs here only where the caller gave the arguments of a call to be measured, on copies of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import smelt
from smelt._torch.autocast import no_autocast
from smelt.compiler import SizedUnit, Unit
from smelt.compiler.pipeline import functional_graph, optimized_graph
from smelt.compiler.sizes.size_conditions import symbols_in, symbols_of
from smelt.compiler.training.training import TrainingUnit
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.inspect.native_parts import Part, parts_of
from smelt.inspect.page import steps
from smelt.inspect.page.model import Code, Guard, Page, Recompile, Remark, Roof, Saved, Timing
from smelt.inspect.page.phases import phases_of
from smelt.inspect.page.places import Places
from smelt.inspect.page.stages import Stages, typed
from smelt.inspect.roofline import Ceilings
from smelt.inspect.saved import saved_values
from smelt.inspect.shares import Measured, profile_of
from smelt.inspect.shown import Row, is_telling
from smelt.inspect.verdict import lines_of
from smelt.passes.sized import Sizes
from smelt.runtime.profile import ProfileRow

if TYPE_CHECKING:
    from smelt.inspect.report import Report

_CHANGE = re.compile(r"(?P<what>.*?) was (?P<old>.*), now (?P<new>.*?)(?: \(read at .*\))?", re.DOTALL)
_MANY = re.compile(r"(?P<what>.*?) took \d+ values, (?P<old>.*) first and (?P<new>.*) last(?: \(read at .*\))?")
_UNTIMED = (
    "times: nothing was measured; smelt.explain(f, x).to_html(...), `smelt explain --html`, and "
    "options={'profile': True} measure"
)


@record
class Half:
    """A plan that a page shows: what it took, the symbols of its graph, what it saves for a backward half."""

    title: str
    part: Part
    profile: Sequence[ProfileRow]
    sizes: Sizes | None = None
    saved: Sequence[Saved] = ()


@record
class Inside:
    """What a report is on: its entries with their numbers, and the call it was asked for, if any.

    ceilings: of the machine, where they were measured.
    """

    units: Sequence[tuple[int, Unit]] = ()
    call: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None
    measured: Measured | None = None
    ceilings: Ceilings | None = None

    def page(self, report: Report) -> Page:
        """The data of the page on a report."""
        places = Places()
        halves = self._halves()
        codes = [_code(half, places) for half in halves]
        missing = [] if codes else ["graphs, kernels and memory: nothing was compiled; the remarks say why"]
        if codes and not any(step.us is not None for code in codes for step in code.steps):
            missing.append(_UNTIMED)
        if self.ceilings is None and codes:
            missing.append("the machine's ceilings: `smelt explain --html` measures them")
        found = self.ceilings
        return Page(
            report.name,
            lines_of(report.verdict),
            report.to_text(width=120),
            guards=[_guard(row, places) for row in report.guards],
            recompiles=[_recompile(row) for row in report.recompiles],
            remarks=[*_remarks("break", report.breaks, places), *_remarks("fallback", report.fallbacks, places)],
            timings=[Timing(r["entry"], r["stage"], r["ms"], r.get("sizes", "")) for r in report.timings],
            roof=None if found is None else Roof(round(found.gflops, 1), round(found.gbps, 1), found.threads),
            usual=_usual(report.guards),
            codes=codes,
            sources=places.sources(),
            missing=missing,
            version=smelt.__version__,
        )

    def _halves(self) -> list[Half]:
        found: list[Half] = []
        parts = parts_of(self.units)
        sized = dict(self.units)
        measured = self.measured
        if measured is None and self.call is not None and len(parts) == 1 and not parts[0].unit.acts:
            measured = profile_of(parts[0].unit, *self.call)
        for part in parts:
            unit = part.unit
            parent = sized[part.entry]
            symbols = None
            saved: Sequence[Saved] = ()
            if part.half == "forward" and isinstance(parent, TrainingUnit):
                saved = saved_values(parent)
            if isinstance(parent, SizedUnit) and unit.graph is parent.graph:
                symbols = symbols_of(parent.facts, parent.names)
            title = ", ".join(filter(None, (f"entry {part.entry}", part.sizes, part.half)))
            rows = measured.rows if measured is not None and measured.unit is unit else _profile(unit)
            found.append(Half(title, part, rows, symbols, saved))
        return found


def _profile(unit: Unit) -> Sequence[ProfileRow]:
    """What a plan that measures itself has measured."""
    if unit.lowered is None or unit.executable is None or not unit.lowered.plan.profile:
        return ()
    return unit.executable.profile()


def _code(half: Half, places: Places) -> Code:
    missing: list[str] = []
    unit = half.part.unit
    stages = _as_called(unit, places) or Stages(places)
    _replay(half, stages, missing)
    report = unit.lowered.report if unit.lowered is not None else None
    plan = unit.lowered.plan if unit.lowered is not None else None
    if report is None or plan is None:
        missing.append("kernels, steps and memory: it has no plan yet; call it first")
    made = steps.steps_of(plan, report, half.profile) if plan is not None and report is not None else []
    return Code(
        title=half.title,
        entry=half.part.entry,
        half=half.part.half,
        sizes=half.part.sizes,
        inputs=typed(unit.graph.inputs),
        nodes=stages.nodes,
        stages=stages.stages,
        steps=made,
        kernels=[] if report is None else steps.kernels_of(report),
        buffers=[] if plan is None else steps.buffers_of(plan, made),
        arena=0 if plan is None else steps.plain(plan.arena_nbytes),
        ran={} if report is None else steps.ran_of(report),
        decisions=[] if report is None else steps.decisions_of(report),
        choices=[] if report is None else steps.choices_of(report),
        saved=half.saved,
        memory={} if report is None else report.to_dict()["memory"],
        missing=missing,
        phases=phases_of(stages.nodes, stages.stages),
    )


def _as_called(unit: Unit, places: Places) -> Stages | None:
    """The stages before the graph that passes begin with: what the program called, mutation and all.

    None where it mutates nothing, or where the unit's graph is not made of its capture alone, as that of a backward
    half is not.
    """
    raw = unit.captured.graph
    if raw is None:
        return None
    stages = Stages(places)
    try:
        with no_autocast():
            symbols = symbols_in(unit.captured)
            graph, reports = functional_graph(raw, unit.options, unit.captured.entangled, symbols, stages)
    except SmeltError:
        return None
    changed = any(report.changed for report in reports)
    return stages if changed and str(graph) == str(unit.graph) == stages.text else None


def _replay(half: Half, stages: Stages, missing: list[str]) -> None:
    """Run the passes again, watched; the graph that was lowered is the last stage in any case."""
    unit = half.part.unit
    try:
        with no_autocast():
            optimized_graph(unit.graph, unit.options, unit.lookup, half.sizes, stages)
    except SmeltError as error:
        missing.append(f"passes: they could not run again to be watched: {error.what}")
        if not stages.stages:
            stages.begin(unit.graph)
    if unit.optimized is not None:
        stages.last("as lowered", unit.optimized)


def _guard(row: Row, places: Places) -> Guard:
    return Guard(row["entry"], row["kind"], row["guard"], row["value"], places.named(row["where"]), not is_telling(row))


def _usual(rows: Sequence[Row]) -> str:
    count = sum(not is_telling(row) for row in rows)
    return f"{count:,} of the usual kind: types, modes, modules and their members, functions, weights" if count else ""


def _recompile(row: Row) -> Recompile:
    text = row["guard"]
    found = _CHANGE.fullmatch(text) or _MANY.fullmatch(text)
    what, old, new = (found["what"], found["old"], found["new"]) if found else (text, "", "")
    return Recompile(what, old, new, row["times"], text)


def _remarks(kind: str, rows: Sequence[Row], places: Places) -> list[Remark]:
    return [
        Remark(
            kind,
            row.get("entry", -1),
            str(row.get("why") or row.get("reason") or ""),
            row.get("times"),
            places.named(str(row.get("where", ""))),
        )
        for row in rows
    ]
