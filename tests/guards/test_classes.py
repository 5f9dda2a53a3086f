"""What a class is: constructor, bases, names, and what Python looks up in it by itself may change later."""

from __future__ import annotations

import collections
import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import smelt

Tensor = torch.Tensor
Made = tuple[Callable[[Tensor], Any], Callable[[], Any]]


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def assign(owner: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def constructor() -> Made:
    class Token:
        def __init__(self, k: int) -> None:
            self.k = k

    return (lambda x: x * Token(3).k), assign(Token, "__init__", lambda self, k: setattr(self, "k", 77))


def constructor_where_none_was() -> Made:
    class Token:
        k = 3

    return (lambda x: x * Token().k), assign(Token, "__init__", lambda self: setattr(self, "k", 77))


def allocator() -> Made:
    class Token:
        k = 3

    class Other:
        k = 5

    return (lambda x: x * Token().k), assign(Token, "__new__", lambda cls: Other())


def constructor_behind_an_attribute() -> Made:
    class Token:
        def __init__(self, k: int) -> None:
            self.k = k

    class Model(nn.Module):
        made = Token

        def forward(self, x: Tensor) -> Tensor:
            return x * self.made(3).k

    return Model(), assign(Token, "__init__", lambda self, k: setattr(self, "k", 77))


def constructor_of_a_module() -> Made:
    class Layer(nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k

        def forward(self, x: Tensor) -> Tensor:
            return x * self.k

    def init(self: Any, k: int) -> None:
        nn.Module.__init__(self)
        self.k = k * 10

    return (lambda x: Layer(3)(x)), assign(Layer, "__init__", init)


def what_a_dataclass_does_at_last() -> Made:
    @dataclasses.dataclass
    class Point:
        a: int

        def __post_init__(self) -> None:
            self.c = self.a + 1

    return (lambda x: x * Point(3).c), assign(Point, "__post_init__", lambda self: setattr(self, "c", 100))


def what_a_missing_member_is() -> Made:
    class Color(enum.Enum):
        RED = 2
        BLUE = 3

        @classmethod
        def _missing_(cls, value: object) -> Color:
            return cls.RED

    return (lambda x: x * Color(9).value), assign(Color, "_missing_", classmethod(lambda cls, value: cls.BLUE))


def defaults_of_a_named_tuple() -> Made:
    pair = collections.namedtuple("pair", "a b", defaults=[2])
    return (lambda x: x * pair(1).b), assign(pair.__new__, "__defaults__", (7,))


def bases() -> Made:
    class First:
        v = 1

    class Second:
        v = 5

    class Between(Second):
        pass

    class Held(First):
        pass

    held = Held()
    return (lambda x: x * held.v), assign(Held, "__bases__", (Between,))


def special(name: str, value: Any, use: Callable[[Any], Any]) -> Callable[[], Made]:
    def make() -> Made:
        class Held:
            a, b = 1, 2
            __match_args__ = ("a",)

            def __class_getitem__(cls, key: Any) -> int:
                return 1

        held = Held()
        return (lambda x: x * use(held)), assign(Held, name, value)

    make.__name__ = name
    return make


def matched(held: Any) -> Any:
    cls: Any = type(held)
    match held:
        case cls(found):
            return found
    return 0


def of_a_class(use: Callable[[Any], Any], name: str, value: Any) -> Callable[[], Made]:
    def make() -> Made:
        class Held:
            a, b = 1, 2

            def __class_getitem__(cls, key: Any) -> int:
                return 1

        return (lambda x: x * use(Held)), assign(Held, name, value)

    make.__name__ = name
    return make


def item_of(base: type, *given: Any) -> Callable[[], Made]:
    def make() -> Made:
        class Held(base):  # type: ignore[misc,valid-type]
            pass

        held = Held(*given)
        return (lambda x: x * held[0]), assign(Held, "__getitem__", lambda self, key: 9)

    make.__name__ = f"item_of_a_{base.__name__}"
    return make


CHANGES: list[Callable[[], Made]] = [
    constructor, constructor_where_none_was, allocator, constructor_behind_an_attribute, constructor_of_a_module,
    what_a_dataclass_does_at_last, what_a_missing_member_is, defaults_of_a_named_tuple, bases,
    special("__str__", lambda self: "ab", lambda held: len(str(held))),
    special("__repr__", lambda self: "ab", lambda held: len(str([held]))),
    special("__format__", lambda self, how: "ab", lambda held: len(f"{held}")),
    special("__hash__", lambda self: 5, lambda held: hash(held) % 1000 + 6),
    special("__ne__", lambda self, other: False, lambda held: held != 1),
    special("__dir__", lambda self: ["ab"], lambda held: len(dir(held))),
    special("__match_args__", ("b",), matched),
    special("__name__", "LONGER", lambda held: len(type(held).__name__)),
    of_a_class(lambda cls: len(cls.__name__), "__name__", "LONGER"),
    of_a_class(lambda cls: len(cls.__qualname__), "__qualname__", "L"),
    of_a_class(lambda cls: cls[0], "__class_getitem__", classmethod(lambda cls, key: 7)),
    item_of(dict, {0: 1}), item_of(tuple, (1,)), item_of(list, [1]),
]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_a_class_that_changed_is_seen(make: Callable[[], Made]) -> None:
    (f, change), x = make(), torch.ones(1)
    c = smelt.compile(f)
    for _ in range(3):
        assert torch.equal(c(x), f(x))
    before = f(x)
    assert c.stats().builds == 1
    change()
    assert not torch.equal(f(x), before)
    for _ in range(2):
        assert torch.equal(c(x), f(x))


def test_a_constructor_of_torchs_that_somebody_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: Tensor) -> tuple[Tensor, list[int]]:
        return x * 2, list(nn.Linear(3, 2, bias=False).weight.shape)

    c, x, old = smelt.compile(f), torch.ones(1), nn.Linear.__init__
    for _ in range(3):
        assert c(x)[1] == [2, 3]
    monkeypatch.setattr(nn.Linear, "__init__", lambda self, a, b, bias=True: old(self, b, a, bias))
    assert c(x)[1] == f(x)[1] == [3, 2]


def test_attributes_that_a_class_is_given_later_cost_no_build() -> None:
    class Held:
        v = 2

    held: Any = Held()
    c, x = smelt.compile(lambda x: x * held.v), torch.ones(1)
    for _ in range(2):
        assert torch.equal(c(x), x * 2)
    Held.other = 5  # type: ignore[attr-defined]
    assert held.__annotations__ == {} if hasattr(held, "__annotations__") else True
    assert torch.equal(c(x), x * 2) and c.stats().builds == 1
