"""Several steps about one axis, and several axes about one dimension: what is legal, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import ScheduleError, SmeltError


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 12), nn.GroupNorm(2, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(self.up(x).tanh()))


def _scheduled(batch: int = 12) -> smelt.Schedule:
    torch.manual_seed(0)
    return smelt.schedule(Layers(), (torch.randn(batch, 8),))


def test_a_batch_divided_along_two_axes() -> None:
    s = _scheduled().data_parallel("dp").data_parallel("ep")
    assert s.verify(mesh="dp=2,ep=3", steps=2).error < 1e-5


def test_a_rank_without_a_group_of_channels() -> None:
    s = _scheduled()
    s["norm"].shard("weight", 0, "tp", unit=6)
    s["up"].shard("weight", 0, "tp", unit=6)
    with pytest.raises(SmeltError, match="it has 2 units"):
        s.verify(mesh="tp=3")
    t = _scheduled()
    t["norm"].shard("weight", 0, "tp", unit=4)
    assert t.verify(mesh="tp=3", steps=2).error < 1e-5  # two groups do not fall into three shares
    assert _scheduled().data_parallel("dp").verify(mesh="dp=5", steps=2).error < 1e-5  # 12 among 5: 3, 3, 3, 3, 0


def test_unequal_shares_are_not_divided_again() -> None:
    s = _scheduled().shard_state("dp").shard_state("tp")
    assert s.verify(mesh="dp=3,tp=2", steps=2).error < 1e-5  # the head's 5 rows: 2, 2, 1, and whole along tp
    t = _scheduled(7).data_parallel("dp").data_parallel("ep")
    with pytest.raises(SmeltError, match="its shares along 'dp' are not equal"):
        t.verify(mesh="dp=2,ep=2")
    t = _scheduled()
    t["down"].shard("weight", 0, "dp").shard("weight", 0, "tp")
    with pytest.raises(SmeltError, match="its shares along 'dp' are not equal"):
        t.verify(mesh="dp=2,tp=2")


def test_stages_whose_ranks_store_unequal_shares_end_in_one_place() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)
            self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in ((4, 8), (8, 4), (4, 4), (4, 4), (4, 8), (4, 4)))
            self.head = nn.Linear(4, 10)

        def forward(self, x: Tensor) -> Tensor:
            h = self.table(x)
            a, b, c, d, e, f = self.layers
            h = torch.sigmoid(d(torch.tanh(c(b(a(h).relu())))))
            h, g = e(h).chunk(2, -1)
            return self.head(f(h * g.tanh()))

    torch.manual_seed(0)
    s = smelt.schedule(Wide(), (torch.randint(10, (4, 2)),)).shard_state("tp")
    s.pipeline(2, "pp", microbatches=4)
    assert s.verify(mesh="pp=2,tp=3", steps=1).error < 1e-5
    (entry,) = s.build(mesh="pp=2,tp=3", rank=2).__dict__["forward"].entries
    assert not entry.part.is_even  # so it ends its stages where the first rank does


_TWICE: dict[str, tuple[Callable[[smelt.Schedule], object], Callable[[smelt.Schedule], object], str]] = {
    "stages of stages": (lambda s: s.pipeline(2), lambda s: s.pipeline(4), "has stages already"),
    "a batch twice": (lambda s: s.data_parallel("dp"), lambda s: s.data_parallel("dp"), "divided along 'dp' already"),
    "stages of a batch": (lambda s: s.data_parallel("pp"), lambda s: s.pipeline(2), "cannot have stages"),
    "a batch of stages": (lambda s: s.pipeline(2), lambda s: s.data_parallel("pp"), "the ranks of 'pp' have stages"),
    "a tensor of stages": (
        lambda s: s.pipeline(2), lambda s: s["up"].shard("weight", 0, "pp"), "the ranks of 'pp' have stages",
    ),
    "state of stages": (lambda s: s.pipeline(2), lambda s: s.shard_state("pp"), "the ranks of 'pp' have stages"),
    "a sum of stages": (
        lambda s: s.pipeline(2), lambda s: s["up"].sync("all_reduce", "pp"), "the ranks of 'pp' have stages",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _TWICE)
def test_steps_that_do_not_go_together(name: str) -> None:
    first, second, what = _TWICE[name]
    s = _scheduled()
    first(s)
    before = s.to_json()
    with pytest.raises(ScheduleError, match=what) as caught:
        second(s)
    assert "test_axes.py" in str(caught.value) and s.to_json() == before
