"""`explain`: everything known of a compiled object or a program, as one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from smelt._torch.library.compiled_by_torch import given_to_torch
from smelt._torch.storage import nbytes_spanned
from smelt.capture.structure.state import Place, in_names
from smelt.compiler import Compiled, Program, SizedUnit, Unit, compile
from smelt.compiler.doors.dynamo import graphs_of
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.object.miss_texts import joined_misses
from smelt.compiler.paths import reading
from smelt.compiler.programs.narrow_layers import Narrowed, allowed_error
from smelt.compiler.sizes.size_texts import readable
from smelt.compiler.split.splitting_report import break_rows, piece_rows
from smelt.compiler.training.training import TrainingUnit
from smelt.diag import SmeltError
from smelt.inspect.kernels import kernel_rows, launched_ns
from smelt.inspect.native_parts import Part, parts_of
from smelt.inspect.page import Inside
from smelt.inspect.places import is_hidden, plain
from smelt.inspect.report import KEYS, Report
from smelt.inspect.saved import saved_rows
from smelt.inspect.shown import Row, plural
from smelt.inspect.symbols import symbol_rows
from smelt.inspect.verdict import verdict
from smelt.ir import DType, TensorType
from smelt.passes.products.lower_precision import PRODUCT_OPS

_MEMORY = {
    "arena_nbytes": "arena", "arena_naive_nbytes": "arena without reuse", "packed_nbytes": "packed weights",
    "folded_nbytes": "computed from weights", "peak_nbytes": "peak of a call",
}  # fmt: skip

_FIRST = "the first call of its kind"


def explain(compiled: Any, *args: Any, everything: bool = False, **kwargs: Any) -> Report:
    """The report on what `smelt.compile` or `smelt.trace` returned, or of one call, `explain(f, x)`: graphs and why
    each was made, which sizes and numbers are dynamic, guards with their source line and what Python read of data on
    each recorded path , why calls compiled anew, passes with times, how each node runs, fallbacks with reasons, compile
    time by stage, memory.

    Of what torch.compile made with backend="smelt", all graphs that Dynamo made of the program.

    args, kwargs: call it with these first, without gradients; a function or module that is not compiled yet is then
    compiled for the report. everything: print each row; else each kind of guard, kernel and pass is one with its count.
    Raises: SmeltError (S0106) for anything else.
    """
    call = (args, dict(kwargs)) if args or kwargs else None
    if call is not None:
        compiled = _called(compiled, args, kwargs)
    report = _report_on(compiled)
    if report is not None:
        return replace(report, everything=everything, inside=replace(report.inside, call=call))
    raise SmeltError(
        f"there is nothing to explain about a {type(compiled).__name__}",
        why='explain takes what smelt.compile or smelt.trace returned, and what torch.compile(backend="smelt") did, '
        "after a call",
        fix="give the arguments of a call, too: smelt.explain(f, x); or compile or trace the program, or call it, "
        "first; of a schedule, see print(s), s.reports and s.diff()",
        code="S0106",
    )


def _report_on(compiled: Any) -> Report | None:
    """The report; None where there is nothing to report on."""
    if isinstance(compiled, Program):
        return _of_program(compiled)
    if isinstance(compiled, Compiled):
        return _of_compiled(compiled)
    graphs = graphs_of(compiled)
    return _of_graphs(compiled, graphs) if graphs else None


def _called(given: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What there is to explain after a call with these arguments. Raises: SmeltError (S0106) if it is not callable."""
    known = isinstance(given, Program | Compiled) or given_to_torch(given) is not given
    compiled = given if known else compile(given)
    with torch.no_grad():
        compiled(*args, **kwargs)
    return compiled


def _of_graphs(compiled: Any, graphs: Sequence[Compiled]) -> Report:
    """One report on all graphs that Dynamo cut a program into, their entries numbered through."""
    reports: list[Report] = []
    for graph in graphs:
        reports.append(_of_compiled(graph, 1 + max((row["entry"] for row in _numbered(reports)), default=-1)))
    name = getattr(given_to_torch(compiled), "__qualname__", type(given_to_torch(compiled)).__qualname__)
    rows = {key: [row for report in reports for row in getattr(report, key)] for key in KEYS}
    what = f"compiled by torch.compile in {plural(len(reports), 'graph')} of Dynamo's; {reports[0].verdict['what']}"
    inside = Inside([unit for report in reports for unit in report.inside.units])
    verdict_ = {**reports[0].verdict, "what": what}
    return replace(Report(name), verdict=verdict_, inside=inside, **rows)  # type: ignore[arg-type]


def _numbered(reports: Sequence[Report]) -> list[Row]:
    return [row for report in reports for row in (*report.graphs, *report.breaks) if "entry" in row]


def _of_program(program: Program) -> Report:
    units = list(enumerate(program.units))
    fallbacks = [
        {"reason": reason, "times": None} for reason in ([program.native_failure] if program.native_failure else [])
    ]
    return _report(
        program.unit.captured.name,
        units,
        graphs=[_graph_row(i, unit, None) for i, unit in units],
        guards=[row for i, unit in units for row in (*_checks(i, unit), *_outcomes(i, unit))],
        fallbacks=fallbacks,
    )


def _of_compiled(compiled: Compiled, first: int = 0) -> Report:
    stats = compiled.stats()
    splits = dispatcher_of(compiled).splits
    # In the order in which they were compiled, with the numbers that `stats` shows; then the pieces.
    rows = {first + row.number: row for row in stats.entries}
    rows.update(enumerate(piece_rows(splits), start=1 + max(rows, default=first - 1)))
    units = [(i, row.entry) for i, row in rows.items() if isinstance(row.entry, Unit)]
    # The call that was recorded got its answer from that run, and is one of the entry's.
    graphs = [{**_graph_row(i, unit, rows[i].calls), "why": rows[i].cause or _FIRST} for i, unit in units]
    breaks: list[Row] = [{"entry": i, "why": row.why} for i, row in rows.items() if row.entry is None]
    breaks += break_rows(splits)
    breaks += [{"why": f"no further builds: {stats.stopped}"}] if stats.stopped else []
    told = {row.reason: i for i, row in reversed(rows.items()) if row.entry is None}
    fallbacks = [
        {"reason": f"entry {told[reason]} is not compiled: see Breaks" if reason in told else reason, "times": times}
        for reason, times in stats.fallbacks.items()
    ]
    return _report(
        getattr(compiled.smelt_target, "__qualname__", type(compiled.smelt_target).__name__),
        units,
        graphs=graphs,
        guards=[
            found
            for i, row in rows.items()
            for found in (*(_guard(i, guard) for guard in row.guards.listed), *_outcomes(i, row.entry))
        ],
        breaks=breaks,
        recompiles=[{"guard": text, "times": times} for text, times in joined_misses(stats.guard_failures).items()],
        refused=stats.refused,
        state=dispatcher_of(compiled).state_places,
        fallbacks=fallbacks,
    )


def _in_names(row: Row, state: Sequence[Place]) -> Row:
    """A row with the names of places of state."""
    return {key: in_names(value, state) if isinstance(value, str) else value for key, value in row.items()}


def _report(
    name: str,
    units: Sequence[tuple[int, Unit]],
    *,
    graphs: Sequence[Row],
    guards: Sequence[Row],
    fallbacks: Sequence[Row],
    breaks: Sequence[Row] = (),
    recompiles: Sequence[Row] = (),
    refused: Mapping[str, str] | None = None,
    state: Sequence[Place] = (),
) -> Report:
    parts = parts_of(units)
    anew = sum(row.get("why", _FIRST) != _FIRST for row in graphs)
    found = Report(
        name,
        verdict=verdict(units, breaks, fallbacks, anew, _time_share(parts)),
        graphs=graphs,
        symbols=[_in_names(row, state) for row in symbol_rows(units, refused or {})],
        guards=guards,
        breaks=breaks,
        recompiles=recompiles,
        passes=_passes(units, parts),
        kernels=_kernels(parts),
        fallbacks=[*fallbacks, *_python_nodes(parts)],
        timings=_timings(units, parts),
        memory=_memory(parts),
        precision=_precision(parts),
        saved=saved_rows(units),
        inside=Inside(units),
    )
    return replace(found, **{key: _readable(getattr(found, key)) for key in KEYS})  # type: ignore[arg-type]


def _readable(rows: Sequence[Row]) -> list[Row]:
    """Rows without addresses, and without what is said of names that only generated code has."""
    return [
        {key: plain(value) if isinstance(value, str) else value for key, value in row.items()}
        for row in rows
        if not is_hidden(str(row.get("guard", "")))
    ]


def _time_share(parts: Sequence[Part]) -> dict[str, float]:
    """The share of time in own kernels, of plans that measure themselves."""
    own = total = 0
    for part in parts:
        unit = part.unit
        if unit.lowered is None or unit.executable is None:
            continue
        share = launched_ns(unit.lowered.plan, unit.executable.profile())
        own, total = own + share[0], total + share[1]
    return {"time": own / total} if total else {}


def _graph_row(index: int, unit: Unit, calls: int | None) -> Row:
    row: dict[str, Any] = {"entry": index, "name": unit.captured.name, "calls": calls}
    if unit.is_from_disk:
        row["plan"] = "from the disk cache of an earlier process"
        unit.optimize()  # the passes, which this process has not done, to be shown
    if unit.signature.kwargs.keys:
        row["called with"] = unit.signature.spelling
    row["inputs"] = ", ".join(str(value.type) for value in unit.graph.inputs)
    row["nodes captured"] = sum(1 for _ in unit.graph.walk())
    row["nodes optimized"] = None if unit.optimized is None else sum(1 for _ in unit.optimized.walk())
    ways = _ways(unit)
    if ways:
        row["paths"] = ways
    if unit.is_path and unit.why_paths:
        row["no merged graph"] = unit.why_paths
    if isinstance(unit, SizedUnit):
        row["plans"] = _plans(unit)
    shown = next(reversed(unit.plans.values()), unit) if isinstance(unit, SizedUnit) else unit
    if shown.lowered is not None:
        counts = sorted(shown.lowered.report.counts.items(), key=lambda item: -item[1])
        row["nodes by how they run"] = ", ".join(f"{how} {count}" for how, count in counts)
    row["runs"] = _runs(shown)
    row["captured"] = str(unit.graph)
    row["optimized"] = None if unit.optimized is None else str(unit.optimized)
    if isinstance(unit, TrainingUnit):
        row.update({f"{name} half": str(half.optimized) for name, half in unit.halves.items()})
    return row


def _runs(unit: Unit) -> str:
    """Whether a call is native code, and how much of it calls Python all the same."""
    if isinstance(unit, TrainingUnit) and unit.halves:
        return "; ".join(f"{name}: {_runs(half)}" for name, half in unit.halves.items())
    if unit.executable is None:
        return "nowhere yet: it is still being made"
    if not unit.executable.is_native:
        return "in Python, for native code cannot be made here"
    count = unit.lowered.report.counts.get("python", 0) if unit.lowered is not None else 0
    return f"natively, but for {count} node{'s' * (count != 1)} in Python" if count else "natively"


def _plans(unit: SizedUnit) -> str:
    """How the plans of a graph with free sizes were made, and how often one was there already."""
    made = f"{unit.plans_made} made, {unit.lowered_alone} of them lowered alone, found {unit.plans_used} times"
    why = f"; alone because {unit.why_alone}" if unit.why_alone else ""
    relied_on = [" and ".join(readable(str(found)) for found in variant.conditions) for variant in unit.variants]
    where = f", where {'; or '.join(relied_on)}" if any(relied_on) else ""
    return f"{made}; {len(unit.templates)} for many sizes{where}{why}"


def _ways(unit: Unit) -> str:
    """Where data decide what runs, and whether the graph has all that may; nothing where they decide nothing."""
    if unit.is_path:
        return "one of those that were recorded"
    found = [node for node in unit.graph.walk() if node.op in ("if", "for", "while")]
    places = dict.fromkeys(
        f"{node.op} {Path(node.span.file).name}:{node.span.line}" if node.span is not None else node.op
        for node in found
    )
    return f"all: {', '.join(places)}" if places else ""


def _outcomes(entry: int, unit: Any) -> list[Row]:
    """What Python read of data on the way that a graph holds for: its expectations, beside the guards."""
    return [
        {"entry": entry, "kind": "read of data", "guard": reading(outcome.what), "value": _short(outcome.value),
         "where": str(outcome.where) if outcome.where is not None else ""}
        for outcome in (unit.outcomes if isinstance(unit, Unit) else ())
    ]  # fmt: skip


def _guard(entry: int, guard: Any) -> Row:
    return {
        "entry": entry,
        "kind": guard.kind,
        "guard": guard.expr,
        "value": _short(guard.seen),
        "where": str(guard.span) if guard.span is not None else "",
    }


def _short(value: Any, limit: int = 80) -> str:
    text = plain(repr(value))
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _checks(entry: int, unit: Unit) -> list[Row]:
    """What free sizes and numbers of a program must fulfil."""
    return [
        {"entry": entry, "kind": "check", "guard": str(check), "value": "True",
         "where": str(check.span) if check.span is not None else ""}
        for check in unit.checks
    ]  # fmt: skip


def _passes(units: Sequence[tuple[int, Unit]], parts: Sequence[Part]) -> list[Row]:
    """Those of each entry's own graph, then those of its plans."""
    whole = [Part(i, unit) for i, unit in units if isinstance(unit, SizedUnit | TrainingUnit)]
    return [
        row
        for part in sorted((*whole, *parts), key=lambda part: part.entry)
        for row in part.rows(
            {"pass": record.name, "ms": record.seconds * 1000, "nodes before": record.nodes_before,
             "nodes after": record.nodes_after, "changed": record.changed}
            for record in part.unit.passes
        )
    ]  # fmt: skip


def _kernels(parts: Sequence[Part]) -> list[Row]:
    """Own kernels, the choices between them and libraries, why nodes were fused or not, and how each node runs."""
    rows: list[Row] = [row for part in parts for row in part.rows(_without_entry(kernel_rows([part.unit])))]
    for part in parts:
        if part.unit.lowered is None:
            continue
        report = part.unit.lowered.report
        rows.extend(part.rows(
            {"choice": choice.shape, "nodes": choice.nodes, "chosen": choice.chosen, "why": choice.reason,
             "us": {c.name: c.latency_us for c in choice.candidates}}
            for choice in report.choices
        ))  # fmt: skip
        rows.extend(part.rows(
            {"group": " + ".join(decision.group), "fused": decision.fused, "why": decision.why,
             "bytes apart": decision.nbytes_before, "bytes as one": decision.nbytes_after}
            for decision in report.decisions
        ))  # fmt: skip
        rows.extend(part.rows(
            {"node": f"%{node.value} = {node.op}", "how": node.how, "target": node.target,
             "where": node.where, "scope": node.scope}
            for node in report.nodes
        ))  # fmt: skip
    return rows


def _without_entry(rows: Sequence[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "entry"} for row in rows]


def _python_nodes(parts: Sequence[Part]) -> list[Row]:
    """What of the plans runs in Python, each line once: entries for other sizes mostly have the same."""
    nodes = [n for part in parts if part.unit.lowered is not None for n in part.unit.lowered.report.python_nodes]
    told = {(f"{n.op} runs in Python" + (f" ({n.target})" if n.target != n.op else ""), n.where) for n in nodes}
    return [{"reason": reason, "where": where, "times": None} for reason, where in sorted(told)]


def _timings(units: Sequence[tuple[int, Unit]], parts: Sequence[Part]) -> list[Row]:
    whole = [Part(i, unit) for i, unit in units if isinstance(unit, SizedUnit | TrainingUnit)]
    rows: list[Row] = []
    for part in sorted((*whole, *parts), key=lambda part: part.entry):
        rows += part.rows({"stage": stage, "ms": ms} for stage, ms in part.unit.stages_ms.items())
        if part.unit.lowered is not None:
            rows += part.rows({"stage": f"lower: {s}", "ms": ms} for s, ms in part.unit.lowered.report.stages_ms)
    return rows


def _memory(parts: Sequence[Part]) -> list[Row]:
    """The plan's own memory, copies of weights and their originals, and what reordering gained."""
    rows: list[Row] = []
    for part in parts:
        unit = part.unit
        if unit.lowered is None:
            continue
        found: Mapping[str, int] = unit.lowered.report.to_dict()["memory"]
        mine: list[Row] = [{"what": _MEMORY[what], "bytes": n} for what, n in found.items()]
        peak = next((p.peak for p in reversed(unit.passes) if p.peak is not None), None)
        if peak is not None:
            mine.append({"what": "peak in the program's order", "bytes": peak.before})
            mine.append({"what": "peak in the order that runs", "bytes": peak.after})
        originals = sum(nbytes_spanned(t) for t in unit.originals)
        mine.append({"what": "originals of packed and folded", "bytes": originals})
        if unit.options.release_originals:
            given = {"what": "originals released", "bytes": unit.released_nbytes}
            why_not = "" if unit.moved is None else unit.moved.why_not
            mine.append({**given, "note": why_not} if why_not else given)
        rows += part.rows(mine)
    return rows


def _precision(parts: Sequence[Part]) -> list[Row]:
    """One row an output, where a unit was told to compute in another precision."""
    rows: list[Row] = []
    for part in parts:
        unit = part.unit
        if unit.options.dtype == "default":
            continue
        if unit.narrowed is not None:
            rows += part.rows(_layers(unit.narrowed))
        found = unit.precision()
        if found is None:
            rows += part.rows([{"note": "not measured: nothing was called yet"}])
        elif found.why_not:
            rows += part.rows([{"note": f"not measured: {found.why_not}"}])
        else:
            rows += part.rows(
                {"output": e.output, "dtype": e.dtype, "rms error": e.rms, "relative to rms": e.relative,
                 "largest": e.largest, "NaN or inf elsewhere": e.nonfinite, "note": _narrowed(unit)}
                for e in found.errors
            )  # fmt: skip
    return rows


def _layers(narrowed: Narrowed) -> list[Row]:
    """The linear layers of a program that was to be over few bits: which are, and why others are not."""
    return [
        {"layer": f"{layer.module}, {layer.sizes[0]} x {layer.sizes[1]}", "dtype": layer.dtype,
         "relative to rms": layer.own, "note": f"falls back to f32: {layer.why}" if layer.why else ""}
        for layer in narrowed.layers
    ]  # fmt: skip


def _narrowed(unit: Unit) -> str:
    """How many products of a unit run in bf16, or how many linear layers over few bits."""
    if unit.narrowed is not None:
        few, all_ = len(unit.narrowed.chosen), len(unit.narrowed.layers)
        return f"{few} of {all_} linear layers in {unit.options.dtype}, at most {allowed_error(unit.options):g} allowed"
    if unit.optimized is None or unit.options.dtype != "bf16":
        return ""
    found = [n for n in unit.optimized.walk() if n.op in PRODUCT_OPS]
    narrow = sum(isinstance(n.result.type, TensorType) and n.result.type.dtype is DType.BF16 for n in found)
    return f"{narrow} of {len(found)} products in bf16"
