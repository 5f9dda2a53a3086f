"""All ranks in one process: what they exchange, that they are told apart, and what happens where they disagree."""

from __future__ import annotations

import pytest
import torch

from smelt.diag import SmeltError
from smelt.ops.ranks.collectives import communicator
from smelt.ops.ranks.placements import Shard, evenly
from smelt.parallel.mesh import Mesh
from smelt.parallel.pipelines.order import Action, timeline
from smelt.parallel.proving.simulate import World


def test_a_mesh_numbers_its_ranks_as_torch_does() -> None:
    mesh = Mesh.of("dp=2,tp=3")
    assert mesh.size == 6 and mesh.coordinates(4) == {"dp": 1, "tp": 1}
    assert mesh.group(4, "tp") == (3, 4, 5) and mesh.group(4, "dp") == (1, 4)
    assert [mesh.rank_at(mesh.coordinates(r)) for r in range(6)] == list(range(6))


def test_parts_are_those_of_chunk() -> None:
    for count in range(1, 12):
        for ranks in range(1, 6):
            chunks = [len(c) for c in torch.arange(count).chunk(ranks)]
            assert list(evenly(count, ranks)) == chunks + [0] * (ranks - len(chunks))


def test_collectives_compute() -> None:
    def program(rank: int) -> tuple[torch.Tensor, ...]:
        own = torch.arange(6.0).view(2, 3) + 10 * rank
        at, to = Shard(0, (2, 2)), Shard(1, (2, 1))
        return (
            communicator().all_reduce(own, "sum", "tp"), communicator().all_reduce(own, "max", "tp"),
            communicator().all_gather(own, at, "tp"), communicator().reduce_scatter(own, to, "tp"),
            communicator().all_to_all(own, at, to, "tp"), communicator().broadcast(own, 1, "tp"),
        )  # fmt: skip

    world = World(Mesh.of("tp=2"))
    first, second = world.run(program)
    a, b = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) + 10
    both = torch.cat([a, b])
    assert torch.equal(first[0], a + b) and torch.equal(first[1], b) and torch.equal(first[2], both)
    assert torch.equal(first[3], (a + b)[:, :2]) and torch.equal(second[3], (a + b)[:, 2:])
    assert torch.equal(first[4], both[:, :2]) and torch.equal(second[4], both[:, 2:])
    assert torch.equal(first[5], b)
    assert world.sent[0, "tp"].count == 6


def test_ranks_draw_what_processes_of_their_own_would() -> None:
    def program(rank: int) -> torch.Tensor:
        first = torch.rand(3)
        communicator().all_reduce(first, "sum", "tp")
        return torch.cat([first, torch.rand(3)])

    torch.manual_seed(3)
    one, two = World(Mesh.of("tp=2")).run(program)
    torch.manual_seed(3)
    assert torch.equal(one, torch.rand(6)) and torch.equal(one, two)


def test_ranks_that_disagree_are_told_at_once() -> None:
    def program(rank: int) -> torch.Tensor:
        return communicator().all_reduce(torch.zeros(2 + rank), "sum", "tp")

    with pytest.raises(SmeltError) as caught:
        World(Mesh.of("tp=2")).run(program)
    assert caught.value.code == "S0643"
    assert "rank 0 comes to all_reduce of [2]" in caught.value.why and "rank 1" in caught.value.why


def test_ranks_that_wait_for_nobody_are_told() -> None:
    def program(rank: int) -> torch.Tensor | None:
        return communicator().all_reduce(torch.zeros(2), "sum", "tp") if rank == 0 else None

    with pytest.raises(SmeltError, match="wait for others") as caught:
        World(Mesh.of("tp=2")).run(program)
    assert "rank 0 waits in all_reduce" in caught.value.why and "rank 1 has ended" in caught.value.why


def test_an_error_of_a_rank_ends_all_and_says_which() -> None:
    def program(rank: int) -> torch.Tensor:
        if rank == 1:
            raise ValueError("no")
        return communicator().all_reduce(torch.zeros(2), "sum", "tp")

    with pytest.raises(ValueError, match="no") as caught:
        World(Mesh.of("tp=3")).run(program)
    assert caught.value.__notes__ == ["on rank 1, tp 1"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 3), (2, 4), (4, 2), (3, 8)])
def test_orders_run_all_once_and_as_they_depend(schedule: str, stages: int, microbatches: int) -> None:
    made = timeline([1.0] * stages, stages, microbatches, schedule)
    for rank, order in enumerate(made.orders):
        assert len(set(order)) == len(order) == 2 * microbatches and {a.stage for a in order} == {rank}
    for action, (start, _) in made.spans.items():
        if action.is_backward:
            assert made.spans[Action(action.stage, action.microbatch, False)][1] <= start
    # What a pipeline cannot avoid: the first microbatch on its way there, the last one's on its way back.
    assert made.length == pytest.approx(3 * (microbatches + stages - 1))
    if schedule == "1f1b":
        most = max(_on_the_way(order) for order in made.orders)
        assert most <= stages


def _on_the_way(order: list[Action]) -> int:
    now = most = 0
    for action in order:
        now += -1 if action.is_backward else 1
        most = max(most, now)
    return most
