"""Sums of backward that are sent while it goes on: the order of their starts and waits, and the same numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from smelt import parse
from smelt.autodiff import Joint, joint_graph
from smelt.ir import Graph, verify
from smelt.ops.check import check
from smelt.ops.evaluate import evaluate
from smelt.ops.ranks import collectives as dist
from smelt.ops.ranks.collectives import part_of
from smelt.ops.ranks.placements import Placement, Shard
from smelt.parallel.dividing.partition import Partition
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.simulate import World
from smelt.passes.ranks import overlap as overlapping
from smelt.passes.ranks.local import localize
from smelt.passes.ranks.overlap import overlap
from tests.parallel.ranks import parts_of

_LAYERS = """
graph f(%x: f32[ROWS, 8], %a: f32[8, 8], %b: f32[8, 8], %c: f32[8, 8], %d: f32[8, 8], %g: f32[8]) -> f32[] {
  %n: f32[ROWS, 8] = aten.mul.Tensor(%x, %g)
  %0: f32[ROWS, 8] = aten.linear.default(%n, %a)
  %1: f32[ROWS, 8] = aten.relu.default(%0)
  %2: f32[ROWS, 8] = aten.linear.default(%1, %b)
  %m: f32[ROWS, 8] = aten.mul.Tensor(%2, %g)
  %3: f32[ROWS, 8] = aten.linear.default(%m, %c)
  %4: f32[ROWS, 8] = aten.relu.default(%3)
  %5: f32[ROWS, 8] = aten.linear.default(%4, %d)
  %6: f32[] = aten.sum.default(%5)
  return %6
}
"""
_ROWS, _COLUMNS = Shard(0, (4, 4)), Shard(1, (4, 4))
_TENSOR: dict[str, Placement] = {"a": _ROWS, "b": _COLUMNS, "c": _ROWS, "d": _COLUMNS}
_BATCH: dict[str, Placement] = {"x": Shard(0, (32, 32))}


def _program(given: dict[str, Placement]) -> Graph:
    """Of many rows where they are divided, so that nobody gathers them."""
    return parse(_LAYERS.replace("ROWS", "64" if "x" in given else "4"))


def _joints(given: dict[str, Placement]) -> tuple[list[Partition], list[Joint]]:
    parts = parts_of(_program(given), 2, given)
    made = [joint_graph(part.graph, ["x", "a", "b", "c", "d", "g"], [0]) for part in parts]
    for joint in made:
        localize(joint.graph)
    return parts, made


def _overlapped(joint: Joint) -> Graph:
    graph = joint.graph.clone()
    overlap(graph, graph.inputs[joint.given :])
    verify(graph, check)
    assert parse(str(graph)) == graph
    return graph


def _run(given: dict[str, Placement], parts: list[Partition], graphs: list[Graph]) -> list[list[Tensor]]:
    torch.manual_seed(0)
    inputs = [torch.randn(v.type.sizes) for v in _program(given).inputs]  # type: ignore[union-attr]

    def of_rank(rank: int) -> list[Tensor]:
        names = [v.name for v in graphs[rank].inputs][: len(inputs)]
        lie = [parts[rank].inputs[name] for name in names]
        own = [part_of(x, at, rank) if isinstance(at, Shard) else x for x, at in zip(inputs, lie, strict=True)]
        return evaluate(graphs[rank], [*own, torch.ones(())])

    return World(Mesh.of({"tp": 2})).run(of_rank)


@pytest.mark.parametrize("given", [_TENSOR, _BATCH, _TENSOR | _BATCH])
def test_the_same_numbers(given: dict[str, Placement]) -> None:
    parts, joints = _joints(given)
    both = [_run(given, parts, [of(j) for j in joints]) for of in (lambda j: j.graph, _overlapped)]
    for wanted, got in zip(*both, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))


def test_gradients_of_weights_are_computed_beside_a_sum() -> None:
    joint = _joints(_TENSOR)[1][0]
    before = [n.op for n in joint.graph.body if n.op == dist.ALL_REDUCE]
    ops = [n.op for n in _overlapped(joint).body]
    starts = [i for i, op in enumerate(ops) if op == dist.START]
    assert ops.count(dist.ALL_REDUCE) + len(starts) == len(before) - 1 and len(starts) == 2  # two share a message
    for start in starts[:1]:  # behind the last one there is nothing left
        wait = ops.index(dist.WAIT, start)
        assert "aten.mm.default" in ops[start:wait]


def test_small_gradients_share_a_message() -> None:
    ops = [n.op for n in _overlapped(_joints(_BATCH)[1][0]).body]
    assert ops.count(dist.START) == 1 and ops.index(dist.WAIT) > max(i for i, op in enumerate(ops) if "mm" in op)


_STEP = """
graph step(%g: f32[4, 4], %w: f32[4, 4], %b: f32[4]) -> f32[4, 4] {
  %0: f32[4, 4] = aten.mm.default(%g, %w)
  %1: f32[4] = aten.sum.dim_IntList(%g, [0])
  %2: f32[4] = dist.all_reduce(%1, "sum", "tp")
  %3: f32[4, 4] = dist.all_reduce(%0, "sum", "tp")
  %4: f32[4] = aten.mul.Tensor(%1, 2.0)
  %5: f32[4] = dist.all_reduce(%4, "sum", "tp")
  %6: f32[4, 4] = aten.mm.default(%3, %w)
  %7: f32[4, 4] = dist.all_reduce(%6, "sum", "tp")
  %8: f32[4, 4] = aten.mm.default(%g, %g)
  %9: f32[4, 4] = aten.sub.Tensor(%w, %8)
  %10: f32[4] = aten.sub.Tensor(%b, %2)
  %11: f32[4] = aten.sub.Tensor(%10, %5)
  %12: f32[4, 4] = write(%w, %9)
  %13: f32[4] = write(%b, %11)
  return %7
}
"""


def test_an_update_is_computed_beside_a_sum_and_written_behind_all_that_reads() -> None:
    graph = parse(_STEP)
    before = graph.clone()
    overlap(graph, graph.inputs[:1])
    verify(graph, check)
    ops = [node.op for node in graph.body]
    update = next(i for i, node in enumerate(graph.body) if node.results and node.result.name == "9")
    assert ops.index(dist.START) < update < ops.index(dist.WAIT, update) < ops.index("write")
    assert ops.count(dist.START) == 2  # the first three sums are small, and nothing uses them before the last has begun

    def of_rank(rank: int, graph: Graph) -> list[Tensor]:
        torch.manual_seed(rank)
        inputs = [torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)]
        return [*evaluate(graph, inputs), *inputs]

    found = [World(Mesh.of({"tp": 2})).run(lambda rank, g=g: of_rank(rank, g)) for g in (before, graph)]
    assert all(torch.equal(a, b) for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))


def test_large_gradients_go_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlapping, "SMALL", 64)
    ops = [n.op for n in _overlapped(_joints(_BATCH)[1][0]).body]
    assert ops.count(dist.START) == 5
    first = ops.index(dist.START)
    assert ops.index(dist.WAIT) > max(i for i, op in enumerate(ops) if op == dist.START) > first
