"""Which arguments are one object, and which are objects that the program reads by itself, is guarded: `is` may ask."""

from __future__ import annotations

import copy
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import smelt
from smelt.compiler.object.compiled import dispatcher_of


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@dataclass
class Box:
    x: Any
    numbers: list[int] = field(default_factory=list)


def ones() -> Tensor:
    return torch.ones(2)


CONTAINERS: dict[str, Callable[[], Any]] = {
    "a list": lambda: [ones(), 1],
    "a list without tensors": lambda: [1, 2.5],
    "an empty list": list,
    "a tuple": lambda: (ones(), 1),
    "a dict": lambda: {"x": ones()},
    "an ordered dict": lambda: OrderedDict(x=ones()),
    "a deque": lambda: deque([ones()]),
    "a set": lambda: {1, 2},
    "a dataclass": lambda: Box(ones()),
    "nested": lambda: [[ones()], {"k": (ones(),)}],
}


def by_identity(x: Any, y: Any, t: Tensor) -> Tensor:
    return t * 2 if x is y else t * 3


def by_identity_inside(x: Any, y: Any, t: Tensor) -> Tensor:
    return by_identity({"in": [x]}["in"][0], y, t)


@pytest.mark.spread(3)
@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("order", ["sssdds", "ddssd"])
def test_containers_that_are_one_or_two(make: Callable[[], Any], order: str) -> None:
    compiled = smelt.compile(by_identity_inside)
    for how in order:
        x = make()
        y = x if how == "s" else copy.deepcopy(x)
        assert torch.equal(compiled(x, y, ones()), by_identity(x, y, ones()))
    assert compiled.stats().builds == 2 and compiled.stats().fallbacks == {}


def test_members_of_one_container_that_are_one_or_two() -> None:
    def f(d: dict[str, Any]) -> Tensor:
        return d["a"]["x"] * 2 if d["a"] is d["b"] else d["a"]["x"] + d["b"]["x"] * 5

    def given(how: str) -> dict[str, Any]:
        a = {"x": ones()}
        return {"a": a, "b": {"s": a, "d": {"x": ones()}, "t": {"x": a["x"]}}[how]}

    for order in ("ssdtsdt", "ddstsdt", "ttsdtsd"):
        compiled = smelt.compile(f)
        for how in order:
            assert torch.equal(compiled(given(how)), f(given(how)))
        assert compiled.stats().builds == 3


def append(x: list[Any], y: list[Any], t: Tensor) -> Tensor:
    x.append(t + 1)
    return sum(y) + t


def put_number(x: list[Any], y: list[Any], t: Tensor) -> Tensor:
    x[0] = 5
    return t * y[0]


@pytest.mark.parametrize("f", [append, put_number])
@pytest.mark.parametrize("order", ["dddsssdd", "ssdsd"])
@pytest.mark.filterwarnings("ignore:.* falls back to eager", "ignore:.* compiled as partitions")
def test_what_is_written_to_one_and_read_from_the_other(f: Callable[..., Tensor], order: str) -> None:
    compiled = smelt.compile(f)
    for how in order:
        ours, eagers = ([x, x if how == "s" else [2.0]] for x in ([2.0], [2.0]))
        assert torch.equal(compiled(*ours, ones()), f(*eagers, ones()))
        assert str(ours) == str(eagers)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes, self.table, self.box = [1.0], {"k": 1}, Box(1)
        self.weight, self.buffer = nn.Parameter(ones()), nn.Buffer(ones())

    def forward(self, x: Any, t: Tensor) -> Tensor:
        for factor, own in enumerate((self.sizes, self.table, self.box, self.weight, self.buffer), 2):
            if x is own:
                return t * factor
        return t * 10


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", ["sizes", "table", "box", "weight", "buffer"])
@pytest.mark.parametrize("order", ["oossoso", "ssosoos"])
def test_arguments_that_are_what_the_program_reads_by_itself(name: str, order: str) -> None:
    holder = Holder()
    other = copy.deepcopy(getattr(holder, name))
    compiled = smelt.compile(holder)
    for how in order:
        x = getattr(holder, name) if how == "s" else other
        assert torch.equal(compiled(x, ones()), holder(x, ones())), how
    assert compiled.stats().builds == 2


def test_a_view_of_a_buffer_is_not_the_buffer() -> None:
    holder = Holder()
    compiled = smelt.compile(holder)
    for x in (holder.buffer, holder.buffer, holder.buffer[:], holder.buffer.view(2), holder.buffer):
        assert torch.equal(compiled(x, ones()), holder(x, ones()))


def test_calls_with_containers_are_native() -> None:
    holder = Holder()
    compiled = smelt.compile(lambda x, y, t: holder(x, t) + x[0] + y[0] + t)
    for _ in range(4):
        compiled([1.0], [1.0], ones())
    row = dispatcher_of(compiled).stats().rows[0]
    assert row.native is not None and row.hits == 3


def asks_of_a_list(a: Any, b: Any) -> tuple[Any, Callable[[Any, Any], None], Callable[[Tensor], Tensor]]:
    held = [a, b, a]

    def put(first: Any, second: Any) -> None:
        held[:] = [first, second, first]

    return held, put, lambda t: t * (2 if held[0] is held[1] else 3) * len({id(x) for x in held})


def asks_of_a_dict(a: Any, b: Any) -> tuple[Any, Callable[[Any, Any], None], Callable[[Tensor], Tensor]]:
    held = {"a": (a, 1), "b": b}

    def put(first: Any, second: Any) -> None:
        held.update(a=(first, 1), b=second)

    return held, put, lambda t: t * (2 if held["a"][0] is held["b"] else 3)


@pytest.mark.spread(10)
@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
@pytest.mark.parametrize("asks", [asks_of_a_list, asks_of_a_dict])
def test_members_outside_the_arguments_that_are_one_or_two(make: Callable[[], Any], asks: Any) -> None:
    first = make()
    _, put, f = asks(first, first)
    compiled = smelt.compile(f)
    for how in "sssddsd":
        first = make()
        put(first, first if how == "s" else make())
        for _ in range(2):
            assert torch.equal(compiled(ones()), f(ones())), how


class Tables:
    shared: ClassVar[list[Any]] = [[1.0], [2.0]]


def test_what_is_returned_is_what_a_place_outside_holds_now() -> None:
    rows, table, cell = [[1.0, 2.0], [3.0]], {"a": [1.0]}, [4.0]

    def f(t: Tensor) -> Any:
        return t * rows[0][0], rows[0], table["a"], cell, Tables.shared

    compiled = smelt.compile(f)
    for _ in range(3):
        compiled(ones())
    rows[0], table["a"], cell, Tables.shared = [1.0, 2.0], [1.0], [4.0], [[1.0], [2.0]]
    for _ in range(3):
        found = compiled(ones())
        assert all(a is b for a, b in zip(found[1:], f(ones())[1:], strict=True))
    rows[0][0] = 7.0
    assert torch.equal(compiled(ones())[0], ones() * 7)


def test_what_the_program_itself_replaces_by_an_equal_one_is_state() -> None:
    kept = [2.0]
    held = []

    def f(t: Tensor) -> Tensor:
        nonlocal kept
        kept = [2.0]
        return t * kept[0]

    compiled = smelt.compile(f)
    for _ in range(5):
        held.append(kept)
        assert torch.equal(compiled(ones()), ones() * 2)
    assert len({id(one) for one in held}) == 5
    assert compiled.stats().builds == 2  # the first finds out that it is changed


def test_a_miss_tells_of_an_equal_object() -> None:
    rows = [[1.0]]
    compiled = smelt.compile(lambda t: t * rows[0][0])
    for _ in range(2):
        compiled(ones())
    rows[0] = [1.0]
    compiled(ones())
    assert "another object that is equal" in str(compiled.stats())
