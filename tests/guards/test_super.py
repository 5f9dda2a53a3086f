"""What a program reads through `super()`: no attribute of an object, and no name of a class that its code has."""

from __future__ import annotations

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


def by_a_module() -> Made:
    class Above(nn.Module):
        k = 1

    class Model(Above):
        def forward(self, x: Tensor) -> Tensor:
            return x * super().k

    return Model(), assign(Above, "k", 5)


def by_a_property() -> Made:
    class Above:
        k = 1

    class Held(Above):
        @property
        def twice(self) -> int:
            return super().k * 2

    held = Held()
    return (lambda x: x * held.twice), assign(Above, "k", 5)


def by_a_classmethod() -> Made:
    class Above:
        k = 1

    class Held(Above):
        @classmethod
        def go(cls, x: Tensor) -> Tensor:
            return x * super().k

    return Held.go, assign(Above, "k", 5)


def by_a_metaclass() -> Made:
    class Above(type):
        k = 1

    class Meta(Above):
        def scale(cls) -> int:
            return super().k

    class Held(metaclass=Meta):
        pass

    return (lambda x: x * Held.scale()), assign(Above, "k", 5)


def of_an_object_that_the_run_makes() -> Made:
    class Above:
        k = 1

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * super().k

    return (lambda x: Held().go(x)), assign(Above, "k", 5)


def put_between() -> Made:
    class Above:
        k = 1

    class Between(Above):
        pass

    class Held(Between):
        def go(self, x: Tensor) -> Tensor:
            return x * super().k

    return Held().go, assign(Between, "k", 5)


def of_a_second_class_that_runs_it() -> Made:
    class First:
        k = 1

    class Second:
        k = 1

    class Mixed:
        def go(self, x: Tensor) -> Tensor:
            return x * super().k  # type: ignore[misc]

    held = type("A", (Mixed, First), {})(), type("B", (Mixed, Second), {})()
    return (lambda x: held[0].go(x) + held[1].go(x)), assign(Second, "k", 5)


def with_its_class() -> Made:
    class Above:
        k = 1

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * super(Held, self).k  # noqa: UP008

    return Held().go, assign(Above, "k", 5)


def in_an_inner_function() -> Made:
    class Above:
        k = 1

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * (lambda: super(Held, self).k)()

    return Held().go, assign(Above, "k", 5)


def kept_first() -> Made:
    class Above:
        k = 1

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            above = super()
            return x * above.k

    return Held().go, assign(Above, "k", 5)


def by_getattr() -> Made:
    class Above:
        k = 1

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * getattr(super(), "k")  # noqa: B009

    return Held().go, assign(Above, "k", 5)


def a_method() -> Made:
    class Above:
        def scale(self) -> int:
            return 1

    class Held(Above):
        def scale(self) -> int:
            return super().scale() + 1

    held = Held()
    return (lambda x: x * held.scale()), assign(Above, "scale", lambda self: 70)


def what_a_method_there_encloses() -> Made:
    n = 1

    class Above:
        def scale(self) -> int:
            return n

    class Held(Above):
        def scale(self) -> int:
            return super().scale() + 1

    def change() -> None:
        nonlocal n
        n = 5

    held = Held()
    return (lambda x: x * held.scale()), change


def a_list() -> Made:
    class Above:
        held = [1]  # noqa: RUF012

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * sum(super().held)

    return Held().go, lambda: Above.held.append(4)


def a_tensor() -> Made:
    class Above:
        weight = torch.ones(1)

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * super().weight

    return Held().go, assign(Above, "weight", torch.full((1,), 5.0))


CHANGES: list[Callable[[], Made]] = [
    by_a_module, by_a_property, by_a_classmethod, by_a_metaclass, of_an_object_that_the_run_makes, put_between,
    of_a_second_class_that_runs_it, with_its_class, in_an_inner_function, kept_first, by_getattr, a_method,
    what_a_method_there_encloses, a_list, a_tensor,
]  # fmt: skip


@pytest.mark.parametrize("make", CHANGES, ids=lambda make: make.__name__)
def test_what_is_read_of_a_base_is_seen(make: Callable[[], Made]) -> None:
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


def test_what_grows_in_a_base_grows_at_each_call() -> None:
    class Above(nn.Module):
        held = [1]  # noqa: RUF012

    class Model(Above):
        def forward(self, x: Tensor) -> Tensor:
            super().held.append(1)
            return x * len(super().held)

    c, x = smelt.compile(Model()), torch.ones(1)
    assert [c(x).item() for _ in range(5)] == [2, 3, 4, 5, 6]
    assert len(Above.held) == 6


def test_other_names_of_a_base_cost_no_build() -> None:
    class Above:
        k, other = 2, 3

    class Held(Above):
        def go(self, x: Tensor) -> Tensor:
            return x * super().k

    c, x = smelt.compile(Held().go), torch.ones(1)
    for _ in range(2):
        assert torch.equal(c(x), x * 2)
    Above.other = 5
    assert torch.equal(c(x), x * 2) and c.stats().builds == 1
