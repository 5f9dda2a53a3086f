"""What dataclasses and containers among the arguments hold besides fields and items, before what their classes have."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor
RULE = {"measure": False}


@dataclass
class Late:
    """Sets what is no field."""

    s: int = 1
    K = 0

    def __post_init__(self) -> None:
        self.K = self.s + 2


@dataclass
class Shadowed:
    s: int = 1
    K = 3

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.s


class Below(Shadowed):
    pass


class Items(dict[str, int]):
    K = 3


class Row(list[int]):
    K = 3


class Ordered(OrderedDict[str, int]):
    K = 3


class Defaults(defaultdict[str, int]):
    K = 3


class Pair(tuple[int, ...]):
    K = 3


MADE: dict[str, Callable[[], Any]] = {
    "set at the end": Late,
    "a dataclass": Shadowed,
    "a subclass of one": Below,
    "a dict": lambda: Items(a=1),
    "a list": lambda: Row([1]),
    "an ordered dict": lambda: Ordered(a=1),
    "a default dict": lambda: Defaults(int, a=1),
    "a tuple": lambda: Pair((1, 2)),
}


def by_attribute(x: Tensor, d: Any) -> Tensor:
    return x * d.K


def by_method(x: Tensor, d: Any) -> Tensor:
    return d.scaled(x)


@pytest.fixture(autouse=True)
def no_grad() -> Any:
    with torch.no_grad():
        yield


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.parametrize("wrapped", [False, True])
def test_attributes_before_those_of_the_class(kind: str, wrapped: bool) -> None:
    x, made = torch.ones(2), MADE[kind]()

    def f(x: Tensor, d: Any) -> Tensor:
        return by_attribute(x, d[0] if wrapped else d)

    def check(value: Any) -> None:
        given = [value] if wrapped else value
        for _ in range(3):
            assert torch.equal(compiled(x, given), f(x, given))

    compiled = smelt.compile(f, options=RULE)
    check(made)
    for number in (9, 2.5, True):
        made.K = number
        check(made)
    other = MADE[kind]()
    other.K = 5
    check(other)
    del made.K
    check(made)


def test_methods_that_an_instance_has_of_its_own() -> None:
    x, made = torch.ones(2), Shadowed()
    compiled = smelt.compile(by_method, options=RULE)
    for _ in range(4):
        assert torch.equal(compiled(x, made), x)
    made.scaled = lambda x: x + 100  # type: ignore[method-assign]
    assert torch.equal(compiled(x, made), x + 100)
    del made.scaled
    assert torch.equal(compiled(x, made), x)


def test_tensors_beside_the_fields_are_those_very_ones() -> None:
    x, made = torch.ones(2), Shadowed()
    compiled = smelt.compile(by_attribute, options=RULE)
    for value in (torch.full((2,), 3.0), torch.full((2,), 4.0)):
        made.K = value
        for _ in range(3):
            assert torch.equal(compiled(x, made), value)
        value.add_(1)
        assert torch.equal(compiled(x, made), value)
        made.K = value.clone() * 2
        assert torch.equal(compiled(x, made), value * 2)


def test_fresh_ones_alike_are_one_entry() -> None:
    x = torch.ones(2)
    compiled = smelt.compile(by_attribute, options=RULE)
    for kind, make in MADE.items():
        before = compiled.stats().builds
        for _ in range(4):
            compiled(x, make())
        assert compiled.stats().builds == before + 1, kind
