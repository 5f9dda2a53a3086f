"""What a pattern may say beside plain torch: modules by name or type, any of several operators, an optional one.

    def heads(x, *, n: int):                        # parameters are what a match leaves free, by name
        y = call_module(r"[qkv]_proj", x)           # any module of that name
        y = y.view(y.shape[:-1] + (n, -1))
        return y.permute(0, 2, 1, 3)                # what is returned may be used outside

Invariant: these stand in a pattern as operators of their own, `smelt_pattern.*`, which no program contains. They are
read, never run.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from smelt.diag.records import record
from smelt.ir import Node, TensorType
from smelt.ops.convert import dtype_from_torch

NAMESPACE = "smelt_pattern"
CALL_MODULE = f"{NAMESPACE}.call_module.default"
ONE_OF = f"{NAMESPACE}.one_of.default"
OPTIONAL = f"{NAMESPACE}.optional.default"
NAMED = f"{NAMESPACE}.named.default"
_TYPE = "type:"
_SCHEMAS = (
    "call_module(str which, Tensor[] args) -> Tensor",
    "one_of(str[] names, Tensor[] args) -> Tensor",
    "optional(str[] names, Tensor x) -> Tensor",
    "named(str name, Tensor x) -> Tensor",
)


def call_module(which: str | type[torch.nn.Module], *args: Any) -> Any:
    """A call of a module with these tensors: by a regex of its name (or the end of its path), or by its class."""
    text = which if isinstance(which, str) else type_text(which)
    return torch.ops.smelt_pattern.call_module(text, list(args))


def one_of(names: list[str], *args: Any) -> Any:
    """The result of any of these operators (`["relu", "gelu"]`) of these tensors; its other arguments are free."""
    return torch.ops.smelt_pattern.one_of(names, list(args))


def optional(names: list[str], x: Any) -> Any:
    """`x`, or what one of these operators (`["dropout"]`) makes of it; its other arguments are free."""
    return torch.ops.smelt_pattern.optional(names, x)


def named(name: str, x: Any) -> Any:
    """`x`, which a match gives as `match[name]`."""
    return torch.ops.smelt_pattern.named(name, x)


@lru_cache(maxsize=1)
def register() -> Any:
    """Make the operators known to torch; done when the first pattern is read. Returns what keeps them known."""
    library = torch.library.Library(NAMESPACE, "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


def type_text(cls: type) -> str:
    """How a pattern's text names a class."""
    return f"{_TYPE}{cls.__module__}.{cls.__qualname__}"


def fits_module(which: str, path: str, module: torch.nn.Module | None) -> bool:
    """Whether `call_module(which)` means the module at a path: by its class, or a regex of the path or an end of it."""
    if which.startswith(_TYPE):
        return module is not None and which in {type_text(base) for base in type(module).__mro__}
    parts = path.split(".")
    return any(re.fullmatch(which, ".".join(parts[i:])) is not None for i in range(len(parts)))


@record
class Where:
    """A predicate on nodes; `&`, `|` and `~` combine them."""

    holds: Callable[[Node], bool]

    def __call__(self, node: Node) -> bool:
        return self.holds(node)

    def __and__(self, other: Where) -> Where:
        return Where(lambda node: self(node) and other(node))

    def __or__(self, other: Where) -> Where:
        return Where(lambda node: self(node) or other(node))

    def __invert__(self) -> Where:
        return Where(lambda node: not self(node))


def op(*names: str) -> Where:
    """Nodes of these operators: `softmax`, or in full `aten.softmax.int`."""
    wanted = frozenset(names)
    return Where(lambda node: node.op in wanted or short_name(node.op) in wanted)


def dtype(wanted: torch.dtype) -> Where:
    """Nodes with a result of this dtype."""
    found = dtype_from_torch(wanted)
    return Where(lambda node: any(type_.dtype is found for type_ in _tensor_types(node)))


def shape(*sizes: int | None) -> Where:
    """Nodes with a result of these sizes; None matches any size."""

    def holds(node: Node) -> bool:
        return any(
            type_.shape is not None
            and len(type_.shape) == len(sizes)
            and all(
                want is None or (type(have) is int and have == want)
                for have, want in zip(type_.shape, sizes, strict=True)
            )
            for type_ in _tensor_types(node)
        )

    return Where(holds)


def short_name(op_name: str) -> str:
    """An operator's name without namespace and overload: `softmax` of `aten.softmax.int`."""
    parts = op_name.split(".")
    return parts[1] if len(parts) > 1 else op_name


def _tensor_types(node: Node) -> list[TensorType]:
    return [result.type for result in node.results if isinstance(result.type, TensorType)]
