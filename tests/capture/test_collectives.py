"""Programs that talk to other processes: what they call is named, and results are of the classes that eager gives."""

from __future__ import annotations

import pytest
import torch
from torch import distributed as dist
from torch import nn

import smelt
from smelt.diag import CaptureError
from smelt.ops.ranks import collective_ops
from smelt.ops.ranks.collectives import communicating

if not dist.is_available():  # pragma: no cover - a torch built without it
    pytest.skip("this torch has no collectives", allow_module_level=True)

from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

X = torch.tensor([[1.0, 2.0, 3.0, 4.0]])


@pytest.fixture
def alone(tmp_path):
    """A group of this process only, which computes what it should."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def two():
    """A group of two, of which the other one is made up."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


def _all_reduce(t):
    t = t + 1
    dist.all_reduce(t)
    return t * 2


def _not_awaited_at_once(t):
    t = t + 1
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    return t * 2


def _all_gather(t):
    parts = [torch.empty(1, 4)]
    dist.all_gather(parts, t)
    return parts[0] + 1


def _broadcast(t):
    t = t + 1
    dist.broadcast(t, 0)
    return t


def _barrier(t):
    dist.barrier()
    return t + 1


NAMES = {
    _all_reduce: "c10d.allreduce_",
    _not_awaited_at_once: "c10d.allreduce_",
    _all_gather: "c10d.allgather_",
    _broadcast: "c10d.broadcast_",
    _barrier: "c10d.barrier",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("f", NAMES)
def test_a_collective_is_named(alone, f):
    compiled = smelt.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(X), f(X))
    (reason,) = compiled.stats().fallbacks
    assert f"a collective of torch.distributed was called, {NAMES[f]}" in reason
    with pytest.raises(CaptureError, match=f"S0104.*{NAMES[f]}"):
        smelt.trace(f, (X,))


@pytest.mark.filterwarnings("ignore")
def test_a_functional_collective_is_part_of_the_graph(alone):
    def f(t):
        return functional.all_reduce(t, "sum", dist.group.WORLD) * 2

    compiled = smelt.compile(f)
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2)
    assert not compiled.stats().fallbacks
    program = smelt.trace(f, (X,))
    assert "_c10d_functional.all_reduce" in str(program.graph) and torch.equal(program(X), X * 2)


def test_one_of_torchs_is_named_beside_those_of_ranks(alone):
    collective_ops.register()

    def f(t):
        return _all_reduce(torch.ops.smelt_dist.broadcast(t, 0, "own"))

    class Own:
        def broadcast(self, tensor, source, axis):
            return tensor.clone()

    with communicating(Own()), pytest.raises(CaptureError, match=r"a collective of torch\.distributed was called"):
        smelt.trace(f, (X,))


@pytest.mark.filterwarnings("ignore")
def test_a_result_that_nobody_awaits_is_of_eagers_class(alone):
    def f(t):
        return functional.all_reduce(t, "sum", dist.group.WORLD)

    compiled = smelt.compile(f)
    for run in (f, compiled, compiled, compiled):
        result = run(X)
        assert type(result) is functional.AsyncCollectiveTensor and torch.equal(result * 1, X)


@pytest.mark.filterwarnings("ignore")
def test_a_tensor_parallel_module_gives_what_it_gives_in_eager(two):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    parallelize_module(model, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = smelt.compile(model)
    with torch.no_grad():
        expected = model(X)
        assert type(expected) is functional.AsyncCollectiveTensor
        for _ in range(3):
            result = compiled(X)
            assert type(result) is type(expected) and torch.equal(result * 1, expected * 1)
