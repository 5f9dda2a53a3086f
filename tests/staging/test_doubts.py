"""An operator that torch's kernel without data refuses, and eager does not, ends no path; what eager refuses does."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.ops import typing

X = torch.rand(8, 16, generator=torch.Generator().manual_seed(0))
W = torch.randn(2, 16, 24, generator=torch.Generator().manual_seed(1))
ENDS = torch.tensor([3, 8], dtype=torch.int32)


def experts(x: torch.Tensor, w: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x @ w[0]
    return torch._grouped_mm(x, w, offs=ends)


def fakes_refuse() -> bool:
    """Whether the kernel without data of the torch that runs asks for more than eager's does."""
    try:
        torch._grouped_mm(X.to("meta"), W.to("meta"), offs=ENDS.to("meta"))
    except RuntimeError:
        return True
    return False


def both_ways(program: smelt.Program) -> None:
    for x in (X, -X):
        torch.testing.assert_close(program(x, W, ENDS), experts(x, W, ENDS))


@pytest.mark.parametrize("is_ruled", [True, False])
def test_an_arm_that_only_fakes_refuse(is_ruled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the catalogue's type rule; without one, by a run of the operator."""
    if not is_ruled:
        monkeypatch.setattr(typing, "_by_rule", lambda op, args, kwargs: None)
    both_ways(smelt.trace(experts, (X, W, ENDS)))


def test_a_script_takes_what_only_fakes_refuse() -> None:
    def grouped(x: smelt.f32[8, 16], w: smelt.f32[2, 16, 24], ends: smelt.i32[2]):  # type: ignore[name-defined]
        return torch._grouped_mm(x, w, offs=ends)

    torch.testing.assert_close(smelt.script(grouped)(X, W, ENDS), grouped(X, W, ENDS))


def test_an_arm_that_eager_refuses_raises() -> None:
    def refuses(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return torch.mm(x, w[0].t())

    program = smelt.trace(refuses, (X, W))
    assert torch.equal(program(X, W), X + 1)
    with pytest.raises(RuntimeError, match=r"same reduction dim|shapes cannot be multiplied"):
        program(-X, W)


def test_what_is_too_large_to_try_is_taken_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typing, "_by_rule", lambda op, args, kwargs: None)
    monkeypatch.setattr("smelt.ops.meta.MOST_TRIED", 100)
    monkeypatch.setattr("smelt.capture.staging.fakes.refused_kernels.MOST_TRIED", 100)
    if not fakes_refuse():
        both_ways(smelt.trace(experts, (X, W, ENDS)))
        return
    with pytest.warns(smelt.SmeltWarning, match="holds for one path"):
        program = smelt.trace(experts, (X, W, ENDS))
    with pytest.raises(smelt.CaptureError):
        program(-X, W, ENDS)


def test_sizes_that_never_fit_leave_no_doubt_however_large() -> None:
    def as_long_as_the_table(table: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return torch.ones(n.item(), 16) * 2 + table[:n]

    table = torch.rand(9, 16)
    program = smelt.trace(as_long_as_the_table, (table, torch.tensor(4)))
    for n in map(torch.tensor, (4, 0, 9, 1)):
        torch.testing.assert_close(program(table, n), as_long_as_the_table(table, n))
