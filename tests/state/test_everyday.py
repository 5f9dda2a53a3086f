"""Everyday state: attributes of classes, deques, counters and dictionaries with defaults, as in eager and one graph."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from tests.state.twins import Base, compare, is_one_graph, rows


class OnType(Base):
    n, total = 0, 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).n += 1
        self.__class__.total *= 2
        return self.f(x) * self.n + type(self).total


class OnGivenClass(Base):
    n = 0

    @classmethod
    def bump(cls) -> int:
        cls.n += 1
        return cls.n

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return self.f(x) * self.bump()
        return self.f(x) - self.n


class Mean(Base):
    mean = torch.zeros(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).mean = 0.5 * self.mean + 0.5 * self.f(x).mean(0)
        return x - type(self).mean


class Normalizer(Base):
    """Its buffers are written in place, which assigns what is there already, and assigned."""

    def init(self) -> None:
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.shape[0]
        self.mean = self.mean + (self.f(x).mean(0) - self.mean) * x.shape[0] / self.count
        return x - self.mean


class Window(Base):
    def init(self) -> None:
        self.seen = collections.deque[torch.Tensor](maxlen=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.f(x))
        return torch.stack(list(self.seen)).mean(0)


class Queue(Base):
    def init(self) -> None:
        self.seen, self.sizes = collections.deque[torch.Tensor](), collections.deque[int]([4, 4], 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.f(x))
        self.sizes.appendleft(x.shape[0])
        self.sizes.rotate()
        if len(self.seen) < 3:
            return x * self.sizes[0]
        return self.seen.popleft() * self.seen[-1]


class Replay(Base):
    def init(self) -> None:
        self.buffer = collections.deque[tuple[torch.Tensor, int]](maxlen=2)
        self.n = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.buffer.append((self.f(x), self.n))
        if x.sum() > 3:
            raise ValueError("too much")
        return sum((y * n for y, n in self.buffer), start=x)


class Counts(Base):
    def init(self) -> None:
        self.counts = collections.Counter[str]()
        self.sums = collections.defaultdict[str, float](float)
        self.order = collections.OrderedDict(last=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts["calls"] += 1
        self.counts.update(["calls", "more"])
        self.sums["rows"] += x.shape[0] / 2
        self.order["last"] = self.counts["calls"]
        return self.f(x) * self.counts["calls"] + self.sums["rows"]


class Raising(Base):
    n = 0

    def init(self) -> None:
        self.counts = collections.Counter[str]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).n += 1
        self.counts["calls"] += self.n
        if x.sum() > 0:
            self.counts["raised"] += 1
            raise ValueError("too much")
        return self.f(x) * self.counts["calls"]


def twin(cls: type[Base]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def make() -> tuple[Any, Callable[[], Any]]:
        own = type(cls.__name__, (cls,), {k: v for k, v in vars(cls).items() if k in ("n", "total", "mean")})
        module = own()
        return module, lambda: [module, {k: v for k, v in vars(own).items() if k in ("n", "total", "mean")}]

    return make


@pytest.mark.spread(6)
@pytest.mark.parametrize("cls", [OnType, OnGivenClass, Mean, Normalizer, Window, Queue, Replay, Counts, Raising])
def test_as_in_eager_and_one_graph(cls: type[Base]) -> None:
    compiled = compare(twin(cls), calls=10)
    assert is_one_graph(compiled)
    assert compiled.stats().builds <= 6


@pytest.mark.parametrize("cls", [OnType, Mean])
def test_calls_with_class_attributes_are_native(cls: type[Base]) -> None:
    compiled = compare(twin(cls), calls=8)
    assert dispatcher_of(compiled).counters.calls >= 4 and compiled.stats().builds == 2


def test_what_a_user_does_to_a_class_is_seen() -> None:
    def between(module: Any, number: int) -> None:
        cls = type(module)
        match number:
            case 3:
                cls.n, cls.total = 10, -1.0
            case 4:
                module.n = 100  # before the class's own
            case 5:
                del module.n
            case 6:
                cls.n = 2.5
            case 7:
                module.__class__ = type("Other", (cls,), {"total": 7.0})
            case 9:
                module.__class__ = cls.__mro__[1]
            case 10:
                del cls.total
            case 12:
                cls.n = property(lambda self: 5)

    compare(twin(OnType), calls=15, between=between)


def test_what_a_user_does_to_a_deque_is_seen() -> None:
    def between(module: Any, number: int) -> None:
        match number:
            case 3:
                module.seen.clear()
            case 5:
                module.seen = collections.deque(module.seen, maxlen=2)
            case 7:
                module.seen = collections.deque(maxlen=5)
            case 9:
                module.seen = list(module.seen)
            case 10:
                module.seen = collections.deque(module.seen * 2, maxlen=3)
            case 11:
                module.seen[0] = module.seen[1]

    compare(twin(Window), calls=16, between=between)


def test_what_a_user_does_to_counters_is_seen() -> None:
    def between(module: Any, number: int) -> None:
        match number:
            case 3:
                module.counts.clear()
            case 4:
                module.sums.clear()
                module.sums.default_factory = lambda: 10.0
            case 5:
                module.counts = collections.Counter(calls=5, more=-1)
            case 6:
                module.counts.move = 3
            case 7:
                module.counts = {"calls": 5, "more": 2}
            case 9:
                module.counts = collections.Counter(more=1, calls=1)
                module.sums = collections.defaultdict(int, rows=1)

    compare(twin(Counts), calls=13, between=between)


def test_deques_that_are_arguments_and_results() -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        def program(x: torch.Tensor, seen: collections.deque[Any]) -> Any:
            seen.append(x.sin())
            return collections.deque([x, *seen], maxlen=2), seen

        return program, lambda: None

    def arguments(number: int) -> tuple[Any, ...]:
        (x,) = rows(number)
        return x, collections.deque([x + 1, x + 2, x + 3][: number % 3], maxlen=3 if number % 2 else None)

    compiled = compare(make, calls=14, arguments=arguments)
    assert dispatcher_of(compiled).splits is None and compiled.stats().builds < 9


def test_an_argument_kept_in_a_deque_is_that_very_tensor() -> None:
    class Model(Base):
        def init(self) -> None:
            self.kept = collections.deque[Any]([None], maxlen=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.kept.append(x)
            return self.f(x)

    model = Model()
    compiled = smelt.compile(model)
    with torch.no_grad():
        for number in range(6):
            (x,) = rows(number % 4)
            compiled(x)
            assert model.kept[0] is x
    assert is_one_graph(compiled)


def test_two_names_of_a_deque() -> None:
    class Model(Base):
        def init(self) -> None:
            self.a = self.b = collections.deque[torch.Tensor](maxlen=2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.a.append(self.f(x))
            return self.f(x) + len(self.b) + self.b[0]

    def between(module: Any, number: int) -> None:
        if number == 4:
            module.b = collections.deque([torch.ones(6)], maxlen=2)
        if number == 6:
            module.a = module.b

    compare(twin(Model), calls=10, between=between)


def test_a_class_attribute_that_another_class_shows() -> None:
    class Above(Base):
        n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Above.n += 1
            return self.f(x) * self.n

    class Below(Above):
        pass

    def run(program: Any) -> list[torch.Tensor]:
        Above.n, found = 0, []
        for number in range(10):
            found.append(program(*rows(number)))
            if number == 5:
                Below.n = 50
            if number == 7:
                del Below.n
        return found

    with torch.no_grad():
        expected = run(Below())
        compiled = smelt.compile(Below())
        found = run(compiled)
    torch.testing.assert_close(found, expected)
    assert is_one_graph(compiled)


settings = types.ModuleType("settings")
settings.n = 0  # type: ignore[attr-defined]


def test_places_that_are_only_added_to() -> None:
    """`x.n += 1`, and nothing else with `x.n`: of a module, of classes of a loop, of a class's base."""

    class First(Base):
        n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            settings.n += 1  # type: ignore[attr-defined]
            return self.f(x)

    class Second(Base):
        n = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for cls in (First, Second):
                cls.n += 1
            return self.f(x)

    class Third(Second):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.__class__.__base__.n += 2  # type: ignore[union-attr]
            return self.f(x)

    with torch.no_grad():
        for cls in (First, Second, Third):
            settings.n = First.n = Second.n = 0  # type: ignore[attr-defined]
            compiled = smelt.compile(cls())
            for number in range(6):
                compiled(*rows(number))
            counts = {First: (6, 0, 0), Second: (0, 6, 6), Third: (0, 0, 12)}
            assert (settings.n, First.n, Second.n) == counts[cls]
