"""A graph as kernels for a GPU: nests as Triton text, the memory that they touch, and the plan that they compile to."""

from __future__ import annotations

from typing import Literal

from smelt.codegen.kernels.nest import Nest
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.triton.compile import compile_cuda
from smelt.codegen.triton.kernel import TritonKernel
from smelt.diag import SmeltError
from smelt.diag.records import record
from smelt.ir import DType, Node
from smelt.runtime.cuda.plan import CudaCondition, CudaDraws, CudaLaunch, CudaMemory, CudaPlan, ordered
from smelt.runtime.machine.cache import CodeCache


@record
class Place:
    """Where a value is: a memory's number, and how it lies in it."""

    memory: int
    geometry: Geometry


@record
class GpuKernel:
    """One launch: its kernel, the memories of its buffers with their elements' dtypes, the positions of those that it
    writes, and the nodes that it computes. text: what it does, for people; nest: the nest that it runs, if it is one.
    """

    kernel: TritonKernel
    buffers: tuple[int, ...]
    dtypes: tuple[DType, ...]
    writes: tuple[int, ...]
    nodes: tuple[Node, ...]
    text: str
    nest: Nest | None = None

    @staticmethod
    def of(nest: Nest, kernel: TritonKernel, buffers: tuple[int, ...], nodes: tuple[Node, ...]) -> GpuKernel:
        """A nest's launch."""
        dtypes = tuple(buffer.dtype for buffer in nest.buffers)
        return GpuKernel(kernel, buffers, dtypes, nest.writes, nodes, str(nest), nest)


@record
class GpuCondition:
    """Kernels that run as a byte of the GPU's memory says: an `if` with both arms, or a `while` with its body.

    test: the byte's memory, which a loop's body writes, too. arms: steps, n for kernel n and ~n for condition n. node:
    the branch or the loop.
    """

    kind: Literal["if", "while"]
    test: int
    arms: tuple[tuple[int, ...], ...]
    node: Node


@record
class GpuProgram:
    """A graph's kernels in order.

    memories: what they touch. state: the nodes (`param`, `const`) of state, by number. results: where each of the
    graph's outputs is. refused: nodes that have no kernel, and why. draws: what a call takes of the generator.
    conditions: in which some kernels stand. steps: kernels and conditions of the program's own level.
    """

    kernels: tuple[GpuKernel, ...]
    memories: tuple[CudaMemory, ...]
    state: tuple[Node, ...]
    results: tuple[tuple[Place, DType], ...]
    arena_nbytes: int
    refused: tuple[tuple[Node, str], ...]
    draws: CudaDraws | None = None
    conditions: tuple[GpuCondition, ...] = ()
    steps: tuple[int, ...] = ()

    def compiled(self, arch: int, cache: CodeCache | None = None) -> CudaPlan:
        """What a GPU of a compute capability (90 for 9.0) runs.

        Raises: SmeltError (S0303) if a node has no kernel; as `compile_cuda`.
        """
        if self.refused:
            node, why = self.refused[0]
            raise SmeltError(f"{node.op} cannot run on a GPU: {why}", node.span, code="S0303")
        codes = compile_cuda([one.kernel.source for one in self.kernels], arch, cache)
        launches = [
            CudaLaunch(one.kernel.source.name, one.buffers, one.kernel.words, one.kernel.programs, one.writes)
            for one in self.kernels
        ]
        conditions = tuple(CudaCondition(one.kind, one.test, one.arms) for one in self.conditions)
        memories, launched = self.memories, tuple(launches)
        kernels = tuple(codes.values())
        return ordered(CudaPlan(kernels, memories, launched, self.arena_nbytes, self.draws, conditions, self.steps))
