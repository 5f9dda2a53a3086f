"""Iterators without an end beside tensors whose length only a run knows: making a script of these ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import smelt


def _own() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


ENDLESS: dict[str, Callable[[], Any]] = {
    "cycle": lambda: itertools.cycle([1, 2]),
    "count": itertools.count,
    "repeat": lambda: itertools.repeat(3),
    "generator": _own,
    "enumerated": lambda: (b for _, b in enumerate(itertools.count())),
    "mapped": lambda: map(abs, itertools.count()),
    "called": lambda: iter(lambda: 3, 4),
}


@pytest.mark.spread(10)
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("kind", ENDLESS)
def test_zipped(kind: str, is_first: bool) -> None:
    make = ENDLESS[kind]

    def program(x: Any) -> Any:
        pairs = zip(make(), x) if is_first else zip(x, make())  # noqa: B905
        return [a * b for a, b in pairs]

    with pytest.raises(smelt.CaptureError, match="of no known end"):
        smelt.script(program)
    compiled = smelt.compile(program)
    x = torch.tensor([1.0, -2.0, 3.0])
    assert str(compiled(x)) == str(compiled(x)) == str(program(x))


def test_as_much_as_the_others_have() -> None:
    def program(x: Any) -> Any:
        numbers = itertools.count()
        found = [a * b for a, b in zip([x, x + 1], numbers, strict=False)]
        return found, next(numbers)

    x = torch.ones(2)
    for made in (smelt.compile(program), smelt.script(program)):
        assert str(made(x)) == str(program(x))


def test_a_finite_iterator() -> None:
    def program(x: Any) -> Any:
        return [a * b for a, b in zip(x, iter([1, 2, 3]))]  # noqa: B905

    made = smelt.script(program)
    for n in (1, 2, 3, 5):
        assert str(made(torch.ones(n))) == str(program(torch.ones(n)))
