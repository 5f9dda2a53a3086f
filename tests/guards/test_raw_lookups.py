"""Attributes that code reads and sets past what classes say of it: `object.__getattribute__`, `getattr_static`."""

from __future__ import annotations

import dataclasses
import inspect
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


class Held:
    def __init__(self, child: Any = None) -> None:
        self.seen, self.n, self.child = [1], 0, child


class Slots:
    __slots__ = ("n", "seen")

    def __init__(self) -> None:
        self.n, self.seen = 0, [1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sub, self.n = nn.Identity(), 0
        self.sub.seen = [1]  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        object.__setattr__(self, "n", self.n + 1)
        object.__getattribute__(self.sub, "seen").append(1)
        return x * self.n + len(self.sub.seen)  # type: ignore[arg-type]


def seen_of(held: Any) -> Any:
    return object.__getattribute__(held, "seen")


def a_list() -> Made:
    held = Held()

    def f(x: Tensor) -> Tensor:
        object.__getattribute__(held, "seen").append(1)
        return x * len(object.__getattribute__(held, "seen"))

    return f, lambda: held.seen


def a_list_of_a_member() -> Made:
    held = Held(Held())

    def f(x: Tensor) -> Tensor:
        object.__getattribute__(held.child, "seen").append(1)
        return x * len(held.child.seen)

    return f, lambda: held.child.seen


def a_list_at_a_further_call() -> Made:
    held, other = Held(), Held()

    def f(x: Tensor) -> Tensor:
        seen_of(other)
        seen_of(held).append(1)
        return x * len(held.seen)

    return f, lambda: held.seen


def a_list_by_inspect() -> Made:
    held = Held()

    def f(x: Tensor) -> Tensor:
        inspect.getattr_static(held, "seen").append(1)
        return x * len(held.seen)

    return f, lambda: held.seen


def a_number() -> Made:
    held = Held()

    def f(x: Tensor) -> Tensor:
        object.__setattr__(held, "n", object.__getattribute__(held, "n") + 1)
        return x * held.n

    return f, lambda: held.n


def a_slot() -> Made:
    held = Slots()

    def f(x: Tensor) -> Tensor:
        object.__setattr__(held, "n", object.__getattribute__(held, "n") + 1)
        object.__getattribute__(held, "seen").append(1)
        return x * held.n

    return f, lambda: (held.n, held.seen)


def a_module() -> Made:
    model = Model()
    return model, lambda: (model.n, model.sub.seen)


def by_super() -> Made:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n = 0

        def forward(self, x: Tensor) -> Tensor:
            super().__setattr__("n", super().__getattribute__("n") + 1)
            return x * self.n

    counter = Counter()
    return counter, lambda: counter.n


WRITES = [by_super, a_list, a_list_of_a_member, a_list_at_a_further_call, a_list_by_inspect, a_number, a_slot, a_module]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("make", WRITES, ids=lambda make: make.__name__)
def test_what_is_changed_so_is_changed_at_each_call(make: Callable[[], Made]) -> None:
    (f, state), (g, compiled_state), x = make(), make(), torch.ones(2)
    c = smelt.compile(g)
    for _ in range(5):
        assert torch.equal(c(x), f(x))
        assert compiled_state() == state()


def test_what_is_read_so_is_guarded() -> None:
    held, slots = Held(), Slots()

    def f(x: Tensor) -> Tensor:
        return x * (object.__getattribute__(held, "n") + object.__getattribute__(slots, "n"))

    c, x = smelt.compile(f), torch.ones(2)
    for n in range(3):
        held.n = slots.n = n
        for _ in range(2):
            assert torch.equal(c(x), x * 2 * n)


def test_what_a_frozen_record_keeps_once_is_compiled() -> None:
    @dataclasses.dataclass(frozen=True)
    class Record:
        k: int
        kept: int | None = None

        def __post_init__(self) -> None:
            object.__setattr__(self, "k", self.k + 1)

        def twice(self) -> int:
            if self.kept is None:
                object.__setattr__(self, "kept", 2 * self.k)
            assert self.kept is not None
            return self.kept

    held, x = Record(2), torch.ones(2)
    held.twice()
    c = smelt.compile(lambda x: x * held.twice() + Record(3).twice())
    for _ in range(3):
        assert torch.equal(c(x), x * 14)
    assert c.stats().builds == 1 and not c.stats().fallbacks


def test_a_class_whose_own_setter_does_so_keeps_its_state() -> None:
    class Own:
        def __init__(self) -> None:
            self.n = 0

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    held, x = Own(), torch.ones(2)

    def f(x: Tensor) -> Tensor:
        held.n += 1
        return x * held.n

    c = smelt.compile(f)
    for n in range(5):
        assert torch.equal(c(x), x * (n + 1))
    assert held.n == 5 and len(c.stats().fallbacks) == 1
