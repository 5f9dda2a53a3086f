"""Graphs whose types hold sizes of a trace: their groups emitted once, and run at any tuple of sizes beside torch.

Nodes that are in no group, and views outside of groups, are torch's. Every stored value lies in row-major order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from smelt.codegen.fusion.build import Built, build
from smelt.codegen.fusion.chunks import Stage, stages
from smelt.codegen.fusion.groups import Group
from smelt.codegen.fusion.partition import Partition, partition
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.schedule import schedule
from smelt.codegen.llvm.isa import Isa
from smelt.codegen.llvm.nests.nest_ir import EmittedKernel, emit_nests
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.lower.nests import refusal
from smelt.ir import Builder, DType, Graph, Node, TensorType, TupleType, Value, values_in
from smelt.ir.sizes import MARK, Evaluation, Range, Trace, tracing, value
from smelt.ops.convert import dtype_to_torch, to_torch
from smelt.ops.registry import arguments_of, overload, schema_of
from smelt.ops.shapes.views import Layout, view_layouts
from tests.kernels.machine import call, machine_isas

Sizes: TypeAlias = Mapping[str, int]
Make: TypeAlias = Callable[["Sheet", Sizes], Sequence[Value]]


class Sheet:
    """A graph in the making; the caller tells each result's sizes."""

    def __init__(self) -> None:
        self.builder = Builder(Graph("sheet"))

    def input(self, *sizes: int, dtype: DType = DType.F32) -> Value:
        graph = self.builder.graph
        return self.builder.add_param(graph.body, f"x{len(graph.inputs)}", TensorType(dtype, sizes))

    def parts(self, op: str, *args: Any, to: Sequence[Sequence[int]]) -> list[Value]:
        """The tensors of a list that a node gives, views of its first argument."""
        base, types = args[0], [TensorType(DType.F32, tuple(sizes)) for sizes in to]
        packed = self.builder.add(f"aten.{op}", args, (TupleType(tuple(types)),)).result
        made = self.builder.add("unpack", (packed,), types).results
        for part, lies in zip(made, _views(packed, base, Geometry.of(base.type)), strict=True):
            part.type = TensorType(DType.F32, lies.sizes, lies.strides)
        packed.type = TupleType(tuple(part.type for part in made))
        return list(made)

    def add(self, op: str, *args: Any, to: Sequence[int], dtype: DType = DType.F32, **kwargs: Any) -> Value:
        """A node with one result, of these sizes: row-major, or as a view of its operand lies."""
        made = self.builder.add(f"aten.{op}", args, (TensorType(dtype, tuple(to)),), kwargs).result
        base = _source(made)
        if base is not None:
            assert isinstance(base.type, TensorType)
            lies = _view(made, base, Geometry.of(base.type))
            made.type = TensorType(dtype, lies.sizes, lies.strides)
        return made


@dataclass(frozen=True)
class Emitted:
    """A group's nest as kernels."""

    group: Group
    built: Built
    kernels: tuple[tuple[Stage, EmittedKernel], ...]


@dataclass(frozen=True)
class Lowered:
    """What one trace gave."""

    trace: Trace
    graph: Graph
    parts: Partition
    emitted: tuple[Emitted, ...]
    isa: Isa

    def holds(self, sizes: Sizes) -> bool:
        at = Evaluation(self.trace, sizes)
        return all(map(at.holds, self.trace.guards))

    @property
    def symbols(self) -> tuple[str, ...]:
        """The kernels' names."""
        return tuple(kernel.source.symbol for one in self.emitted for _, kernel in one.kernels)

    def words(self, at: Callable[[Any], Any]) -> list[Any]:
        """Everything that a launch gives, but for estimates of its time."""
        kernels = [kernel for one in self.emitted for _, kernel in one.kernels]
        return [at((k.words, k.items, k.scratch_nbytes)) for k in kernels]

    def run(self, sizes: Sizes, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The graph's outputs at sizes, groups by their kernels."""
        return _Run(self, Evaluation(self.trace, sizes), tensors).outputs()

    def eager(self, sizes: Sizes, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The graph's outputs by torch."""
        at = Evaluation(self.trace, sizes)
        memory: dict[Value, Any] = dict(zip(self.graph.inputs, tensors, strict=True))
        for node in self.graph.body:
            _run_node(node, memory, at)
        return [memory[v] for arg in self.graph.outputs for v in values_in(arg)]


def lower(
    make: Make,
    hints: Sizes,
    replay: Mapping[str, Any] | None = None,
    *,
    low: int = 2,
    high: int | None = None,
    isa: Isa | None = None,
) -> Lowered:
    """The groups of a graph as kernels, made at `hints` for all sizes from `low` to `high`."""
    isa = isa or machine_isas()[0]
    with tracing({name: (hint, Range(low, high)) for name, hint in hints.items()}, replay) as trace:
        sheet = Sheet()
        outputs = make(sheet, trace.symbols)
        sheet.builder.finish(tuple(outputs))
        graph = sheet.builder.graph
        parts = partition(graph, lambda built: refusal(built.nest, isa))
        emitted = tuple(_emitted(group, parts, isa) for group in parts.groups)
    assert not trace.leaks, trace.leaks
    for one in emitted:
        for _, kernel in one.kernels:
            assert MARK not in kernel.source.text
    return Lowered(trace, graph, parts, emitted, isa)


def check_replay(made: Lowered, make: Make, sizes: Sizes, *, low: int = 2, high: int | None = None) -> None:
    """Made at other sizes with the same decisions there are the same kernels, and the words are those of the first."""
    again = lower(make, sizes, made.trace.decisions, low=low, high=high, isa=made.isa)
    assert again.symbols == made.symbols
    assert made.words(Evaluation(made.trace, sizes)) == again.words(_at_hand)


def _at_hand(x: Any) -> Any:
    return tuple(map(_at_hand, x)) if isinstance(x, tuple) else value(x)


def _emitted(group: Group, parts: Partition, isa: Isa) -> Emitted:
    built = build(group.roots, parts.facts.inside(group.nodes), RULES, where_it_lies, where_it_lies)
    return Emitted(group, built, tuple((s, k) for s in stages(built.nest) for k in emit_nests(s.nest, isa)))


def where_it_lies(of: Value) -> Memory:
    """A value in row-major memory of its own, a view in that of what it is a view of."""
    base = _source(of)
    if base is None:
        assert isinstance(of.type, TensorType)
        return Memory(of, f"%{of.name}", Geometry.of(of.type))
    memory = where_it_lies(base)
    assert of.node is not None
    if of.node.op == "unpack":
        (packed,) = of.node.operands()
        return Memory(memory.key, memory.name, _views(packed, base, memory.geometry)[of.node.results.index(of)])
    return Memory(memory.key, memory.name, _view(of, base, memory.geometry))


def _views(of: Value, base: Value, at: Geometry) -> list[Geometry]:
    """How the views that a node makes of what lies `at` lie."""
    assert of.node is not None
    schema = schema_of(of.node.op)
    assert schema is not None
    layout = Layout(at.sizes, at.strides, at.offset)
    found = view_layouts(of.node.op, layout, arguments_of(schema, of.node.args, of.node.kwargs))
    assert found is not None, f"{of.node.op} is not told by strides"
    return [Geometry(one.sizes, one.strides, one.offset) for one in found]


def _view(of: Value, base: Value, at: Geometry) -> Geometry:
    return _views(of, base, at)[0]


def _source(of: Value) -> Value | None:
    """What a value is a view of; of an element of a list what the list's elements are views of."""
    if of.node is None:
        return None
    if of.node.op == "unpack":
        (packed,) = of.node.operands()
        return _source(packed)
    return view_source(of.node)


class _Run:
    def __init__(self, made: Lowered, at: Evaluation, tensors: Sequence[torch.Tensor]) -> None:
        self.made, self.at = made, at
        self.memory: dict[Any, Any] = dict(zip(made.graph.inputs, tensors, strict=True))

    def outputs(self) -> list[torch.Tensor]:
        made = self.made
        ends = {one.group.nodes[-1]: one for one in made.emitted}
        covered = {node for one in made.emitted for node in one.group.nodes}
        for node in schedule(made.graph, made.parts.facts, [one.group.nodes for one in made.emitted]):
            if node in ends:
                self._run_group(ends[node])
            elif node not in covered and all(v in self.memory for v in node.operands()):
                _run_node(node, self.memory, self.at)
        return [self.memory[v] for arg in made.graph.outputs for v in values_in(arg)]

    def _run_group(self, one: Emitted) -> None:
        for root in one.group.roots:
            assert isinstance(root.type, TensorType)
            self.memory[root] = torch.full(self.at(root.type.sizes), 77, dtype=dtype_to_torch(root.type.dtype))
        spare: dict[int, torch.Tensor] = {}
        for stage, kernel in one.kernels:
            buffers = []
            for number in stage.buffers:
                if number >= 0:
                    buffers.append(self.memory[one.built.keys[number]])
                    continue
                if number not in spare:
                    size, dtype = stage.partials[-1 - number]
                    spare[number] = torch.zeros(self.at(size), dtype=dtype_to_torch(dtype))
                buffers.append(spare[number])
            words, items, scratch = self.at((kernel.words, kernel.items, kernel.scratch_nbytes))
            ranges = [(0, items // 2), (items // 2, items)]  # items are independent
            if call(kernel.source, self.made.isa, buffers, words, ranges, scratch):
                raise IndexError("a kernel refuses an index")
        self._check_ways(one)

    def _check_ways(self, one: Emitted) -> None:
        """Of the kernels of one nest one has items."""
        for stage in dict.fromkeys(id(stage) for stage, _ in one.kernels):
            items = [self.at(kernel.items) for s, kernel in one.kernels if id(s) == stage]
            assert sum(n > 0 for n in items) == 1, items


def _run_node(node: Node, memory: dict[Any, Any], at: Evaluation) -> None:
    def bound(arg: Any) -> Any:
        if isinstance(arg, Value):
            return memory[arg]
        return [bound(a) for a in arg] if isinstance(arg, tuple) else to_torch(at(arg))

    if node.op == "unpack":
        memory.update(zip(node.results, bound(node.args[0]), strict=True))
        return
    op = overload(node.op)
    assert op is not None
    made = op(*map(bound, node.args), **{k: bound(v) for k, v in node.kwargs.items()})
    if isinstance(made, torch.Tensor) and _source(node.result) is None:
        made = made.contiguous()
    memory[node.result] = made


def check_close(got: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> None:
    """Equal to eager's but for roundings: no further from float64 than a few times what eager is, or a few units."""
    assert got.shape == eager.shape
    assert got.dtype == eager.dtype
    if not got.is_floating_point():
        assert torch.equal(got, eager)
        return
    a, b, c = got.double(), eager.double(), exact.double()
    assert torch.equal(a.isnan(), b.isnan())
    finite = c.isfinite() & b.isfinite()
    assert torch.equal(a[~finite].nan_to_num(), b[~finite].nan_to_num())
    if not bool(finite.any()):
        return
    unit = torch.finfo(got.dtype).eps * max(1.0, float(c[finite].abs().max()))
    allowed = 4 * float((b - c)[finite].abs().max()) + 16 * unit
    worst = float((a - c)[finite].abs().max())
    assert worst <= allowed, f"off by {worst}, eager by {float((b - c)[finite].abs().max())}"


def check(
    make: Make,
    hints: Sizes,
    others: Sequence[Sizes],
    *,
    outside: Sequence[Sizes] = (),
    low: int = 2,
    high: int | None = None,
    isa: Isa | None = None,
    fused: bool = True,
) -> Lowered:
    """A graph made at `hints`, run there and at others beside eager and eager in float64; those outside miss a guard.

    fused: whether every operator but views must be in a kernel.
    """
    made = lower(make, hints, low=low, high=high, isa=isa)
    if fused:
        covered = {node for one in made.emitted for node in one.group.nodes}
        left = [n for n in made.graph.body if n not in covered and _source(n.results[0]) is None]
        assert not [n.op for n in left if n.op != "unpack"], [d.why for d in made.parts.decisions]
    for sizes in (hints, *others):
        assert made.holds(sizes), [str(g) for g in made.trace.guards]
        tensors = draw(made, sizes)
        got, eager = made.run(sizes, tensors), made.eager(sizes, tensors)
        exact = made.eager(sizes, [t.double() if t.is_floating_point() else t for t in tensors])
        for one in zip(got, eager, exact, strict=True):
            check_close(*one)
    for sizes in outside:
        assert not made.holds(sizes)
    for sizes in others[:2]:
        check_replay(made, make, sizes, low=low, high=high)
    return made


def draw(made: Lowered, sizes: Sizes) -> list[torch.Tensor]:
    """Inputs of a graph at sizes: floats of about 1, integers of 0 and 1."""
    at = Evaluation(made.trace, sizes)
    generator = torch.Generator().manual_seed(0)
    found = []
    for given in made.graph.inputs:
        assert isinstance(given.type, TensorType)
        shape, dtype = at(given.type.sizes), dtype_to_torch(given.type.dtype)
        if dtype.is_floating_point:
            found.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            found.append(torch.randint(0, 2, shape, generator=generator).to(dtype))
    return found
