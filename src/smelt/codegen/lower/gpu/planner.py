"""A whole graph as kernels for a GPU: its groups of fused nodes as Triton text, memory for what they pass on.

    %1 = mul %x %w; %2 = softmax %1        ==>        launch rows(x, w, result 0)

Groups and nests are those of the CPU; products and convolutions are nests, too (`units`). Nodes without a kernel are
refused, with the reason: a program that has one does not run on a GPU yet, but its other kernels can be read.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from smelt.codegen.fusion.build import Built, build
from smelt.codegen.fusion.chunks import Stage, stages
from smelt.codegen.fusion.groups import Facts, Group
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.partition import partition
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.activations import without_vectors
from smelt.codegen.fusion.rules.promote import NUMBER_TYPES
from smelt.codegen.fusion.schedule import Delays, schedule
from smelt.codegen.fusion.tidy import mapped_statement
from smelt.codegen.lower.gpu.attentions import ATTENTIONS, Launch, attention_launches
from smelt.codegen.lower.gpu.choices import BY_RULE, Chooser, Launched, Way
from smelt.codegen.lower.gpu.draws import draw_of, is_draw
from smelt.codegen.lower.gpu.program import GpuKernel, GpuProgram, Place
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
from smelt.ir import STATE_OPS, DType, Graph, Node, TensorType, Value, print_node
from smelt.ops.python.python_numbers import FITS
from smelt.runtime.cuda.plan import CudaDraws, CudaMemory

_STATE = (*STATE_OPS, "const")


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
    """A memory in the making; of the arena also when it is in use, by numbers of kernels."""

    kind: str
    number: int
    nbytes: int = 0
    first: int = 0
    last: int = 0


@dataclass(slots=True)
class _Planner:
    graph: Graph
    is_aligned: bool
    tf32: Tf32
    processors: Processors
    chooser: Chooser | None = None
    steps: Sequence[LoopStep] = ()
    # How far the draws so far move the generator, and the memory of its seed and offset.
    drawn: int = 0
    generator: int | None = None
    blocks: list[_Block] = field(default_factory=list)
    places: dict[Value, Place] = field(default_factory=dict)
    state: list[Node] = field(default_factory=list)
    kernels: list[GpuKernel] = field(default_factory=list)
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
        numbers = 0
        for number, value in enumerate(self.graph.inputs):
            if _is_static(value):
                self.places[value] = self._placed("argument", number, value)
            elif value.type in NUMBER_TYPES:
                self.blocks.append(_Block("number", numbers, 8))
                self.places[value] = Place(len(self.blocks) - 1, Geometry((), ()))
                numbers += 1
        units = units_of(self.graph, Facts.of(self.graph))
        together = {node: unit.nodes for unit in units for node in unit.nodes}
        found = partition(self.graph, lambda built: unsupported(built.nest), together.__contains__, together)
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
        self.blocks.append(_Block(kind, number, nbytes, len(self.kernels), len(self.kernels)))
        return Place(len(self.blocks) - 1, geometry)

    # --- nodes

    def _single(self, node: Node) -> None:
        """A node outside of all groups: state, a view, or nothing that a kernel computes."""
        if node.op in _STATE and _is_static(node.result):
            self.places[node.result] = self._placed("state", len(self.state), node.result)
            self.state.append(node)
        elif node.op == FITS:
            self.places[node.result] = self.places[next(node.operands())]
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
            way = self.chooser.way(attention_trial(self.graph, node, launches_of, geometry))
            if way.is_library:
                self.refused.append((node, "torch's operator is chosen"))
                return
            launches = launches_of(way)
        for one in launches:
            buffers = tuple(self.places[value].memory for value in one.values)
            for number in buffers:
                self.blocks[number].last = len(self.kernels)
            dtypes = tuple(v.type.dtype for v in one.values if isinstance(v.type, TensorType))
            self.kernels.append(GpuKernel(one.kernel, buffers, dtypes, one.writes, (node,), print_node(node)))

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
            self.blocks.append(_Block("generator", 0, 16, len(self.kernels), len(self.kernels)))
            self.generator = len(self.blocks) - 1
        buffers = (result.memory, self.generator, *(self.places[v].memory for v in read))
        for number in buffers:
            self.blocks[number].last = len(self.kernels)
        kernel = draw_kernel(draw, self.processors, self.is_aligned)
        dtypes = (draw.dtype, DType.I64, *(draw.dtype for _ in read))
        self.kernels.append(GpuKernel(kernel, buffers, dtypes, (0,), (node,), print_node(node)))
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
        return self.chooser.way(unit_trial(self.graph, one, nests, launches, nbytes, rest))

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
            for number in buffers:
                self.blocks[number].last = len(self.kernels)
            self.kernels.append(GpuKernel.of(stage.nest, kernel, buffers, tuple(one.nodes)))

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
            self.blocks.append(_Block("arena", 0, size * dtype.itemsize, len(self.kernels), len(self.kernels)))
            spare[number] = len(self.blocks) - 1
        return spare[number]

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
        arena = [block for block in self.blocks if block.kind == "arena"]
        offsets, total = plan_offsets([Lifetime(block.nbytes, block.first, block.last) for block in arena])
        for block, offset in zip(arena, offsets, strict=True):
            block.number = offset
        memories = tuple(CudaMemory(block.kind, block.number, block.nbytes) for block in self.blocks)  # type: ignore[arg-type]
        state, refused = tuple(self.state), tuple(self.refused)
        draws = (
            None if self.generator is None else CudaDraws(self.drawn, self.processors.count, self.processors.threads)
        )
        return GpuProgram(tuple(self.kernels), memories, state, tuple(results), aligned(total), refused, draws)
