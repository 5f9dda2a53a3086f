# ruff: noqa: B028 (where a warning is said to come from is not what is tested)
"""Numbers of data that are keys or items of what is returned: what a call does besides, it does once."""

from __future__ import annotations

import contextlib
import enum
import io
import random
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt
from smelt.diag import SmeltWarning
from tests.staging.programs import same

pytestmark = pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")

SUMS = (1.0, 1.0, 1.0, -1.25, -1.25, 2.0, 1.0, -1.25, 2.0)


class _Side(enum.Enum):
    ABOVE, BELOW, TWICE = 3, -3, 6


class _Key:
    """A key that refuses to be one while it is armed."""

    is_armed = False

    def __hash__(self) -> int:
        if self.is_armed:
            raise ValueError("no key now")
        return 7


KEY = _Key()


def _heard(run: Callable[[], Any]) -> tuple[Any, ...]:
    """What a call gives or raises, prints, and warns of."""
    out = io.StringIO()
    with warnings.catch_warnings(record=True) as told, contextlib.redirect_stdout(out), torch.no_grad():
        warnings.simplefilter("always")
        try:
            found = run()
        except ValueError as error:
            found = (type(error), error.args)
    return found, out.getvalue(), [str(one.message) for one in told if one.category is not SmeltWarning]


KEYS: dict[str, Callable[[int, torch.Tensor], Any]] = {
    "key": lambda n, x: {n: x},
    "key of a tuple": lambda n, x: {(n, 1): x},
    "key of a frozenset": lambda n, x: {frozenset([n, 0]): x},
    "float": lambda n, x: {n / 2: x},
    "truth": lambda n, x: {n > 0: x},
    "nested": lambda n, x: [{"q": {n: [x]}}],
    "ordered": lambda n, x: OrderedDict([(n, x)]),
    "default": lambda n, x: defaultdict(int, {n: 1}),
    "counter": lambda n, x: Counter([n]),
    "set": lambda n, x: ({n, 0}, x),
    "frozenset": lambda n, x: (frozenset([n, (n, 1)]), x),
    "set of sets": lambda n, x: {frozenset([n])},
    "member": lambda n, x: (_Side(n), x),
    "size": lambda n, x: torch.Size([abs(n)]),
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", KEYS)
def test_what_a_call_does_it_does_once(name: str) -> None:
    make = KEYS[name]

    def program(x: torch.Tensor) -> Any:
        x.add_(0.25)
        print("seen")
        warnings.warn("told")
        return make(int(x.sum()), x)

    run = smelt.compile(program)
    for value in SUMS:
        mine, theirs = torch.full((3,), value), torch.full((3,), value)
        want, got = _heard(lambda x=mine: program(x)), _heard(lambda x=theirs: run(x))
        assert same(want, got), (want, got)
        assert torch.equal(mine, theirs)


def test_what_is_put_in_arguments_has_the_key() -> None:
    def program(x: torch.Tensor, table: dict[Any, Any], rows: list[Any]) -> torch.Tensor:
        n = int(x.sum())
        table[n] = x * 2
        table.setdefault("seen", {n})
        rows.append({n: x.add_(1)})
        return x * n

    run = smelt.compile(program)
    with torch.no_grad():
        for value in SUMS:
            mine, theirs = ((torch.full((3,), value), {}, []) for _ in range(2))
            assert same(program(*mine), run(*theirs))
            assert same(mine, theirs)


def test_draws_are_made_once() -> None:
    def program(x: torch.Tensor) -> Any:
        r = random.random()
        return {int(x.sum()): x + torch.rand(3) * r}

    found = []
    for run in (program, smelt.compile(program)):
        torch.manual_seed(0)
        random.seed(0)
        with torch.no_grad():
            found.append([run(torch.full((3,), value)) for value in SUMS])
    assert same(*found)


def test_a_traced_program_has_the_key() -> None:
    def program(x: torch.Tensor) -> Any:
        x.add_(1)
        return {int(x.sum()): x}

    traced = smelt.trace(program, (torch.ones(3),))
    with torch.no_grad():
        for _ in range(2):
            x = torch.ones(3)
            assert same(traced(x), {6: torch.full((3,), 2.0)})
            assert x.tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(smelt.CaptureError, match="S0101"):
            traced(x)
    assert x.tolist() == [2.0, 2.0, 2.0]


@pytest.fixture
def armed() -> Iterator[Callable[[], None]]:
    yield lambda: setattr(_Key, "is_armed", True)
    _Key.is_armed = False


@pytest.mark.parametrize("way", ["compile", "trace"])
def test_a_result_that_cannot_be_made_is_no_reason_to_run_again(way: str, armed: Callable[[], None]) -> None:
    def program(x: torch.Tensor) -> Any:
        x.add_(1)
        return {int(x.sum()): x, KEY: x * 2}

    run = smelt.compile(program) if way == "compile" else smelt.trace(program, (torch.ones(3),))
    with torch.no_grad():
        for _ in range(3):
            x = torch.ones(3)
            run(x)
        armed()
        for _ in range(2):
            x = torch.ones(3)
            with pytest.raises(ValueError, match="no key now"):
                run(x)
            assert x.tolist() == [2.0, 2.0, 2.0]
