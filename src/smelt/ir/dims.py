"""Sizes: integers, named symbols, and the few expressions over them that shapes need.

`B`, `S // 2`, `B * S + 1`. Kept small on purpose: no solver lives here (docs/decisions/0005-symbolic-sizes.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeGuard

from smelt.diag.records import record
from smelt.ir.size_trace import Division, Late, Symbol
from smelt.ir.sizes import Size, size_max, size_min

SymOp = Literal["+", "-", "*", "//", "%", "max", "min"]


@record
class Sym:
    """A named symbolic size, known at run time only."""

    name: str

    def __str__(self) -> str:
        return self.name


@record
class SymExpr:
    """An integer expression over symbols, printed fully parenthesised so that its text has one reading."""

    op: SymOp
    left: Dim
    right: Dim

    def __str__(self) -> str:
        if self.op in ("max", "min"):
            return f"{self.op}({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


@record
class UnknownDim:
    """A size about which nothing is known before the run; printed `_`."""

    def __str__(self) -> str:
        return "_"


Dim: TypeAlias = int | Sym | SymExpr | UnknownDim
UNKNOWN_DIM = UnknownDim()


def is_static(dims: tuple[Dim, ...] | None) -> TypeGuard[tuple[int, ...]]:
    """Whether every size is an integer, or passes for one (`sizes.Size`)."""
    if dims is None:
        return False
    for dim in dims:  # noqa: SIM110  (asked some ten thousand times a compilation: a generator costs three times this)
        if type(dim) is not int and type(dim) is not Size:
            return False
    return True


def symbols(dim: Dim) -> frozenset[str]:
    """The names that a size depends on."""
    if isinstance(dim, Sym):
        return frozenset((dim.name,))
    if isinstance(dim, SymExpr):
        return symbols(dim.left) | symbols(dim.right)
    return frozenset()


def size_of(dim: Dim, symbols: Mapping[str, int]) -> int:
    """A size as a number: its value where `symbols` gives integers, a `Size` where it gives these.

    Raises: KeyError for a symbol that is not given, TypeError for an unknown size.
    """
    match dim:
        case Sym(name=name):
            return symbols[name]
        case SymExpr(op=op, left=left, right=right):
            a, b = size_of(left, symbols), size_of(right, symbols)
            match op:
                case "+":
                    return a + b
                case "-":
                    return a - b
                case "*":
                    return a * b
                case "//":
                    return a // b
                case "%":
                    return a % b
                case "max":
                    return size_max(a, b)
                case "min":
                    return size_min(a, b)
        case UnknownDim():
            raise TypeError("a size about which nothing is known is no number")
    return dim


def dim_of(size: int) -> Dim:
    """A number as it stands in a type: the way back from `size_of`.

    Raises: TypeError for what types have no expression for (results of late functions, but for min and max).
    """
    if type(size) is not Size:
        return size
    return _dim_of_poly(size, size.poly)


def _dim_of_poly(size: Size, poly: tuple[tuple[tuple[int, ...], int], ...]) -> Dim:
    total: Dim = 0
    terms = sorted(poly, key=lambda term: (-len(term[0]), term[1] < 0, term))
    added = next((term for term in terms if term[1] > 0), None)
    terms.sort(key=lambda term: term != added)  # `10 - N`: one that is added comes first where there is one
    for monomial, coefficient in terms:
        product: Dim | None = None
        for index in monomial:
            factor = _dim_of_atom(size, index)
            product = factor if product is None else SymExpr("*", product, factor)
        amount = abs(coefficient)
        term: Dim = amount if product is None else product if amount == 1 else SymExpr("*", product, amount)
        if total == 0:
            total = term if coefficient > 0 else SymExpr("-", 0, term)
        else:
            total = SymExpr("+" if coefficient > 0 else "-", total, term)
    return total


def _dim_of_atom(size: Size, index: int) -> Dim:
    match size.trace.atoms[index]:
        case Symbol(name=name):
            return Sym(name)
        case Division(operator=operator, left=left, right=right):
            return SymExpr(operator, _dim_of_poly(size, left), _dim_of_poly(size, right))
        case Late(call=call):
            made = size.trace.calls[call]
            function = made.function.function  # type: ignore[attr-defined]
            if function in (min, max) and not any(made.are_float):
                parts = iter(_dim_of_poly(size, p) for p in made.operands)
                constants = [x for x in made.function.template[0] if type(x) is int]  # type: ignore[attr-defined]
                operands: list[Dim] = [*parts, *constants]
                result = operands[0]
                for other in operands[1:]:
                    result = SymExpr("min" if function is min else "max", result, other)
                return result
    raise TypeError(f"{size} has no expression in a type")
