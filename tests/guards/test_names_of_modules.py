"""Names that a program looks for in a module, or in `sys.modules`, and that are there only later."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor
NAME = "a_module_of_a_test_that_comes_later"
settings: Any = types.ModuleType("settings")


def by_default(x: Tensor) -> Tensor:
    return x * getattr(settings, "SCALE", 2)


def by_asking(x: Tensor) -> Tensor:
    return x * settings.SCALE if hasattr(settings, "SCALE") else x


def by_error(x: Tensor) -> Any:
    try:
        return x * settings.SCALE
    except AttributeError:
        return x


def by_its_dict(x: Tensor) -> Tensor:
    return x * 3 if "SCALE" in settings.__dict__ else x


def of_torch(x: Tensor) -> Tensor:
    return x * torch.SCALE if hasattr(torch, "SCALE") else x  # type: ignore[attr-defined]


def of_a_module_in_torch(x: Tensor) -> Tensor:
    scale: int = getattr(torch.nn.functional, "SCALE", 2)
    return x * scale


def by_import(x: Tensor) -> Tensor:
    try:
        import a_module_of_a_test_that_comes_later as late  # type: ignore[import-not-found]
    except ImportError:
        return x
    return x * late.SCALE  # type: ignore[no-any-return]


def by_import_from(x: Tensor) -> Tensor:
    try:
        from torch.nn.functional import SCALE  # type: ignore[attr-defined]
    except ImportError:
        return x
    return x * SCALE  # type: ignore[no-any-return]


def by_cell() -> Callable[[Tensor], Tensor]:
    held = settings
    return lambda x: x * getattr(held, "SCALE", 2)


def by_container() -> Callable[[Tensor], Tensor]:
    held = [settings]
    return lambda x: x * getattr(held[0], "SCALE", 2)


PROGRAMS = [by_default, by_asking, by_error, by_its_dict, of_torch, of_a_module_in_torch, by_import, by_import_from,
            by_cell(), by_container()]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS, ids=lambda f: f.__qualname__.partition(".")[0])
def test_a_name_that_comes_later_is_seen(f: Callable[[Tensor], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = smelt.compile(f), torch.ones(2)
    before = f(x)
    for _ in range(3):
        assert torch.equal(compiled(x), before)
    assert compiled.stats().builds == 1
    late: Any = types.ModuleType(NAME)
    late.SCALE = 7
    with monkeypatch.context() as patch:
        for module in (settings, torch, torch.nn.functional):
            patch.setattr(module, "SCALE", 5, raising=False)
        patch.setitem(sys.modules, NAME, late)
        assert not torch.equal(f(x), before)
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))
    assert torch.equal(compiled(x), before)
