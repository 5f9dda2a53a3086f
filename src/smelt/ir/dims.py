"""Sizes: integers, named symbols, and the few expressions over them that shapes need.

`B`, `S // 2`, `B * S + 1`. Kept small on purpose: no solver lives here (docs/decisions/0005-symbolic-sizes.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeGuard

SymOp = Literal["+", "-", "*", "//", "%", "max", "min"]


@dataclass(frozen=True, slots=True)
class Sym:
    """A named symbolic size, known at run time only."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class SymExpr:
    """An integer expression over symbols, printed fully parenthesised so that its text has one reading."""

    op: SymOp
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.op in ("max", "min"):
            return f"{self.op}({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


@dataclass(frozen=True, slots=True)
class UnknownDim:
    """A size about which nothing is known before the run; printed `_`."""

    def __str__(self) -> str:
        return "_"


Dim: TypeAlias = int | Sym | SymExpr | UnknownDim
UNKNOWN_DIM = UnknownDim()


def is_static(dims: tuple[Dim, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every size is a plain integer."""
    if dims is None:
        return False
    for dim in dims:  # noqa: SIM110  (asked some ten thousand times a compilation: a generator costs three times this)
        if type(dim) is not int:
            return False
    return True


def symbols(dim: Dim) -> frozenset[str]:
    """The names that a size depends on."""
    if isinstance(dim, Sym):
        return frozenset((dim.name,))
    if isinstance(dim, SymExpr):
        return symbols(dim.left) | symbols(dim.right)
    return frozenset()
