"""Walks the catalogue: every record's schema, types, lowering, aliasing and oracle against eager, on its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from smelt._torch.storage import same_storage
from smelt.ir import Arg, Builder, Graph, Node, TensorType, TupleType, Type, Value, verify
from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.convert import from_torch, type_of
from smelt.ops.effects import alias_of, aliases, effects
from smelt.ops.evaluate import evaluate
from smelt.ops.lowering import GraphEmitter, lower
from smelt.ops.record import OpRecord, Sample
from smelt.ops.registry import normalize, overload, schema_of
from smelt.ops.typing import infer

NAMES = [r.name for r in CATALOGUE]


def build(record: OpRecord, sample: Sample) -> tuple[Graph, Node, list[torch.Tensor], Builder]:
    """A graph of one node that makes the sample's call, its tensors as inputs."""
    tensors: list[torch.Tensor] = []
    builder = Builder(Graph("sample"))

    def place(item: Any) -> Arg:
        if isinstance(item, torch.Tensor):
            tensors.append(item)
            return builder.add_param(builder.graph.body, f"x{len(tensors)}", type_of(item))
        if isinstance(item, (list, tuple)):
            return tuple(place(i) for i in item)
        return from_torch(item)

    args, kwargs = normalize(
        record.name, tuple(place(a) for a in sample.args), {k: place(v) for k, v in sample.kwargs.items()}
    )
    node = builder.add(record.name, args, infer(record.name, args, kwargs), kwargs)
    builder.finish(tuple(node.results))
    return builder.graph, node, tensors, builder


def run(record: OpRecord, sample: Sample, tensors: list[torch.Tensor], graph: Graph) -> list[Any]:
    torch.manual_seed(0)
    return flat(evaluate(graph, tensors))


def flat(outputs: Any) -> list[Any]:
    return [t for o in outputs for t in (flat(o) if isinstance(o, (list, tuple)) else [o])]


def flat_types(types: tuple[Type, ...]) -> Iterator[Type]:
    for type_ in types:
        if isinstance(type_, TupleType):
            yield from flat_types(type_.elements)
        else:
            yield type_


def fits(type_: Type, result: Any) -> bool:
    if isinstance(type_, TensorType) and not type_.is_static:
        found = type_of(result)
        return (found.dtype, found.rank) == (type_.dtype, type_.rank)
    return bool(type_ == type_of(result))


def assert_same(found: list[Any], expected: list[Any], exact: bool) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if exact:
            assert_equal_bits(a, b)
        else:
            torch.testing.assert_close(a, b, equal_nan=True)


def assert_equal_bits(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.is_floating_point():
        assert torch.equal(torch.signbit(a) & (a == 0), torch.signbit(b) & (b == 0))


def test_names_are_unique() -> None:
    assert len(NAMES) == len(set(NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_record(name: str) -> None:
    record = record_of(name)
    assert record is not None
    assert overload(name) is not None and schema_of(name) is not None
    samples = list(record.samples())
    assert samples, f"{name} has no samples"
    fired = False
    for sample in samples:
        graph, node, tensors, builder = build(record, sample)
        verify(graph)
        results = run(record, sample, tensors, graph)
        for type_, result in zip(flat_types(tuple(r.type for r in node.results)), results, strict=True):
            assert fits(type_, result), f"{graph}: {type_of(result)}"
        check_aliases(node, results, tensors)
        with builder.at(node):
            parts = lower(node, GraphEmitter(builder))
        if parts is not None:
            fired = True
            builder.graph.body.set_yields(parts)
            verify(builder.graph)
            assert_same(run(record, sample, tensors, builder.graph), results, record.exact)
            if record.exact:
                expected = list(flat_types(tuple(r.type for r in node.results)))
                assert [p.type if isinstance(p, Value) else p for p in parts] == expected
    assert record.lower is None or fired, f"the lowering of {name} fits none of its samples"


def check_aliases(node: Node, results: list[Any], tensors: list[torch.Tensor]) -> None:
    by_value = dict(zip(node.parent.params, tensors, strict=True)) if node.parent else {}
    told = [{id(by_value[v]) for v in shared} for shared in aliases(node)]
    really = [{id(t) for t in tensors if isinstance(r, torch.Tensor) and same_storage(t, r)} for r in results]
    if len(told) == 1:
        # What is told of a list holds for its elements together.
        told, really = told * len(results), [set().union(*really)] * len(results)
    for found, shared in zip(really, told, strict=True):
        assert found == shared, f"{node}: shares memory with {found}, told {shared}"
    sure = alias_of(node)
    if sure is not None:
        assert same_storage(results[0], by_value[sure])


@pytest.mark.parametrize("name", NAMES)
def test_effects_of_samples(name: str) -> None:
    record = record_of(name)
    assert record is not None
    sample = next(iter(record.samples()))
    _, node, tensors, _ = build(record, sample)
    found = effects(node)
    # A division of floats does not raise, whatever it is divided by.
    is_division = any(word in name for word in ("div", "remainder", "fmod"))
    assert (found.may_throw == record.may_throw or (is_division and not found.may_throw)) and not found.io
    before = torch.get_rng_state()
    versions = [t._version for t in tensors]
    run_once(node, tensors)
    assert found.rng or torch.equal(before, torch.get_rng_state())
    assert found.writes or versions == [t._version for t in tensors]


def run_once(node: Node, tensors: list[torch.Tensor]) -> None:
    region = node.parent
    assert region is not None and not isinstance(region.owner, Node) and region.owner is not None
    evaluate(region.owner, tensors)


@pytest.mark.parametrize("name", NAMES)
def test_oracle(name: str) -> None:
    record = record_of(name)
    assert record is not None
    found: Any = torch
    for part in record.oracle.split(".")[1:]:
        found = getattr(found, part)
    assert callable(found)
