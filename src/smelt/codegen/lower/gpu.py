"""A whole graph as kernels for a GPU: its groups of fused nodes as Triton text, memory for what they pass on.

    %1 = mul %x %w; %2 = softmax %1        ==>        launch rows(x, w, result 0)

Groups and nests are those of the CPU. Nodes without a kernel (products, attention, convolutions, effects) are refused,
with the reason: a program that has one does not run on a GPU yet, but its other kernels can be read and compiled.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from smelt.codegen.fusion.build import Built, build
from smelt.codegen.fusion.chunks import Stage, stages
from smelt.codegen.fusion.groups import Group
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.partition import Partition, partition
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.activations import without_vectors
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.schedule import schedule
from smelt.codegen.fusion.tidy import mapped_statement
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.lower.memory.arena import Lifetime, aligned, plan_offsets
from smelt.codegen.lower.memory.geometry import Geometry, view_geometry
from smelt.codegen.lower.memory.sharing import view_source
from smelt.codegen.triton.compile import compile_cuda
from smelt.codegen.triton.emit import emit_triton, unsupported
from smelt.codegen.triton.kernel import TritonKernel
from smelt.diag import SmeltError
from smelt.ir import DType, Graph, Node, TensorType, Value
from smelt.runtime.cuda.plan import CudaLaunch, CudaMemory, CudaPlan, predecessors
from smelt.runtime.machine.cache import CodeCache

_STATE = ("param", "buffer", "const", "global")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is: a memory's number, and how it lies in it."""

    memory: int
    geometry: Geometry


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """One launch: the nest that it runs, its kernel, the memories of its buffers, and the nodes that it computes."""

    nest: Nest
    kernel: TritonKernel
    buffers: tuple[int, ...]
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class GpuProgram:
    """A graph's kernels in order.

    memories: what they touch. state: the nodes (`param`, `const`) of state, by number. results: where each of the
    graph's outputs is. refused: nodes that have no kernel, and why.
    """

    kernels: tuple[GpuKernel, ...]
    memories: tuple[CudaMemory, ...]
    state: tuple[Node, ...]
    results: tuple[tuple[Place, DType], ...]
    arena_nbytes: int
    refused: tuple[tuple[Node, str], ...]

    def compiled(self, arch: int, cache: CodeCache | None = None) -> CudaPlan:
        """What a GPU of a compute capability (90 for 9.0) runs.

        Raises: SmeltError (S0303) if a node has no kernel; as `compile_cuda`.
        """
        if self.refused:
            node, why = self.refused[0]
            raise SmeltError(f"{node.op} cannot run on a GPU: {why}", node.span, code="S0303")
        codes = compile_cuda([one.kernel.source for one in self.kernels], arch, cache)
        launches = [
            CudaLaunch(one.kernel.source.name, one.buffers, one.kernel.words, one.kernel.programs, one.nest.writes)
            for one in self.kernels
        ]
        after = predecessors(self.memories, launches)
        ordered = tuple(replace(launch, after=before) for launch, before in zip(launches, after, strict=True))
        return CudaPlan(tuple(codes.values()), self.memories, ordered, self.arena_nbytes)


def gpu_program(graph: Graph, is_aligned: bool = True) -> GpuProgram:
    """The kernels of an optimized graph whose sizes are known.

    is_aligned: every address is a multiple of 16, as those of whole tensors are; kernels for others load less at once.
    """
    return _Planner(graph, is_aligned).run()


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
    blocks: list[_Block] = field(default_factory=list)
    places: dict[Value, Place] = field(default_factory=dict)
    state: list[Node] = field(default_factory=list)
    kernels: list[GpuKernel] = field(default_factory=list)
    refused: list[tuple[Node, str]] = field(default_factory=list)
    # Of views that are several tensors.
    lists: dict[Value, list[Place]] = field(default_factory=dict)
    # Values that only exist inside a kernel.
    gone: set[Value] = field(default_factory=set)

    def run(self) -> GpuProgram:
        for number, value in enumerate(self.graph.inputs):
            if _is_static(value):
                self.places[value] = self._placed("argument", number, value)
        found = partition(self.graph, lambda built: unsupported(built.nest))
        ends = {group.nodes[-1]: group for group in found.groups}
        inside = {node for group in found.groups for node in group.nodes}
        roots = {root for group in found.groups for root in group.roots}
        self.gone = {result for node in inside for result in node.results if result not in roots}
        for node in schedule(self.graph, found.facts, [g.nodes for g in found.groups]):
            if node in ends:
                self._group(ends[node], found)
            elif node not in inside:
                self._single(node)
        return self._finished()

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
        elif view_source(node) in self.gone:
            self.gone.update(node.results)
        elif not self._is_view(node):
            self.refused.append((node, "it has no kernel for a GPU"))
            for result in node.results:
                # The kernels behind it can be shown all the same.
                if _is_static(result):
                    self.places[result] = self._placed("arena", 0, result)

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

    def _group(self, group: Group, found: Partition) -> None:
        roots = {root: self._placed("arena", 0, root) for root in group.roots}

        def where(value: Value) -> Memory:
            place = self._place(value)
            if place is None:
                raise Unfusible(f"%{value.name} is in no memory of a GPU")
            return Memory(place.memory, f"%{value.name}", place.geometry)

        def into(value: Value) -> Memory:
            return Memory(roots[value].memory, f"%{value.name}", roots[value].geometry)

        try:
            built = build(group.roots, found.facts.inside(group.nodes), RULES, where, into)
            body = tuple(mapped_statement(statement, without_vectors) for statement in built.nest.body)
            built = replace(built, nest=replace(built.nest, body=body))
            self._launch(group, built, stages(built.nest))
        except Unfusible as why:
            self.refused.append((group.nodes[-1], str(why)))
        self.places |= roots

    def _launch(self, group: Group, built: Built, parts: Sequence[Stage]) -> None:
        reasons = [why for stage in parts if (why := unsupported(stage.nest)) is not None]
        if reasons:
            raise Unfusible(reasons[0])
        spare: dict[Hashable, int] = {}
        for stage in parts:
            buffers = tuple(self._buffer(stage, number, built, spare) for number in stage.buffers)
            kernel = emit_triton(stage.nest, is_aligned=self.is_aligned)
            for number in buffers:
                self.blocks[number].last = len(self.kernels)
            self.kernels.append(GpuKernel(stage.nest, kernel, buffers, tuple(group.nodes)))

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
        return GpuProgram(tuple(self.kernels), memories, state, tuple(results), aligned(total), refused)
