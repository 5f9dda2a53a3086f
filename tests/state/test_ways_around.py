"""Ways to state that pass attribute access by: reads are guarded, changes made, or it is split there."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from smelt.compiler.object.compiled import dispatcher_of
from tests.state.twins import Base, compare


class RequiresGrad(Base):
    def init(self) -> None:
        self.p = torch.nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x) * sum(p.requires_grad for p in self.parameters())

    def between(self, number: int) -> None:
        self.p.requires_grad_(number % 2 == 0)


class Marks(Base):
    def init(self) -> None:
        self.hits, self.seen = 0, set[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hits += 1
        self.seen.add(self.hits)
        return self.f(x) * len(self.seen)


def test_the_reason_is_what_can_be_no_state() -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        made = Marks()
        return made, lambda: (made.hits, sorted(made.seen))

    compiled = compare(make)
    assert dispatcher_of(compiled).splits is not None and not dispatcher_of(compiled).has_state
    reasons = [reason for reason in compiled.stats().fallbacks if "changes" in reason]
    assert reasons and all("changes Marks.seen at" in reason for reason in reasons)


class Flips(Base):
    def init(self) -> None:
        self.p = torch.nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.p.requires_grad_(not self.p.requires_grad)
        return self.f(x).cos() + (2 if self.p.requires_grad else 1)


class Gradient(Base):
    def init(self) -> None:
        self.p = torch.nn.Parameter(torch.ones(6))
        self.p.grad = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.p.grad is None:
            return self.f(x)
        self.p.sub_(self.p.grad, alpha=0.1)
        return self.f(x) + self.p

    def between(self, number: int) -> None:
        self.p.grad = None if number % 3 == 0 else torch.full((6,), float(number))


class Stepping(Base):
    def init(self) -> None:
        self.p = torch.nn.Parameter(torch.ones(6))
        self.sgd = torch.optim.SGD([self.p], lr=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.f(x).cos() + 1
        self.p.grad = y.mean(0)
        self.sgd.step()
        return y * self.p

    def state(self) -> Any:
        return self.p, self.p.grad


class OnTensor(Base):
    def init(self) -> None:
        self.t: Any = torch.zeros(6)
        self.t.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.t.calls += 1
        return self.f(x) + self.t.calls

    def state(self) -> Any:
        return self.t.calls


class OfClass(Base):
    n, total = 0, 0

    @classmethod
    def bump(cls) -> int:
        cls.n += 1
        return cls.n

    def init(self) -> None:
        self.cls = type(self)
        self.cls.n = self.cls.total = 0

    def add(self, to: Any) -> int:
        to.total += 2
        return int(to.total)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x) * self.bump() + self.add(self.cls)

    def state(self) -> Any:
        return self.cls.n, self.cls.total


class Doubling:
    def __init__(self) -> None:
        self.held: dict[int, int] = {}

    def __get__(self, owner: Any, cls: Any = None) -> int:
        return 2 * self.held.get(id(owner), 0)

    def __set__(self, owner: Any, value: int) -> None:
        self.held[id(owner)] = value


class Holder:
    n = Doubling()


class Descriptor(Base):
    def init(self) -> None:
        self.held = Holder()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.held.n = self.held.n + 1
        return self.f(x) * self.held.n

    def state(self) -> Any:
        return self.held.n


class BoundMethods(Base):
    def init(self) -> None:
        self.seen: list[int] = []
        self.table = {"k": 1}
        self.add, self.get = self.seen.append, self.table.get

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.add(x.shape[0])
        return self.f(x).cos() * len(self.seen) + (self.get("k") or 0)

    def between(self, number: int) -> None:
        self.table["k"] = number

    def state(self) -> Any:
        return self.seen, self.table


class Views(Base):
    def init(self) -> None:
        self.table = {"a": 1}
        self.keys, self.proxy = self.table.keys(), types.MappingProxyType(self.table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.f(x) * len(self.keys) + self.proxy["a"]

    def between(self, number: int) -> None:
        self.table["a" if number % 2 else str(number)] = number

    def state(self) -> Any:
        return self.table


class Referent:
    k = 1


class Weak(Base):
    def init(self) -> None:
        self.held = Referent()
        self.ref = weakref.ref(self.held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.ref()
        return self.f(x) * (10 if found is None else found.k)

    def between(self, number: int) -> None:
        self.held.k = number

    def state(self) -> Any:
        return self.held


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    "cls",
    [RequiresGrad, Flips, Gradient, Stepping, OnTensor, OfClass, Descriptor, BoundMethods, Views, Weak],
)
def test_as_in_eager(cls: type[Any]) -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        module = type(cls.__name__, (cls,), {})()  # what the class holds is this one's own
        own = getattr(module, "state", None)
        return module, lambda: [
            [(p, p.requires_grad, p.grad) for p in module.parameters()], own() if own is not None else module,
        ]  # fmt: skip

    between = getattr(cls, "between", lambda module, number: None)

    def change(module: Any, number: int) -> None:
        between(module, number)

    compare(make, calls=6, between=change)


def test_a_flag_of_an_argument() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2 if x.requires_grad else x.sin()

    compare(
        lambda: (program, lambda: None),
        calls=6,
        arguments=lambda number: (torch.ones(3, requires_grad=number % 2 == 1),),
    )
