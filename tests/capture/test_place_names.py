"""Two places never have one name: each tensor of a program is read where it is, whatever leads there."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.capture.structure.roots import PlaceNames
from smelt.diag import InternalError

W = torch.full((1,), 100.0)


def _t(value: float) -> Tensor:
    return torch.full((1,), float(value))


class _Text(str):
    """A text that prints as another one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'a'"

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 3


class _Silent:
    def __repr__(self) -> str:
        raise RuntimeError("nobody may print this")


class _List(list[Any]):
    pass


class _Slots:
    __slots__ = ("__dict__", "t")


class _Bound:
    def method(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + self.t, x + _Bound.method.t  # type: ignore[attr-defined]


def _made(value: float) -> Callable[[Tensor], Tensor]:
    W = _t(value)

    def added(x: Tensor) -> Tensor:
        return x + W

    return added


def _class(value: float) -> Any:
    class Held:
        W = _t(value)

    return Held


def _keyed(*keys: Any) -> Callable[[Tensor], Any]:
    table = {key: _t(10.0**i) for i, key in enumerate(keys)}
    return lambda x: [x + table[key] for key in table]


def _module(value: float) -> Any:
    found = types.ModuleType(f"other{value:.0f}")
    exec("import torch\ndef f(x):\n    return x + W", found.__dict__)
    found.W = _t(value)  # type: ignore[attr-defined]
    return found.f


def _programs() -> dict[str, Callable[[Tensor], Any]]:
    first, second, third, fourth = _made(1.0), _made(2.0), _module(3.0), _module(4.0)
    one, two = _class(5.0), _class(6.0)
    bracket = _List([_t(11)])
    setattr(bracket, "[0]", _t(22))
    dotted = types.SimpleNamespace(a=types.SimpleNamespace(b=_t(2)))
    setattr(dotted, "a.b", _t(1))
    nested: dict[str, Any] = {"a']['b": _t(1), "a": {"b": _t(2)}, "a#2": _t(3)}
    slots = _Slots()
    slots.t, slots.__dict__["t"] = _t(1), _t(2)
    bound = _Bound()
    bound.t, _Bound.method.t = _t(1), _t(2)  # type: ignore[attr-defined]
    keys = {_t(3): 1, _t(4): 2}
    optimizer = torch.optim.SGD([torch.nn.Parameter(_t(i)) for i in range(3)], lr=0.1, momentum=0.9)
    for i, parameter in enumerate(optimizer.param_groups[0]["params"]):
        optimizer.state[parameter]["momentum_buffer"] = _t(10.0**i)
    nan = float("nan")
    return {
        "objects": _keyed(object(), object(), _Silent(), _Silent()),
        "tensors": _keyed(_t(1), _t(2)),
        "tuples": _keyed((1, "a"), (True, "b"), (object(),), (object(),), ()),
        "numbers": _keyed(1, 2.0, -0.0, nan, float("nan"), 1j, None, ..., b"1"),
        "own texts": _keyed(_Text("a"), _Text("a"), "a"),
        "functions": _keyed(_t, _made, len, lambda: 0, int, torch.float32),
        "closures": lambda x: (first(x), second(x), x + W),
        "globals of two files": lambda x: (third(x), fourth(x), x + W),
        "classes of one name": lambda x: (x + one.W, x + two.W),
        "an item and an attribute": lambda x: (x + bracket[0], x + getattr(bracket, "[0]")),
        "dots in a name": lambda x: (x + getattr(dotted, "a.b"), x + dotted.a.b),
        "brackets in a text": lambda x: (x + nested["a']['b"], x + nested["a"]["b"], x + nested["a#2"]),
        "a slot and an attribute": lambda x: (x + slots.t, x + slots.__dict__["t"]),
        "a method and its object": bound.method,
        "keys themselves": lambda x: [x + key for key in keys],
        "state of an optimizer": lambda x: [x + held["momentum_buffer"] for held in optimizer.state.values()],
    }


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", _programs())
def test_each_place_is_read_by_itself(name: str) -> None:
    program = _programs()[name]
    with torch.no_grad():
        compiled, free = smelt.compile(program), smelt.compile(program, dynamic=True)
        traced = smelt.trace(program, (torch.zeros(2),))
        for i in range(3):
            x = torch.full((2,), float(i))
            want = list(program(x))
            for run in (compiled, free, traced):
                assert all(map(torch.equal, list(run(x)), want)), run
            assert all(map(torch.equal, list(free(torch.ones(i + 3))), list(program(torch.ones(i + 3)))))
    assert not compiled.stats().fallbacks and not free.stats().fallbacks


def test_a_branch_on_data_reads_each_place_by_itself() -> None:
    table = {object(): _t(1), object(): _t(10)}
    one, two = table

    def program(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * table[one]
        return x + table[two]

    with torch.no_grad():
        compiled = smelt.compile(program)
        for value in (1.0, -1.0, 2.0, -2.0):
            x = torch.full((2,), value)
            assert torch.equal(compiled(x), program(x))


def test_the_same_name_for_two_places_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlaceNames, "claim", lambda self, path, value: path)
    program = _programs()["closures"]
    with pytest.raises(InternalError, match="two tensors have the name 'W'"):
        smelt.trace(program, (torch.zeros(2),))
    compiled = smelt.compile(program)
    with pytest.warns(smelt.SmeltWarning):
        for _ in range(2):
            assert all(map(torch.equal, compiled(torch.zeros(2)), program(torch.zeros(2))))


def test_a_name_is_kept_by_whose_it_is() -> None:
    names, one, two = PlaceNames(), object(), object()
    assert [names.claim("a", one), names.claim("a", two), names.claim("a#2", one)] == ["a", "a#2", "a#2#2"]
    assert [names.claim("a", one), names.claim("a", two)] == ["a", "a#2"]


# What no global of the program is: a Python module that something else holds, and what its functions keep.
_HELD = """
import functools, torch
W = torch.full((4,), 3.0)
TABLE = {"a": torch.ones(4)}
@functools.lru_cache
def cached(n):
    return torch.arange(float(n)) + 1
@functools.cache
def pair(n):
    return torch.ones(n), {"k": torch.arange(float(n))}
class Kept:
    W = torch.full((4,), 9.0)
    @functools.cached_property
    def t(self):
        return torch.full((4,), 7.0)
kept = Kept()
"""


def _held_programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[Tensor], Tensor]]:
    module: Any = types.ModuleType("smelt_test_held")
    module.__file__ = __file__
    exec(_HELD, module.__dict__)
    monkeypatch.setitem(sys.modules, "smelt_test_held", module)
    listed, table, space = [module], {object(): module}, types.SimpleNamespace(m=module)

    def given(x: Tensor, m: Any = module) -> Tensor:
        return x + m.cached(4) + m.W

    def imported(x: Tensor) -> Tensor:
        import smelt_test_held as m  # type: ignore[import-not-found]

        return x + m.cached(4) + m.W

    return {
        "in a cell": lambda x: x + module.cached(x.shape[-1]) + module.W,
        "two results": lambda x: x + module.pair(4)[0] + module.pair(4)[1]["k"],
        "a table": lambda x: x + module.TABLE["a"],
        "a property": lambda x: x + module.kept.t + module.Kept.W,
        "a default": given,
        "in a list": lambda x: x + listed[0].cached(4) + listed[0].W,
        "under an object": lambda x: x + next(iter(table.values())).cached(4),
        "an attribute": lambda x: x + space.m.cached(4) + space.m.W,
        "by name": lambda x: x + getattr(module, "cached")(4),  # noqa: B009
        "in sys.modules": lambda x: x + sys.modules["smelt_test_held"].cached(4),
        "imported": imported,
    }


@pytest.mark.spread(2)
@pytest.mark.parametrize("is_filled", [False, True])
@pytest.mark.parametrize("name", [
    "in a cell", "two results", "a table", "a property", "a default", "in a list", "under an object", "an attribute",
    "by name", "in sys.modules", "imported",
])  # fmt: skip
def test_a_tensor_of_a_module_that_no_global_holds(name: str, is_filled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program = _held_programs(monkeypatch)[name]
    x = torch.ones(2, 4)
    with torch.no_grad():
        if is_filled:
            program(x)
        compiled = smelt.compile(program)
        for i in range(2):
            assert torch.equal(compiled(x + i), program(x + i))
        assert not compiled.stats().fallbacks
        traced = smelt.trace(program, (x,))
        assert torch.equal(traced(x + 1), program(x + 1))
