"""Own kernels, seen: their loops, LLVM text and assembly, and with a profile their time against the floor.

Invariant: rows and listings come from the lowering's report and the executable's profile of one unit; a launch is
matched with its instruction by order, which the plan keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.llvm.objects import assembly_of
from smelt.codegen.lower.report import KernelReport
from smelt.compiler import Unit
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.inspect.native_parts import parts_of
from smelt.inspect.roofline import Ceilings
from smelt.inspect.shown import Row
from smelt.runtime.cuda.segment import Segment
from smelt.runtime.plan import Launch, Plan, PyCall
from smelt.runtime.profile import ProfileRow

Form = Literal["loops", "llvm", "assembly"]


@record
class Launched:
    """A launch as it was planned, and what it took: None unless the program was compiled with `profile`.

    gpu_us: the median time of a kernel of a GPU, by events, run by itself over memory of its own.
    """

    report: KernelReport
    measured: ProfileRow | None
    gpu_us: float | None = None

    @property
    def us(self) -> float | None:
        """The least time of a call in microseconds, which other work on the machine disturbs least."""
        if self.gpu_us is not None:
            return self.gpu_us
        return self.measured.min_ns / 1e3 if self.measured is not None and self.measured.calls else None


def compiled_units(compiled: Any) -> list[Unit]:
    """What a compiled object has compiled so far, oldest first; of a graph with free sizes each plan."""
    units = [row.entry for row in reversed(compiled.stats().rows) if isinstance(row.entry, Unit)]
    return [part.unit for part in parts_of(enumerate(units))]


def launched_ns(plan: Plan, profile: Sequence[ProfileRow]) -> tuple[int, int]:
    """Least nanoseconds of the launches of own kernels in a profile, and of all that a call does."""
    own = {i for i, instruction in enumerate(plan.instructions) if isinstance(instruction, Launch)}
    rows = [row for row in profile if row.calls]
    return sum(row.min_ns for row in rows if row.index in own), sum(row.min_ns for row in rows)


def short_name(symbol: str) -> str:
    """A kernel's digest cut to what a person can compare."""
    return symbol.removeprefix("smelt_")[:8]


def launches(unit: Unit) -> list[Launched]:
    """The launches of a compiled unit, in the plan's order."""
    if unit.lowered is None:
        return []
    rows = {} if unit.executable is None else {row.index: row for row in unit.executable.profile()}
    at: list[int | None] = []
    on_gpu: list[float | None] = []
    for index, instruction in enumerate(unit.lowered.plan.instructions):
        if isinstance(instruction, Launch):
            at.append(index)
            on_gpu.append(None)
        elif isinstance(instruction, PyCall) and isinstance(instruction.fn, Segment):
            # The time of the call is that of the CPU: the GPU's kernels are under way when it returns.
            at.extend([None] * instruction.fn.kernels)
            on_gpu += instruction.fn.times_us() if unit.options.profile else [None] * instruction.fn.kernels
    reports = unit.lowered.report.kernels
    found = zip(at, on_gpu, reports, strict=True)
    return [Launched(report, None if index is None else rows.get(index), us) for index, us, report in found]


def kernel_rows(units: Sequence[Unit], ceilings: Ceilings | None = None) -> list[Row]:
    """One row for launches that share a kernel, a size and an origin's shape: what they compute, bytes, operations.

    With a profile also the least microseconds of one launch, GB/s, GFLOP/s, and, given the machine's `ceilings`, the
    share of the floor: the time that its bytes or its operations need at least, over the time it took.
    """
    rows: list[Row] = []
    for entry, unit in enumerate(units):
        alike: dict[tuple[Any, ...], list[Launched]] = {}
        for launched in launches(unit):
            r = launched.report
            alike.setdefault((r.symbol, r.label, r.items, r.nbytes, r.flops), []).append(launched)
        rows.extend(_row(entry, group, ceilings) for group in alike.values())
    return rows


def _row(entry: int, group: Sequence[Launched], ceilings: Ceilings | None) -> Row:
    first = group[0].report
    row: dict[str, Any] = {
        "entry": entry,
        "kernel": short_name(first.symbol),
        "launches": len(group),
        "computes": first.label or ", ".join(name.split(" = ")[-1] for name in first.nodes),
        "nodes": ", ".join(first.nodes),
        "where": ", ".join(first.where),
        "bytes": first.nbytes,
        "flops": first.flops,
    }
    times = [us for launched in group if (us := launched.us) is not None]
    if times:
        us = min(times)
        row["us"] = us
        if us > 0:
            row["GB/s"] = first.nbytes / us / 1e3
            row["GFLOP/s"] = first.flops / us / 1e3
            if ceilings is not None:
                row["of the roofline bound"] = ceilings.floor_us(first.nbytes, first.flops) / us
    return row


def listing(unit: Unit, form: Form = "loops") -> str:
    """The distinct kernels of a compiled unit as text: readable loops, LLVM, or this machine's assembly.

    Each stands under a heading with its name, the operators it computes and the source lines they came from.
    Raises: SmeltError (S0106) if the unit has no own kernel.
    """
    seen: dict[str, list[KernelReport]] = {}
    for launched in launches(unit):
        seen.setdefault(launched.report.symbol, []).append(launched.report)
    if not seen or unit.lowered is None:
        raise SmeltError(
            f"{unit.captured.name} has no kernel of its own",
            why="every node runs in a library, as a view or as a constant",
            fix="`smelt explain` shows how each node runs",
            code="S0106",
        )
    texts = unit.lowered.report.texts
    return "\n\n".join(_section(symbol, group, texts[symbol], form) for symbol, group in seen.items())


def _section(symbol: str, group: Sequence[KernelReport], text: str, form: Form) -> str:
    times = "once" if len(group) == 1 else f"{len(group)} times"
    heads = [f"; kernel {short_name(symbol)}, launched {times}"]
    heads += [f";   {', '.join(report.nodes)}" for report in _distinct(group) if report.nodes]
    heads += [f";   in {', '.join(report.scopes)}" for report in _distinct(group) if report.scopes]
    heads += [f";   at {place}" for place in dict.fromkeys(p for report in group for p in report.where)]
    if form == "loops":
        bodies = list(dict.fromkeys(report.listing or report.label or "(no loops to show)" for report in group))
        return "\n".join((*heads, *bodies))
    return "\n".join((*heads, text.strip() if form == "llvm" else assembly(text).strip()))


def _distinct(group: Sequence[KernelReport], most: int = 4) -> Sequence[KernelReport]:
    """The first few reports of different nodes: forty-eight equal lines tell no more than four."""
    return list({report.nodes: report for report in group}.values())[:most]


def assembly(text: str) -> str:
    """The assembly of a kernel's LLVM text for this machine. Raises: SmeltError (S0106) where there is no target."""
    isa = host_isa()
    if isa is None:
        raise SmeltError(
            "there is no assembly here",
            why="own kernels are not made for this machine, or SMELT_ISA=none",
            fix="unset SMELT_ISA",
            code="S0106",
        )
    return assembly_of(text, isa)
