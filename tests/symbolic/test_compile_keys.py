"""Dicts with keys that are no text: their tensors and numbers have free sizes and values like those under names."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt
from smelt._torch.seen.labels import key_labels

CALLS = 30


class Side(enum.Enum):
    LEFT = 1
    RIGHT = 2


class Level(enum.IntEnum):
    LOW = 0


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Layer(int):
    """A subclass of a number, as libraries count layers."""


class Name(str):
    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Key:
    number: int


class Bare:
    """Equal to nothing but itself, and printed by its address."""


class Silent:
    def __repr__(self) -> str:
        raise RuntimeError("never asked")


@dataclasses.dataclass
class Record:
    cache: Any


class Holder:
    def __init__(self, cache: Any) -> None:
        self.cache = cache


class Own(dict[Any, Any]):
    """A dict of the program's own, with an attribute beside its items."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0


KEYS: dict[str, Any] = {
    "text": "k",
    "braces": "{v}",
    "brackets": "[K8]",
    "zero": 0,
    "negative": -3,
    "larger than a word": 1 << 70,
    "bool": True,
    "none": None,
    "float": 1.5,
    "infinity": float("inf"),
    "complex": 2j,
    "bytes": b"b",
    "enum": Side.LEFT,
    "int enum": Level.LOW,
    "flag": Access.READ | Access.WRITE,
    "subclass of int": Layer(3),
    "subclass of str": Name("k"),
    "pair": (0, "k"),
    "single": (1,),
    "tuple of enums": (Side.LEFT, (Side.RIGHT, None)),
    "dtype": torch.float32,
    "type": int,
    "frozenset": frozenset({1}),
    "dataclass": Key(2),
    "object": Bare(),
}


def follow(f: Callable[..., Any], given: Callable[[], tuple[Any, ...]], calls: int = CALLS) -> Any:
    """A compiled object that was called as often as the original, with answers and caches alike."""
    compiled, ours, theirs = smelt.compile(f), given(), given()
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _ in range(calls):
            x = torch.randn(1, 16, generator=numbers)
            torch.testing.assert_close(compiled(x, *ours), f(x, *theirs))
    assert compiled.stats().fallbacks == {}
    return compiled


def attend(x: Any, cache: Any) -> Any:
    """Two layers with keys and values, as caches are written by hand."""
    for layer in (0, 1):
        k, v = x * (layer + 2), x - layer
        if layer in cache:
            k, v = (torch.cat([old, new]) for old, new in zip(cache[layer], (k, v), strict=True))
        cache[layer] = k, v
        x = x + (x @ k.T / 64).softmax(-1) @ v  # scores near 1: a softmax of large ones makes their roundings large
    return x


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", KEYS)
def test_a_cache_that_grows_below_a_key(name: str) -> None:
    key = KEYS[name]

    def f(x: Any, cache: Any) -> Any:
        cache[key] = x if key not in cache else torch.cat([cache[key], x])
        return cache[key].softmax(-1).sum(0)

    compiled = follow(f, lambda: ({},))
    assert compiled.stats().builds <= 3
    assert "there is no argument" not in repr(smelt.explain(compiled).to_dict())


@pytest.mark.spread(4)
@pytest.mark.parametrize("make", [dict, OrderedDict, lambda: defaultdict(tuple), Own])
def test_a_cache_of_two_layers(make: Callable[[], Any]) -> None:
    compiled = follow(attend, lambda: (make(),))
    assert compiled.stats().builds <= 3
    assert "args[1][0][1].shape[0]" in compiled.stats().to_dict()["entries"][-1]["free"]


@pytest.mark.spread(2)
@pytest.mark.parametrize("make", [Record, Holder])
def test_a_cache_in_a_field(make: Callable[[Any], Any]) -> None:
    assert follow(lambda x, held: attend(x, held.cache), lambda: (make({}),)).stats().builds <= 3


def test_a_cache_below_other_keys() -> None:
    def f(x: Any, data: Any) -> Any:
        return attend(x, data[Side.RIGHT][0][0, "k"]) + data[Side.LEFT]

    compiled = follow(f, lambda: ({Side.LEFT: 2.5, Side.RIGHT: [{(0, "k"): {}}]},))
    assert compiled.stats().builds <= 3


class Caching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Any] = {}

    def forward(self, x: Any) -> Any:
        return attend(x, self.cache)


def test_a_cache_in_an_attribute() -> None:
    compiled, model = smelt.compile(Caching()), Caching()
    with torch.no_grad():
        for _ in range(CALLS):
            x = torch.randn(1, 16)
            torch.testing.assert_close(compiled(x), model(x))
    assert compiled.stats().builds <= 4  # the first call finds out that there is a state


def test_equal_objects_below_keys_of_one_class() -> None:
    """What names two keys is not enough to tell them apart, and each has sizes of its own."""
    first, second = Key(1), Key(2)

    def f(x: Any, data: Any) -> Any:
        return data[first] * 2, data[second] + x

    compiled = smelt.compile(f)
    with torch.no_grad():
        for rows, more in ((2, 3), (4, 5), (6, 3), (3, 6)):
            x, data = torch.randn(16), {first: torch.randn(rows, 16), second: torch.randn(more, 16)}
            torch.testing.assert_close(compiled(x, data), f(x, data))
    assert compiled.stats().builds <= 3
    assert "args[1][Key#2].shape[0]" in compiled.stats().to_dict()["entries"][-1]["free"]


@dataclasses.dataclass
class Output(OrderedDict[str, Any]):
    """As libraries return: what a field holds is an item, too."""

    keys_: Any
    values_: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (held := getattr(self, field.name)) is not None:
                self[field.name] = held


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [{0: x}]], ids=["alone", "nested"])
def test_a_dataclass_that_is_a_dict(wrap: Callable[[Any], Any]) -> None:
    def f(x: Any, data: Any) -> Any:
        out = data if isinstance(data, Output) else data[0][0]
        return (x @ out.keys_.T).softmax(-1) @ out["keys_"]

    compiled = smelt.compile(f)
    with torch.no_grad():
        for rows in range(2, 12):
            x, t = torch.randn(1, 16), torch.randn(rows, 16)
            torch.testing.assert_close(compiled(x, wrap(Output(t))), f(x, wrap(Output(t))))
        assert compiled.stats().builds <= 2
        apart = Output(torch.randn(5, 16))
        apart["keys_"] = torch.randn(5, 16)
        torch.testing.assert_close(compiled(x, wrap(apart)), f(x, wrap(apart)))


def test_numbers_below_keys() -> None:
    def f(x: Any, data: Any) -> Any:
        return x * data[3] + data[Side.LEFT][None]

    for shapes, most in ((None, 2), ({"data": {3: "n", Side.LEFT: {None: "m"}}}, 1)):
        compiled = smelt.compile(f, dynamic_shapes=shapes)
        for n in range(2, 9):
            x, data = torch.randn(3), {3: n, Side.LEFT: {None: n * 0.5}}
            torch.testing.assert_close(compiled(x, data), f(x, data))
        assert compiled.stats().builds == most


def test_what_changed_is_told_by_the_key() -> None:
    compiled = smelt.compile(lambda x, data: x + data[Side.LEFT, 0].sum(), dynamic=False)
    for rows in (2, 3):
        compiled(torch.randn(3), {(Side.LEFT, 0): torch.randn(rows)})
    assert "shape of args[1][(Side.LEFT, 0)] was (2,), now (3,)" in compiled.stats().guard_failures


def test_another_key_is_another_program() -> None:
    compiled = smelt.compile(lambda x, data: x * len(repr(list(data))))
    x = torch.ones(2)
    keys = [1, True, Layer(1), (1,), (True,), Side.LEFT, Side.RIGHT]
    for key in keys:
        assert torch.equal(compiled(x, {key: 1}), x * len(repr([key])))
    assert compiled.stats().builds == len(keys)


def test_labels_of_one_dict_differ() -> None:
    nan = float("nan")
    keys = [
        0,
        "0",
        None,
        True,
        1.5,
        nan,
        -nan,
        Side.LEFT,
        Layer(2),
        Name("a"),
        (1,),
        (1, "k"),
        Key(1),
        Key(2),
        Silent(),
    ]
    assert key_labels(keys) == [
        "[0]", "['0']", "[None]", "[True]", "[1.5]", "[nan]", "[nan#2]", "[Side.LEFT]", "[Layer(2)]", "[Name('a')]",
        "[(1,)]", "[(1, 'k')]", "[Key]", "[Key#2]", "[Silent]",
    ]  # fmt: skip
