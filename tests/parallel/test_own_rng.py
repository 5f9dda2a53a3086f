"""Random numbers of each rank's own in a module, and the same ones everywhere else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.diag import SmeltError
from smelt.parallel.mesh import Mesh
from smelt.parallel.proving.simulate import World


class _Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.drop, self.last = nn.Linear(4, 64), nn.Dropout(0.25), nn.Dropout(0.5)
        nn.init.ones_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.drop(self.up(x)), self.last(x)


def _scheduled() -> smelt.Schedule:
    s = smelt.schedule(_Dropped().train(), torch.ones(8, 4))
    s["up"].shard("weight", 0, "tp")
    s["up"].shard("bias", 0, "tp")
    return s


def _run(s: smelt.Schedule, mesh: str = "tp=2") -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
    def of_rank(rank: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        module = s.build(mesh=mesh, rank=rank)
        torch.manual_seed(3)
        out, last = module(torch.ones(8, 4))
        out.sum().backward()
        return out.detach(), last, module.up.bias.grad, torch.rand(3)  # type: ignore[union-attr, return-value]

    return World(Mesh.of(mesh)).run(of_rank)


def test_ranks_draw_other_numbers_in_a_module_and_the_same_elsewhere() -> None:
    s = _scheduled()
    same = _run(s)
    s["drop"].own_rng("tp")
    (one, last, grad, after), (two, last_too, grad_too, after_too) = _run(s)
    assert torch.equal(one, two) and torch.equal(last, last_too) and torch.equal(after, after_too)
    left, right = one[:, :32] != 0, one[:, 32:] != 0
    assert not torch.equal(left, right) and not torch.equal(one, same[0][0])
    assert 0.6 < left.float().mean() < 0.9 and 0.6 < right.float().mean() < 0.9
    # Backward drops what forward dropped.
    torch.testing.assert_close(torch.cat([grad, grad_too]), (one != 0).sum(0) / 0.75)
    assert torch.equal(_run(s)[0][0], one)  # of one seed


def test_a_proof_has_the_numbers_of_one_process() -> None:
    s = _scheduled()
    s["drop"].own_rng("tp")
    assert s.verify(mesh="tp=2").error < 1e-5
    assert "own_rng" in str(s.log)


def test_what_is_whole_on_all_ranks_has_no_numbers_of_its_own() -> None:
    s = _scheduled()
    s["last"].own_rng("tp")
    with pytest.raises(SmeltError, match="no numbers of their own in last along 'tp'"):
        s.build(mesh="tp=2", rank=0)


def test_a_batch_that_is_divided_too_has_the_same_numbers() -> None:
    s = _scheduled()
    s["drop"].own_rng("tp")
    s.data_parallel("dp")
    mesh = "dp=2,tp=2"
    rows = Mesh.of(mesh)

    def of_rank(rank: int) -> Tensor:
        torch.manual_seed(3)
        share = slice(4 * rows.coordinates(rank)["dp"], 4 * rows.coordinates(rank)["dp"] + 4)
        out: Tensor = s.build(mesh=mesh, rank=rank)(torch.ones(8, 4)[share])[0].detach()
        return out

    found = World(rows).run(of_rank)
    whole = torch.cat([found[0], found[2]])
    assert torch.equal(found[0], found[1]) and torch.equal(whole, _run(_forked())[0][0])


def _forked() -> smelt.Schedule:
    s = _scheduled()
    s["drop"].own_rng("tp")
    return s
