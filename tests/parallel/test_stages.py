"""Where the stages of a pipeline end, what the ready schedule says of them, and what one microbatch may do."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import smelt
from smelt.diag import SmeltError
from smelt.parallel.mesh import Mesh
from smelt.parallel.pipelines import balance
from smelt.parallel.pipelines.balance import Loads, balanced, loads_of
from smelt.parallel.pipelines.pipeline import param_free
from smelt.parallel.proving.simulate import World
from smelt.scheduling.ranks.parallel_build import program_of


def _convolutions() -> smelt.Schedule:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    return smelt.schedule(model, (torch.randn(4, 3, 9, 9),))


def test_the_ready_pipeline_tells_its_stages_and_its_bubble() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(6)))
    ready = smelt.schedules.pipeline(model, (torch.randn(8, 16),), stages=2)
    assert ready.found == ready.applied == {"stages": 2}
    assert [row.split(":")[0] for row in ready.notes] == [
        "stage 0 from 0", "stage 1 from 3", "bubble",
    ]  # fmt: skip
    # Of as much work each: the second stage waits for the first microbatch there, the first one for the last back.
    assert ready.notes[-1] == "bubble: of 4 microbatches, 20% of the ranks' time is waiting"
    assert ready.schedule.verify(mesh="pp=2").error < 1e-5


def test_a_batch_that_is_needed_whole_is_one_microbatch() -> None:
    ready = smelt.schedules.pipeline(_convolutions(), stages=2)
    assert ready.applied == {"stages": 2}
    assert "1.num_batches_tracked" in ready.notes[-1] and "bubble: of 1 microbatch, 50%" in ready.notes[-2]
    proof = ready.schedule.verify(mesh="pp=2")
    assert proof.error < 1e-5
    held = [set(dict(ready.schedule.build(mesh="pp=2", rank=r).named_buffers())) for r in range(2)]
    assert sorted(map(len, held)) == [0, 3]


def test_more_microbatches_than_the_program_has_are_refused_with_the_line() -> None:
    ready = smelt.schedules.pipeline(_convolutions(), stages=2, microbatches=2)
    assert not ready.applied and not ready.schedule.log
    assert "1.num_batches_tracked is written to" in ready.skipped[0] and "test_stages.py" not in ready.skipped[0]


def test_a_buffer_that_two_stages_write_to_is_refused() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.second(self.norm(self.first(x))))

    s = smelt.schedule(Twice(), (torch.randn(4, 8),))
    s["first"].cut()
    s.pipeline(2, microbatches=1)
    assert s.verify(mesh="pp=2").error < 1e-5
    t = smelt.schedule(Twice(), (torch.randn(4, 8),))
    t["second"].cut()
    t.pipeline(2, microbatches=1)
    with pytest.raises(SmeltError, match=r"norm.* is written to, and stages 0, 1 use it"):
        t.build(mesh="pp=2", rank=0)


@pytest.mark.parametrize("stages", [2, 3])
def test_the_longest_stage_is_as_short_as_can_be_and_then_the_largest_as_small(
    stages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balance, "_PER_BYTE", 0.0)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(7)))
    graph = program_of(smelt.schedule(model, (torch.randn(4, 8),))._state)
    free = param_free(graph)
    nodes = [n for n in graph.body if n.op == "aten.linear.default"]
    found = loads_of(nodes, 2)
    assert len(found.work) == 7 and all(nbytes for _, _, nbytes in found.state)
    work, kept = [4.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0], [9, 1, 70, 2, 2, 2, 90]
    loads = Loads(work, kept, [(0, -1, 100), (3, -1, 10), (6, 0, 100)])
    flying = [stages - k for k in range(stages)]

    def price(ends: tuple[int, ...]) -> tuple[bool, float]:
        spans = list(itertools.pairwise([0, *ends, 7]))
        longest = max(sum(work[b:e]) for b, e in spans)
        return longest > shortest * 1.03, max(loads.memory(b, e, n) for (b, e), n in zip(spans, flying, strict=True))

    every = list(itertools.combinations(range(1, 7), stages - 1))
    shortest = min(max(sum(work[b:e]) for b, e in itertools.pairwise([0, *ends, 7])) for ends in every)
    chosen = balanced(nodes, loads, free, flying)
    assert price(tuple(chosen)) == min(map(price, every))


class _Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for layer in self.layers:
            x = layer(x).tanh()
        return x, x.square().mean()


def test_forward_and_backward_in_the_order_of_the_schedule() -> None:
    torch.manual_seed(0)
    model, x = _Scored(), torch.randn(8, 8)
    s = smelt.schedule(model, (x,))
    s.pipeline(2, "pp", microbatches=4)
    _, wanted = smelt.forward_backward(model, x)  # of a module like any other
    assert all(p.grad is not None for p in model.parameters())

    def of_rank(rank: int) -> tuple[float, dict[str, torch.Tensor | None]]:
        module = s.build(mesh="pp=2", rank=rank)
        for _ in range(2):
            _, loss = smelt.forward_backward(module, x)
        return loss.item(), {name: p.grad for name, p in module.named_parameters()}

    found = World(Mesh.of("pp=2")).run(of_rank)
    whole = dict(model.named_parameters())
    assert {name for _, grads in found for name in grads} == set(whole)
    for loss, grads in found:
        assert loss == pytest.approx(wanted.item(), rel=1e-6)
        for name, grad in grads.items():
            assert grad is not None
            torch.testing.assert_close(grad, 2 * whole[name].grad)  # type: ignore[operator]


def test_a_module_without_a_loss_has_no_backward() -> None:
    with pytest.raises(SmeltError, match="no loss"):
        smelt.forward_backward(nn.Linear(4, 4), torch.randn(2, 4))
