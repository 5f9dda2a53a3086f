"""What comes back from a call: numbers as numbers, containers of every kind, with eager's identities."""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import smelt
from smelt._torch.library import shim
from smelt.runtime.entering.entry import NAME

Tensor = torch.Tensor
Pair = namedtuple("Pair", ["left", "right"])


class Named(OrderedDict[str, Any]):
    """As outputs of libraries are: items that are attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__(items)
        self.__dict__.update(items)


class Parts(list[Any]):
    """A list of its own kind."""


@dataclass(frozen=True)
class Frozen:
    value: Tensor
    note: str


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "dict": lambda x: {"a": x + 1, 3: x - 1, (1, "k"): None},
    "empty": lambda x: [x + 1, (), {}, []],
    "nested": lambda x: ((x + 1, [x - 1, {"k": x * 2}]), x.sum()),
    "constants": lambda x: (x + 1, None, True, 3, 0.5, "text", torch.float32),
    "named tuple": lambda x: Pair(x + 1, x - 1),
    "of torch": lambda x: torch.max(x.view(2, 4), 1),
    "own classes": lambda x: Named(first=x + 1, second=Parts([x - 1])),
    "frozen": lambda x: Frozen(x + 1, "note"),
    "set of plain": lambda x: (x + 1, {1, 2}, frozenset({3})),
    "deque": lambda x: deque([x + 1, x - 1], 3),
    "default": lambda x: defaultdict(list, k=x + 1),
    "argument": lambda x: (x, [x, x + 1]),
    "view": lambda x: {"v": x[2:6], "w": x.view(2, 4)},
    "one view twice": lambda x: [(v := x[2:6]), v],
    "one result twice": lambda x: [(v := x + 1), v, {"again": v}],
    "one list twice": lambda x: ((v := [x + 1]), v),
    "written": lambda x: (x.add_(1), x),
    "numbers": lambda x: (x.sum().item(), x.argmax().item(), (x > 0).any().item(), x.long().tolist()),
    "a number twice": lambda x: ((n := x.sum().item()), n, [n + 1]),
    "numbers and tensors": lambda x: {"n": x.mean().item(), "t": x + 1, "v": x[1:]},
    "a number alone": lambda x: x.sum().item(),
    "a truth alone": lambda x: bool(x.sum() > 0),
    "an int alone": lambda x: int(x[0]),
}


def places(value: Any) -> list[Any]:
    """A value and its parts, in order."""
    found = [value]
    if isinstance(value, dict):
        found += [part for item in value.values() for part in places(item)]
    elif isinstance(value, (list, tuple, deque)):
        found += [part for item in value for part in places(item)]
    return found + [part for item in getattr(value, "__dict__", {}).values() for part in places(item)]


def agree(found: Any, wanted: Any) -> None:
    left, right = places(found), places(wanted)
    assert [type(a) for a in left] == [type(b) for b in right]
    for a, b in zip(left, right, strict=True):
        if isinstance(b, Tensor):
            assert torch.equal(a, b) and a.stride() == b.stride() and a._is_view() == b._is_view()
        elif isinstance(b, dict):
            assert list(a) == list(b)
        elif not isinstance(b, (list, tuple, deque, Frozen)):
            assert a == b
    # The same objects stand in the same places.
    mutable = [i for i, value in enumerate(right) if isinstance(value, (Tensor, list, dict))]
    for i in mutable:
        assert [left[i] is left[j] for j in mutable] == [right[i] is right[j] for j in mutable]


@pytest.mark.spread(2)
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("name", RESULTS)
def test_structures(name: str, is_native: bool) -> None:
    f = RESULTS[name]
    with torch.no_grad(), nullcontext() if is_native else shim.hidden(NAME):
        compiled = smelt.compile(f)
        for call in range(4):
            x = torch.randint(-8, 8, (8,), generator=torch.Generator().manual_seed(call)).float()
            x2 = x.clone()
            wanted, found = f(x), compiled(x2)
            agree((x2, found), (x, wanted))
    assert not compiled.stats().fallbacks


NUMBERS: dict[str, tuple[Callable[[Tensor], Any], list[Tensor]]] = {
    "float64": (
        lambda x: x.neg().item(),
        [torch.tensor(v, dtype=torch.float64) for v in (0.0, -0.0, math.inf, math.nan, 5e-324, 0.1)],
    ),
    "float32": (lambda x: x.neg().item(), [torch.tensor(v) for v in (0.1, -math.inf, math.nan, 1e-45)]),
    "bfloat16": (lambda x: x.neg().item(), [torch.tensor(v, dtype=torch.bfloat16) for v in (0.1, -0.0, math.inf)]),
    "int64": (lambda x: x.neg().item(), [torch.tensor(v) for v in (0, -1, 2**63 - 1, -(2**63), 2**40)]),
    "uint8": (lambda x: x.neg().item(), [torch.tensor(v, dtype=torch.uint8) for v in (0, 1, 255)]),
    "bool": (lambda x: x.logical_not().item(), [torch.tensor(True), torch.tensor(False)]),
}


def same(a: Any, b: Any) -> bool:
    bits = [struct.pack("<d", v) if isinstance(v, float) else v for v in (a, b)]
    return type(a) is type(b) and (bits[0] == bits[1] or (a != a and b != b))


@pytest.mark.spread(6)
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str, is_native: bool) -> None:
    f, values = NUMBERS[name]
    with nullcontext() if is_native else shim.hidden(NAME):
        one, three = smelt.compile(f), smelt.compile(lambda x: (f(x), [f(x)], {"n": f(x)}))
        for value in values * 3:
            wanted = f(value)
            first, (second,), third = three(value)
            assert all(same(found, wanted) for found in (one(value), first, second, third["n"]))


@pytest.mark.parametrize("is_native", [True, False])
def test_a_number_of_the_arguments_comes_back(is_native: bool) -> None:
    def f(x: Tensor, n: float) -> tuple[Tensor, float, float]:
        return x * n, n, n + 1

    with nullcontext() if is_native else shim.hidden(NAME):
        compiled, x = smelt.compile(f, dynamic=True), torch.randn(4)
        for n in (2, 3, 7, -4, 2.5, 3.5, math.inf):
            wanted, found = f(x, n), compiled(x, n)
            assert torch.equal(found[0], wanted[0])
            assert all(same(a, b) for a, b in zip(found[1:], wanted[1:], strict=True))


VIEWS_OF_STATE: dict[str, Callable[[torch.nn.Linear, Tensor], Tensor]] = {
    "detached": lambda m, x: m.weight.detach(),
    "data": lambda m, x: m.weight.data,
    "part of what is detached": lambda m, x: m.weight.detach()[0],
    "part of what is split and detached": lambda m, x: m.weight.detach().unbind(1)[1],
    "detached part": lambda m, x: m.weight.T[1].detach(),
    "detached and written": lambda m, x: m.weight.detach().add_(1),
    "part of an argument": lambda m, x: x.detach()[1:],
    "view": lambda m, x: m.weight.view(-1),
    "part": lambda m, x: m.weight[0],
    "itself": lambda m, x: m.weight,
}


@pytest.mark.parametrize("name", VIEWS_OF_STATE)
@torch.no_grad()
def test_a_result_requires_gradients_where_eagers_does(name: str) -> None:
    model, x = torch.nn.Linear(3, 4), torch.ones(5, requires_grad=True)

    def program(x: Tensor) -> Any:
        return VIEWS_OF_STATE[name](model, x), x + 1

    for f in (smelt.compile(program), smelt.trace(program, (x,))):
        for _ in range(3):
            found = f(x)[0]
            requires, shown = found.requires_grad, found.detach().clone()
            assert found.untyped_storage().data_ptr() in (t.data_ptr() for t in (model.weight, x))
            assert torch.allclose(shown, VIEWS_OF_STATE[name](model, x) - int("written" in name))
            assert requires == VIEWS_OF_STATE[name](model, x).requires_grad
