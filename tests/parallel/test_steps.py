"""Steps on ranks: what they divide, what they refuse, and that all ranks together are the model."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.diag import ScheduleError, SmeltError, VerifyError


class Two(nn.Module):
    """Two linear layers."""

    def __init__(self, inner: int = 30) -> None:
        super().__init__()
        self.first = nn.Linear(20, inner)
        self.second = nn.Linear(inner, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(x)))


def _scheduled(inner: int = 30) -> smelt.Schedule:
    torch.manual_seed(0)
    return smelt.schedule(Two(inner), (torch.randn(6, 20),))


def _columns_and_rows(s: smelt.Schedule) -> smelt.Schedule:
    s["first"].shard("weight", 0, "tp")
    s["first"].shard("bias", 0, "tp")
    s["second"].shard("weight", 1, "tp")
    return s


def test_columns_then_rows_with_an_all_reduce() -> None:
    s = _columns_and_rows(_scheduled())
    s["second"].sync("all_reduce", "tp")
    proof = s.verify(mesh={"tp": 2})
    assert proof.error < 1e-5
    assert [rank.sent["tp"][0] // proof.steps for rank in proof.ranks] == [1, 1]


def test_what_nobody_names_is_derived() -> None:
    named, derived = _columns_and_rows(_scheduled()), _columns_and_rows(_scheduled())
    named["second"].sync("all_reduce", "tp")
    a, b = named.verify(mesh="tp=2"), derived.verify(mesh="tp=2")
    assert [rank.sent for rank in a.ranks] == [rank.sent for rank in b.ranks]


def test_an_illegal_sync_is_refused_with_both_lines() -> None:
    s = _scheduled()
    s["second"].sync("all_reduce", "tp")
    with pytest.raises(SmeltError) as caught:
        s.build(mesh={"tp": 2}, rank=0)
    assert caught.value.code == "S0641"
    assert caught.value.where is not None and "test_steps.py" in str(caught.value.where)
    assert "whole on every rank" in caught.value.why and "test_steps.py" in caught.value.why


def test_an_input_is_divided_where_a_step_says_so() -> None:
    s = _columns_and_rows(_scheduled())
    s["first"].sync("shard", "tp", dim=0, which="input")
    s["second"].sync("reduce_scatter", "tp", dim=0)
    proof = s.verify(mesh="tp=2")
    # Rows are gathered for the first layer, summed and divided by the second, and gathered for the result; in backward
    # the gradient is gathered, and that of the second bias, of which each rank has its rows' share, is summed.
    assert proof.error < 1e-5 and proof.ranks[0].sent["tp"][0] // 3 == 5


def test_a_tensor_is_divided_once() -> None:
    s = _columns_and_rows(_scheduled())
    before = s.to_json()
    with pytest.raises(ScheduleError, match="divided along 'tp' already"):
        s["first"].shard("weight", 0, "tp")
    assert s.to_json() == before


@pytest.mark.parametrize(
    ("tensor", "dim", "more"),
    [("weights", 0, {}), ("weight", 2, {}), ("weight", 0, {"blocks": 7}), ("weight", 0, {"unit": 0})],
)
def test_what_cannot_be_divided(tensor: str, dim: int, more: dict[str, int]) -> None:
    s = _scheduled()
    with pytest.raises(ScheduleError):
        s["first"].shard(tensor, dim, "tp", **more)
    assert not s.log


def test_too_many_ranks_and_axes_that_are_not_there() -> None:
    s = smelt.schedule(Two(2), (torch.randn(6, 20),))
    s["first"].shard("weight", 0, "tp")
    with pytest.raises(SmeltError, match="among 3 ranks"):
        s.build(mesh={"tp": 3}, rank=0)
    with pytest.raises(SmeltError, match="no axis 'tp'"):
        s.build(mesh={"dp": 2}, rank=0)
    with pytest.raises(SmeltError, match="is no mesh"):
        s.build(mesh="tp:2", rank=0)


def test_uneven_parts() -> None:
    s = _columns_and_rows(_scheduled(7))
    proof = s.verify(mesh="tp=3")
    assert proof.error < 1e-5
    assert [tuple(s.build(mesh="tp=3", rank=r).first.weight.shape) for r in range(3)] == [(3, 20), (3, 20), (1, 20)]


def test_meshes_of_two_axes_and_stored_state() -> None:
    s = _columns_and_rows(_scheduled())
    s.data_parallel("dp")
    assert s.verify(mesh="dp=2,tp=2").error < 1e-5
    whole = sum(p.numel() for p in s.build(mesh="dp=3,tp=2", rank=0).parameters())
    s.shard_state("dp")
    assert s.verify(mesh="dp=3,tp=2").error < 1e-5
    assert sum(p.numel() for p in s.build(mesh="dp=3,tp=2", rank=0).parameters()) < whole / 2


class Tied(nn.Module):
    """An embedding whose table is the head's weight, dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(24, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 24, bias=False)
        self.head.weight = self.table.weight
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = self.table(x)
        return F.cross_entropy(self.head(self.drop(h + self.middle(h)).tanh()), y, ignore_index=3)


def _tied() -> smelt.Schedule:
    torch.manual_seed(0)
    return smelt.schedule(Tied(), (torch.randint(24, (8,)), torch.randint(24, (8,))))


def test_ties_stay_one_when_divided() -> None:
    s = _tied()
    assert s.ties == (("table.weight", "head.weight"),)
    s["table"].shard("weight", 0, "tp")
    with pytest.raises(ScheduleError, match="already"):
        s["head"].shard("weight", 0, "tp")
    assert s.verify(mesh="tp=3").error < 1e-5
    built = s.build(mesh="tp=2", rank=1)
    assert built.head.weight is built.table.weight and built.table.weight.shape == (12, 8)


def test_ties_over_stages_and_dropout_as_of_one_process() -> None:
    s = _tied()
    s.pipeline(2, "pp", microbatches=4)
    s.data_parallel("dp")
    assert s.verify(mesh="dp=2,pp=2").error < 1e-5


def test_stages_are_cut_behind_modules() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    s = smelt.schedule(model, (torch.randn(4, 8),))
    s["1"].cut()
    s.pipeline(2, "pp", microbatches=2)
    held = [[name for name, _ in s.build(mesh="pp=2", rank=r).named_parameters()] for r in range(2)]
    assert held == [["0.weight", "0.bias"], ["2.weight", "2.bias", "4.weight", "4.bias"]]
    assert s.verify(mesh="pp=2").error < 1e-5
    with pytest.raises(ScheduleError, match="behind the whole model"):
        s.cut()


class Skips(nn.Module):
    """A value of the first block that the last one uses, and a table that all use."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        table = torch.arange(8.0).cos() * self.scale
        first = self.blocks[0](x) * table
        second = self.blocks[1](first).sin() * table
        return self.blocks[2](second * table) + first


def test_skips_and_tables_cross_stages() -> None:
    torch.manual_seed(0)
    s = smelt.schedule(Skips(), (torch.randn(6, 8),))
    s.pipeline(3, "pp", microbatches=3)
    assert s.verify(mesh="pp=3").error < 1e-5


def test_several_stages_a_rank() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
    s = smelt.schedule(model, (torch.randn(4, 8),))
    s.pipeline(4, "pp", microbatches=2, schedule="interleaved")
    assert s.verify(mesh="pp=2").error < 1e-5


def test_what_microbatches_cannot_do_apart() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
    s = smelt.schedule(model, (torch.randn(4, 8),))
    s.pipeline(2, "pp", microbatches=2)
    with pytest.raises(SmeltError) as caught:
        s.build(mesh="pp=2", rank=0)
    assert caught.value.code == "S0641" and caught.value.where is not None


def test_batch_norm_over_ranks_is_that_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3))
    s = smelt.schedule(model, (torch.randn(4, 3, 8, 8),))
    s.data_parallel("dp")
    assert s.verify(mesh="dp=2").error < 1e-5


def test_a_wrong_collective_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    s = _columns_and_rows(_scheduled())
    monkeypatch.setattr("smelt.parallel.proving.simulate._total", lambda op, tensors: tensors[0].clone())
    with pytest.raises(VerifyError, match="output 0 in step 1"):
        s.verify(mesh="tp=2")


def test_steps_are_undone_and_written_as_text() -> None:
    s = _columns_and_rows(_scheduled())
    text = s.to_json()
    again = smelt.apply(text, Two(), (torch.randn(6, 20),))
    assert again.to_json() == text and again.verify(mesh="tp=2").error < 1e-5
    assert s.undo().undo().undo().to_json() == _scheduled().to_json()
    assert "divided along tp" in str(again)


def test_the_model_and_the_random_numbers_stay() -> None:
    torch.manual_seed(0)
    model = Tied()
    before = {name: p.clone() for name, p in model.named_parameters()}
    s = smelt.schedule(model, (torch.randint(24, (8,)), torch.randint(24, (8,))))
    s["table"].shard("weight", 0, "tp")
    state = torch.get_rng_state()
    s.verify(mesh="tp=2")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


class _Raw(nn.Module):
    """A parameter that is used through a view, and in a penalty that is the same on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(x @ self.weight.t() @ self.weight, x) + 0.1 * (self.weight * self.weight).sum()


def test_stored_parameters_are_used_through_views_and_by_all_alike() -> None:
    torch.manual_seed(0)
    s = smelt.schedule(_Raw(), (torch.randn(8, 6),))
    s.data_parallel("dp")
    s.shard_state("dp")
    proof = s.verify(mesh="dp=2")
    assert proof.error < 1e-5
    # Gathered once for what ranks do differently and once for what they do alike; shares are added before they go out.
    kinds = [count // proof.steps for count, _ in (rank.sent["dp"] for rank in proof.ranks)]
    assert len(set(kinds)) == 1 and kinds[0] <= 5


def test_the_graphs_of_a_rank_have_what_is_sent() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    s = smelt.schedule(model, (torch.randn(4, 8),))
    s["0"].shard("weight", 0, "tp")
    s["0"].shard("bias", 0, "tp")
    s["2"].shard("weight", 1, "tp")
    s.data_parallel("dp")
    found = s.graphs("dp=2,tp=2", rank=3)
    assert list(found) == ["forward", "backward"]
    assert str(found["forward"]).count("dist.all_reduce") == 1 and '"tp"' in str(found["forward"])
    backward = str(found["backward"])
    assert backward.count("dist.start_all_reduce") == 1 and backward.count('"dp"') == 2
    s.pipeline(2, "pp", microbatches=2)
    assert list(s.graphs("dp=2,tp=2,pp=2", rank=1)) == ["stage 1 forward", "stage 1 backward"]
    with pytest.raises(SmeltError, match="there is no rank 8"):
        s.graphs("dp=2,tp=2,pp=2", rank=8)
