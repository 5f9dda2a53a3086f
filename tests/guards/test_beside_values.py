"""What errors hold, and what the attributes of tensors hold, is read where nobody watches: all of it is guarded."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt

X = torch.ones(2)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class OwnError(Exception):
    """One of the program's own."""


def _error_with(name: str, value: Any) -> ValueError:
    error = ValueError(1)
    setattr(error, name, value)
    return error


# What a program reads of an error, which error it is, and what becomes of it.
_ERRORS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any], Callable[[Any], Any]]] = {
    "attribute": (lambda e: e.k, lambda: _error_with("k", 2), lambda e: setattr(e, "k", 3)),
    "arguments": (lambda e: e.args[0], lambda: KeyError(2), lambda e: setattr(e, "args", (3,))),
    "own class": (lambda e: e.args[0], lambda: OwnError(2), lambda e: setattr(e, "args", (3,))),
    "inside": (lambda e: e.args[0][0], lambda: OwnError([2]), lambda e: e.args[0].insert(0, 3)),
    "field": (lambda e: e.errno, lambda: OSError(2, "text"), lambda e: setattr(e, "errno", 3)),
    "value": (lambda e: e.value, lambda: StopIteration(2), lambda e: setattr(e, "value", 3)),
    "cause": (lambda e: e.__cause__ is None, lambda: ValueError(), lambda e: setattr(e, "__cause__", KeyError())),
}


@pytest.mark.parametrize("case", _ERRORS)
def test_an_error_outside(case: str) -> None:
    read, make, change = _ERRORS[case]
    error = make()
    holder = SimpleNamespace(error=error)
    direct = smelt.compile(lambda x: x * read(error))
    held = smelt.compile(lambda x: x * read(holder.error))
    for compiled in (direct, held):
        assert torch.equal(compiled(X), X * read(make())) and torch.equal(compiled(X), X * read(make()))
        assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}
    change(error)
    for compiled in (direct, held):
        assert torch.equal(compiled(X), X * read(error))


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_an_error_that_the_program_changes() -> None:
    error = ValueError(1)

    def program(x: Tensor) -> Tensor:
        error.args += (2,)
        return x + len(error.args)

    compiled = smelt.compile(program)
    assert [compiled(X)[0].item() for _ in range(3)] == [3.0, 4.0, 5.0] and error.args == (1, 2, 2, 2)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.weight.table, self.weight.own = {"a": [2]}, SimpleNamespace(k=3)  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        w: Any = self.weight
        return x * w * w.table["a"][0] + w.own.k  # type: ignore[no-any-return]


def test_what_attributes_of_tensors_hold() -> None:
    layer = Layer()
    compiled, weight = smelt.compile(layer), layer.weight
    assert compiled(X).tolist() == compiled(X).tolist() == [5.0, 5.0]
    assert compiled.stats().builds == 1 and compiled.stats().fallbacks == {}
    weight.table["a"][0] = 4  # type: ignore[attr-defined]
    assert compiled(X).tolist() == [7.0, 7.0]
    weight.own.k = 5  # type: ignore[attr-defined]
    assert compiled(X).tolist() == [9.0, 9.0]


def test_a_list_of_a_module_that_others_read() -> None:
    """Of one that is only appended to, the items are not looked at: all who ask the module for it count."""
    module = ModuleType("module_with_a_list")
    sys.modules[module.__name__] = module
    try:
        exec("seen = []\ndef note(): seen.append(1)\n", vars(module))

        def program(x: Tensor) -> Tensor:
            module.note()
            return x + len(module.seen)

        compiled = smelt.compile(program)
        assert [compiled(X)[0].item() for _ in range(5)] == [2.0, 3.0, 4.0, 5.0, 6.0]
    finally:
        del sys.modules[module.__name__]
