"""A whole graph as kernels for a GPU: its groups of fused nodes as Triton text, memory for what they pass on.

    %1 = mul %x %w; %2 = softmax %1        ==>        launch rows(x, w, result 0)
    %2 = if %1 { ... yield %3 } else ...   ==>        if byte of %1: (launches, which end in the memory of %2), (...)

A region is planned as a graph of its own, whose arguments are memories around it. What a loop carries has one memory,
in which its body computes the next value where nothing reads the last one any more; else it is copied there at the end.

Groups and nests are those of the CPU; products and convolutions are nests, too (`units`). Nodes without a kernel are
refused, with the reason: a program that has one does not run on a GPU yet, but its other kernels can be read.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from smelt.analysis.liveness import taken_by
from smelt.codegen.fusion.build import Built, build, tidied
from smelt.codegen.fusion.chunks import Stage, stages
from smelt.codegen.fusion.groups import Facts, Group
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.partition import partition
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.activations import without_vectors
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.codegen.fusion.schedule import Delays, schedule
from smelt.codegen.fusion.tidy import mapped_statement
from smelt.codegen.kernels.nest import Buffer, Index, Load, Nest, Store
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.lower.gpu.attentions import ATTENTIONS, Launch, attention_launches
from smelt.codegen.lower.gpu.choices import BY_RULE, Chooser, Launched, Trial, Way
from smelt.codegen.lower.gpu.draws import draw_of, is_draw
from smelt.codegen.lower.gpu.program import GpuCondition, GpuKernel, GpuProgram, Place
from smelt.codegen.lower.gpu.sharing import shared_sums
from smelt.codegen.lower.gpu.trials import attention_trial, unit_trial
from smelt.codegen.lower.gpu.units import UNIT_RULES, Unit, units_of
from smelt.codegen.lower.memory.arena import Lifetime, aligned, plan_offsets
from smelt.codegen.lower.memory.geometry import Geometry, view_geometry
from smelt.codegen.lower.memory.in_place import why_not
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.triton.contraction import Tile
from smelt.codegen.triton.emit import emit_triton, unsupported
from smelt.codegen.triton.kernel import TritonKernel
from smelt.codegen.triton.random import H200, Processors, draw_kernel
from smelt.diag import ScheduleError, SmeltWarning, user_level
from smelt.diag.loops import LoopStep
from smelt.ir import STATE_OPS, Arg, DType, Graph, Node, Region, TensorType, Value, map_values, print_node
from smelt.ir.nodes import clone_node
from smelt.ops.python.python_numbers import FITS
from smelt.runtime.cuda.plan import CudaDraws, CudaMemory

_ONE = Geometry((), ())
_STATE = (*STATE_OPS, "const")
ITEM = "aten.item.default"
"""A number that is a tensor's element: kernels read it where it lies."""


@dataclass(frozen=True, slots=True)
class Tf32:
    """Whether products and convolutions of f32 may round their operands to 10 bits of mantissa: torch's two flags."""

    matrices: bool = False
    convolutions: bool = False


def gpu_program(
    graph: Graph,
    is_aligned: bool = True,
    tf32: Tf32 = Tf32(),
    processors: Processors = H200,
    written: Mapping[int, int] = MappingProxyType({}),
    chooser: Chooser | None = None,
    steps: Sequence[LoopStep] = (),
) -> GpuProgram:
    """The kernels of an optimized graph whose sizes are known. processors: those of the device, for random numbers.

    is_aligned: every address is a multiple of 16, as those of whole tensors are; kernels for others load less at once.
    written: outputs by number that may be computed in the memory of an input, which nothing outside reads any more.
    chooser: says how products and attention are computed; where it is None, the rule does. steps: of a schedule, by the
    kernels' numbers; one that does not fit its kernel is left out, with a warning.
    """
    planner = _Planner(graph, is_aligned, tf32, processors, chooser, steps)
    planner.homes = {graph.outputs[n]: graph.inputs[k] for n, k in written.items()}  # type: ignore[misc]
    return planner.run()


def _is_static(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.is_static


@dataclass(slots=True)
class _Block:
    """A memory in the making; of the arena also when it is in use, by numbers of steps. inside: the memory, of the
    arena of a region, from whose begin `number` counts.
    """

    kind: str
    number: int
    nbytes: int = 0
    first: int = 0
    last: int = 0
    inside: int | None = None


@dataclass(frozen=True, slots=True)
class _Inner:
    """A region's kernels, the memories of what it takes, and of those the numbers'."""

    program: GpuProgram
    memories: Sequence[int]
    numbers: Sequence[int]


def _geometry(value: Value) -> Geometry:
    assert isinstance(value.type, TensorType)
    return Geometry.of(value.type)


def _dtypes(node: Node) -> list[DType]:
    return [result.type.dtype for result in node.results if isinstance(result.type, TensorType)]


def _next_in_place(graph: Graph, count: int) -> dict[Value, Value]:
    """For each value of a loop's next turn, what it may be computed in the memory of: that of the turn at hand, if
    nothing of that goes on to the next one. count: how many of the inputs are carried.
    """
    outputs = [output for output in graph.outputs if isinstance(output, Value)]
    going_on = set()
    for value in outputs:
        source: Value | None = value
        while source is not None:
            value, source = source, view_source(source.node) if source.node is not None else None
        going_on.add(value)
    pairs = zip(graph.inputs[:count], outputs, strict=True) if count == len(outputs) else ()
    return {o: i for i, o in pairs if i not in going_on and outputs.count(o) == 1 and o.type == i.type}


@dataclass(slots=True)
class _Planner:
    graph: Graph
    is_aligned: bool
    tf32: Tf32
    processors: Processors
    chooser: Chooser | None = None
    steps: Sequence[LoopStep] = ()
    # Of a region, whose nodes have kernels, or the host decides.
    is_inside: bool = False
    # How far the draws so far move the generator, and the memory of its seed and offset.
    drawn: int = 0
    generator: int | None = None
    blocks: list[_Block] = field(default_factory=list)
    places: dict[Value, Place] = field(default_factory=dict)
    state: list[Node] = field(default_factory=list)
    kernels: list[GpuKernel] = field(default_factory=list)
    conditions: list[GpuCondition] = field(default_factory=list)
    # The steps of the program's own level, and of the arm at hand.
    order: list[int] = field(default_factory=list)
    into: list[int] = field(default_factory=list)
    refused: list[tuple[Node, str]] = field(default_factory=list)
    # Of views that are several tensors.
    lists: dict[Value, list[Place]] = field(default_factory=dict)
    # Values that only exist inside a kernel.
    gone: set[Value] = field(default_factory=set)
    # What may be computed in an input's memory, who reads that memory (nodes, and the last ones of groups), and who is
    # planned so far.
    homes: dict[Value, Value] = field(default_factory=dict)
    readers: dict[Value, list[Node]] = field(default_factory=dict)
    planned: set[Node] = field(default_factory=set)

    def run(self) -> GpuProgram:
        """The program."""
        self.into = self.order
        numbers = 0
        for number, value in enumerate(self.graph.inputs):
            if _is_static(value):
                self.places[value] = self._placed("argument", number, value)
            elif value.type in NUMBER_TYPES:
                self.blocks.append(_Block("number", numbers, 8))
                self.places[value] = Place(len(self.blocks) - 1, _ONE)
                numbers += 1
        units = units_of(self.graph, Facts.of(self.graph))
        together = {node: unit.nodes for unit in units for node in unit.nodes}
        found = partition(self.graph, lambda built: unsupported(tidied(built).nest), together.__contains__, together)
        members: list[Group | Unit] = [*units, *found.groups]
        ends = {one.nodes[-1]: one for one in members}
        inside = {node for one in members for node in one.nodes}
        roots = {root for one in members for root in one.roots}
        self.gone = {result for node in inside for result in node.results if result not in roots}
        delays = self._delays(members, found.facts)
        for node in schedule(self.graph, found.facts, [one.nodes for one in members], delays):
            if node in ends:
                self._together(ends[node], found.facts)
                self.planned.add(node)
            elif node not in inside:
                self._single(node)
                self.planned.add(node)
        return self._finished()

    def _delays(self, members: Iterable[Group | Unit], facts: Facts) -> Delays:
        """What is computed in an input's memory stands behind what reads that memory, where it can."""
        found: dict[Node, list[Node]] = {}
        members = list(members)
        # A node may be computed in several groups.
        groups: dict[Node, list[Node]] = {}
        for one in members:
            for node in one.nodes:
                groups.setdefault(node, []).append(one.nodes[-1])
        for home in self.homes.values():
            nodes, others = facts.users(home)
            self.readers[home] = [end for node in nodes for end in groups.get(node, [node])]
            if others:
                self.readers[home] += self.graph.body
        for one in members:
            homes = [self.homes[root] for root in one.roots if root in self.homes]
            if homes:
                found[one.nodes[-1]] = [node for home in homes for node in self.readers[home]]
        return Delays(found)

    def _placed(self, kind: str, number: int, value: Value) -> Place:
        assert isinstance(value.type, TensorType)
        geometry = Geometry.of(value.type)
        nbytes = geometry.extent * value.type.dtype.itemsize
        self.blocks.append(_Block(kind, number, nbytes, len(self.order), len(self.order)))
        return Place(len(self.blocks) - 1, geometry)

    # --- nodes

    def _single(self, node: Node) -> None:
        """A node outside of all groups: state, a view, or nothing that a kernel computes."""
        if node.op in _STATE and _is_static(node.result):
            self.places[node.result] = self._placed("state", len(self.state), node.result)
            self.state.append(node)
        elif node.op == FITS:
            self.places[node.result] = self.places[next(node.operands())]
        elif node.op == ITEM and (place := self._number(node)) is not None:
            self.places[node.result] = place
        elif node.regions:
            self._condition(node)
        elif view_source(node) in self.gone:
            self.gone.update(node.results)
        elif node.op in ATTENTIONS and all(map(_is_static, node.operands())):
            self._attention(node)
        elif is_draw(node):
            self._draw(node)
        elif not self._is_view(node):
            self.refused.append((node, "it has no kernel for a GPU"))
            for result in node.results:
                # The kernels behind it can be shown all the same.
                if _is_static(result):
                    self.places[result] = self._placed("arena", 0, result)

    def _attention(self, node: Node) -> None:
        def geometry(value: Value) -> Geometry:
            place = self._place(value)
            if place is None:
                raise Unfusible(f"%{value.name} is in no memory of a GPU")
            return place.geometry

        def launches_of(way: Way) -> list[Launch]:
            return attention_launches(node, geometry, self.is_aligned, self.tf32.matrices, way.blocks)

        try:
            launches = launches_of(BY_RULE)
        except Unfusible as why:
            self.refused.append((node, str(why)))
            launches = []
        for result in node.results:
            if _is_static(result):
                self.places[result] = self._placed("arena", 0, result)
        if launches and self.chooser is not None:
            way = self._chosen(attention_trial(self.graph, node, launches_of, geometry))
            if way.is_library:
                self.refused.append((node, "torch's operator is chosen"))
                return
            launches = launches_of(way)
        for one in launches:
            buffers = tuple(self.places[value].memory for value in one.values)
            dtypes = tuple(v.type.dtype for v in one.values if isinstance(v.type, TensorType))
            self._append(GpuKernel(one.kernel, buffers, dtypes, one.writes, (node,), print_node(node)))

    def _draw(self, node: Node) -> None:
        operand = next((v for v in node.operands()), None)
        place = None if operand is None else self._place(operand)
        try:
            draw, read = draw_of(node, None if place is None else place.geometry, self.drawn)
        except Unfusible as why:
            self.refused.append((node, str(why)))
            draw, read = None, ()
        result = self.places[node.result] = self._placed("arena", 0, node.result)
        if draw is None:
            return
        if self.generator is None:
            self.blocks.append(_Block("generator", 0, 16, len(self.order), len(self.order)))
            self.generator = len(self.blocks) - 1
        buffers = (result.memory, self.generator, *(self.places[v].memory for v in read))
        kernel = draw_kernel(draw, self.processors, self.is_aligned)
        dtypes = (draw.dtype, DType.I64, *(draw.dtype for _ in read))
        self._append(GpuKernel(kernel, buffers, dtypes, (0,), (node,), print_node(node)))
        self.drawn += self.processors.consumed(draw.elements)

    def _is_view(self, node: Node) -> bool:
        """Whether a node only says how memory is looked at; its results are placed then."""
        operand = node.args[0] if node.op == "unpack" else view_source(node)
        if not isinstance(operand, Value):
            return False
        if node.op == "unpack":
            places = self.lists.get(operand)
        else:
            place = self._place(operand)
            geometries = None if place is None else view_geometry(node, operand, place.geometry)
            places = None if geometries is None or place is None else [Place(place.memory, g) for g in geometries]
        if places is None:
            return False
        if len(node.results) == 1 and not isinstance(node.result.type, TensorType):
            self.lists[node.result] = places
        elif len(places) == len(node.results):
            self.places.update(zip(node.results, places, strict=True))
        else:
            return False
        return True

    def _place(self, value: Value) -> Place | None:
        if value not in self.places and value.node is not None:
            self._is_view(value.node)
        return self.places.get(value)

    # --- groups

    def _together(self, one: Group | Unit, facts: Facts) -> None:
        """Nodes that one kernel computes: a group, or a product with what is around it (each of its results by one)."""
        roots = self._in_place(one)
        roots |= {root: self._placed("arena", 0, root) for root in one.roots if root not in roots}

        def where(value: Value) -> Memory:
            place = self._place(value)
            if place is None:
                raise Unfusible(f"%{value.name} is in no memory of a GPU")
            return Memory(place.memory, f"%{value.name}", place.geometry)

        def into(value: Value) -> Memory:
            return Memory(roots[value].memory, f"%{value.name}", roots[value].geometry)

        inside = facts.inside(one.nodes)
        made: list[tuple[Built, Sequence[Stage]]] = []
        try:
            for stored in [(root,) for root in one.roots] if isinstance(one, Unit) else [one.roots]:
                while True:
                    built = build(stored, inside, UNIT_RULES, where, into)
                    body = tuple(mapped_statement(statement, without_vectors) for statement in built.nest.body)
                    built = replace(built, nest=replace(built.nest, body=body))
                    parts = shared_sums(built.nest) or stages(built.nest)
                    aimed = {r: roots[r].memory for r in stored if self.blocks[roots[r].memory].kind == "argument"}
                    refused = why_not(built, aimed, len(parts) > 1) if aimed else {}
                    if not refused:
                        break
                    roots |= {root: self._placed("arena", 0, root) for root in refused}
                made.append((built, parts))
            way = self._way(one, made)
            if way.is_library and isinstance(one, Unit):
                self.refused += [(node, "torch's operator is chosen") for node in one.products]
            else:
                for each, nests in made:
                    self._launch(one, each, nests, way.tile)
        except Unfusible as why:
            self.refused.append((one.nodes[-1], str(why)))
        self.places |= roots

    def _way(self, one: Group | Unit, made: Sequence[tuple[Built, Sequence[Stage]]]) -> Way:
        """How a product is computed. Raises: Unfusible where it has no kernel."""
        for _, parts in made:
            for stage in parts:
                if (why := unsupported(stage.nest)) is not None:
                    raise Unfusible(why)
        if self.chooser is None or self.steps or not isinstance(one, Unit) or not one.products:
            return BY_RULE

        def launches(way: Way) -> list[Launched]:
            found = []
            for number, (built, parts) in enumerate(made):
                for stage in parts:
                    names = tuple(built.keys[k] if k >= 0 else (number, k) for k in stage.buffers)
                    dtypes = tuple(buffer.dtype for buffer in stage.nest.buffers)
                    found.append(Launched(self._kernel(one, stage, way.tile), names, dtypes, stage.nest.writes))
            return found

        def nbytes(name: int | tuple[int, int]) -> int:
            if isinstance(name, int):
                return self.blocks[name].nbytes
            size, dtype = made[name[0]][1][0].partials[-1 - name[1]]
            return size * dtype.itemsize

        def rest(graph: Graph) -> GpuProgram:
            return gpu_program(graph, self.is_aligned, self.tf32, self.processors)

        nests = [stage.nest for _, parts in made for stage in parts]
        return self._chosen(unit_trial(self.graph, one, nests, launches, nbytes, rest))

    def _chosen(self, trial: Trial) -> Way:
        assert self.chooser is not None
        return self.chooser.way(replace(trial, library=()) if self.is_inside else trial)

    def _in_place(self, one: Group | Unit) -> dict[Value, Place]:
        """The results that may be computed in an input's memory, as nothing reads it any more, and where."""
        found: dict[Value, Place] = {}
        if isinstance(one, Unit) and len(one.roots) > 1:
            return found
        done = self.planned | {one.nodes[-1]}
        for root in one.roots:
            home = self.homes.get(root)
            if home is not None and done.issuperset(self.readers[home]):
                found[root] = self.places[home]
        return found

    def _launch(self, one: Group | Unit, built: Built, parts: Sequence[Stage], tile: Tile | None) -> None:
        spare: dict[Hashable, int] = {}
        for stage in parts:
            buffers = tuple(self._buffer(stage, number, built, spare) for number in stage.buffers)
            own = tuple(step for step in self.steps if step.kernel == len(self.kernels))
            kernel = self._directed(one, stage, own) if own else self._kernel(one, stage, tile)
            self._append(GpuKernel.of(stage.nest, kernel, buffers, tuple(one.nodes)))

    def _directed(self, one: Group | Unit, stage: Stage, steps: Sequence[LoopStep]) -> TritonKernel:
        try:
            return self._kernel(one, stage, None, steps)
        except ScheduleError as error:
            text = f"a kernel runs without the steps on its loops: {error.what}, since {error.why}"
            warnings.warn(text, SmeltWarning, stacklevel=user_level())
            return self._kernel(one, stage, None)

    def _kernel(
        self, one: Group | Unit, stage: Stage, tile: Tile | None, steps: Sequence[LoopStep] = ()
    ) -> TritonKernel:
        has_tf32 = isinstance(one, Unit) and (self.tf32.convolutions if one.convolves else self.tf32.matrices)
        return emit_triton(stage.nest, is_aligned=self.is_aligned, has_tf32=has_tf32, tile=tile, steps=steps)

    def _buffer(self, stage: Stage, number: int, built: Built, spare: dict[Hashable, int]) -> int:
        """The memory of a stage's buffer: the whole nest's, or that of partial results."""
        if number >= 0:
            memory = built.keys[number]
            assert isinstance(memory, int)
            return memory
        if number not in spare:
            size, dtype = stage.partials[-1 - number]
            self.blocks.append(_Block("arena", 0, size * dtype.itemsize, len(self.order), len(self.order)))
            spare[number] = len(self.blocks) - 1
        return spare[number]

    # --- branches and loops

    def _append(self, kernel: GpuKernel) -> None:
        self._touch(kernel.buffers)
        self.into.append(len(self.kernels))
        self.kernels.append(kernel)

    def _touch(self, memories: Iterable[int]) -> None:
        """The step at hand uses memories, and what they are parts of."""
        for number in memories:
            block: int | None = number
            while block is not None:
                self.blocks[block].last = len(self.order)
                block = self.blocks[block].inside

    def _block(self, kind: str, number: int, nbytes: int, inside: int | None = None) -> int:
        """A new memory, in use now; its number."""
        now = len(self.order)
        self.blocks.append(_Block(kind, number, nbytes, now, now, inside))
        return len(self.blocks) - 1

    def _number(self, node: Node) -> Place | None:
        """Where a number is that a tensor holds."""
        operand = next(node.operands())
        place, type_ = self._place(operand), operand.type
        if place is None or not isinstance(type_, TensorType) or place.geometry != _ONE:
            return None
        return place if NUMBER_TYPES.get(node.result.type) is type_.dtype else None

    def _condition(self, node: Node) -> None:
        try:
            if node.op == "for":
                raise Unfusible("a loop that counts on the host")
            places = self._branch(node) if node.op == "if" else self._loop(node)
        except Unfusible as why:
            self.refused.append((node, str(why)))
            places = [self._placed("arena", 0, result) for result in node.results if _is_static(result)]
        self.places |= dict(zip(node.results, places, strict=False))

    def _branch(self, node: Node) -> list[Place]:
        """Both arms end in the memory of the results."""
        test = self._byte(node.args[0])
        inner = [self._planned(region) for region in node.regions]
        slots = [self._placed("arena", 0, result) for result in node.results]
        # Only one of the arms runs.
        arena = self._block("arena", 0, max(one.program.arena_nbytes for one in inner))
        arms = []
        for one in inner:
            with self._arm() as arm:
                self._give(node, self._embedded(one, slots, arena), slots, _dtypes(node))
            arms.append(tuple(arm))
        self._close(GpuCondition("if", test, tuple(arms), node))
        return slots

    def _loop(self, node: Node) -> list[Place]:
        """What is carried has one memory; the test is computed before the loop, and at the end of each turn."""
        slots = [self._begun(node, k) for k in range(len(node.results))]
        tests, region = (self._planned(one, slots) for one in node.regions)
        byte = Place(self._block("arena", 0, 1), _ONE)

        def tested() -> None:
            arena = self._block("arena", 0, tests.program.arena_nbytes)
            self._give(node, self._embedded(tests, [byte], arena), [byte], [DType.BOOL])

        tested()
        with self._arm() as arm:
            found = self._embedded(region, [], self._block("arena", 0, region.program.arena_nbytes))
            self._give(node, found, slots, _dtypes(node))
            tested()
        self._close(GpuCondition("while", byte.memory, (tuple(arm),), node))
        return slots

    def _begun(self, node: Node, k: int) -> Place:
        """The memory of what a loop carries, with the first value in it."""
        first, result = node.args[k], node.results[k]
        place = self._place(first) if isinstance(first, Value) else None
        if place is None or not isinstance(first, Value):
            raise Unfusible("it begins with a value that is in no memory of a GPU")
        if self._is_free(first, node) and place.geometry == _geometry(result):
            return place
        slot = self._placed("arena", 0, result)
        self._copy(node, place, slot, _dtypes(node)[k])
        return slot

    def _is_free(self, value: Value, user: Node) -> bool:
        """Whether a value's memory is its own, of the arena, and only one node needs it."""
        memory = self.places[value].memory
        block = self.blocks[memory]
        is_alone = sum(other.memory == memory for other in self.places.values()) == 1
        return block.kind == "arena" and block.inside is None and is_alone and value.users == {user: 1}

    @contextmanager
    def _arm(self) -> Iterator[list[int]]:
        """Steps of an arm, all of which run while the condition does."""
        outer, self.into = self.into, []
        yield self.into
        self.into = outer

    def _close(self, condition: GpuCondition) -> None:
        self.conditions.append(condition)
        self._touch(self._touched(~(len(self.conditions) - 1)))
        self.into.append(~(len(self.conditions) - 1))

    def _touched(self, step: int) -> Iterator[int]:
        """The memories that a step uses."""
        if step >= 0:
            yield from self.kernels[step].buffers
            return
        condition = self.conditions[~step]
        yield condition.test
        for inner in chain.from_iterable(condition.arms):
            yield from self._touched(inner)

    def _byte(self, value: object) -> int:
        """The memory of a test."""
        place = self._place(value) if isinstance(value, Value) else None
        type_ = value.type if isinstance(value, Value) else None
        if (
            place is None
            or not isinstance(type_, TensorType)
            or type_.dtype is not DType.BOOL
            or place.geometry != _ONE
        ):
            raise Unfusible("its test is no byte in the memory of a GPU")
        return place.memory

    def _planned(self, region: Region, slots: Sequence[Place] = ()) -> _Inner:
        """The kernels of a region, whose parameters are in `slots`. Raises: Unfusible where a node of it has none."""
        graph, memories = self._as_graph(region, slots)
        planner = _Planner(graph, self.is_aligned, self.tf32, self.processors, self.chooser, is_inside=True)
        if slots:
            planner.homes = _next_in_place(graph, len(region.params))
        program = planner.run()
        if program.refused:
            node, why = program.refused[0]
            raise Unfusible(f"{node.op} in it: {why}")
        if program.state or program.draws or len(program.results) != len(graph.outputs):
            raise Unfusible("it has state, draws random numbers, or gives what is no tensor")
        numbers = [m for value, m in zip(graph.inputs, memories, strict=True) if value.type in NUMBER_TYPES]
        return _Inner(program, memories, numbers)

    def _as_graph(self, region: Region, slots: Sequence[Place]) -> tuple[Graph, list[int]]:
        """A region as a graph of its own, and the memories of what that takes: `slots`, then values around it."""
        made = Graph(self.graph.name)
        made.constants = self.graph.constants
        mapping: dict[Value, Arg] = {}

        def take(value: Value) -> None:
            param = Value(value.name, value.type, made.body)
            mapping[value] = param
            made.body.params.append(param)

        for param, slot in zip(region.params, slots, strict=True):
            if slot.geometry != _geometry(param):
                raise Unfusible("an iteration begins with a tensor of another memory layout")
            take(param)
        memories = [slot.memory for slot in slots]
        views: dict[Node, None] = {}
        for value in dict.fromkeys(taken_by([region])):
            path: list[Node] = []
            while (node := self._view_behind(value)) is not None:
                path.append(node)
                (value,) = node.operands()
            if value not in mapping:
                take(value)
                memories.append(self.places[value].memory)
            views |= dict.fromkeys(reversed(path))
        for node in (*views, *region):
            made.body.insert(clone_node(node, mapping))
        made.body.set_yields(tuple(map_values(arg, lambda v: mapping[v]) for arg in region.yields))
        return made, memories

    def _view_behind(self, value: Value) -> Node | None:
        """The view that a value is made by; None where it fills a memory from its begin on, as its type says."""
        place = self._place(value)
        if place is not None and (not isinstance(value.type, TensorType) or place.geometry == _geometry(value)):
            return None
        node = value.node
        if (place is None and value not in self.lists) or node is None or len(list(node.operands())) != 1:
            raise Unfusible(f"%{value.name} is in no memory of a GPU")
        return node

    def _embedded(self, inner: _Inner, slots: Sequence[Place], arena: int) -> list[Place]:
        """Add a region's steps here; where its results are. slots: where those go that lie like them."""
        program, homes = inner.program, dict[int, int]()
        for (place, _), slot in zip(program.results, slots, strict=False):
            if program.memories[place.memory].kind == "result" and place.geometry == slot.geometry:
                homes.setdefault(place.memory, slot.memory)
        at = []
        for number, memory in enumerate(program.memories):
            if memory.kind == "argument":
                at.append(inner.memories[memory.number])
            elif memory.kind == "number":
                at.append(inner.numbers[memory.number])
            elif number in homes:
                at.append(homes[number])
            elif memory.kind == "result":
                at.append(self._block("arena", 0, memory.nbytes))
            else:
                at.append(self._block("arena", memory.number, memory.nbytes, arena))

        def added(step: int) -> int:
            if step >= 0:
                kernel = program.kernels[step]
                self.kernels.append(replace(kernel, buffers=tuple(at[number] for number in kernel.buffers)))
                return len(self.kernels) - 1
            condition = program.conditions[~step]
            arms = tuple(tuple(map(added, arm)) for arm in condition.arms)
            self.conditions.append(replace(condition, test=at[condition.test], arms=arms))
            return ~(len(self.conditions) - 1)

        for step in map(added, program.steps):
            self._touch(self._touched(step))
            self.into.append(step)
        return [Place(at[place.memory], place.geometry) for place, _ in program.results]

    def _give(self, node: Node, found: Sequence[Place], slots: Sequence[Place], dtypes: Sequence[DType]) -> None:
        """Copy what is not where it goes, all at once: what is read there and written, too, goes through other memory.

        %a, %b = %b, %a      ==>      c = b; d = a; a = c; b = d
        """
        moves = [(f, s, d) for f, s, d in zip(found, slots, dtypes, strict=True) if f != s]
        written = {slot.memory for _, slot, _ in moves}
        ready = []
        for place, slot, dtype in moves:
            if place.memory in written:
                nbytes = slot.geometry.extent * dtype.itemsize
                other = Place(self._block("arena", 0, nbytes), slot.geometry)
                self._copy(node, place, other, dtype)
                place = other
            ready.append((place, slot, dtype))
        for place, slot, dtype in ready:
            self._copy(node, place, slot, dtype)

    def _copy(self, node: Node, place: Place, to: Place, dtype: DType) -> None:
        read, write = (Index(p.geometry.offset, p.geometry.strides) for p in (place, to))
        store = Store(1, write, Load(0, read, dtype))
        nest = Nest((Buffer("from", dtype), Buffer("to", dtype)), to.geometry.sizes, (), (store,))
        why = unsupported(nest)
        if why is not None:
            raise Unfusible(why)
        kernel = emit_triton(simplify_nest(nest), is_aligned=self.is_aligned)
        self._append(GpuKernel.of(nest, kernel, (place.memory, to.memory), (node,)))

    # --- the end

    def _finished(self) -> GpuProgram:
        results = []
        count = 0
        for output in self.graph.outputs:
            place = self._place(output) if isinstance(output, Value) else None
            if place is None or not isinstance(output, Value) or not isinstance(output.type, TensorType):
                continue
            block = self.blocks[place.memory]
            if block.kind == "arena":
                block.kind, block.number = "result", count
                count += 1
            results.append((place, output.type.dtype))
        arena = [block for block in self.blocks if block.kind == "arena" and block.inside is None]
        offsets, total = plan_offsets([Lifetime(block.nbytes, block.first, block.last) for block in arena])
        for block, offset in zip(arena, offsets, strict=True):
            block.number = offset
        for block in self.blocks:
            if block.inside is not None:
                block.number += self.blocks[block.inside].number
        memories = tuple(CudaMemory(block.kind, block.number, block.nbytes) for block in self.blocks)  # type: ignore[arg-type]
        state, refused = tuple(self.state), tuple(self.refused)
        draws = (
            None if self.generator is None else CudaDraws(self.drawn, self.processors.count, self.processors.threads)
        )
        kernels, conditions, steps = tuple(self.kernels), tuple(self.conditions), tuple(self.order)
        return GpuProgram(kernels, memories, state, tuple(results), aligned(total), refused, draws, conditions, steps)
