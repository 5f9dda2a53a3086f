"""A plan as a page shows it: steps in order, kernels with their texts, buffers with their lives, decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.llvm.objects import assembly_of
from smelt.codegen.lower.report import KernelReport, Report
from smelt.inspect.page.model import Buffer, Chosen, Decided, Kernel, Ran, Step
from smelt.inspect.page.stages import value_names
from smelt.runtime import plan as p
from smelt.runtime.failures import describe
from smelt.runtime.profile import ProfileRow

_KINDS: Mapping[type, str] = {
    p.Launch: "kernel", p.Call: "library", p.Dispatch: "dispatcher", p.PyCall: "python", p.Aside: "python",
    p.Copy: "move", p.Blit: "move", p.View: "move", p.Empty: "memory", p.Release: "memory", p.Bump: "memory",
    p.CheckLayout: "memory",
    p.Scalar: "number", p.Load: "number", p.Expect: "number",
}  # fmt: skip
"""What kind of step an instruction is; all others are of blocks."""


def kernels_of(report: Report) -> list[Kernel]:
    """The kernels that a plan launches, each once, in order of first use."""
    first: dict[str, KernelReport] = {}
    for launched in report.kernels:
        first.setdefault(launched.symbol, launched)
    isa = host_isa()
    return [
        Kernel(
            symbol,
            launched.listing or launched.label,
            text := report.texts.get(symbol, ""),
            assembly_of(text, isa) if text and isa is not None else "",
        )
        for symbol, launched in first.items()
    ]


def steps_of(plan: p.Plan, report: Report, profile: Sequence[ProfileRow]) -> list[Step]:
    """The instructions of a plan, launches with what they compute. profile: what each took, where it was measured."""
    number = {symbol: i for i, symbol in enumerate(dict.fromkeys(k.symbol for k in report.kernels))}
    times = {row.index: row.min_ns / 1e3 for row in profile if row.calls}
    launched = iter(report.kernels)
    steps: list[Step] = []
    for index, instruction in enumerate(plan.instructions):
        origin = plan.origins[index] if plan.origins else ""
        nodes, kernel, moved, flops = value_names(origin), -1, 0, 0
        writes = p.outs_of(instruction)
        what = describe(instruction)
        if isinstance(instruction, p.Launch):
            told = next(launched)
            nodes = [name for text in told.nodes for name in value_names(text)] or nodes
            kernel, moved, flops = number[told.symbol], plain(told.nbytes), plain(told.flops)
            writes = tuple(instruction.buffers[i] for i in instruction.writes)
            what = told.label or ", ".join(text.split(" = ")[-1] for text in told.nodes) or what
        elif isinstance(instruction, p.Copy | p.Blit):
            writes = (instruction.dst,)
        kind = _KINDS.get(type(instruction), "block")
        reads = tuple(slot for slot in p.uses_of(instruction) if slot not in writes)
        steps.append(Step(kind, what, nodes, kernel, moved, flops, times.get(index), reads, writes))
    return steps


def buffers_of(plan: p.Plan, steps: Sequence[Step]) -> list[Buffer]:
    """What a call holds of memory from where it is first used to where it is last: the arena, then results."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    maker: dict[int, str] = {}
    source = {i.dst: i.src for i in plan.instructions if isinstance(i, p.View)}
    for index, step in enumerate(steps):
        for slot in (*step.reads, *step.writes):
            while slot in source:
                slot = source[slot]
            first.setdefault(slot, index)
            last[slot] = index
        for slot in step.writes:
            maker.setdefault(slot, _named(step))
    loops = _loops(plan)
    for slot, index in last.items():
        # What a loop uses of before it is used in each of its turns.
        ends = [end for begin, end in loops if first[slot] < begin <= index <= end]
        last[slot] = max([index, *ends])
    for slot in plan.outputs:
        last[slot] = len(steps)
    found = [
        Buffer(t.slot, plain(t.offset), plain(t.nbytes), first[t.slot], last[t.slot], maker.get(t.slot, ""))
        for t in plan.arena
        if t.slot in first
    ]
    for instruction in plan.instructions:
        if isinstance(instruction, p.Empty) and instruction.dst in first:
            slot = instruction.dst
            size = plain(p.ArenaTensor(slot, 0, instruction.sizes, instruction.strides, instruction.dtype).nbytes)
            found.append(Buffer(slot, -1, size, first[slot], last[slot], maker.get(slot, "")))
    return found


def _named(step: Step) -> str:
    return f"%{step.nodes[-1]}" if step.nodes else step.what


def _loops(plan: p.Plan) -> list[tuple[int, int]]:
    """First and last instruction of each loop."""
    opened: list[tuple[int, bool]] = []
    found: list[tuple[int, int]] = []
    for index, instruction in enumerate(plan.instructions):
        if isinstance(instruction, p.Loop | p.Branch):
            opened.append((index, isinstance(instruction, p.Loop)))
        elif isinstance(instruction, p.End) and opened:
            begin, is_loop = opened.pop()
            if is_loop:
                found.append((begin, index))
    return found


def ran_of(report: Report) -> dict[str, Ran]:
    """How each node runs, by the name of its first result."""
    return {node.value: Ran(node.how, node.target) for node in report.nodes}


def decisions_of(report: Report) -> list[Decided]:
    """What was fused and what was not, and why."""
    return [
        Decided(
            [name for text in decision.group for name in value_names(text)],
            decision.fused,
            decision.why,
            plain(decision.nbytes_before),
            plain(decision.nbytes_after),
        )
        for decision in report.decisions
    ]


def choices_of(report: Report) -> list[Chosen]:
    """Which implementation was taken for products, convolutions and attention."""
    return [
        Chosen(c.shape, c.chosen, c.reason, c.nodes, {one.name: one.latency_us for one in c.candidates})
        for c in report.choices
    ]


def plain(count: object) -> int:
    """A count as a number; one that follows from the sizes of a call is told as 0."""
    return count if type(count) is int else 0
