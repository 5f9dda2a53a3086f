"""libtorch's C functions (`aoti_torch_*`, `torch_*`) by name, as plain addresses.

Invariant: a symbol that is not there is a normal answer (None), never an error; who needs it takes the next rung of the
ladder. Nothing is resolved at import. Enum values (dtypes, layouts, devices) are asked for at run time, for they are
not part of the library's ABI.

Source: torch/csrc/inductor/aoti_torch/c/shim.h, torch/csrc/stable/c/shim.h (installed headers).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

_HIDDEN: ContextVar[frozenset[str]] = ContextVar("smelt_hidden_symbols", default=frozenset())
_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_ABI_VERSION = "aoti_torch_abi_version"
_PREFIX = "" if sys.platform == "win32" else "lib"

# Names of dtypes whose shim getter is called after the dtype itself; all others have no code.
_DTYPES: dict[torch.dtype, str] = {
    getattr(torch, name): name
    for name in (
        "float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
        "uint64", "bool", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
        "float8_e4m3fnuz", "float8_e5m2fnuz",
    )
    if hasattr(torch, name)
}  # fmt: skip
_LAYOUTS: dict[torch.layout, str] = {torch.strided: "strided", torch.sparse_coo: "sparse_coo"}
_MEMORY_FORMATS: dict[torch.memory_format, str] = {
    torch.contiguous_format: "contiguous_format",
    torch.channels_last: "channels_last",
    torch.channels_last_3d: "channels_last_3d",
    torch.preserve_format: "preserve_format",
}


@contextmanager
def hidden(*names: str) -> Iterator[None]:
    """Within the block (and this thread or task) behave as if these symbols did not exist.

    Takes C symbols (`aoti_torch_cpu_mm_out`) and the dotted names of private Python functions that `_torch` adapters
    use (`torch._C._aoti.unsafe_alloc_void_ptr_from_tensor`). For tests of the fallbacks.
    """
    token = _HIDDEN.set(_HIDDEN.get() | frozenset(names))
    try:
        yield
    finally:
        _HIDDEN.reset(token)


def is_hidden(name: str) -> bool:
    """Whether `hidden` covers this name here and now."""
    return name in _HIDDEN.get()


def hides_something() -> bool:
    """Whether any name is hidden here and now."""
    return bool(_HIDDEN.get())


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    found = []
    for stem in ("torch_cpu", "torch_python"):
        path = folder / f"{_PREFIX}{stem}{_SUFFIX}"
        if path.exists():
            found.append(ctypes.CDLL(str(path)))
    return tuple(found)


@lru_cache(maxsize=4096)
def _resolve(name: str) -> int | None:
    for library in _libraries():
        try:
            entry = getattr(library, name)
        except AttributeError:
            continue
        return ctypes.cast(entry, ctypes.c_void_p).value
    return None


def address(name: str) -> int | None:
    """Address of a C symbol of libtorch, or None where this build does not export it."""
    return None if is_hidden(name) else _resolve(name)


def has(name: str) -> bool:
    """Whether a C symbol is there."""
    return address(name) is not None


def function(name: str, restype: Any, *argtypes: Any, keep_gil: bool = False) -> Callable[..., Any] | None:
    """A C symbol as a ctypes callable, or None; `keep_gil` for functions that touch Python objects or return at
    once.
    """
    where = address(name)
    if where is None:
        return None
    prototype = ctypes.PYFUNCTYPE if keep_gil else ctypes.CFUNCTYPE
    return prototype(restype, *argtypes)(where)


@lru_cache(maxsize=128)
def _constant(getter: str) -> int:
    call = function(getter, ctypes.c_int64 if getter == _ABI_VERSION else ctypes.c_int32, keep_gil=True)
    assert call is not None
    return int(call())


def _code(getter: str) -> int | None:
    return _constant(getter) if has(getter) else None


def dtypes() -> tuple[torch.dtype, ...]:
    """The dtypes that may have a number in the C shim."""
    return tuple(_DTYPES)


def dtype_code(dtype: torch.dtype) -> int | None:
    """The C shim's number of a dtype, or None where it has none."""
    name = _DTYPES.get(dtype)
    return None if name is None else _code(f"aoti_torch_dtype_{name}")


def layout_code(layout: torch.layout) -> int | None:
    """The C shim's number of a layout, or None where it has none."""
    name = _LAYOUTS.get(layout)
    return None if name is None else _code(f"aoti_torch_layout_{name}")


def memory_format_code(memory_format: torch.memory_format) -> int | None:
    """The C shim's number of a memory format, or None where it has none."""
    name = _MEMORY_FORMATS.get(memory_format)
    return None if name is None else _code(f"aoti_torch_memory_format_{name}")


def device_type_code(kind: str = "cpu") -> int | None:
    """The C shim's number of a device type ("cpu", "meta"), or None where it has none."""
    return _code(f"aoti_torch_device_type_{kind}")


def abi_version() -> int | None:
    """libtorch's version as the shim packs it (major, minor, patch from the high bytes), or None."""
    return _code(_ABI_VERSION)


def last_error() -> str:
    """What the last failing shim call of this thread said; a general sentence where libtorch cannot tell (before
    2.13).
    """
    call = function("torch_exception_get_what_without_backtrace", ctypes.c_char_p, keep_gil=True)
    text = call() if call is not None else None
    if not text:
        return "the library reported a failure without a message"
    return bytes(text).decode("utf-8", "replace").strip()
