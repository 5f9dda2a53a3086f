"""Lists and dictionaries that grow where data say so, and that something else than a variable holds, too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import smelt


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


class Kept:
    items: list[Tensor] = []  # noqa: RUF012 (an attribute of the class is what this is about)
    table: dict[str, Tensor] = {}  # noqa: RUF012


FOUND: list[Tensor] = []


def _put(items: list[Tensor], x: Tensor) -> Tensor:
    if x.sum() > 0:
        items.append(x * 1)
    return items[-1] * x if len(items) else x


def _put_in(table: dict[str, Tensor], x: Tensor) -> Tensor:
    if x.sum() > 0:
        table["last"] = x * 1
    last = table.get("last") if hasattr(table, "get") else None
    return x if last is None else last * x


def of_a_module(x: Tensor) -> Any:
    return _put(FOUND, x), len(FOUND)


def of_a_class(x: Tensor) -> Any:
    return _put(Kept.items, x) + len(Kept.items)


def a_dict_of_a_class(x: Tensor) -> Any:
    return _put_in(Kept.table, x)


def a_bound_method(x: Tensor) -> Any:
    found = [x]
    put = found.append
    while found[-1].abs().sum() < 9:
        put(found[-1] * 2)
    return torch.stack(found).sum(0)


def an_iterator(x: Tensor) -> Any:
    found = [x]
    rest = iter(found)
    while found[-1].abs().sum() < 9:
        found.append(found[-1] * 2)
    return len(list(rest)), found[-1]


def numbered(x: Tensor) -> Any:
    found = [x]
    rest = enumerate(found)
    while found[-1].abs().sum() < 9:
        found.append(found[-1] * 2)
    return [i for i, _ in rest], found[-1]


def a_view(x: Tensor) -> Any:
    table: dict[str, Tensor] = {}
    values = table.values()
    if x.sum() > 0:
        table["a"] = x
    return [y * 2 for y in values]


PROGRAMS = [of_a_module, of_a_class, a_dict_of_a_class, a_bound_method, an_iterator, numbered, a_view]


def _run(program: Callable[..., Any]) -> list[str]:
    FOUND.clear()
    Kept.items.clear()
    Kept.table.clear()
    found = []
    for first in (-1.0, 3.0, -2.0, 5.0, -7.0):
        result = program(torch.tensor([first, 0.5]))
        found.append(str((result, FOUND, Kept.items, Kept.table)))
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    expected = _run(program)
    compiled = smelt.compile(program)
    for _ in range(2):
        assert _run(compiled) == expected


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_scripts_refuse_before_anything_changes(program: Callable[..., Any]) -> None:
    FOUND.clear()
    Kept.items.clear()
    Kept.table.clear()
    with pytest.raises(smelt.CaptureError, match=r"S0109|S0106"):
        smelt.script(program)(torch.tensor([3.0, 0.5]))
    assert not FOUND
    assert not Kept.items
    assert not Kept.table
