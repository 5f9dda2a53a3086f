"""Records are the frozen dataclasses that they stand for, in all that a program can see of them."""

from __future__ import annotations

import copy
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields, is_dataclass, replace
from typing import Any

import pytest

from smelt.diag import records
from smelt.diag.records import distinct_record, record
from tests.forked import torch_forks

frozen: Callable[[type], type] = dataclass(frozen=True, slots=True)
distinct: Callable[[type], type] = dataclass(frozen=True, slots=True, eq=False)


def plain(make: Any) -> Any:
    @make
    class Plain:
        """Some fields."""

        a: int
        b: str = "b"
        c: list[int] = field(default_factory=list, compare=False, repr=False)

    return Plain


def nested(make: Any) -> Any:
    @make
    class Below(plain(make)):  # type: ignore[misc]
        d: int = field(default=4, kw_only=True)
        e: int = field(init=False, default=5)

        def __post_init__(self) -> None:
            object.__setattr__(self, "e", self.d + 1)

    return Below


def spelled(make: Any) -> Any:
    @make
    class Spelled:
        a: int
        b: int = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.a == other.a

        def __repr__(self) -> str:
            return f"<{self.a}>"

    return Spelled


def empty(make: Any) -> Any:
    @make
    class Empty:
        pass

    return Empty


def seen(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """What can be told of a class and its instances, by text where it holds these."""

    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (TypeError, FrozenInstanceError):  # dataclasses with slots raise either for no field
            return "refused"

    made, other = cls(*args, **kwargs), cls(*args, **kwargs)
    names = [each.name for each in fields(cls)]
    changed = {names[0]: 9} if names else {}
    return [
        names, cls.__match_args__, is_dataclass(cls), cls.__slots__, repr(made).rpartition(".")[2],
        made == other, made != other, tried(lambda: hash(made) == hash(other)), made == replace(made, **changed),
        repr(replace(made, **changed)).rpartition(".")[2], made.__eq__(1), hasattr(made, "__dict__"),
        tried(lambda: setattr(made, "a", 1)), tried(lambda: delattr(made, "a")), tried(lambda: cls(*args, 1, 2, 3, 4)),
        tried(lambda: cls(nothing=1)), [getattr(copy.copy(made), n) for n in names],
        [getattr(copy.deepcopy(made), n) for n in names],
        "__reduce__" in dir(made) and [getattr(made, n) for n in names],
    ]  # fmt: skip


@pytest.mark.parametrize("of", [plain, nested, spelled, empty])
@pytest.mark.parametrize("pair", [(record, frozen), (distinct_record, distinct)], ids=["equal", "distinct"])
def test_as_a_dataclass(of: Any, pair: tuple[Any, Any]) -> None:
    calls = [((), {})] if of is empty else [((1,), {}), ((1, 2), {}), ((), {"a": 1, "b": 3})]
    for args, kwargs in calls:
        assert seen(of(pair[0]), args, kwargs) == seen(of(pair[1]), args, kwargs)


@pytest.mark.parametrize("of", [plain, nested, spelled])
def test_many_are_as_few(of: Any) -> None:
    """Behind some, another constructor makes them."""
    ours, theirs = of(record), of(frozen)
    for a in range(3 * records._FEW):
        args, kwargs = ((a, a + 1), {}) if a % 2 else ((), {"a": a})
        assert [getattr(ours(*args, **kwargs), n) for n in theirs.__match_args__] == [
            getattr(theirs(*args, **kwargs), n) for n in theirs.__match_args__
        ]
    assert records.names_of(ours) == tuple(each.name for each in fields(theirs)) == records.names_of(theirs)
    assert records.names_of(int) is None


@record
class Kept:
    """One that pickle finds by its name."""

    a: int
    b: tuple[int, ...] = ()


def test_pickled_and_told_apart() -> None:
    made = Kept(1, (2, 3))
    assert pickle.loads(pickle.dumps(made)) == made
    assert pickle.loads(pickle.dumps(made)) is not made
    assert {made: 1}[Kept(1, (2, 3))] == 1 and Kept(1) != Kept(2)
    match made:
        case Kept(a, b):
            assert (a, b) == (1, (2, 3))


_LOADED = """
import sys, torch
before = set(sys.modules)
import smelt
smelt.load
print("\\n".join(sorted(set(sys.modules) - before)))
print("and to run")
from smelt.runtime.ingot import abi, natives
print("\\n".join(sorted(set(sys.modules) - before)))
"""


def test_loading_imports_the_runtime_only() -> None:
    """What a process pays for before it opens a file: neither the compiler, nor a dataclass for each record."""
    told = torch_forks().run(_LOADED)
    at_load, to_run = ([name for name in part.split() if name.startswith("smelt")] for part in told.split("and to run"))
    allowed = ("smelt._torch", "smelt.diag", "smelt.runtime")
    assert [n for n in to_run if n != "smelt" and not n.startswith(allowed)] == []
    assert "llvmlite" not in told
    # What runs plans is imported by the first call.
    assert "smelt.runtime.plan" not in at_load and "smelt.runtime.encoding.encode" in to_run
    found = to_run
    modules = [sys.modules[n] if n in sys.modules else __import__(n, fromlist=["_"]) for n in found]
    slow = {
        cls.__qualname__
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type)
        and cls.__module__ == module.__name__
        and "__dataclass_params__" in vars(cls)
        and cls.__dataclass_params__.frozen
    }
    assert slow == set(), "these take half a millisecond each at import: make them records"
