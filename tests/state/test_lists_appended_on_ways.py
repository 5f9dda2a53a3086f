"""Lists outside a program that it appends to where data say so: one graph, and nothing follows from their items."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.state.twins import Base, compare, is_one_graph


class Logs(Base):
    def init(self) -> None:
        self.calls, self.log = 0, []
        self.other: Any = None


class OnOneWay(Logs):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.sum() > 0:
            self.log.append(x.sum().item())
        return x / self.calls


class InALoop(Logs):
    def forward(self, x: Tensor) -> Tensor:
        for row in x:
            if row.sum() > 0:
                self.log.append(row.sum().item())
        return x * 2


class Tensors(Logs):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.log.append(x * 2)
        return x


class Pairs(Logs):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.sum() > 0:
            self.log.append((self.calls, x.sum().item()))
        return x


class WayInWay(Logs):
    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x[0, 0].item())
        if x.sum() > 0:
            self.log.append(x.sum().item())
            if x[0, 0] > 0:
                self.log.append(0.25)
            return x * 2
        else:
            self.log.append(0.5)
        self.log.append(1.5)
        return x


class Turns(Logs):
    def forward(self, x: Tensor) -> Tensor:
        while x.sum() > 1:
            self.log.append(x.sum().item())
            x = x / 2
        return x


class TwoKinds(Logs):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.log.append(x.sum().item())
        if x[0, 0] > 0:
            self.log.append("first")
        return x


def on_both(x: Tensor, log: list[Any]) -> None:
    if x.sum() > 0:
        log.append(x[0, 0].item())
    else:
        log.append(x[1, 1].item())


def of(cls: type[Logs]) -> Callable[[], tuple[Any, Callable[[], Any]]]:
    def make() -> tuple[Any, Callable[[], Any]]:
        module = cls()
        return module, lambda: module

    return make


def first(sign: int) -> Callable[[int], tuple[Tensor]]:
    """Rows of which the first three calls have sums of a sign."""

    def rows(number: int) -> tuple[Tensor]:
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
        return (x.abs() * sign if number < 3 else x,)

    return rows


@pytest.mark.spread(12)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("cls", [OnOneWay, InALoop, Tensors, Pairs, WayInWay, Turns, TwoKinds])
def test_one_graph_appends_where_data_say_so(cls: type[Logs], sign: int) -> None:
    compiled = compare(of(cls), calls=16, arguments=first(sign))
    assert is_one_graph(compiled)
    assert compiled.stats().builds <= (2 if sign > 0 else 6)
    assert all(not row.entry.outcomes for row in compiled.stats().rows if row.entry is not None)


def test_lists_that_functions_and_cells_hold() -> None:
    def make() -> tuple[Any, Callable[[], Any]]:
        log: list[Any] = []

        def program(x: Tensor) -> Tensor:
            if x.sum() > 0:
                log.append(x.sum().item())
            return x.sin()

        return program, lambda: log

    assert compare(make, calls=12, arguments=first(1)).stats().builds == 2


class Raising(Logs):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.log.append(x.sum().item())
            if x[0, 0] > 0.5:
                raise ValueError("large")
        return x


def test_what_is_appended_before_an_exception_stays() -> None:
    compare(of(Raising), calls=12, arguments=first(1))


def length(module: Logs) -> int:
    return len(module.log)


USES: dict[str, Callable[[Logs, Tensor], Any]] = {
    "length": lambda self, x: x * length(self),
    "items": lambda self, x: x * self.log[-1],
    "turns": lambda self, x: x + sum(v for v in self.log),
    "stacked": lambda self, x: torch.tensor(self.log) * x.sum(),
    "spread": lambda self, x: x * len([*self.log]) + max(self.log),
    "class": lambda self, x: x * (2 if isinstance(self.log, list) else 3),
    "exact class": lambda self, x: x * (2 if type(self.log) is list else 3),
    "equal": lambda self, x: x * (2 if self.log == [1, 1] else 3),
    "member": lambda self, x: x * (2 if 1 in self.log else 3),
    "text": lambda self, x: (x, f"{self.log} {self.log!r}"),
    "returned": lambda self, x: (x, self.log),
    "cleared": lambda self, x: (x, self.log.clear()),
    "longer": lambda self, x: (x, self.log.extend([1, 2])),
    "sorted": lambda self, x: (x, sorted(self.log)),
    "method": lambda self, x: (x, [push(5) for push in [self.log.append]]),
    "elsewhere": lambda self, x: (x, setattr(self, "other", self.log)),
    "another": lambda self, x: (x, setattr(self, "log", [])),
    "copied": lambda self, x: (x, self.log.copy(), list(self.log), [0] + self.log * 2),
}


class Using(Logs):
    use: Callable[[Logs, Tensor], Any]

    def forward(self, x: Tensor) -> Any:
        self.log.append(1)
        if x.sum() > 0:
            return x
        return self.use(x)


@pytest.mark.spread(24)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", USES)
def test_what_another_way_does_with_the_list(name: str, sign: int) -> None:
    """The first runs only append; nothing of the list is an argument, so no graph may hold what another way sees."""
    cls = type("Using", (Using,), {"use": USES[name]})
    compare(of(cls), calls=12, arguments=first(sign))


class Parting(Logs):
    """Its way is another one at each call, for what it compares."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            self.log.append(x.sum().item())
        else:
            self.log.append("negative")
        return x


def test_a_program_with_state_whose_way_differs_at_each_call() -> None:
    """What takes its place is called as the program is: without its state."""
    compare(of(Parting), calls=24, arguments=first(1))
