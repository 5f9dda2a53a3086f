"""Lists and dictionaries that grow where data say so, and that something else than a variable holds, too."""

from __future__ import annotations

import contextlib
import functools
import itertools
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


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_as_in_eager(program: Callable[..., Any]) -> None:
    expected = _run(program)
    compiled = smelt.compile(program)
    for _ in range(2):
        assert _run(compiled) == expected


@pytest.mark.spread(3)
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


class Note:
    """Appends at the end of its block."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __enter__(self) -> list[Any]:
        return self.items

    def __exit__(self, *error: object) -> None:
        self.items.append("out")


@contextlib.contextmanager
def noted(items: list[Any]) -> Iterator[list[Any]]:
    items.append("in")
    yield items
    items.append("out")


def _again(items: list[Any]) -> Iterator[list[Any]]:
    while True:
        yield items


def in_a_block(x: Tensor) -> Any:
    found: list[Any] = []
    with Note(found) as inner:
        if x.sum() > 0:
            return found, x
        inner.append("mid")
    return found, x


def in_a_generators_block(x: Tensor) -> Any:
    found: list[Any] = []
    with noted(found) as inner:
        if x.sum() > 0:
            return found, x
        inner.append("mid")
    return found, x


def in_a_generator(x: Tensor) -> Any:
    found: list[Tensor] = []
    holder = _again(found)
    if x.sum() > 0:
        found.append(x * 3)
    kept = next(holder)
    found.append(x * 3)
    return kept, len(found)


def in_an_error(x: Tensor) -> Any:
    found: list[Tensor] = []
    error = ValueError(found)
    if x.sum() > 0:
        found.append(x * 3)
    kept = error.args[0]
    found.append(x * 3)
    return kept, len(found)


def in_a_cache(x: Tensor) -> Any:
    found: list[Tensor] = []
    cached = functools.lru_cache(lambda key: found)
    cached(1)
    if x.sum() > 0:
        found.append(x * 3)
    kept = cached(1)
    found.append(x * 3)
    return kept, len(found)


def by_a_method_of_its_own(x: Tensor) -> Any:
    found: list[Tensor] = []
    length = found.__len__
    if x.sum() > 0:
        found.append(x)
        found.append(x)
    else:
        found.append(x)
    return length(), found


def repeated(x: Tensor) -> Any:
    found: list[Tensor] = []
    holder = itertools.repeat(found)
    if x.sum() > 0:
        found.append(x * 3)
    kept = next(holder)
    found.append(x * 3)
    return kept, len(found)


HIDDEN = [
    in_a_block, in_a_generators_block, in_a_generator, in_an_error, in_a_cache, by_a_method_of_its_own, repeated,
]  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", HIDDEN, ids=lambda p: p.__name__)
def test_held_where_no_walk_comes_to(program: Callable[..., Any]) -> None:
    expected = _run(program)
    compiled = smelt.compile(program)
    for _ in range(2):
        assert _run(compiled) == expected
