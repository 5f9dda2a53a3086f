"""The functions that `py.call` may name: pure ones of Python's own; and the exceptions that `py.raise` may.

What would give an iterator or a view gives a list, because the graph's containers are values.
"""

from __future__ import annotations

import cmath
import importlib
import math
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

from smelt.diag import SmeltError

_SCALAR_METHODS = (
    "int.bit_length", "int.bit_count", "float.is_integer", "float.hex", "float.as_integer_ratio", "complex.conjugate",
)  # fmt: skip
_STR_METHODS = (
    "capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format", "index", "isalnum",
    "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace",
    "istitle", "isupper", "join", "ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
    "swapcase", "title", "upper", "zfill", "__mod__",
)  # fmt: skip
_CONTAINER_METHODS = ("list.count", "list.index", "tuple.count", "tuple.index", "dict.get")
_BUILTINS = (
    "all", "any", "ascii", "bin", "chr", "dict", "divmod", "hex", "list", "oct", "ord", "pow", "repr", "sorted",
    "tuple",
)  # fmt: skip
_AS_LISTS: dict[str, Callable[..., Any]] = {
    "builtins.range": range, "builtins.zip": zip, "builtins.enumerate": enumerate, "builtins.reversed": reversed,
    "dict.keys": dict.keys, "dict.values": dict.values, "dict.items": dict.items,
}  # fmt: skip


def _builtin(name: str) -> Any:
    owner, _, method = name.partition(".")
    found = __builtins__[owner] if isinstance(__builtins__, dict) else getattr(__builtins__, owner)
    return getattr(found, method) if method else found


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> list[Any]:
        return list(function(*args, **kwargs))

    return run


def _member(name: str, member: str) -> Any:
    """A member of the enumeration of a dotted name."""
    return class_of(name)[member]  # type: ignore[index]


_LIMITS = ("min", "max", "eps", "tiny", "smallest_normal", "resolution", "bits")


def _limit(name: str) -> Callable[..., Any]:
    """A number that an element type has: of floats as `torch.finfo` tells it, of all others as `torch.iinfo`."""

    def read(dtype: Any) -> Any:
        return getattr(torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype), name)

    return read


def _as_int(value: Any) -> int:
    """What torch takes where it wants an int. Raises: TypeError for a bool, and all that is no integer."""
    if type(value) is bool:
        raise TypeError("must be int, not bool")
    return operator.index(value)


def _sorted_by(values: list[Any], keys: list[Any], reverse: bool = False) -> list[Any]:
    """`sorted(values, key=..., reverse=reverse)`, where the keys are known."""
    order = sorted(range(len(values)), key=keys.__getitem__, reverse=reverse)
    return [values[i] for i in order]


def _without(items: list[Any], value: Any) -> list[Any]:
    """The list after `items.remove(value)`."""
    copy = items.copy()
    copy.remove(value)
    return copy


FUNCTIONS: MappingProxyType[str, Callable[..., Any]] = MappingProxyType(
    {
        **{f"{m.__name__}.{n}": f for m in (math, cmath) for n, f in vars(m).items() if callable(f) and n[0] != "_"},
        **{f"builtins.{n}": _builtin(n) for n in _BUILTINS},
        **{n: _builtin(n) for n in (*_SCALAR_METHODS, *_CONTAINER_METHODS)},
        **{f"str.{n}": getattr(str, n) for n in _STR_METHODS},
        **{n: _listed(f) for n, f in _AS_LISTS.items()},
        **{f"dtype.{n}": _limit(n) for n in _LIMITS},
        "list.sorted_by": _sorted_by,
        "list.remove": _without,
        "enum.member": _member,
        "operator.index": operator.index,
        "range": range,
        "torch.Size": torch.Size,
        "torch.int": _as_int,
        **{f"torch.{n}": getattr(torch, n) for n in ("BoolTensor", "LongTensor", "DoubleTensor")},
        "Tensor.tolist": torch.Tensor.tolist,
        "Tensor.type": torch.Tensor.type,
    }
)
"""By the names that `py.call` takes: math.*, cmath.*, builtins.*, methods as `str.upper`, `dict.items`, limits of
numbers as `dtype.min`, and a few of our own: `list.sorted_by(values, keys, reverse)`, `list.remove(values, value)`
that gives the list without it, `range` for the range itself,
`enum.member("module.Color", "RED")`, `torch.int` for what torch takes as an int, and `torch.LongTensor(numbers)` and
its kin for tensors of lists.
"""


def is_callable_by_name(name: object) -> bool:
    """Whether `py.call` takes a name."""
    return isinstance(name, str) and name in FUNCTIONS


def call(name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the list. Raises: SmeltError (S0202) for any other."""
    found = FUNCTIONS.get(name)
    if found is None:
        raise SmeltError(
            f"py.call cannot call {name!r}",
            why="only pure functions of Python's own may stand in a graph",
            fix="docs/graph.md lists them",
            code="S0202",
        )
    return found(*args, **kwargs)


def class_of(name: str) -> type | None:
    """The class of a dotted name, None where there is none."""
    module, _, rest = name.partition(".")
    found: Any = None
    while rest and not isinstance(found, type):
        found = _attribute(module, rest)
        head, _, rest = rest.partition(".")
        module = f"{module}.{head}"
    return found if isinstance(found, type) else None


@lru_cache(maxsize=256)
def exception_of(name: str) -> type[BaseException]:
    """The class of exceptions of a dotted name. Raises: SmeltError (S0202) where the name is no such class."""
    found: Any = class_of(name)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise SmeltError(
            f"{name!r} names no class of exceptions",
            why="py.raise takes a dotted name, such as builtins.ValueError",
            fix="import the module that defines it under this name",
            code="S0202",
        )
    return found


def rebuilt(cls: type[BaseException], args: tuple[Any, ...], fields: Mapping[str, Any]) -> BaseException:
    """An exception that holds what another one held. A constructor of Python's is not run again: it may word a message
    of what it is given, and `args` are what it made of that.
    """
    base = next(b for b in cls.__mro__ if b.__module__ == "builtins")
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)  # type: ignore[misc]
    error.__dict__.update(fields)
    return error


def _attribute(module: str, path: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
    except ImportError:
        return None
    for part in path.split("."):
        found = getattr(found, part, None)
    return found
