"""Errors of operators that the program handles itself: that call is its own, the entry stays while they are rare."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.compiler.object.compiled_types import _FEW_FAILURES, _RARE
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


def at_a_number(change: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def program(x: torch.Tensor, c: torch.Tensor) -> Any:
        said = ""
        try:
            x = change(x, c[0].item()) if c.sum() > 0 else x * 2
        except RuntimeError as error:
            said = str(error)
        return x + 1, said

    return program


@pytest.mark.spread(10)
@pytest.mark.parametrize(
    "change",
    [
        lambda x, n: x.mul_(n), lambda x, n: x.sub_(x > 0), lambda x, n: x - (x > 0), lambda x, n: x.bitwise_or_(x * n),
        lambda x, n: x.pow_(n), lambda x, n: x.lcm(x * n), lambda x, n: x.to(torch.complex64) < 1,
        lambda x, n: x.div_(2),
        lambda x, n: x.add_(2), lambda x, n: x.ldexp_(x), lambda x, n: x.fill_(1j), lambda x, n: x % n,
    ],
)  # fmt: skip
@pytest.mark.parametrize("length", [2, 0])
def test_operands_of_kinds_that_eager_refuses(change: Callable[[Any, Any], Any], length: int) -> None:
    program = at_a_number(change)
    compiled = smelt.compile(program)
    for number in (-1.0, 2.0, 3.0, -2.0, 2.0):
        found = []
        for run in (program, compiled):
            x = torch.tensor([100, 7], dtype=torch.uint8)[:length]
            result, said = run(x, torch.tensor([number]))
            found.append((result.dtype, result.tolist(), said, x.tolist()))
        assert found[0] == found[1]
