"""What dataclasses and containers among the arguments hold besides fields and items, before what their classes have."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum, IntEnum
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


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    LOW = 1


Colour.K = Level.K = 3  # type: ignore[attr-defined]


class Count(int):
    K = 3


class Part(float):
    K = 3


class Name(str):
    K = 3


class Equal:
    """All are equal."""

    K = 3

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 0


NUMBERS: dict[str, Callable[[], Any]] = {
    "a member": lambda: Colour.RED,
    "a numbered member": lambda: Level.LOW,
    "an int": lambda: Count(3),
    "a float": lambda: Part(3.0),
    "a text": lambda: Name("a"),
}


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


@pytest.mark.spread(6)
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


@pytest.mark.spread(6)
@pytest.mark.parametrize("place", ["argument", "list", "attribute", "global", "class"])
@pytest.mark.parametrize("kind", NUMBERS)
def test_attributes_of_numbers_and_of_members_of_enumerations(kind: str, place: str) -> None:
    x, made = torch.ones(2), NUMBERS[kind]()

    class Holder(torch.nn.Module):
        of_class = made

        def __init__(self) -> None:
            super().__init__()
            self.own = made

        def forward(self, x: Tensor, given: Any) -> Tensor:
            match place:
                case "argument":
                    return x * given.K
                case "list":
                    return x * given[0].K
                case "attribute":
                    return x * self.own.K
                case "class":
                    return x * self.of_class.K
            return x * made.K

    holder = Holder()
    compiled = smelt.compile(holder, options=RULE)
    given = [made] if place == "list" else made
    try:
        for number in (None, 9, 2.5):
            if number is not None:
                made.K = number
            for _ in range(3):
                assert torch.equal(compiled(x, given), x * made.K)
    finally:
        made.__dict__.pop("K", None)
    assert torch.equal(compiled(x, given), x * 3)


@pytest.mark.parametrize("is_fresh", [False, True])
@pytest.mark.parametrize("kind", [*MADE, *NUMBERS, "equal"])
def test_traces_compare_what_their_arguments_hold(kind: str, is_fresh: bool) -> None:
    make = (MADE | NUMBERS | {"equal": Equal})[kind]
    x, made = torch.ones(2), make()
    program = smelt.trace(by_attribute, (x, made))
    assert torch.equal(program(x, make() if is_fresh and kind != "equal" else made), by_attribute(x, made))
    given = make() if is_fresh else made
    before = given.K
    try:
        given.K = 9
        with pytest.raises(smelt.CaptureError, match=r"args\[1\]") as caught:
            program(x, given)
        assert caught.value.code == "S0107"
    finally:
        del given.K
    if kind != "set at the end":
        assert torch.equal(program(x, given), x * before)


def test_traces_see_that_an_argument_changed_in_place() -> None:
    x = torch.ones(2)
    changes: list[tuple[Any, Callable[[Tensor, Any], Tensor], Callable[[Any], object]]] = [
        (Shadowed(), lambda x, d: x * d.s, lambda d: setattr(d, "s", 2)),
        ([Shadowed()], lambda x, d: x * d[0].s, lambda d: setattr(d[0], "s", 2)),
        ({1, 2}, lambda x, d: x * len(d), lambda d: d.add(7)),
        (bytearray(b"a"), lambda x, d: x * d[0], lambda d: d.append(1)),
    ]
    for given, f, change in changes:
        with pytest.warns(smelt.SmeltWarning) if type(given) is bytearray else nullcontext():
            program = smelt.trace(f, (x, given))
        assert torch.equal(program(x, given), f(x, given))
        change(given)
        with pytest.raises(smelt.CaptureError, match=r"args\[1\]"):
            program(x, given)
