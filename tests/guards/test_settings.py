"""Settings of libraries, names of functions, modules under a name: what a program reads without any attribute hook."""

from __future__ import annotations

import decimal
import gc
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


@pytest.fixture(autouse=True)
def settable(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's flags can be set, whatever the process has imported: torch's own test helpers freeze them."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


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


def _flag(name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    owner: Any = torch.backends
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    return (lambda: getattr(owner, last)), (lambda value: setattr(owner, last, value))


# Each as (what the program asks, what is set elsewhere, and how it is put back).
FLAGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, _flag("mkldnn.enabled")[1]),
    "cudnn": (lambda: torch.backends.cudnn.enabled, _flag("cudnn.enabled")[1]),
    "cudnn's benchmark": (lambda: torch.backends.cudnn.benchmark, _flag("cudnn.benchmark")[1]),
    "cudnn's determinism": (lambda: torch.backends.cudnn.deterministic, _flag("cudnn.deterministic")[1]),
    "einsum": (lambda: torch.backends.opt_einsum.enabled, _flag("opt_einsum.enabled")[1]),
    "the fast path": (lambda: torch.backends.mha.get_fastpath_enabled(), torch.backends.mha.set_fastpath_enabled),
    "flash attention": (lambda: torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.enable_flash_sdp),
    "plain attention": (lambda: torch.backends.cuda.math_sdp_enabled(), torch.backends.cuda.enable_math_sdp),
    "anomalies": (lambda: torch.is_anomaly_enabled(), torch.set_anomaly_enabled),
    "all warnings": (lambda: torch.is_warn_always_enabled(), torch.set_warn_always),
    "memory that nothing fills": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda value: setattr(torch.utils.deterministic, "fill_uninitialized_memory", value),
    ),
    "the garbage collector": (lambda: gc.isenabled(), lambda value: gc.enable() if value else gc.disable()),
}


@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_that_changed_is_seen(name: str) -> None:
    ask, change = FLAGS[name]

    def f(x: Tensor) -> Tensor:
        return x * 2 if ask() else x * 3

    compiled, x, before = smelt.compile(f), torch.ones(3), ask()
    try:
        for _ in range(3):
            assert torch.equal(compiled(x), f(x))
        assert compiled.stats().builds == 1
        change(not before)
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))
    finally:
        change(before)
    assert torch.equal(compiled(x), f(x)) and compiled.stats().fallbacks == {}


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_flag_that_a_program_sets_is_set_at_each_call() -> None:
    def f(x: Tensor) -> Tensor:
        torch.backends.cudnn.benchmark = True
        return x * 2

    compiled, before = smelt.compile(f), torch.backends.cudnn.benchmark
    try:
        for _ in range(4):
            torch.backends.cudnn.benchmark = False
            compiled(torch.ones(3))
            assert torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before
