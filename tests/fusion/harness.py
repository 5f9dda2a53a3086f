"""Whole graphs as one nest, run by the reference evaluation of nests, beside the evaluator of graphs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from smelt.codegen.fusion.build import Built, build, eager_memory
from smelt.codegen.fusion.groups import Facts, Group
from smelt.codegen.fusion.partition import Partition, partition
from smelt.codegen.fusion.pull import Memory
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.schedule import schedule
from smelt.codegen.kernels.evaluate import evaluate_nest
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.ir import Builder, Graph, Node, TensorType, Value, values_in
from smelt.ops.convert import bind, dummy_of, from_torch, type_of
from smelt.ops.evaluate import constant
from smelt.ops.record import Sample
from smelt.ops.registry import normalize, overload
from smelt.ops.typing import infer


@dataclass
class Run:
    """A nest, the code it ended with, and what it stored."""

    built: Built
    code: int
    results: list[torch.Tensor]


def sample_graph(name: str, sample: Sample) -> tuple[Graph, list[torch.Tensor]]:
    """A graph of one node, and its inputs."""
    tensors: list[torch.Tensor] = []
    builder = Builder(Graph("sample"))

    def place(item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return builder.add_param(builder.graph.body, f"x{len(tensors)}", type_of(item))
        if isinstance(item, (list, tuple)):
            return tuple(place(i) for i in item)
        return from_torch(item)

    args, kwargs = normalize(
        name, tuple(place(a) for a in sample.args), {k: place(v) for k, v in sample.kwargs.items()}
    )
    node = builder.add(name, args, infer(name, args, kwargs), kwargs)
    outputs = list(node.results)
    if not all(isinstance(r.type, TensorType) for r in outputs):
        (packed,) = outputs
        outputs = builder.add("unpack", (packed,), getattr(packed.type, "elements", ())).results
    builder.finish(tuple(outputs))
    return builder.graph, tensors


def roots_of(graph: Graph) -> list[Value]:
    """The graph's outputs, each once."""
    return list(dict.fromkeys(v for arg in graph.outputs for v in values_in(arg)))


def nest_of(graph: Graph, roots: Sequence[Value] | None = None) -> Built:
    """The nest of a whole graph. Raises: Unfusible."""
    inside = frozenset(r for node in graph.body if node.op in RULES or node.op != "const" for r in node.results)
    return build(roots or roots_of(graph), inside, RULES, eager_memory, eager_memory)


def run_nest(graph: Graph, tensors: Sequence[torch.Tensor]) -> Run:
    """The graph's outputs by one nest. Raises: Unfusible."""
    roots = roots_of(graph)
    built = nest_of(graph, roots)
    memory: dict[Any, torch.Tensor] = dict(zip(graph.inputs, tensors, strict=True))
    for node in graph.body:
        if node.op == "const":
            memory[node.result] = constant(graph, node)
    for root in roots:
        assert isinstance(root.type, TensorType)
        memory[root] = dummy_of(root.type)
    code = evaluate_nest(built.nest, [memory[key] for key in built.keys])
    return Run(built, code, [memory[root] for root in roots])


def run_partition(graph: Graph, tensors: Sequence[torch.Tensor]) -> tuple[Partition, list[Any]]:
    """The graph's outputs, each group by its nest and every other node by torch."""
    parts = partition(graph, lambda built: None)
    at = {group.nodes[-1]: group for group in parts.groups}
    covered = {node for group in parts.groups for node in group.nodes}
    memory: dict[Value, Any] = dict(zip(graph.inputs, tensors, strict=True))
    for node in schedule(graph, parts.facts, [group.nodes for group in parts.groups]):
        if node in at:
            _run_group(at[node], parts.facts, memory)
        elif node not in covered:
            _run_node(graph, node, memory)
    return parts, [bind(arg, memory) for arg in graph.outputs]


def _run_group(group: Group, facts: Facts, memory: dict[Value, Any]) -> None:
    def where(value: Value) -> Memory:
        tensor = memory[value]
        return Memory(value, f"%{value.name}", Geometry(tuple(tensor.shape), tensor.stride()))

    built = build(group.roots, facts.inside(group.nodes), RULES, where, eager_memory)
    for root in group.roots:
        assert isinstance(root.type, TensorType)
        memory[root] = dummy_of(root.type)
    assert evaluate_nest(built.nest, [memory[key] for key in built.keys]) == 0


def _run_node(graph: Graph, node: Node, memory: dict[Value, Any]) -> None:
    if node.op == "const":
        memory[node.result] = constant(graph, node)
        return
    if not all(v in memory for v in node.operands()):
        return  # A view within a group.
    if node.op == "unpack":
        memory.update(zip(node.results, memory[next(node.operands())], strict=True))
        return
    found = overload(node.op)
    assert found is not None
    made = found(*(bind(a, memory) for a in node.args), **{k: bind(a, memory) for k, a in node.kwargs.items()})
    memory.update(zip(node.results, made if len(node.results) > 1 else [made], strict=True))
