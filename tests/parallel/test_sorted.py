"""Rows that are sorted by what they belong to, with the batch divided: each rank works on its own; what needs the order
of all of them is right all the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import SmeltError


class Experts(nn.Module):
    """A mixture of three experts, of which each token has two. undo: how rows come back; spread: which kind of sum."""

    def __init__(self, undo: str = "put") -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3, bias=False)
        self.up = nn.Parameter(torch.randn(3, 16, 8) * 0.3)
        self.down = nn.Parameter(torch.randn(3, 16, 8) * 0.3)
        self.undo = undo

    def forward(self, x: Tensor) -> Tensor:
        scores, ids = self.gate(x).softmax(-1).topk(2)
        kinds, numbers = ids.reshape(-1).sort()
        ends = torch.histc(kinds.float(), bins=3, min=0, max=2).cumsum(0, dtype=torch.int32)
        rows = x[numbers // 2]
        made = self.product(self.product(rows, self.up.transpose(1, 2), ends).relu(), self.down, ends)
        made = self.more(made, kinds) * scores.reshape(-1)[numbers].unsqueeze(-1)
        if self.undo == "add":
            return torch.zeros_like(x).index_add(0, numbers // 2, made)
        back = numbers.argsort()
        if self.undo == "put":
            back = torch.empty_like(numbers)
            back[numbers] = torch.arange(len(numbers))
        return made[back].view(len(x), 2, 8).sum(1)

    def product(self, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        return nn.functional.grouped_mm(rows, weights, offs=ends)

    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        """What else is done with the sorted rows."""
        return made


class Weighed(Experts):
    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        return made * torch.linspace(0, 1, len(made)).unsqueeze(1)  # the place among all rows counts


class Running(Experts):
    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        return made + made.cumsum(0)


class Noisy(Experts):
    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        return nn.functional.dropout(made, 0.5) + kinds.unsqueeze(1)


class Paired(Experts):
    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        return made.view(-1, 2, 8).flip(1).reshape(-1, 8)  # neighbours in the order


class Halves(Experts):
    def more(self, made: Tensor, kinds: Tensor) -> Tensor:
        left, right = made.chunk(2, -1)
        return torch.cat([right, left], -1) - made.mean(0)


_KINDS = {
    "put": Experts, "argsort": lambda: Experts("argsort"), "add": lambda: Experts("add"), "weighed": Weighed,
    "running": Running, "noisy": Noisy, "paired": Paired, "halves": Halves,
}  # fmt: skip


def _scheduled(kind: str, batch: int) -> smelt.Schedule:
    torch.manual_seed(0)
    return smelt.schedule(_KINDS[kind]().train(), torch.randn(batch, 8))


@pytest.mark.parametrize("kind", list(_KINDS))
def test_a_divided_batch_of_sorted_tokens(kind: str) -> None:
    s = _scheduled(kind, 7)
    s.data_parallel("dp")
    assert s.verify(mesh="dp=2").error < 1e-5


@pytest.mark.parametrize("kind", ["put", "argsort", "add"])
def test_tokens_of_experts_are_not_sent(kind: str) -> None:
    s = _scheduled(kind, 8)
    s.data_parallel("dp")
    assert s.verify(mesh="dp=2").ranks[0].sent["dp"][0] == 3 * 2  # each step, gradients in two messages


@pytest.mark.parametrize("kind", ["put", "halves"])
def test_sorted_tokens_fall_into_microbatches(kind: str) -> None:
    s = _scheduled(kind, 8)
    s.pipeline(2, "pp", microbatches=2)
    if kind == "put":
        assert s.verify(mesh="pp=2").error < 1e-5
        return
    with pytest.raises(SmeltError, match="microbatches cannot be computed apart"):
        s.build(mesh="pp=2", rank=0)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.experts, self.b = nn.Linear(8, 8), Experts(), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.b(self.experts(self.a(x)))
        return made


def _by_experts(kind: str, axis: str) -> smelt.Schedule:
    torch.manual_seed(0)
    model = Deep()
    model.experts = _KINDS[kind]()
    s = smelt.schedule(model.train(), torch.randn(8, 8))
    s["experts"].shard(tensor="up", axis=0, mesh_dim=axis)
    s["experts"].shard(tensor="down", axis=0, mesh_dim=axis)
    return s


@pytest.mark.parametrize("kind", list(_KINDS))
def test_experts_have_their_rows(kind: str) -> None:
    assert _by_experts(kind, "tp").verify(mesh="tp=3").error < 1e-5  # all ranks have all tokens
    s = _by_experts(kind, "ep")
    s.data_parallel("ep")
    assert s.verify(mesh="ep=2").error < 1e-5  # two experts and one


@pytest.mark.parametrize(("mesh", "batch"), [("dp=2,ep=2", "dp"), ("ep=2,pp=2", "ep"), ("tp=2,pp=2", "")])
def test_experts_on_meshes_of_two_axes(mesh: str, batch: str) -> None:
    s = _by_experts("put", "tp" if "tp" in mesh else "ep")
    if batch:
        s.data_parallel(batch)
    if "pp" in mesh:
        s.pipeline(2, "pp", microbatches=2)
    assert s.verify(mesh=mesh).error < 1e-5


def test_experts_divided_by_columns_in_a_pipeline() -> None:
    torch.manual_seed(0)
    s = smelt.schedule(Deep().train(), torch.randn(8, 8))
    s["experts"].shard(tensor="up", axis=1, mesh_dim="tp")
    s["experts"].shard(tensor="down", axis=1, mesh_dim="tp")
    s.pipeline(2, "pp", microbatches=2)
    assert s.verify(mesh="tp=2,pp=2").error < 1e-5
