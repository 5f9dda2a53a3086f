"""Settings of libraries, and of torch, that C code reads, seen as context variables: guards ask them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

_OF_NUMPY = ("geterr", "geterrcall", "getbufsize")


class Setting:
    """A setting of a library; `get` gives the same object as long as it is the same setting."""

    def __init__(self, name: str, read: Callable[[], Hashable]) -> None:
        self.name, self._read = name, read
        self._known: dict[Hashable, Hashable] = {}

    def get(self, default: Any = None) -> Hashable:
        """What is set now."""
        now = self._read()
        return self._known.setdefault(now, now)


def setting_of(value: Any) -> Setting | None:
    """The setting that decides what comes of a value which a program names; None of nearly all."""
    if isinstance(value, ModuleType):
        return _decimals() if value.__name__ == "decimal" else None
    if value is torch.get_num_threads:
        return _threads()
    holder = value if isinstance(value, (type, FunctionType, BuiltinFunctionType)) else type(value)
    module = getattr(holder, "__module__", None)
    if module == "decimal":
        return _decimals()
    return _numpys(value) if module == "numpy" and getattr(value, "__name__", "") in _OF_NUMPY else None


@lru_cache
def _decimals() -> Setting:
    decimal = sys.modules["decimal"]

    def read() -> Hashable:
        now = decimal.getcontext()
        return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, tuple(now.traps.values())

    return Setting("decimal.getcontext()", read)


@lru_cache
def _threads() -> Setting:
    return Setting("torch.get_num_threads()", torch.get_num_threads)


@lru_cache
def _numpys(function: Callable[[], Any]) -> Setting:
    def read() -> Hashable:
        now = function()
        return tuple(now.items()) if isinstance(now, dict) else now

    return Setting(f"numpy.{function.__name__}()", read)
