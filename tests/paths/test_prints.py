"""What a program prints, its compiled form prints: at each call, once, also where a call fails on its way."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

LOG = [1]
say = print
STREAMS = io.StringIO(), io.StringIO()  # which of them is there is guarded where it is named


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        print("above", x.sum().item(), f"{x[0]:.2f}", sep="|")
        return x * 2
    print("below", LOG, end="!\n", flush=True)
    return x - 1


def straight(x: Tensor) -> Tensor:
    print("no question is asked", x.shape, LOG)
    return x.sin() + 1


def loop(x: Tensor) -> Tensor:
    for i in range(12):
        x = x * 1.5
        if i % 4 == 0:
            print(i, x.sum().item())
            print("to the other stream", file=sys.stderr)
    return x


def raises(x: Tensor) -> Tensor:
    print("before")
    if x[0] < 0:
        raise ValueError("negative")
    return x[x > 0]


def overflows(x: Tensor) -> Tensor:
    """Native code has 64 bits."""
    print("begins", x)
    n = int(x[0])
    while n < 10**30:
        n = n * n + 7
    print("ends with", n % 1000)
    return x * (n % 7)


class Shown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        print(self.lin, self.lin.bias)
        return self.lin(x)


def aside(x: Tensor) -> None:
    say("by another name", x.shape)


def hidden(x: Tensor) -> Tensor:
    aside(x)
    print("as usual")
    return x * 2


def redirected(x: Tensor) -> Tensor:
    with contextlib.redirect_stdout(io.StringIO()):
        print("nobody sees this")
    return x * 2


def by_partial(x: Tensor) -> Tensor:
    functools.partial(print, "so", end=".\n")(x.sum().item())
    return x * 2


def told(program: Callable[..., Any], x: Tensor) -> tuple[str, str, str]:
    """What a call writes to either stream, and its answer."""
    for stream in STREAMS:
        stream.seek(0)
        stream.truncate()
    out, err = STREAMS
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), torch.no_grad():
        try:
            answer = str(program(x))
        except ValueError as error:
            answer = repr(error)
    return out.getvalue(), err.getvalue(), answer


def same(program: Callable[..., Any]) -> Any:
    compiled = smelt.compile(program)
    for n, value in enumerate((1.0, 1.0, -1.0, 2.0, -1.0, 1.0)):
        if n == 4:
            LOG.append(n)
        x = torch.full((3,), value)
        assert told(compiled, x) == told(program, x), (n, value)
    return compiled


@pytest.mark.parametrize("program", [branches, straight, loop, raises, by_partial, Shown()])
def test_what_is_printed_is_in_the_graph(program: Any) -> None:
    stats = same(program).stats()
    assert not stats.fallbacks and stats.builds <= 2  # what is read of LOG is guarded


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("program", [hidden, redirected])
def test_what_would_be_printed_elsewhere_stays_eager(program: Callable[..., Any]) -> None:
    stats = same(program).stats()
    assert [row.entry for row in stats.rows] == [None] and all("print" in why for why in stats.fallbacks)


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_call_that_fails_after_printing_prints_once() -> None:
    stats = same(overflows).stats()
    assert [row.entry for row in stats.rows] == [None] and stats.builds == 1
    assert any("beyond 64 bits" in why for why in stats.fallbacks)


def test_what_is_made_anew_is_not_printed_as_it_was() -> None:
    def program(x: Tensor) -> Tensor:
        print(object())
        return x * 2

    compiled = smelt.compile(program)
    with pytest.warns(smelt.SmeltWarning, match="prints"):
        for _ in range(3):
            compiled(torch.ones(3))
    assert [row.entry for row in compiled.stats().rows] == [None]


def test_a_trace_that_prints_does_not_warn_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    program = smelt.trace(branches, torch.ones(3))
    assert capsys.readouterr().out == "above|3.0|1.00\n"
    program(torch.full((3,), 2.0))
    assert capsys.readouterr().out == "above|6.0|2.00\n"
    assert torch.equal(program(-torch.ones(3)), -torch.ones(3) - 1)
    assert capsys.readouterr().out == f"below {LOG}!\n"


def writes_and_raises(x: Tensor) -> None:
    print("before")
    x.add_(2)
    if x[0] > 2:
        raise ValueError("large")
    print("after", end="")


def test_a_call_that_raises_has_written_and_printed_once() -> None:
    compiled, traced = smelt.compile(writes_and_raises), smelt.trace(writes_and_raises, torch.zeros(3))
    for value in (-1.0, -1.0, 2.0, 2.0, -1.0):
        seen = []
        for program in (compiled, traced, writes_and_raises):
            x = torch.full((3,), value)
            seen.append((*told(program, x), x.tolist()))
        assert seen[0] == seen[1] == seen[2], value
    assert not compiled.stats().fallbacks


def test_a_recorded_way_that_raises_after_printing_prints_once() -> None:
    def program(x: Tensor, f: float) -> Tensor:
        y = x * (1 if torch.full([], f) == 0 else 2)
        print("before", file=sys.stderr)
        print("here")
        if torch.equal(x, torch.zeros(3)):
            raise ValueError("nothing")
        print("after", f)
        return y

    compiled, traced = smelt.compile(program), smelt.trace(program, (torch.ones(3), 0.5))
    for value, f in ((1.0, -1.5), (1.0, 0.5), (1.0, 0.25), (0.0, 0.5), (0.0, -1.5), (0.0, 2.5), (1.0, 2.5), (1.0, 0.0)):
        x = torch.full((3,), value)
        for run in (compiled, traced) if f == 0.5 else (compiled,):
            assert told(at(run, f), x) == told(at(program, f), x), (value, f)
    assert not compiled.stats().fallbacks


def at(program: Callable[..., Any], f: float) -> Callable[..., Any]:
    return lambda x: program(x, f)
