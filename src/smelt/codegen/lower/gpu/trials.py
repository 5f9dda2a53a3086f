"""What is worth timing: for a product the tiles that fit it, for attention its blocks, for both torch's operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from smelt.codegen.kernels.graph import Graph as NestGraph
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.lower.gpu.attentions import ATTENTIONS, Launch
from smelt.codegen.lower.gpu.choices import BY_RULE, Launched, Trial, Way
from smelt.codegen.lower.gpu.program import GpuProgram
from smelt.codegen.lower.gpu.units import Unit
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.triton.attention import BLOCKS
from smelt.codegen.triton.contraction import contraction, tiles_for
from smelt.ir import Graph, Node, TensorType, Value


def unit_trial(
    graph: Graph,
    unit: Unit,
    nests: Sequence[Nest],
    kernels: Callable[[Way], Sequence[Launched]],
    nbytes: Callable[[Any], int],
    rest: Callable[[Graph], GpuProgram],
) -> Trial:
    """The trial of a product with what is around it. nests: what its kernels compute, one after the other."""
    ways: dict[Way, None] = {}
    shapes, work = [], 0
    for nest in nests:
        nest = simplify_nest(nest)
        work += prod(nest.sizes)
        found = contraction(NestGraph(nest))
        if found is None:
            continue
        rows, columns, batch = (prod(nest.sizes[k] for k in loops) for loops in (found.rows, found.columns, found.grid))
        length, dtype = prod(nest.inner), found.factors[0].dtype
        ways.update((Way(tile), None) for tile in tiles_for(rows, columns, length, dtype))
        shapes.append(f"{f'{batch} x ' if batch > 1 else ''}{rows}x{columns}x{length} {dtype}")
    ops = ", ".join(node.op.split(".")[1] for node in unit.nodes)
    shape = f"{ops}: {', '.join(shapes) or 'x'.join(map(str, nests[0].sizes))}"
    # What the rule takes is timed once.
    same = {_told(kernels(BY_RULE))}
    kept = []
    for way in ways:
        told = _told(kernels(way))
        if told not in same:
            same.add(told)
            kept.append(way)
    return Trial(shape, graph, unit.nodes, kernels, tuple(kept), nbytes, unit.products, rest, work)


def attention_trial(
    graph: Graph, node: Node, launches: Callable[[Way], Sequence[Launch]], geometry: Callable[[Value], Geometry]
) -> Trial:
    """The trial of attention, or of its gradients, which torch's own operator computes for whole tensors only."""

    def kernels(way: Way) -> list[Launched]:
        return [
            Launched(one.kernel, one.values, tuple(_type(v).dtype for v in one.values), one.writes)
            for one in launches(way)
        ]

    def nbytes(value: Value) -> int:
        type_ = _type(value)
        at = Geometry.of(type_) if value in node.results else geometry(value)
        return (at.offset + at.extent) * type_.dtype.itemsize

    same = {_told(kernels(BY_RULE))}
    ways = []
    for blocks in BLOCKS:
        told = _told(kernels(Way(blocks=blocks)))
        if told not in same:
            same.add(told)
            ways.append(Way(blocks=blocks))
    sizes = " ".join("x".join(map(str, _type(v).sizes)) for v in node.operands() if isinstance(v.type, TensorType))
    library = (node,) if node.op == ATTENTIONS[0] else ()
    work = prod(_type(node.results[0]).sizes) * 1024
    return Trial(
        f"{node.op.split('.')[1]}: {sizes}", graph, (node,), kernels, tuple(ways), nbytes, library, _nothing, work
    )


def _nothing(graph: Graph) -> GpuProgram:
    raise AssertionError("attention stands alone")


def _type(value: Value) -> TensorType:
    assert isinstance(value.type, TensorType)
    return value.type


def _told(launches: Sequence[Launched]) -> tuple[str, ...]:
    return tuple(one.kernel.source.digest for one in launches)
