"""Settings of libraries, names of functions, modules under a name: what a program reads without any attribute hook."""

from __future__ import annotations

import decimal
import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch

import smelt

Tensor = torch.Tensor
RATE = Decimal(2)
NAME = "module_of_a_test"


def named() -> None:
    """Two words."""


def by_context(x: Tensor) -> Tensor:
    return x * decimal.getcontext().prec


def by_decimals(x: Tensor) -> Tensor:
    return x * float(Decimal(1) / Decimal(3))


def by_a_decimal(x: Tensor) -> Tensor:
    return x * float(RATE / 3)


def by_numpys_errors(x: Tensor) -> Tensor:
    return x * len(np.geterr()["over"])


def by_documentation(x: Tensor) -> Tensor:
    return x * len(named.__doc__ or "")


def by_name(x: Tensor) -> Tensor:
    return x * len(named.__name__)


def by_importing(x: Tensor) -> Any:
    return x * importlib.import_module(NAME).number


def by_import(x: Tensor) -> Any:
    import module_of_a_test  # type: ignore[import-not-found]

    return x * module_of_a_test.number


def by_threads(x: Tensor) -> Any:
    return x * torch.get_num_threads()


@contextmanager
def another_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def precision() -> Iterator[None]:
    with decimal.localcontext() as context:
        context.prec = 3
        yield


@contextmanager
def errors_ignored() -> Iterator[None]:
    with np.errstate(over="ignore"):
        yield


@contextmanager
def renamed() -> Iterator[None]:
    before = named.__doc__, named.__name__
    named.__doc__, named.__name__ = "Other words than these.", "another"
    yield
    named.__doc__, named.__name__ = before


@contextmanager
def replaced() -> Iterator[None]:
    before, sys.modules[NAME] = sys.modules[NAME], module(3)
    yield
    sys.modules[NAME] = before


def module(number: int) -> types.ModuleType:
    made = types.ModuleType(NAME)
    made.number = number  # type: ignore[attr-defined]
    return made


PROGRAMS: list[tuple[Callable[[Tensor], Any], Callable[[], Any]]] = [
    (by_context, precision), (by_decimals, precision), (by_a_decimal, precision), (by_numpys_errors, errors_ignored),
    (by_documentation, renamed), (by_name, renamed), (by_importing, replaced), (by_import, replaced),
    (by_threads, another_thread),
]  # fmt: skip


@pytest.mark.parametrize(("f", "changed"), PROGRAMS, ids=[f.__name__ for f, _ in PROGRAMS])
def test_a_setting_that_changed_is_seen(
    f: Callable[[Tensor], Any], changed: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, NAME, module(2))
    compiled, x = smelt.compile(f), torch.ones(3)
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))
    with changed():
        for _ in range(3):
            assert torch.equal(compiled(x), f(x))
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))
    assert compiled.stats().fallbacks == {} and compiled.stats().builds <= 3
