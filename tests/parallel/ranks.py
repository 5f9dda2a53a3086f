"""One graph on several ranks against the graph: outputs, and gradients by autodiff of each rank's part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt.autodiff import joint_graph
from smelt.autodiff.activity import may_depend
from smelt.ir import Graph, TensorType, Value, verify
from smelt.ops.check import check
from smelt.ops.evaluate import evaluate
from smelt.ops.ranks.collectives import part_of, whole_of
from smelt.ops.ranks.placements import Placement, Shard
from smelt.parallel.dividing.partition import Partition, partition
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.simulate import World
from smelt.passes.ranks.local import localize


def parts_of(graph: Graph, ranks: int, given: Mapping[str, Placement], **more: Any) -> list[Partition]:
    """The graph of each rank along one axis, verified."""
    made = [partition(graph, "tp", ranks, rank, given, **more) for rank in range(ranks)]
    for part in made:
        verify(part.graph, check)
    return made


def local(part: Partition, name: str, whole: Any) -> Any:
    """What a rank has of an input."""
    at = part.inputs.get(name)
    return part_of(whole, at, part.rank).contiguous() if isinstance(at, Shard) else whole


def assembled(pieces: Sequence[torch.Tensor], at: Placement) -> torch.Tensor:
    """The whole of what ranks have; of what all have, after a look that all have the same."""
    if isinstance(at, Shard):
        return whole_of(pieces, at)
    for piece in pieces[1:]:
        torch.testing.assert_close(piece, pieces[0], rtol=0, atol=0, equal_nan=True)
    return pieces[0]


def check_outputs(graph: Graph, inputs: Sequence[torch.Tensor], parts: Sequence[Partition]) -> None:
    """All ranks' results against the graph's, from one seed."""
    torch.manual_seed(0)
    wanted = evaluate(graph, [x.clone() for x in inputs])

    def run(rank: int) -> list[Any]:
        part = parts[rank]
        own = [local(part, v.name, x).clone() for v, x in zip(graph.inputs, inputs, strict=True)]
        return evaluate(part.graph, own)

    torch.manual_seed(0)
    found = World(Mesh.of({"tp": len(parts)})).run(run)
    for number, want in enumerate(wanted):
        if isinstance(want, torch.Tensor):
            got = assembled([one[number] for one in found], parts[0].outputs[number])
            torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-9, atol=1e-9, check_stride=False)


def check_gradients(
    graph: Graph, inputs: Sequence[torch.Tensor], parts: Sequence[Partition], rtol: float = 1e-8
) -> int:
    """The gradients of all ranks against the graph's; how many there are."""
    wrt = [v.name for v in graph.inputs if may_depend(v.type)]
    chosen = [
        i for i, out in enumerate(graph.outputs)
        if isinstance(out, Value) and isinstance(out.type, TensorType) and out.type.dtype.kind == "float"
    ]  # fmt: skip
    whole = joint_graph(graph, wrt, chosen)
    if not whole.differentiated:
        return 0
    torch.manual_seed(1)
    outs = [graph.outputs[i] for i in whole.differentiated]
    grads = [torch.randn(out.type.sizes, dtype=torch.float64) for out in outs]  # type: ignore[union-attr]
    torch.manual_seed(0)
    wanted = evaluate(whole.graph, [*(x.clone() for x in inputs), *grads])[whole.count :]
    joints = [joint_graph(part.graph, wrt, whole.differentiated) for part in parts]
    for joint in joints:
        localize(joint.graph)
        verify(joint.graph, check)
        assert joint.differentiated == whole.differentiated

    def run(rank: int) -> list[Any]:
        part, joint = parts[rank], joints[rank]
        own = [local(part, v.name, x).clone() for v, x in zip(graph.inputs, inputs, strict=True)]
        given = [
            part_of(g, at, rank).contiguous() if isinstance(at := part.outputs[i], Shard) else g
            for i, g in zip(joint.differentiated, grads, strict=True)
        ]
        return evaluate(joint.graph, [*own, *given])[joint.count :]

    torch.manual_seed(0)
    found = World(Mesh.of({"tp": len(parts)})).run(run)
    for name, number in zip(wrt, range(len(wanted)), strict=True):
        pieces = [one[number] for one in found]
        if wanted[number] is None:
            assert all(piece is None or not piece.any() for piece in pieces)
            continue
        got = assembled(pieces, parts[0].inputs[name])
        torch.testing.assert_close(got, wanted[number], equal_nan=True, rtol=1e-8, atol=1e-8, check_stride=False)
    return len(wanted)
