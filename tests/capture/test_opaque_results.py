"""Results that no structure is known of: what they hold of a call is that call's, not the one's that was recorded."""

from __future__ import annotations

import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

pytestmark = pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")


class _Error(Exception):
    pass


class _Set(frozenset):  # type: ignore[type-arg]
    pass


class _Bound:
    def __init__(self, held: Any) -> None:
        self.held = held

    def give(self) -> Any:
        return self.held


def _with(thing: Any, name: str, value: Any) -> Any:
    setattr(thing, name, value)
    return thing


def _named(value: Any) -> Any:
    class Named:
        held = value

    return Named


def _shown(value: Any) -> Any:
    """What can be seen of a result, as plain data."""
    match value:
        case torch.Tensor():
            return [str(value.dtype), value.tolist()]
        case functools.partial():
            return ["partial", _shown(value.args), _shown(value.keywords), _shown(vars(value))]
        case BaseException():
            return [type(value).__name__, _shown(value.args), _shown(vars(value)), _shown(value.__cause__)]
        case types.FunctionType() | types.MethodType() | types.BuiltinMethodType():
            return ["called", _shown(value())]
        case slice():
            return ["slice", _shown(value.start), _shown(value.stop), _shown(value.step)]
        case _Set():
            return ["set", sorted(value), _shown(vars(value))]
        case type():
            return [value.__name__, _shown(value.held)] if hasattr(value, "held") else value.__name__
        case dict() | types.MappingProxyType():
            return [type(value).__name__, [(_shown(k), _shown(v)) for k, v in value.items()]]
        case list() | tuple():
            return [type(value).__name__, *map(_shown, value)]
    if isinstance(value, (type({}.values()), type({}.items()))) or hasattr(value, "__next__"):
        return [type(value).__name__, *map(_shown, value)]
    return repr(value)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "slice": lambda n: slice(n),
    "slice in a tuple": lambda n: (slice(0, n, None), ...),
    "frozenset": lambda n: frozenset([n]),
    "frozenset of an own class": lambda n: _with(_Set([1]), "held", n),
    "partial": lambda n: functools.partial(max, n),
    "partial by name": lambda n: [functools.partial(max, key=n)],
    "partial with an attribute": lambda n: _with(functools.partial(max), "held", n),
    "proxy": lambda n: types.MappingProxyType({"a": n}),
    "error": lambda n: _Error(n),
    "error with an attribute": lambda n: _with(_Error("q"), "held", n),
    "error with a cause": lambda n: _with(_Error("q"), "__cause__", _Error(n)),
    "values": lambda n: {"a": n}.values(),
    "items": lambda n: {"a": n}.items(),
    "closure": lambda n: lambda: n,
    "nested closure": lambda n: lambda: (lambda: n)(),
    "closure of a range": lambda n: (lambda numbers: lambda: numbers)(range(int(n))),
    "default": lambda n: lambda k=n: k,
    "keyword default": lambda n: lambda *, k=n: k,
    "function with an attribute": lambda n: _with(lambda: 1, "held", n),
    "method": lambda n: _Bound(n).give,
    "class": _named,
    "iterator": lambda n: iter([n]),
    "reversed": lambda n: reversed([n, 1]),
    "chain": lambda n: itertools.chain([n], [1]),
    "size": lambda n: torch.Size([abs(int(n))]),
}
SOURCES: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "data": lambda x, k: int(x.sum()),
    "size": lambda x, k: x.shape[0],
    "number": lambda x, k: k,
    "tensor": lambda x, k: x.sum() * 2,
}
CALLS = ((1.0, 3, 2), (1.0, 3, 2), (2.0, 4, 3), (2.0, 5, 4), (1.0, 6, 5), (3.0, 3, 2), (1.0, 3, 7))


@pytest.mark.spread(20)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_is_of_this_call(holder: str, source: str) -> None:
    make, of = HOLDERS[holder], SOURCES[source]

    def program(x: torch.Tensor, k: int) -> Any:
        x.add_(0.25)
        return make(of(x, k)), x * 2

    run = smelt.compile(program)
    with torch.no_grad():
        for value, size, number in CALLS:
            mine, theirs = torch.full((size,), value), torch.full((size,), value)
            want, got = program(mine, number), run(theirs, number)
            assert type(got[0]) is type(want[0]) or holder == "class"
            assert _shown(got) == _shown(want)
            assert torch.equal(mine, theirs)


class _Keeper:
    last: Any = None


KEEPER = _Keeper()
KEEPER_SCALES = [1]


@pytest.mark.spread(10)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "holder", ["slice", "frozenset", "partial", "error", "closure", "default", "proxy", "iterator"]
)
def test_what_is_kept_elsewhere_is_of_this_call(holder: str, source: str) -> None:
    make, of = HOLDERS[holder], SOURCES[source]

    def program(x: torch.Tensor, rows: list[Any], k: int) -> torch.Tensor:
        KEEPER.last = make(of(x, k))
        rows.append(make(of(x, k)))
        return x * 2

    run = smelt.compile(program)
    with torch.no_grad():
        for value, size, number in CALLS:
            found = []
            for each in (program, run):
                KEEPER.last, rows = None, []
                found.append(_shown((each(torch.full((size,), value), rows, number), rows, KEEPER.last)))
            assert found[0] == found[1]


@pytest.mark.parametrize("way", ["trace", "script"])
def test_graphs_have_no_placeholder_in_them(way: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return slice(x.sum(), None), {"a": slice(1, int(x.sum()))}, x * 2

    run: Any = smelt.trace(program, (torch.ones(3),)) if way == "trace" else smelt.script(program)
    with torch.no_grad():
        for value in (1.0, 2.0, 1.0):
            x = torch.full((3,), value)
            assert _shown(run(x)) == _shown(program(x))


def test_a_script_refuses_what_it_cannot_return() -> None:
    def program(x: torch.Tensor) -> Any:
        n = int(x.sum())
        return functools.partial(max, n)

    with pytest.raises(smelt.CaptureError, match="S0109"):
        smelt.script(program)


def test_an_iterator_is_another_one_at_each_call() -> None:
    def program(x: torch.Tensor) -> Any:
        return iter([1, 2, 3]), x * 2

    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(4):
            assert list(run(torch.ones(3))[0]) == [1, 2, 3]


def _counter(x: torch.Tensor) -> Any:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count, x * 2


def _appending(x: torch.Tensor) -> Any:
    rows: list[int] = []
    return (lambda: rows.append(1) or len(rows)), x * 2


def _shared(x: torch.Tensor) -> Any:
    table = {"a": 1}
    return functools.partial(table.setdefault, "b", len(table)), types.MappingProxyType(table), table, x * 2


def _of_object(x: torch.Tensor) -> Any:
    held = _Bound(3)
    return (lambda: setattr(held, "held", held.held + 1) or held.held), x * 2


def _own_bytes(x: torch.Tensor) -> Any:
    made = bytearray(2)
    return (lambda: made.append(1) or len(made)), made, x * 2


@pytest.mark.parametrize("program", [_counter, _appending, _shared, _of_object, _own_bytes])
def test_what_becomes_of_a_result_is_nothing_to_later_calls(program: Callable[..., Any]) -> None:
    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(4):
            want, got = program(torch.ones(3)), run(torch.ones(3))
            assert _shown(got[1:]) == _shown(want[1:])
            assert [got[0](), got[0]()] == [want[0](), want[0]()]
            assert _shown(got[1:]) == _shown(want[1:])


def test_functions_that_hold_what_stays_are_compiled() -> None:
    def program(x: torch.Tensor) -> Any:
        scale = 3
        return (lambda v: v * scale + KEEPER_SCALES[0]), functools.partial(max, 1), x * 2

    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(3):
            scaled, most, _ = run(torch.ones(3))
            assert scaled(2) == 7 and most(0) == 1
    assert not run.stats().fallbacks


def test_a_set_beside_a_changed_argument_is_the_callers() -> None:
    def program(x: torch.Tensor, rows: list[Any]) -> Any:
        rows.append(x * 2)
        return {1, 2}, x + 1

    run = smelt.compile(program)
    with torch.no_grad():
        for _ in range(4):
            rows: list[Any] = []
            found, _ = run(torch.ones(3), rows)
            assert found == {1, 2} and len(rows) == 1
            found.add(3)
