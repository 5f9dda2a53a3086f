"""The plan of a graph whose tensors are on a GPU: launches of kernels, torch's operators, views and writes between.

    %1 = mul %x, %w; %2 = sort %1; write %y, %2      ==>      call launch 0; dispatch sort; copy into %y

Launches are called by the plan as operators are, each as one graph of the driver. A value that Python or the plan
itself needs (a number, the test of a branch) is read there, which waits for the GPU: the report names each such node.
Numbers of the host's tensors are native, as on the CPU, and what only a write needs is computed where it is written.
Invariant: every tensor that a plan makes is one of torch's own, on the caller's stream; nothing is in the CPU's arena.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from struct import Struct
from time import perf_counter
from typing import Any, Final

import torch

from smelt._torch.gpu import tf32_flags
from smelt.analysis.devices import devices_at, devices_of, on_cpu
from smelt.codegen.fusion.cost import NestCost, cost
from smelt.codegen.fusion.groups import Facts
from smelt.codegen.fusion.schedule import schedule
from smelt.codegen.lower.builder import PlanBuilder, Storage
from smelt.codegen.lower.context import Context, cannot_lower
from smelt.codegen.lower.expects import lower_expect
from smelt.codegen.lower.generic import dispatch
from smelt.codegen.lower.gpu.choices import Chooser
from smelt.codegen.lower.gpu.deciding import CONTROL, Decided, why_no_kernels, with_decided
from smelt.codegen.lower.gpu.planner import ITEM, Tf32, gpu_program
from smelt.codegen.lower.gpu.program import GpuProgram
from smelt.codegen.lower.gpu.segments import Piece, pieces
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.in_place import InPlace, memory_of
from smelt.codegen.lower.memory.output_choices import Choice
from smelt.codegen.lower.memory.outputs import lower_outputs
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.lower.memory.views import lower_resolved, lower_unpack, lower_view
from smelt.codegen.lower.memory.writes import lower_write, mutations
from smelt.codegen.lower.preparing import Prepared, prepared
from smelt.codegen.lower.python.numbers import element_type, lower_number
from smelt.codegen.lower.python.plain import is_number, is_plain
from smelt.codegen.lower.python.python_nodes import lower_python
from smelt.codegen.lower.python.scalars import lower_with_numbers
from smelt.codegen.lower.python.sized_block import Compile
from smelt.codegen.lower.report import KernelReport, MemoryReport, Report
from smelt.codegen.lower.result import Lookup, Lowered
from smelt.codegen.triton.random import Processors
from smelt.diag import Options, SmeltError
from smelt.diag.records import record
from smelt.ir import BOOL, FLOAT, INT, STATE_OPS, Arg, Graph, Node, TensorType, Type, Value
from smelt.ir.sizes import current_trace
from smelt.ops.convert import dtype_to_torch
from smelt.ops.effects import effects
from smelt.ops.evaluate import evaluate, no_state
from smelt.ops.python.python_ops import NAMESPACES
from smelt.runtime.cuda.machine import Machine, machine
from smelt.runtime.cuda.segment import Forms, Made, Segment
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.plan import PyCall

_PACKED: Final[dict[Type, str]] = {FLOAT: "d8x", INT: "q8x", BOOL: "?15x"}
"""How numbers of a call lie in memory, `NUMBER_NBYTES` each."""
_MEASURED = 3
"""How often a graph is divided anew because something was measured: what torch computes leaves other nodes together."""
_TRIES = 8
"""How often a graph is divided anew because a kernel was refused, before all that is left is torch's."""


def gpu_of(graph: Graph) -> str:
    """The GPU that a graph's tensors are on, "cuda:0"; empty if none is. Raises: SmeltError (S0303) for several."""
    found = sorted(device for device in devices_of(graph) if device.startswith("cuda"))
    if len(found) > 1:
        raise SmeltError(
            f"the program has tensors on {' and '.join(found)}",
            why="a program is compiled for one GPU",
            fix="nothing needs to be done: the program runs eagerly; compile what runs on each by itself",
            code="S0303",
        )
    return found[0] if found else ""


class _Builder(PlanBuilder):
    """Memory that the plan wants is torch's, on the GPU."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self._device = torch.device(device)

    def empty(self, geometry: Geometry, dtype: torch.dtype) -> Storage:
        storage = self.made(geometry, dtype, checked=True)
        make = partial(torch.empty_strided, geometry.sizes, geometry.strides, dtype=dtype, device=self._device)
        self.emit(PyCall(make, (), (storage.slot,)))
        return storage

    def arena(self, geometry: Geometry, dtype: torch.dtype) -> Storage:
        return self.empty(geometry, dtype)


def lower_on_gpu(
    graph: Graph, state: Lookup, options: Options, device: str, compiler: Compile, *, later: bool
) -> Lowered:
    """The plan of a graph on a GPU. compiler: of what stands in branches and loops, through which Python goes.

    Raises: SmeltError (S0303) where a node has no form in a plan, S0305 without a compiler of kernels, S0405 without a
        driver.
    """
    if current_trace() is not None:
        raise SmeltError("kernels of a GPU are planned for known sizes", code="S0303")
    start = perf_counter()
    found = machine(torch.device(device).index or 0)
    ready = prepared(graph, options)
    tf32, processors = Tf32(*tf32_flags()), Processors(*found.processors)
    decided, chosen = _decided(ready, device, found, partial(gpu_program, tf32=tf32, processors=processors))
    graph = decided.graph
    ctx = Context(graph, state, options)
    ctx.builder, ctx.compiler = _Builder(device), compiler
    ctx.told.update(choice.which for choice in chosen.values())
    for value in graph.inputs:
        ctx.add_input(value)
    made = _Body(ctx, device, found, decided)
    made.lower()
    slots, outputs = lower_outputs(ctx, chosen)
    plan = ctx.builder.finish(slots)
    ctx.fills.start()
    if not later:
        ctx.fills.finish()
    nodes = tuple(ctx.nodes[node] for node in graph.walk() if node in ctx.nodes)
    memory = MemoryReport(made.arena_nbytes, made.arena_nbytes, 0, ctx.statics.folded_nbytes, made.arena_nbytes)
    stages = (*ready.stages, ("lower for the GPU", round((perf_counter() - start) * 1000, 3)))
    choices = () if made.chooser is None else made.chooser.reports()
    nests = tuple(kernel.nest for one in made.launched for kernel in one.program.kernels)
    report = Report(nodes, choices, memory, stages, tuple(made.kernels), made.texts, nests=nests)
    return Lowered(plan, outputs, mutations(ctx), ctx.handles, ctx.statics.baked, report, fills=ctx.fills)


def chooser_of(options: Options, found: Machine) -> Chooser | None:
    """What says how products are computed; None where the rule does."""
    cache = code_cache(options.cache_dir, options.cache_limit_mb)
    if options.numerics == "eager-library":
        return Chooser(found, cache, 0.0, always=True)
    if options.deterministic or not options.measure:
        return None
    return Chooser(found, cache, options.measure_seconds)


def _decided(
    ready: Prepared, device: str, found: Machine, planned: Callable[[Graph], GpuProgram]
) -> tuple[Decided, Mapping[int, Choice]]:
    """The graph with the branches and loops that the GPU decides, and what tells which memory an output is, there."""
    graph, chosen = ready.graph, ready.chosen
    if not any(node.op in CONTROL for node in graph.body):
        return Decided(graph, (), frozenset(), {}), chosen

    kept = [value for choice in chosen.values() for value in (choice.which, *choice.options)]
    made = with_decided(graph, device, partial(why_no_kernels, planned), kept, found.why_no_conditions())
    rest = iter(made.kept)
    return made, {n: Choice(next(rest), tuple(next(rest) for _ in one.options)) for n, one in chosen.items()}


@record
class _Launched:
    """A piece with its kernels."""

    piece: Piece
    name: str
    program: GpuProgram
    unaligned: Callable[[], GpuProgram]


class _Body:
    """The nodes of a graph, in launches and one by one."""

    def __init__(self, ctx: Context, device: str, found: Machine, decided: Decided) -> None:
        self.ctx, self.device, self.machine, self.decided = ctx, device, found, decided
        self.processors = Processors(*found.processors)
        self.tf32 = Tf32(*tf32_flags())
        self.kernels: list[KernelReport] = []
        self.texts: dict[str, str] = {}
        self.arena_nbytes = 0
        self.facts = Facts.of(ctx.graph)
        self.in_place = InPlace(ctx)
        self.order: list[Node] = []
        self.chooser = chooser_of(ctx.options, found)
        self.launched = self._divided()

    def _divided(self) -> list[_Launched]:
        """Launches all of whose nodes have kernels."""
        ctx = self.ctx
        left_out: set[Node] = set()
        measured = attempt = 0
        while attempt < _TRIES:
            if self.chooser is not None:
                self.chooser.begin()
            made: list[_Launched] = []
            refused = set[Node]()
            found = pieces(ctx.graph, self.device, left_out, ctx.statics, self.decided.nodes)
            units = [piece.nodes for piece in found]
            self.order = schedule(ctx.graph, self.facts, units)
            self.in_place.settle(self.order, units, frozenset())
            for number, divided in enumerate(found):
                name = f"{ctx.graph.name}.{number}"
                piece, written = self._written(divided)
                one = on_cpu(piece.graph(ctx.graph, name))
                plan = partial(gpu_program, one, tf32=self.tf32, processors=self.processors, written=written)
                # Numbered on from launch to launch.
                before = sum(len(one.program.kernels) for one in made)
                steps = tuple(replace(s, kernel=s.kernel - before) for s in ctx.options.loops if s.kernel >= before)
                program = plan(chooser=self.chooser, steps=steps)
                made.append(_Launched(piece, name, program, partial(plan, is_aligned=False, steps=steps)))
                refused |= self._refused(piece, program)
            if self.chooser is not None and measured < _MEASURED and self.chooser.measure():
                measured += 1
                continue
            attempt += 1
            if not refused:
                return made
            if self.chooser is not None:
                self.chooser.give()
            left_out |= refused if attempt < _TRIES - 1 else {n for one in made for n in one.piece.nodes}
        return []

    def _written(self, piece: Piece) -> tuple[Piece, dict[int, int]]:
        """A launch, and which of its results it may compute where they are written to: in which of its arguments."""
        ctx = self.ctx
        found: dict[int, int] = {}
        tensors = [value for value in piece.inputs if not is_number(value.type)]
        memories = [memory_of(ctx, value) for value in tensors]
        for value, target in self.in_place.targets(piece.nodes, piece.outputs).items():
            into = target.write.args[0]
            memory = memory_of(ctx, into)
            if target.source is not value or target.place != target.whole or not isinstance(into, Value):
                continue
            if memory not in memories:
                tensors.append(into)
                memories.append(memory)
            at = memories.index(memory)
            if memories.count(memory) == 1 and ctx.origin(tensors[at]) == target.whole:
                found[piece.outputs.index(value)] = at
        return replace(piece, inputs=(*tensors, *(v for v in piece.inputs if is_number(v.type)))), found

    def _refused(self, piece: Piece, program: GpuProgram) -> set[Node]:
        """The nodes of the whole graph that have no kernel."""
        names = {result.name for node, _ in program.refused for result in node.results}
        inside = (n for v in piece.inputs for n in v.users if isinstance(n, Node) and view_source(n) is not None)
        return {n for n in (*piece.nodes, *inside) if any(r.name in names for r in n.results)}

    def lower(self) -> None:
        """Lower all nodes."""
        units = [one.piece.nodes for one in self.launched]
        ends = {one.piece.nodes[-1]: one for one in self.launched}
        inside = {node for unit in units for node in unit}
        # What exists inside of a launch only, and views of it.
        gone = {r for one in self.launched for n in one.piece.nodes for r in n.results} - {
            value for one in self.launched for value in one.piece.outputs
        }
        for node in self.order:
            self.ctx.enter(node)
            if node in ends:
                self._launch(ends[node])
            elif view_source(node) in gone:
                gone.update(node.results)
            elif node not in inside:
                self._single(node)

    def _launch(self, one: _Launched) -> None:
        ctx, options = self.ctx, self.ctx.options
        cache = code_cache(options.cache_dir, options.cache_limit_mb)
        arch = self.machine.arch
        plan = one.program.compiled(arch, cache)
        results: dict[int, Made] = {}
        homes: list[int | None] = []
        for place, dtype in one.program.results:
            at, memory = place.geometry, plan.memories[place.memory]
            homes.append(memory.number if memory.kind == "argument" else None)
            if memory.kind == "result":
                results[memory.number] = Made(at.sizes, at.strides, dtype_to_torch(dtype))
        if len(results) != homes.count(None) or len(homes) != len(one.piece.outputs):
            raise cannot_lower(one.piece.nodes[-1], "a launch's result is no memory of its own")
        eager = partial(_eagerly, one.piece.graph(ctx.graph, one.name))
        refusing = (n.span for k in one.program.kernels if k.kernel.source.can_fail for n in k.nodes)
        forms = Forms(
            plan,
            lambda: one.unaligned().compiled(arch, cache),
            eager,
            tuple(results[n] for n in sorted(results)),
            tuple(homes),
            Struct("<" + "".join(_PACKED[v.type] for v in one.piece.inputs if is_number(v.type))),
            next(filter(None, refusing), None),
            not self.kernels,
        )
        segment = Segment(one.name, self.machine, forms)
        args = []
        for value in one.piece.inputs:
            if is_number(value.type):
                args.append(ctx.number(value).slot)
                continue
            args.append(ctx.slot(value))
            ctx.builder.check(ctx.place(value).storage)
        made = [value for value, home in zip(one.piece.outputs, homes, strict=True) if home is None]
        for value, target in self.in_place.targets(one.piece.nodes, one.piece.outputs).items():
            if value not in made:
                ctx.in_place[target.write] = True
                ctx.bind(value, target.whole)
        ctx.builder.emit(
            PyCall(segment, tuple(args), tuple(map(ctx.result, made)), tuple(h for h in homes if h is not None))
        )
        self.arena_nbytes += plan.arena_nbytes
        for node in one.piece.nodes:
            ctx.note(node, "kernel", f"{one.name}, decided by the GPU" if node.regions else one.name)
        self._report(one.program)

    def _report(self, program: GpuProgram) -> None:
        for kernel in program.kernels:
            source = kernel.kernel.source
            self.texts[source.name] = source.text
            names = tuple(f"%{node.results[0].name} = {node.op}" for node in kernel.nodes if node.results)
            where = tuple(dict.fromkeys(f"{n.span.file}:{n.span.line}" for n in kernel.nodes if n.span is not None))
            scopes = tuple(dict.fromkeys(node.scope for node in kernel.nodes if node.scope))
            form = kernel.kernel.form
            paid = NestCost(0, 0) if kernel.nest is None else cost(kernel.nest)
            self.kernels.append(
                KernelReport(
                    source.name,
                    form,
                    kernel.text,
                    names,
                    where,
                    scopes,
                    kernel.kernel.programs,
                    paid.nbytes,
                    paid.operations,
                )
            )

    def _read(self, node: Node) -> None:
        """A number that a tensor holds, for the host."""
        ctx, (tensor,) = self.ctx, node.operands()
        if devices_at(node) <= {"cpu"} and lower_number(ctx, node):
            return
        slot = ctx.slot(tensor, any_layout=True)
        ctx.builder.check(ctx.place(tensor).storage)
        ctx.builder.emit(PyCall(_element, (slot,), (ctx.number(node.result).slot,)))
        ctx.note(node, "python", f"{node.op}, which waits for the GPU")

    def _single(self, node: Node) -> None:
        """A node outside of all launches."""
        ctx = self.ctx
        if node.op in STATE_OPS:
            ctx.note(node, "state")
            if not ctx.statics.is_static(node.result):
                ctx.add_state(node.result)
        elif node.results and all(ctx.statics.is_static(r) for r in node.results):
            ctx.note(node, "static")
        elif node.op == "write":
            lower_write(ctx, node)
        elif (
            not any(r.users or r in ctx.told for r in node.results)
            and effects(node).is_pure
            and not effects(node).may_throw
        ):
            ctx.note(node, "unused")
        elif node.op == "expect" and devices_at(node) <= {"cpu"}:
            lower_expect(ctx, node)
        elif node.op == ITEM and element_type(next(node.operands()).type) is not None:
            self._read(node)
        elif not is_plain(node) or node.op == "expect" or node.op.startswith(NAMESPACES):
            if devices_at(node) <= {"cpu"} and lower_number(ctx, node):
                return
            lower_python(ctx, node)
            why = self.decided.why.get(node, "")
            if _is_awaited(node):
                ctx.note(node, "python", f"{node.op}, which waits for the GPU" + (f": {why}" if why else ""))
            elif why:
                ctx.note(node, "python", f"{node.op}, which the host goes through: {why}")
        elif node.op == "unpack":
            lower_unpack(ctx, node)
        elif (source := view_source(node)) is not None:
            lower_view(ctx, node, source)
        elif not (node.op in _RESOLVED and lower_resolved(ctx, node)) and not (
            devices_at(node) == {"cpu"} and lower_with_numbers(ctx, node)
        ):
            dispatch(ctx, node)


def _element(tensor: torch.Tensor) -> tuple[Any]:
    return (tensor.item(),)


def _is_awaited(node: Node) -> bool:
    """Whether Python reads what is in a GPU's memory: a number of a tensor, the test of a branch or a loop."""
    nodes = [node, *(inner for region in node.regions for inner in region.walk())]
    read = [n for n in nodes if n.op == "expect" or any(is_number(r.type) for r in n.results)]
    tests = [arg for n in nodes if n.op in ("if", "while") for arg in (*n.args[:1], *_tests(n))]
    values = [*(v for n in read for v in n.operands()), *tests]
    types = [value.type for value in values if isinstance(value, Value)]
    return any(isinstance(t, TensorType) and t.device != "cpu" for t in types)


def _tests(node: Node) -> tuple[Arg, ...]:
    return tuple(node.regions[0].yields[:1]) if node.op == "while" else ()


_RESOLVED = ("aten.resolve_conj.default", "aten.resolve_neg.default")


def _eagerly(graph: Graph, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    return evaluate(graph, tensors, no_state)
