"""A number that became free, or that data decide, is to Python what it is in eager: whatever is done with it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt
from tests.symbolic.uses import BOTH, FLOATS, INTS, named, programs

HELPED = "def h(x, n):\n    return USE\ndef f(x, n):\n    return (x * 2).sin(), h(x, n)\n"
STAGED = "def f(x, k):\n    n = k.item()\n    y = (x * 2).sin()\n    r = USE\n    return y.cos(), r\n"
BRANCHED = (
    "def h(x, n):\n    return USE\n"
    "def f(x, n):\n    y = x\n    if x.sum() > n * 0.1:\n        y = y * 2\n    return y.cos(), h(x, n)\n"
)
WHOLE, BROKEN = [3, 4, 7], [4.5, 2.25, 3.0]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.allclose(a, b, equal_nan=True)
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def differing(uses: list[str], text: str, calls: list[tuple[Any, ...]], folder: Path) -> list[str]:
    found = []
    for use, f in programs("\n".join(uses), text, folder).items():
        compiled = smelt.compile(f)
        for args in calls:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = f(*args)
                if not same(compiled(*args), expected):
                    found.append(f"{use} of {args[1]}")
    return found


@pytest.mark.spread(8)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(
    ("text", "numbers"),
    ((HELPED, WHOLE), (HELPED, BROKEN), (STAGED, WHOLE), (BRANCHED, WHOLE)),
    ids=("ints", "floats", "ints of data", "ints beside branches"),
)
def test_like_a_number(text: str, numbers: list[Any], part: int, tmp_path: Path) -> None:
    uses = (BOTH + (FLOATS if numbers is BROKEN else INTS)).splitlines()
    calls = [(torch.randn(3, 5), torch.tensor(n) if text is STAGED else n) for n in numbers]
    assert differing(uses[part::4], text, calls, tmp_path) == []


def scaled(x: Any, n: Any) -> Any:
    return x * (n if type(n) is int else 0), named(n), named(x)


def test_who_asks_for_the_class_leaves_it_free() -> None:
    compiled = smelt.compile(scaled)
    for n in (2, 3, 5, 7, 11):
        x = torch.randn(n, 3)
        assert same(compiled(x, n), scaled(x, n))
    assert compiled.stats().builds == 2 and compiled.stats().refused == {}


def test_in_a_trace() -> None:
    program = smelt.trace(scaled, (torch.randn(2, 3), 2), dynamic_shapes={"x": {0: "B"}, "n": "N"})
    for n in (3, 5, 7):
        x = torch.randn(n, 3)
        assert same(program(x, n), scaled(x, n))


def test_code_that_is_not_converted_keeps_it_fixed() -> None:
    def each(n: Any) -> Any:
        yield type(n)

    def f(x: Any, n: Any) -> Any:
        return x * n, list(each(n))

    compiled, x = smelt.compile(f), torch.randn(3)
    for n in (2, 3, 5):
        assert same(compiled(x, n), f(x, n))
    (why,) = compiled.stats().refused.values()
    assert "reads the classes of its arguments" in why


def shown(x: Any) -> Any:
    return (x * 2, named(x)) if x.sum() > 0 else (x + 1, named(x + 1))


def test_tensors_without_data_have_the_class_of_others() -> None:
    compiled = smelt.compile(shown)
    for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
        assert same(compiled(x), shown(x))
