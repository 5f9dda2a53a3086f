"""What torch's kernels for data-free tensors ask of symbolic sizes, told for sizes that are numbers.

Most of those kernels import `torch.fx.experimental.symbolic_shapes` when they are called, and with it sympy: 0.3 s, for
functions that return a `bool` unchanged. In a block of `plain_sizes` a module stands in its place that has these
functions, where nobody has loaded torch's own.

The kernels' rule of what types promote to asks of each operand whether it is an expression of sympy's. There it is told
that by a class that knows: where nobody has loaded sympy, there are none.

Invariant: each function gives what torch's does. What is no plain number, and each other name, is torch's own, which is
loaded then and stays.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import CodeType, ModuleType
from typing import Any

try:
    from torch import _prims_common
except ImportError:  # pragma: no cover - another torch
    _prims_common = None

_NAME = "torch.fx.experimental.symbolic_shapes"
_lock = threading.RLock()
_users = 0


class _Plain(ModuleType):
    """Stands in the place of torch's module."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(), name)


def _real() -> ModuleType:
    """Torch's own module, loaded now if it was not."""
    with _lock:
        if sys.modules.get(_NAME) is _PLAIN:
            del sys.modules[_NAME]
        return importlib.import_module(_NAME)


@contextlib.contextmanager
def plain_sizes() -> Iterator[None]:
    """Kernels for data-free tensors load nothing for symbolic sizes in the block."""
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            sys.modules.setdefault(_NAME, _PLAIN)
            _promote_by(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _promote_by(0)
                if sys.modules.get(_NAME) is _PLAIN:
                    del sys.modules[_NAME]


# --- expressions of sympy's ------------------------------------------------------------------------------------------


class _IsExpression(type):
    """The class of a class that has expressions of sympy's as its instances."""

    def __instancecheck__(cls, value: object) -> bool:
        basic = getattr(sys.modules.get("sympy"), "Basic", None)  # while it is being loaded there are none either
        return basic is not None and isinstance(value, basic)


_SYMPY = ModuleType("_smelt_sympy")
_SYMPY.__dict__["Basic"] = _IsExpression("Basic", (), {})
_PROMOTES = getattr(_prims_common, "elementwise_dtypes", None)


@lru_cache(maxsize=1)
def _ways_to_promote() -> tuple[CodeType, CodeType] | None:
    """The code of torch's rule, and the same that asks the class above; None where the rule is made otherwise."""
    code: CodeType | None = getattr(inspect.unwrap(_PROMOTES), "__code__", None) if callable(_PROMOTES) else None
    if code is None or code.co_names.count("sympy") != 1 or "sympy" not in code.co_varnames:
        return None
    names = tuple(_SYMPY.__name__ if name == "sympy" else name for name in code.co_names)
    # It stays: a thread may be about to ask for it.
    sys.modules[_SYMPY.__name__] = _SYMPY
    return code, code.replace(co_names=names)


def _promote_by(way: int) -> None:
    ways = _ways_to_promote()
    if ways is not None and _PROMOTES is not None:
        inspect.unwrap(_PROMOTES).__code__ = ways[way]


# --- functions -------------------------------------------------------------------------------------------------------


def _is_size(value: object) -> bool:
    return type(value) is int or type(value) is bool


def _told(name: str) -> Callable[..., bool]:
    """A function that returns a bool unchanged, whatever is to be done where a symbol does not tell."""

    def told(*args: Any, **kwargs: Any) -> Any:
        is_plain = len(args) == 1 and not kwargs and type(args[0]) is bool
        return args[0] if is_plain else getattr(_real(), name)(*args, **kwargs)

    return told


def _sym_eq(x: Any, y: Any) -> Any:
    if _is_size(x) and _is_size(y):
        return x == y
    is_flat = isinstance(x, tuple | list) and isinstance(y, tuple | list) and all(map(_is_size, (*x, *y)))
    return list(x) == list(y) if is_flat else _real().sym_eq(x, y)


def _sym_and(x: Any, *others: Any) -> Any:
    return all((x, *others)) if _are_bools(x, others) else _real().sym_and(x, *others)


def _sym_or(x: Any, *others: Any) -> Any:
    return any((x, *others)) if _are_bools(x, others) else _real().sym_or(x, *others)


def _are_bools(x: object, others: tuple[object, ...]) -> bool:
    return all(type(value) is bool for value in (x, *others))


def _is_nested_int(size: Any) -> Any:
    return False if _is_size(size) else _real().is_nested_int(size)


def _has_guarding_hint(size: Any) -> Any:
    return True if _is_size(size) else _real().has_guarding_hint(size)


def _guarding_hint_or_throw(size: Any) -> Any:
    return size if _is_size(size) else _real().guarding_hint_or_throw(size)


def _asked_later(name: str) -> Callable[..., Any]:
    """Torch's own function, loaded when it is called: kernels import more than they call."""
    return lambda *args, **kwargs: getattr(_real(), name)(*args, **kwargs)


_LATER = (
    "guard_size_oblivious", "guard_int", "constrain_range", "_constrain_range_for_size", "free_unbacked_symbols",
    "has_free_symbols",
)  # fmt: skip
_TOLD = ("guard_or_false", "guard_or_true", "statically_known_true", "expect_true")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _asked_later(name) for name in _LATER}, **{name: _told(name) for name in _TOLD},
    "sym_eq": _sym_eq, "sym_and": _sym_and, "sym_or": _sym_or, "is_nested_int": _is_nested_int,
    "has_guarding_hint": _has_guarding_hint, "guarding_hint_or_throw": _guarding_hint_or_throw,
}  # fmt: skip
"""What kernels ask, by torch's names."""
_PLAIN = _Plain(_NAME)
vars(_PLAIN).update(FUNCTIONS)
