"""A program's kernels for a GPU, seen: loops, Triton source or PTX of each, on a machine that needs no GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Literal

from smelt.analysis.devices import devices_of, on_cpu
from smelt.codegen.lower.gpu import GpuKernel, GpuProgram, gpu_program
from smelt.codegen.lower.gpu.deciding import Decided, why_no_kernels, with_decided
from smelt.codegen.triton.compile import machine_text, stage_texts
from smelt.ir import Graph

GpuForm = Literal["triton", "ptx", "sass"]


def gpu_listing(graph: Graph, form: GpuForm = "triton", arch: int = 90) -> str:
    """The kernels of an optimized graph, equal ones once, and which of its nodes have none.

    form: Triton source, or PTX or machine instructions (SASS) for a compute capability (`arch`, 90 for 9.0). Raises:
    SmeltError (S0305) for these without Triton.
    """
    device = next((name for name in sorted(devices_of(graph)) if name.startswith("cuda")), "cpu")
    found = with_decided(graph, device, partial(why_no_kernels, gpu_program))
    return "\n\n".join(_blocks(gpu_program(on_cpu(found.graph)), found, form, arch))


def _blocks(program: GpuProgram, decided: Decided, form: GpuForm, arch: int) -> Iterator[str]:
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
    reasons = {result.name: why for node, why in decided.why.items() for result in node.results}
    refused = Counter(
        f"{node.op}: {reasons.get(node.results[0].name, why) if node.results else why}" for node, why in program.refused
    )
    if refused:
        lines = (f"#   {count} {text}" for text, count in refused.items())
        yield "\n".join(["# Nodes without a kernel, so the program does not run on a GPU:", *lines])


def _head(group: list[GpuKernel]) -> str:
    times = f"{len(group)} launches, the first" if len(group) > 1 else "1 launch"
    return f"# {times} of {', '.join(f'%{n.results[0].name} = {n.op}' for n in group[0].nodes if n.results)}"
