"""Each rule of how an operator is divided: every sample, each dimension of each operand divided, evenly and not.

The ranks together have to compute what the operator computes, and its gradients, whatever follows from the division.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from smelt.ir import Graph, TensorType, Value
from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.catalogue.sharding import FORMS, RULES
from smelt.ops.catalogue.sharding.pointwise import is_by_elements
from smelt.ops.placements import Replicate, Shard, evenly
from tests.autodiff.gradient_harness import graph_of, in_f64, with_tensors
from tests.parallel.ranks import check_gradients, check_outputs, parts_of

_ELSEWHERE = {"aten._grouped_mm.default"}
"""What torch has in f32 and of rows of 16 bytes only (`test_sorted`)."""
_RULED = [
    r.name for r in CATALOGUE
    if (r.name in RULES or r.name in FORMS) and not r.uninitialised and r.name not in _ELSEWHERE
]  # fmt: skip
_POINTWISE = [
    r.name for r in CATALOGUE if r.name not in _RULED and is_by_elements(r.name) and not r.uninitialised
]  # fmt: skip
_NO_GRADIENT = {"aten.floor_divide.default", "aten.remainder.Scalar_Tensor"}
"""Of which torch's own autograd says that it has none."""


def _divisions(graph: Graph, most: int = 6) -> Iterator[dict[str, Shard]]:
    """Each dimension of each input divided by itself; in halves, unevenly, in two parts."""
    count = 0
    for value in graph.inputs:
        if not isinstance(value.type, TensorType):
            continue
        for dim, size in enumerate(value.type.sizes):
            kinds = [Shard(dim, evenly(size, 2))] if size >= 2 else []
            kinds += [Shard(dim, (1, size - 1))] if size >= 3 else []
            kinds += [Shard(dim, (size // 4, size // 4), 2)] if size % 4 == 0 and size else []
            for at in kinds:
                count += 1
                if count <= most:
                    yield {value.name: at}


def _check(name: str) -> int:
    record, divided = record_of(name), 0
    assert record is not None
    for sample in list(record.samples())[:4]:
        sample = with_tensors(sample, in_f64)
        graph, tensors = graph_of(name, sample)
        if not all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.inputs):
            continue
        if any(t.is_complex() or t.is_quantized for t in tensors) or not tensors:
            continue
        for given in _divisions(graph):
            parts = parts_of(graph, 2, given, outputs=[None] * len(graph.outputs))
            check_outputs(graph, tensors, parts)
            if name not in _NO_GRADIENT:
                check_gradients(graph, tensors, parts)
            names = {v.name for v in graph.outputs if isinstance(v, Value)}
            divided += any(not isinstance(parts[0].placements[name], Replicate) for name in names)
    return divided


@pytest.mark.parametrize("name", _RULED)
def test_a_rule_divides_right(name: str) -> None:
    assert _check(name) or name in FORMS or name in _NEVER_DIVIDED


_NEVER_DIVIDED = frozenset[str]()


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", _POINTWISE)
def test_by_elements_divides_right(name: str) -> None:
    _check(name)


def test_most_by_elements_stay_divided() -> None:
    assert sum(_check(name) > 0 for name in _POINTWISE[::10]) > len(_POINTWISE[::10]) // 2


def test_the_table_names_operators() -> None:
    named = [name for name in (*RULES, *FORMS) if not name.startswith("dist.")]
    missing = [
        name for name in named if not hasattr(getattr(torch.ops.aten, name.split(".")[1], None), name.split(".")[2])
    ]
    assert missing == []
