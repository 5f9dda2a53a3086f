"""What a program reads by keys of dicts and members of sets: of every kind, compared as Python stores them."""

from __future__ import annotations

import types
from collections import ChainMap, Counter, OrderedDict, UserDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


class Scaled:
    """An object that is a key by identity."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Equal(Scaled):
    """One that reads of itself to be hashed, and is equal to others."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return int(self.scale > 0)


class Caseless(str):
    """A text that says that it is equal to plain ones."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.lower(self) == str.lower(other)

    def __hash__(self) -> int:
        return hash(str.lower(self))


class Silent(Scaled):
    """An object that cannot be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody may print this")


@dataclass(unsafe_hash=True)
class Record:
    """An object whose hash follows what it holds."""

    scale: float


def _t(value: float) -> Tensor:
    return torch.full((1,), float(value))


def _check(program: Callable[..., Any], calls: Sequence[Callable[[], tuple[Any, ...]]], change: Any = None) -> Any:
    """Eager and compiled, each with arguments of its own, `change` between the calls."""
    with torch.no_grad():
        for dynamic in (None, True):
            compiled = smelt.compile(program, dynamic=dynamic)
            for i, made in enumerate((*calls, *calls)):
                x = torch.arange(3.0)
                want, got = program(x, *made()), compiled(x, *made())
                assert torch.equal(want, got), (i, dynamic)
                if change is not None:
                    change(i)
            assert not compiled.stats().fallbacks
    return compiled


@pytest.mark.spread(4)
@pytest.mark.parametrize("kind", ["object", "tuple", "frozenset", "record"])
def test_what_a_key_of_an_argument_holds(kind: str) -> None:
    held: Any = Record(2.0) if kind == "record" else Scaled(2.0)
    keys = {"object": held, "record": held, "tuple": (held, 1), "frozenset": frozenset([held])}

    def program(x: Tensor, table: dict[Any, Tensor]) -> Tensor:
        for key, value in table.items():
            found = key if isinstance(key, (Scaled, Record)) else next(iter(key))
            x = x * found.scale + value
        return x

    def change(i: int) -> None:
        held.scale = 3.0 + i

    _check(program, [lambda: ({keys[kind]: _t(1)},)] * 3, None if kind == "record" else change)


def test_a_tensor_and_a_module_as_keys_of_an_argument() -> None:
    key, layer = _t(5), torch.nn.Linear(1, 1, bias=False)

    def program(x: Tensor, table: dict[Any, Tensor]) -> Tensor:
        for held, value in table.items():
            x = x + (held(value) if isinstance(held, torch.nn.Module) else held * value)
        return x

    _check(program, [lambda: ({key: _t(1), layer: _t(2)},)] * 2, lambda i: (key.add_(1), layer.weight.mul_(2)))


def test_what_keys_and_members_outside_hold() -> None:
    one, two = Scaled(1.0), Equal(2.0)
    table, members = {one: 1.0, two: 2.0}, {Silent(0.5), one}

    def program(x: Tensor) -> Tensor:
        for key, value in table.items():
            x = x * key.scale + value
        return x + sum(key.scale for key in members)

    def change(i: int) -> None:
        one.scale, two.scale = 2.0 + i, 4.0 + i

    _check(program, [lambda: ()] * 3, change)


def test_objects_that_are_equal_are_watched_one_by_one() -> None:
    one, two = Equal(1.0), Equal(2.0)

    def program(x: Tensor) -> Tensor:
        return x * one.scale + two.scale

    def change(i: int) -> None:
        two.scale = 3.0 + i

    _check(program, [lambda: ()] * 3, change)


def _typed(x: Tensor, keys: Any) -> Tensor:
    for key in keys:
        x = x * 2 if type(key) is bool else x + 1 if type(key) is int else x - 1 if type(key) is str else x * 5
    return x


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    "made",
    [
        lambda k: {k}, lambda k: frozenset([k]), lambda k: {k: 1}, lambda k: {k: 1}.keys(),
        lambda k: OrderedDict([(k, 1)]), lambda k: types.MappingProxyType({k: 1}), lambda k: deque([k]),
        lambda k: Counter([k]), lambda k: ChainMap({k: 1}), lambda k: UserDict({k: 1}),
    ],
)  # fmt: skip
def test_keys_that_are_equal_and_of_another_type(made: Callable[[Any], Any]) -> None:
    keys = (1, True, "a", Caseless("a"))
    _check(_typed, [lambda key=key: (made(key),) for key in keys])
    held: dict[str, Any] = {}

    def program(x: Tensor) -> Tensor:
        return _typed(x, held["here"])

    compiled = smelt.compile(program)
    for key in (1, True, "a", Caseless("a")):
        held["here"] = made(key)
        with torch.no_grad():
            assert torch.equal(compiled(torch.arange(3.0)), program(torch.arange(3.0)))


def test_attributes_that_cannot_be_written_in_code() -> None:
    names = ("a.b", "class", "a-b", "ﬁ", "fi", "[0]")

    def made(*values: Any) -> Any:
        found = types.SimpleNamespace(a=types.SimpleNamespace(b=7))
        found.__dict__.update(zip(names, values, strict=True))
        return found

    def program(x: Tensor, given: Any) -> Tensor:
        for i, name in enumerate(names):
            x = x * 2 + getattr(given, name) * (i + 1)
        return x + given.a.b

    calls = [lambda i=i: (made(i, 2, _t(i), 3, 9, 1),) for i in range(3)]
    _check(program, [*calls, lambda: (made(0, 3, _t(0), 3, 9, 1),), lambda: (made(0, 2, _t(0), 4, 9, 2),)])


@pytest.mark.filterwarnings("ignore:.*compiled as partitions")
def test_two_closures_of_one_name_that_both_change() -> None:
    def made(start: Any) -> Callable[[Tensor], Tensor]:
        held = start

        def program(x: Tensor) -> Tensor:
            held["n"] = held.get("n", 0.0) + 1.0
            return x * held["n"]

        program.held = held  # type: ignore[attr-defined]
        return program

    class Own(dict[str, float]):
        pass

    twins = [(made({"n": 1.0}), made(Own(n=2.0))) for _ in range(2)]
    runs = [lambda x, pair=pair: pair[0](x) + pair[1](x) for pair in twins]
    compiled = smelt.compile(runs[1])
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(runs[0](torch.ones(2)), compiled(torch.ones(2)))
            assert [f.held for f in twins[0]] == [f.held for f in twins[1]]  # type: ignore[attr-defined]
