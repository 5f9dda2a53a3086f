"""Snapshots of Python's state: one that builds on what was reachable before sees all that one from scratch sees."""

from __future__ import annotations

import collections
import copy
import functools
import types
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from smelt.capture.staging.objects.changed_since import Settled
from smelt.capture.staging.objects.heap import Snapshot

SHARED: dict[str, Any] = {"late": None}


class Plain:
    def __init__(self) -> None:
        self.items = [1]
        self.ordered = collections.OrderedDict(a=[2])
        self.names = {"x"}
        self.queue = collections.deque([3])
        self.counts = collections.defaultdict(list, k=[4])


class Other(Plain):
    shared: ClassVar[list[Any]] = [5]


class Slotted:
    __slots__ = ("held",)


def _with_default(at: Any = None) -> Any:
    return at


def _with_cell() -> Callable[[], Any]:
    held: Any = None

    def read() -> Any:
        return held

    return read


def _reads_global() -> Any:
    return LATE  # type: ignore[name-defined]  # noqa: F821


def _copy_of(function: Any) -> Any:
    return types.FunctionType(function.__code__, dict(SHARED), "f", function.__defaults__, function.__closure__)


def _root() -> types.SimpleNamespace:
    slotted = Slotted()
    slotted.held = None
    default, reads = _copy_of(_with_default), _copy_of(_reads_global)
    for function in (default, reads):
        function.__module__ = "some_program"
    cached = functools.lru_cache(maxsize=None)(lambda n: [n])
    return types.SimpleNamespace(
        plain=Plain(), slotted=slotted, default=default, cell=_with_cell(), reads=reads, cached=cached, deep=[[]],
        cls=type("Made", (), {"__module__": "some_program"}), pair=([], {}),
    )  # fmt: skip


def _set_cell(root: Any, new: Any) -> None:
    root.cell.__closure__[0].cell_contents = new


def _other_code(root: Any, new: Any) -> None:
    root.default.__globals__["LATE"] = new
    root.default.__code__ = _reads_global.__code__


def _other_class(root: Any, new: Any) -> None:
    Other.shared = [new]
    root.plain.__class__ = Other


LEADING: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": lambda root, new: setattr(root.plain, "more", new),
    "replaced attribute": lambda root, new: setattr(root.plain, "items", new),
    "own dictionary": lambda root, new: setattr(root.plain, "__dict__", {"items": new}),
    "class": _other_class,
    "slot": lambda root, new: setattr(root.slotted, "held", new),
    "default": lambda root, new: setattr(root.default, "__defaults__", (new,)),
    "keyword default": lambda root, new: setattr(root.default, "__kwdefaults__", {"n": new}),
    "code": _other_code,
    "attribute of a function": lambda root, new: setattr(root.default, "note", new),
    "cell": _set_cell,
    "global": lambda root, new: root.reads.__globals__.update(LATE=new),
    "item": lambda root, new: root.deep[0].append(new),
    "entry": lambda root, new: root.plain.counts.update(more=new),
    "queue": lambda root, new: root.plain.queue.append(new),
    "attribute of a class": lambda root, new: setattr(root.cls, "held", new),
    "deep": lambda root, new: root.pair[1].update(a={"b": (new,)}),
}
"""What leads to a new object, from what was there."""


@pytest.mark.parametrize("way", LEADING)
def test_what_leads_elsewhere_is_gone_to(way: str) -> None:
    root, new = _root(), [0]
    settled = Settled([root])
    assert not Snapshot([root], settled=settled).changes()
    LEADING[way](root, new)
    later = Snapshot([root], settled=settled)
    assert later.holds(new)
    new.append(1)
    (change,) = later.changes().values()
    assert change.container is new
    assert change.old == [0]
    later.restore()
    assert new == [0]
    assert not later.changes()


@pytest.mark.parametrize("way", LEADING)
def test_changes_and_putting_back_are_those_of_a_whole_snapshot(way: str) -> None:
    root = _root()
    parts = Snapshot([root], settled=Settled([root]))
    whole = Snapshot([root])
    LEADING[way](root, [0])
    changes = parts.changes()
    assert changes.keys() == whole.changes().keys()
    for key, change in whole.changes().items():
        assert all(a is b or a == b for a, b in zip(change, changes[key], strict=True))
    parts.restore(changes.values())
    assert not whole.changes()


def test_what_was_changed_before_is_put_back_as_it_was_then() -> None:
    root = _root()
    settled = Settled([root])
    root.plain.items.append(2)
    root.plain.names.add("y")
    mid = Snapshot([root], settled=settled)
    root.plain.items.append(3)
    root.plain.names.clear()
    assert {id(change.container) for change in mid.changes().values()} == {id(root.plain.items), id(root.plain.names)}
    mid.restore()
    assert root.plain.items == [1, 2]
    assert root.plain.names == {"x", "y"}


def test_caches_give_up_what_came_later() -> None:
    root = _root()
    root.cached(1)
    settled = Settled([root])
    root.cached(2)
    mid = Snapshot([root], settled=settled)
    root.cached(3)
    mid.restore()
    assert root.cached.cache_info().currsize == 2
    assert root.cached(2) == [2]
    assert root.cached.cache_info().misses == 3
    root.cached(3)
    assert root.cached.cache_info().misses == 4


def test_what_did_not_change_is_not_gone_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    root = types.SimpleNamespace(parts=[Plain() for _ in range(50)])
    settled = Settled([root])
    root.parts[7].items.append(8)
    walk = settled.further([root, [root]], set())
    assert len(walk.keep) == 1
    assert list(walk.copies) == [id(walk.keep[0]), id(root.parts[7].items)]


class Over:
    """A key that nobody can hash any more, as a number of a staging run is behind it."""

    is_over = False

    def __hash__(self) -> int:
        assert not self.is_over
        return 7


@pytest.mark.parametrize("held", [{1, 2}, {1: 2}, collections.OrderedDict({1: 2})])
def test_what_cannot_be_hashed_any_more_is_taken_out(held: Any) -> None:
    before, key = copy.copy(held), Over()
    snapshot = Snapshot([held])
    if isinstance(held, set):
        held.add(key)
    else:
        held[key] = 1
    key.is_over = True
    snapshot.restore()
    assert held == before
