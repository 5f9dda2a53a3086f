"""Objects that a program returns: what it made is its caller's, one object wherever it stands; what was there stays."""

from __future__ import annotations

import enum
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
import torch

import smelt


class _Mode(enum.Enum):
    SUM = 1


@dataclass
class _Config:
    scale: float = 1.0
    layers: list[int] = field(default_factory=lambda: [1, 2])
    mode: _Mode = _Mode.SUM


_KEPT = _Config(4.0)


def _made(x: torch.Tensor) -> Any:
    config = _Config(3.0)
    return x + 1, config, [config], {1, 2}, types.SimpleNamespace(n=3), types.SimpleNamespace(t=x * 2)


def _on_a_way(x: torch.Tensor) -> Any:
    if x.sum() > 0:
        return x + 1, _Config(2.0)
    return x - 1, _Config(5.0)


def _ways(fn: Callable[..., Any], example: Any) -> dict[str, Callable[..., Any]]:
    return {"compile": smelt.compile(fn), "trace": smelt.trace(fn, example), "script": smelt.script(fn)}


@pytest.mark.parametrize("way", ["compile", "trace", "script"])
def test_what_a_program_made_is_another_object_at_each_call(way: str) -> None:
    run = _ways(_made, (torch.ones(3),))[way]
    with torch.no_grad():
        for _ in range(3):
            _, config, (again,), numbers, space, held = run(torch.ones(3))
            assert config == _Config(3.0) and config is again and config.mode is _Mode.SUM
            assert numbers == {1, 2} and space.n == 3 and held.t.tolist() == [2.0, 2.0, 2.0]
            config.layers.append(9)
            config.scale = 7.0
            numbers.add(3)
            space.n = 4


@pytest.mark.spread(2)
@pytest.mark.parametrize("way", ["compile", "script"])
def test_an_object_of_a_branch_is_the_callers(way: str) -> None:
    run = _ways(_on_a_way, (torch.ones(3),))[way]
    with torch.no_grad():
        for sign in (1, -1, 1, -1):
            config = run(torch.full((3,), float(sign)))[1]
            assert config == _Config(2.0 if sign > 0 else 5.0)
            config.layers.clear()


def test_an_object_holds_the_very_containers_of_the_arguments() -> None:
    def program(x: torch.Tensor, config: _Config) -> Any:
        return x * len(config.layers), replace(config, scale=2.0), config, _KEPT

    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(4):
            config = _Config()  # another one at each call
            _, other, same, kept = run(torch.ones(3), config)
            assert other.layers is config.layers and same is config and kept is _KEPT
            config.layers.append(3)


def test_a_container_with_two_places_is_one() -> None:
    def program(x: torch.Tensor) -> Any:
        items, names, count = [x + 1, x * 2], {"k": 1}, Counter({"a": 1})
        tags = {"t"}
        return items, {"a": items}, names, [names], count, (tags, [count, tags])

    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(3):
            items, held, names, (again,), count, (tags, (same, others)) = run(torch.ones(3))
            assert held["a"] is items and names is again and names == {"k": 1}
            assert count is same and count == {"a": 1} and type(count) is Counter and tags is others and tags == {"t"}
            names["z"] = 2
            count["a"] += 1
            tags.add("u")


class _Holder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.names, self.table, self.kept = ["a", "b"], {"k": [1]}, [torch.zeros(3)]
        self.space = types.SimpleNamespace(t=torch.ones(3), n=1)

    def forward(self, x: torch.Tensor) -> Any:
        return x * len(self.names) * self.space.n, self.names, self.table, self.kept, {"s": self.space}


@pytest.mark.parametrize("way", ["compile", "trace", "script"])
def test_what_was_there_is_returned_itself(way: str) -> None:
    model = _Holder()
    run = _ways(model, (torch.ones(3),))[way]
    with torch.no_grad():
        for _ in range(3):
            _, names, table, kept, held = run(torch.ones(3))
            assert names is model.names and table is model.table and kept is model.kept and held["s"] is model.space
            table["k"].append(2)


class _Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.state = types.SimpleNamespace(mean=torch.zeros(3), calls=0)

    def forward(self, x: torch.Tensor) -> Any:
        self.state.calls += 1
        self.state.mean = self.state.mean * 0.5 + x * 0.5
        return self.state


def test_state_that_is_returned_is_itself() -> None:
    model, twin = _Counting(), _Counting()
    run = smelt.compile(model)
    with torch.no_grad():
        for i in range(6):
            x = torch.full((3,), float(i))
            found, wanted = run(x), twin(x)
            assert found is model.state and found.calls == wanted.calls
            torch.testing.assert_close(found.mean, wanted.mean)
            found.calls += 10
            wanted.calls += 10


class _Pair(NamedTuple):
    a: torch.Tensor
    b: Any


class _Keeps(torch.nn.Module):
    """Keeps what it returns, or a part of it."""

    def __init__(self, make: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.make, self.last = make, None

    def forward(self, x: torch.Tensor) -> Any:
        self.last = self.make(x)
        return self.last


KEPT: dict[str, Callable[[torch.Tensor], Any]] = {
    "tuple": lambda x: (x + 1, x + 2),
    "list": lambda x: [x + 1, x + 2],
    "named tuple": lambda x: _Pair(x + 1, (x + 2,)),
    "nested": lambda x: {"t": (pair := (x + 1, [x + 2])), "again": [pair]},
}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("way", ["compile", "trace"])
def test_what_is_kept_and_returned_is_one_object(make: Callable[[torch.Tensor], Any], way: str) -> None:
    module = _Keeps(make)
    run = smelt.compile(module) if way == "compile" else smelt.trace(module, (torch.ones(3),))
    before = None
    with torch.no_grad():
        for _ in range(4):
            found = run(torch.ones(3))
            assert found is module.last and found is not before
            assert str(found) == str(make(torch.ones(3)))
            before = found
    if isinstance(before, dict):
        assert before["t"] is before["again"][0]


def test_a_tuple_with_several_places_is_one_object() -> None:
    def f(x: torch.Tensor, d: dict[str, Any]) -> Any:
        pair, other = (x + 1, x + 2), (x + 1,)
        d["kept"] = pair
        return [pair, pair], {"one": pair, "other": other}, (other, (x + 2,))

    for run in (smelt.compile(f), smelt.trace(f, (torch.ones(3), {}))):
        for _ in range(3):
            d: dict[str, Any] = {}
            (a, b), named, (other, last) = run(torch.ones(3), d)
            assert a is b is named["one"] is d["kept"] and named["other"] is other and last is not other


def test_tuples_that_a_way_through_data_makes() -> None:
    def f(x: torch.Tensor) -> Any:
        pair = (x + 1, x * 2) if x.sum() > 0 else (x - 1, x)
        return pair, [pair]

    compiled = smelt.compile(f)
    for sign in (1, 1, -1, 1, -1):
        x = sign * torch.ones(3)
        pair, (again,) = compiled(x)
        assert pair is again and str(pair) == str(f(x)[0])


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_each_call_has_an_error_of_its_own() -> None:
    def program(x: torch.Tensor) -> Any:
        error = ValueError("a", 1)
        if x[0] > 0:
            x = x * 2
        return error, x

    compiled = smelt.compile(program)
    errors = [compiled(x)[0] for x in (torch.ones(2), torch.ones(2), -torch.ones(2), torch.ones(2))]
    assert len({id(error) for error in errors}) == 4
    assert all(error.args == ("a", 1) for error in errors)
