"""Numbers that a loop makes of each other, turn by turn: what is asked of them stays short, or is not asked at all."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import smelt
from smelt.capture.dynamic.trace import CaptureTrace
from smelt.capture.staging.flow.stops import CannotStage

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def collatz(x: Any, n: int) -> Any:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return x + steps


def gcd(x: Any, a: int, b: int) -> Any:
    while b:
        a, b = b, a % b
    return x * a


def square_root(x: Any, n: int) -> Any:
    r = n
    while r * r > n:
        r = (r + n // r) // 2
    return x + r


@pytest.mark.parametrize(
    ("f", "calls"),
    [
        (collatz, ((10,), (27,), (6,), (97,))),
        (gcd, ((12, 18), (832040, 514229), (17, 5), (0, 4))),
        (square_root, ((10,), (123456789,), (99,), (1,))),
    ],
)
def test_loops_that_go_on_as_a_number_says(f: Any, calls: Any) -> None:
    compiled = smelt.compile(f)
    for numbers in calls * 2:
        assert torch.equal(compiled(X, *numbers), f(X, *numbers))
    assert compiled.stats().fallbacks == {}


def test_quotients_that_floats_do_not_hold() -> None:
    def program(x: Any, n: int) -> Any:
        return x + 1, math.floor(n / 7), math.ceil(n / 7), int(n / 7), math.floor(n * 1.5)

    compiled = smelt.compile(program)
    for n in (3, 5, -4, 2**40 + 3, -(2**62), 2**62 + 1, 2**70):
        assert compiled(X, n)[1:] == program(X, n)[1:], n
    assert compiled.stats().fallbacks == {}


def test_bounds_of_a_long_chain_of_quotients() -> None:
    trace = CaptureTrace()
    n = trace.symbol("n", 27, (2, 1000))
    for turn in range(40):
        n = (3 * n + 1) // 2
        assert trace.decide("<", trace.poly_of(-n)) is True, turn
    for _ in range(1000):
        n = n * 3 + trace.symbol("m", 5, (2, float("inf")))
    assert trace.decide("<=", trace.poly_of(n - 1)) in (False, None)  # beyond what floats hold


def test_what_doubles_each_turn_is_refused() -> None:
    trace = CaptureTrace()
    n = r = trace.symbol("n", 10**9, (2, float("inf")))
    with pytest.raises(CannotStage, match="too long to be checked"):
        for _ in range(100):
            r = (r + n // r) // 2


def test_what_is_forgotten_bounds_nothing() -> None:
    trace = CaptureTrace()
    n = trace.symbol("n", 4, (2, float("inf")))
    p, mark = trace.poly_of(n * 2), trace.mark()
    assert n <= 5 and trace.bounds(p) == (4, 10)
    trace.back(mark)
    assert trace.bounds(p) == (4, float("inf"))
