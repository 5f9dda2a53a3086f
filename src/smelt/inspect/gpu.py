"""A program's kernels for a GPU, seen: loops, Triton source or PTX of each, on a machine that needs no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

from smelt.codegen.lower.gpu import GpuKernel, GpuProgram, gpu_program
from smelt.codegen.triton.compile import machine_text, stage_texts
from smelt.ir import Graph

GpuForm = Literal["triton", "ptx", "sass"]


def gpu_listing(graph: Graph, form: GpuForm = "triton", arch: int = 90) -> str:
    """The kernels of an optimized graph, equal ones once, and which of its nodes have none.

    form: Triton source, or PTX or machine instructions (SASS) for a compute capability (`arch`, 90 for 9.0). Raises:
    SmeltError (S0305) for these without Triton.
    """
    return "\n\n".join(_blocks(gpu_program(graph), form, arch))


def _blocks(program: GpuProgram, form: GpuForm, arch: int) -> Iterator[str]:
    launches: dict[str, list[GpuKernel]] = {}
    for one in program.kernels:
        launches.setdefault(one.kernel.source.name, []).append(one)
    for group in launches.values():
        yield "\n".join([_head(group), *(f"# {line}" for line in group[0].text.splitlines())])
        source = group[0].kernel.source
        if form == "triton":
            yield str(group[0].kernel)
        else:
            yield stage_texts(source, arch)["ptx"] if form == "ptx" else machine_text(source, arch)
    refused = Counter(f"{node.op}: {why}" for node, why in program.refused)
    if refused:
        lines = (f"#   {count} {text}" for text, count in refused.items())
        yield "\n".join(["# Nodes without a kernel, so the program does not run on a GPU:", *lines])


def _head(group: list[GpuKernel]) -> str:
    times = f"{len(group)} launches, the first" if len(group) > 1 else "1 launch"
    return f"# {times} of {', '.join(f'%{n.results[0].name} = {n.op}' for n in group[0].nodes if n.results)}"
