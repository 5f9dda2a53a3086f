"""Whole graphs as kernels for a GPU. `planner` walks the nodes, `units` says which form one kernel with a product."""

from smelt.codegen.lower.gpu.planner import Tf32, gpu_program
from smelt.codegen.lower.gpu.program import GpuKernel, GpuProgram, Place

__all__ = ["GpuKernel", "GpuProgram", "Place", "Tf32", "gpu_program"]
