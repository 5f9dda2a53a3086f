"""Settings of libraries, and of torch, that C code reads, seen as context variables: guards ask them again."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import lru_cache, partial
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch.backends import PropModule

_OF_NUMPY = ("geterr", "geterrcall", "getbufsize")


class Setting:
    """A setting of a library; `get` gives the same object as long as it is the same setting."""

    def __init__(self, name: str, read: Callable[[], Hashable]) -> None:
        self.name, self._read = name, read
        self._known: dict[Hashable, Hashable] = {}

    def get(self, default: object = None) -> Hashable:
        """What is set now."""
        now = self._read()
        return self._known.setdefault(now, now)


def setting_of(value: object) -> Setting | None:
    """The setting that decides what comes of a value which a program names; None of nearly all."""
    if isinstance(value, ModuleType):
        return _decimals() if value.__name__ == "decimal" else None
    if id(value) in _asking():
        return _asking()[id(value)]
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


# Functions that ask for a setting, each with those that change it.
_ASKING = (
    ("torch.get_num_threads", "torch.set_num_threads"),
    ("torch.get_num_interop_threads", "torch.set_num_interop_threads"),
    ("torch.is_anomaly_enabled", "torch.set_anomaly_enabled", "torch.autograd.set_detect_anomaly",
     "torch.autograd.detect_anomaly"),
    ("torch.is_anomaly_check_nan_enabled",),
    ("torch.is_warn_always_enabled", "torch.set_warn_always"),
    ("torch.is_deterministic_algorithms_warn_only_enabled",),
    ("torch.get_deterministic_debug_mode", "torch.set_deterministic_debug_mode"),
    ("torch.is_autocast_cache_enabled", "torch.set_autocast_cache_enabled"),
    ("torch.backends.mha.get_fastpath_enabled", "torch.backends.mha.set_fastpath_enabled"),
    ("torch.backends.cuda.flash_sdp_enabled", "torch.backends.cuda.enable_flash_sdp"),
    ("torch.backends.cuda.mem_efficient_sdp_enabled", "torch.backends.cuda.enable_mem_efficient_sdp"),
    ("torch.backends.cuda.math_sdp_enabled", "torch.backends.cuda.enable_math_sdp"),
    ("torch.backends.cuda.cudnn_sdp_enabled", "torch.backends.cuda.enable_cudnn_sdp"),
    ("torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed",
     "torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp"),
    ("gc.isenabled", "gc.enable", "gc.disable"),
    ("gc.get_threshold", "gc.set_threshold"),
    ("gc.get_debug", "gc.set_debug"),
    ("sys.getrecursionlimit", "sys.setrecursionlimit"),
    ("sys.getswitchinterval", "sys.setswitchinterval"),
)  # fmt: skip


@lru_cache(maxsize=1)
def _asking() -> dict[int, Setting]:
    """The settings by the ids of the functions that ask for them, or change them; these live as long as the process."""
    found: dict[int, Setting] = {}
    for names in _ASKING:
        functions = [function for name in names if (function := _named(name)) is not None]
        if functions:
            setting = Setting(f"{names[0]}()", functions[0])
            found.update((id(function), setting) for function in functions)
            _KEPT.extend(functions)
    return found


_KEPT: list[object] = []


def _named(name: str) -> Any:
    module, _, rest = name.partition(".")
    found: object = sys.modules.get(module)
    for part in rest.split("."):
        found = getattr(found, part, None)
    return found


_FLAGS: dict[tuple[int, str], Setting] = {}


def flag_of(module: ModuleType, name: str) -> Setting | None:
    """The setting that a module of torch's shows as an attribute (`torch.backends.cudnn.benchmark`)."""
    cls = type(module)
    if cls is ModuleType or not cls.__module__.startswith("torch."):
        return None
    held = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    if not (isinstance(held, property) or hasattr(held, "getter")):
        return None
    return _FLAGS.setdefault((id(module), name), Setting(f"{module.__name__}.{name}", partial(getattr, module, name)))


def home_in(module: ModuleType, name: str) -> ModuleType:
    """The module whose name this is: one that stands for another, as those of `torch.backends` do, shows its names."""
    inner = module.__dict__.get("m")
    if name in module.__dict__ or not isinstance(inner, ModuleType) or not isinstance(module, PropModule):
        return module
    return inner if name in inner.__dict__ and not hasattr(type(module), name) else module


@lru_cache
def _numpys(function: Callable[[], object]) -> Setting:
    def read() -> Hashable:
        now = function()
        return tuple(now.items()) if isinstance(now, dict) else now

    return Setting(f"numpy.{function.__name__}()", read)
