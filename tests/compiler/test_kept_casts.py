"""Autocast goes on with the cast of a weight that it made first, while its outermost region lasts: so does what is
compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt

X = torch.full((1, 1), 4.0)
Make = Callable[[Any], Any]


def _double(w: Tensor) -> None:
    with torch.no_grad():
        w.mul_(2)


def region(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, **options)


def inside(w: Tensor) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        with region():
            a = F.linear(x, w)
            _double(w)
            with region(enabled=False):
                raw = F.linear(x, w)
            with region():
                b = x @ w
        with region():
            c = F.linear(x, w)
        return a, raw, b, c

    return f


def without_cache(w: Tensor) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        with region(cache_enabled=False):
            a = F.linear(x, w)
            _double(w)
            return a, F.linear(x, w)

    return f


def forgetting(w: Tensor) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        with region():
            a = F.linear(x, w)
            _double(w)
            torch.clear_autocast_cache()
            return a, F.linear(x, w)

    return f


def on_some_way(w: Tensor) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        with region():
            a = F.linear(x, w) if x.sum() > 0 else x
            _double(w)
            return a, F.linear(x, w)

    return f


def two(w: Tensor) -> Callable[[Tensor], Any]:
    def f(x: Tensor) -> Any:
        a = F.linear(x, w)
        _double(w)
        return a, F.linear(x, w)

    return f


def numbers(result: Any) -> list[float]:
    return [t.item() for t in (result if isinstance(result, tuple) else (result,))]


def compiled(f: Any) -> Any:
    return smelt.compile(f)


def traced(f: Any) -> Any:
    return smelt.trace(f, (X,), check=False)


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("make", [compiled, traced])
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("program", [inside, without_cache, forgetting, on_some_way])
def test_a_weight_that_changes_inside_one_region(program: Any, needs: bool, make: Make) -> None:
    """16 and 16 for `a = F.linear(x, w); w.mul_(2); b = F.linear(x, w)`."""
    with torch.no_grad():
        found = []
        for wrap in (lambda f: f, make):
            w = nn.Parameter(torch.full((1, 1), 4.0), requires_grad=needs)
            f = wrap(program(w))
            with torch.no_grad():
                w.fill_(4.0)  # a trace runs the program
            found.append([numbers(f(X if i != 2 or make is traced else -X)) for i in range(4)])
    assert found[0] == found[1]
    assert (found[0][0][:1] == [16.0]) and (program is not inside or found[0][0][2] == (16.0 if needs else 32.0))


def one(w: Tensor) -> Callable[[Tensor], Any]:
    return lambda x: F.linear(x, w) + 1


def calls(program: Any, make: Make, needs: bool, are_two: bool) -> list[Any]:
    """Answers in regions of the caller that last for several calls, the weight changed between some of them."""
    w, found = nn.Parameter(torch.full((1, 1), 4.0), requires_grad=needs), []
    f, g = make(program(w)), make(lambda x: (x @ w).relu())
    objects = (g, f) if are_two else (f,)
    with torch.no_grad():
        w.fill_(4.0)
    for changes in ((), (2,), (1,), (0, 1), (), (2,)):
        with region():
            for call in range(4):
                found += [numbers(each(X)) for each in objects]
                if call in changes:
                    _double(w)
        with region(cache_enabled=False):
            found.append(numbers(f(X)))
            _double(w)
            found.append(numbers(f(X)))
    return found


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize(("make", "are_two"), [(compiled, False), (compiled, True), (traced, False)])
@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("program", [one, two])
def test_a_region_of_the_caller_that_lasts_for_several_calls(
    program: Any, needs: bool, make: Make, are_two: bool
) -> None:
    are_two = are_two and program is one
    with torch.no_grad():
        assert calls(program, make, needs, are_two) == calls(program, lambda f: f, needs, are_two)


def test_a_trace_under_such_a_region_says_what_it_cannot_hold() -> None:
    w = nn.Parameter(torch.full((1, 1), 4.0))
    with torch.no_grad(), region(), pytest.raises(smelt.CaptureError, match="region of autocast"):
        smelt.trace(two(w), (X,))
