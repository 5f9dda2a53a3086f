"""Errors of operators that the program handles itself: that call is its own, the entry stays while they are rare."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor

import smelt
from smelt.compiler.compiled_types import _FEW_FAILURES, _RARE
from smelt.diag import CaptureError, SmeltWarning


def picked(x: Tensor, i: Tensor) -> Tensor:
    try:
        return x[i] * 2
    except IndexError:
        return x[0] - 1


def factor(x: Tensor, i: Tensor) -> Tensor:
    try:
        made = torch.linalg.cholesky(x * i)
    except RuntimeError:
        made = torch.zeros_like(x)
    return made + 1


_CALLS = {
    picked: (torch.arange(4.0), torch.tensor([2]), torch.tensor([9])),
    factor: (torch.eye(3) * 2, torch.tensor(3.0), torch.tensor(-1.0)),
}


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("program", _CALLS)
def test_the_entry_stays_where_they_are_rare(program) -> None:
    x, fine, bad = _CALLS[program]
    compiled = smelt.compile(program)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for n in range(6 * 2 * _RARE):
            i = bad if n % (2 * _RARE) == _RARE else fine
            assert torch.equal(compiled(x, i), program(x, i))
    # What failed in a library may be a defect, and is told once; an error that the program itself handles is not.
    assert len(told) == (program is factor)
    stats = compiled.stats()
    assert stats.builds == 1 and stats.rows[0].entry is not None
    assert sum(stats.fallbacks.values()) == 6


@pytest.mark.parametrize("program", _CALLS)
def test_it_is_given_up_where_they_are_not(program) -> None:
    x, fine, bad = _CALLS[program]
    compiled = smelt.compile(program)
    compiled(x, fine)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3 * _FEW_FAILURES):
            assert torch.equal(compiled(x, bad), program(x, bad))
    assert len([w for w in told if w.category is SmeltWarning and "from now on" in str(w.message)]) == 1
    assert compiled.stats().rows[0].entry is None
    assert torch.equal(compiled(x, fine), program(x, fine))


def test_strict_mode_refuses_them() -> None:
    x, fine, bad = _CALLS[picked]
    compiled = smelt.compile(picked, options={"strict": True})
    compiled(x, fine)
    with pytest.raises(CaptureError, match="itself did not"):
        compiled(x, bad)


class Written(torch.nn.Module):
    """Writes before what may raise, and takes a way that data tell."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        self.seen.add_(1)
        x.add_(self.weight)
        if x.sum() > 0:
            x = x * 2
        try:
            return x[i] * self.weight[0]
        except IndexError as error:
            if i[0] > 20:
                raise ValueError("far out") from error
            return x * 0


@pytest.mark.parametrize("with_grad", [False, True])
def test_a_trace_runs_the_program_where_one_comes_up(with_grad: bool) -> None:
    module, wanted = Written(), Written()
    one, fine, bad, far = torch.ones(4), torch.tensor([2]), torch.tensor([9]), torch.tensor([30])
    program = smelt.trace(module, (one.clone(), fine))
    wanted(one.clone(), fine)
    assert any(node.op == "if" for node in program.graph.walk())
    for x, i in ((one, fine), (one, bad), (-4 * one, bad), (-4 * one, fine), (one, far), (one, fine)):
        a, b = x.clone(), x.clone()
        with torch.set_grad_enabled(with_grad):
            if i is far:
                for f, given in ((program, a), (wanted, b)):
                    with pytest.raises(ValueError, match="far out"):
                        f(given, i)
            else:
                assert torch.equal(program(a, i), wanted(b, i))
        assert torch.equal(a, b) and torch.equal(module.seen, wanted.seen)


def test_a_trace_with_handlers_within_another_program() -> None:
    x, fine, bad = torch.arange(4.0), torch.tensor([2]), torch.tensor([9])
    program = smelt.trace(picked, (x, fine))
    compiled = smelt.compile(lambda x, i: program(x, i) + 1)
    for i in (fine, bad, fine, bad):
        assert torch.equal(compiled(x, i), picked(x, i) + 1)


def multiplied_where_it_can_be(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    try:
        x *= c[0].item()
    except RuntimeError:
        x += 1
    return x


def test_a_product_that_cannot_be_cast_to_what_it_is_written_into() -> None:
    compiled = smelt.compile(multiplied_where_it_can_be)
    for number in (2.0, 3.0, 2.0):
        x, c = torch.tensor([100, 7], dtype=torch.uint8), torch.tensor([number])
        assert compiled(x.clone(), c).tolist() == multiplied_where_it_can_be(x.clone(), c).tolist() == [101, 8]
