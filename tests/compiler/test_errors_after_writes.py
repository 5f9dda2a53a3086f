"""A program that writes and then raises: the state and the error are those of eager mode, however it is run."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt


def raises_itself(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    if x.sum() > 0:
        state.mul_(2)
        raise ValueError("positive")
    return x * state


def asserts(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state[0] = 5
    assert x.max() < 1, "large"
    state[1] = 6
    return x + state


def index_out_of_range(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    found = state[x.long() + 1] * 2
    state.neg_()
    return found


def embedding_out_of_range(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.copy_(x)
    found = torch.nn.functional.embedding(x.long() + 1, torch.eye(3))
    return found.sum(0) + state


def writes_what_does_not_fit(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    state.add_(1)
    state[x > 0] = torch.zeros(0)
    return state + x


class Counting(torch.nn.Module):
    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return torch.arange(3.0)[x.long() + 1] + self.n


GOOD, BAD = torch.tensor([-1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 7.0])
PROGRAMS = (raises_itself, asserts, index_out_of_range, embedding_out_of_range, writes_what_does_not_fit)


def outcome(f: Callable[..., Any], *args: torch.Tensor) -> tuple[Any, ...]:
    copies = [a.clone() for a in args]
    try:
        result = f(*copies)
    except Exception as error:
        # pytest adds lines to what an assert says. Of how it was run no error is the context of the program's own.
        result = (type(error), str(error).split("\n")[0], error.__context__)
    return (result, *copies)


def made(f: Callable[..., Any], door: str, *args: torch.Tensor) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a traced program holds for one way
        if door == "trace":
            return smelt.trace(f, tuple(a.clone() for a in args))
        compiled = smelt.compile(f, options={"measure": False})
        compiled(*(a.clone() for a in args))
        return compiled


@pytest.mark.parametrize("door", ["compile", "trace"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_what_comes_before_the_error_has_happened(program: Callable[..., Any], door: str) -> None:
    state = torch.zeros(3)
    mine = made(program, door, state, GOOD)
    for x in (GOOD, BAD, GOOD, BAD, BAD, GOOD):
        got, want = outcome(mine, state, x), outcome(program, state, x)
        assert isinstance(want[0], tuple) == (x is BAD)
        torch.testing.assert_close(got[1:], want[1:], rtol=0, atol=0)
        if x is BAD:
            assert got[0] == want[0]
        else:
            torch.testing.assert_close(got[0], want[0])
    if door == "compile":
        assert not mine.stats().fallbacks  # a program's own error is none


@pytest.mark.parametrize("door", ["compile", "trace"])
def test_state_of_a_module(door: str) -> None:
    model, eager = Counting(), Counting()
    mine = made(model, door, GOOD)
    model.n.zero_()
    for number, x in enumerate((GOOD, BAD, GOOD, BAD), 1):
        got, want = outcome(mine, x), outcome(eager, x)
        assert str(got[0]) == str(want[0])
        assert model.n.item() == eager.n.item() == number


def replaces_an_item(items: list[torch.Tensor], x: torch.Tensor) -> None:
    items[0] = x * 2
    assert x.max() < 1


@pytest.mark.parametrize("door", ["compile", "trace"])
def test_what_a_list_holds(door: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = [GOOD.clone()], GOOD
        mine = smelt.trace(replaces_an_item, start) if door == "trace" else smelt.compile(replaces_an_item)
    for x in (GOOD, BAD, GOOD, BAD):
        items = [torch.zeros(3)]
        got = outcome(lambda y, items=items: mine(items, y), x)
        assert isinstance(got[0], tuple) == (x is BAD)
        assert torch.equal(items[0], x * 2)


def counts_before_it_raises(x: torch.Tensor, held: list[int]) -> torch.Tensor:
    if x.sum() > 0:
        held.append(len(held))
        raise KeyError("right")
    return x + 1


def test_a_trace_does_what_the_program_does_before_it_raises() -> None:
    held: list[int] = []
    traced = smelt.trace(lambda x: counts_before_it_raises(x, held), (-torch.ones(3),))
    for count in (1, 2):
        with pytest.raises(KeyError, match="right"):
            traced(torch.ones(3))
        assert len(held) == count
        assert torch.equal(traced(-torch.ones(3)), torch.zeros(3))


def test_a_capture_inside_a_recorded_run_does_nothing_twice() -> None:
    """It is an error there; the update before it has been made, once, and later calls run in eager mode."""
    weight = torch.ones(3)

    @smelt.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        weight.mul_(2)
        smelt.trace(torch.nn.ReLU(), (x,), check=False)
        return x * weight

    with pytest.raises(smelt.CaptureError, match="inside another one"):
        step(torch.ones(3))
    assert torch.equal(weight, torch.full((3,), 2.0))
    assert torch.equal(step(torch.ones(3)), torch.full((3,), 4.0))
