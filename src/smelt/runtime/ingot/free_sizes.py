"""Sizes that differ from call to call: which there are, what must hold of them, and for which the file has native code.

    symbols   [["B", 0, 0, 1, null], ["S", 0, 1, 2, 512]]      input, dimension, least, most
    checks    [[["==", ["%", "S", 8], 0], true]]               an expression over the symbols, and what it gives
    profiles  [[[1, 128], {"avx2": "code/avx2/forward.0.json"}], [[1, [1, 512]], {"avx2": "code/avx2/forward.1.json"}]]

Invariant: an expression of a file is a tree of whole numbers that is walked here; no text of a file is evaluated, and
no number grows beyond 64 bits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from smelt.diag.records import record
from smelt.runtime.ingot.texts.json_text import Part

Expr: TypeAlias = "int | str | tuple[Any, ...]"
"""A number, a symbol, or an operator and its operands."""
Sizes: TypeAlias = tuple[int, ...]
Bounds: TypeAlias = "int | tuple[int, int]"
"""A size, or the least and the most that there is."""

_LIMIT = 1 << 63


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


OPERATORS: Mapping[str, tuple[int, Callable[..., int]]] = {
    "+": (2, operator.add), "-": (2, operator.sub), "*": (2, operator.mul), "//": (2, operator.floordiv),
    "%": (2, operator.mod), "neg": (1, operator.neg), "abs": (1, abs), "ceil_div": (2, _ceil_div), "max": (2, max),
    "min": (2, min), "==": (2, operator.eq), "!=": (2, operator.ne), "<": (2, operator.lt), "<=": (2, operator.le),
    ">": (2, operator.gt), ">=": (2, operator.ge), "not": (1, operator.not_),
}  # fmt: skip
"""By name, how many operands an operator has, and what it gives."""


def value_of(expr: Expr, values: Mapping[str, int]) -> int | None:
    """What an expression gives; None where it divides by zero, or goes beyond 64 bits."""
    if isinstance(expr, str):
        return values[expr]
    if isinstance(expr, int):
        return expr
    operands = [value_of(each, values) for each in expr[1:]]
    if None in operands or (expr[0] in ("//", "%", "ceil_div") and operands[1] == 0):
        return None
    found = int(OPERATORS[expr[0]][1](*operands))
    return found if -_LIMIT <= found < _LIMIT else None


def symbols_in(expr: Expr) -> frozenset[str]:
    """The symbols of an expression."""
    if isinstance(expr, str):
        return frozenset((expr,))
    return frozenset() if isinstance(expr, int) else frozenset().union(*map(symbols_in, expr[1:]))


def write_expr(expr: Expr) -> Any:
    """An expression as JSON."""
    return [expr[0], *map(write_expr, expr[1:])] if isinstance(expr, tuple) else expr


def read_expr(part: Part, names: frozenset[str]) -> Expr:
    """An expression of JSON. Raises: PackageError (S0701)."""
    if type(part.value) is int:
        return part.as_int(-_LIMIT)
    if type(part.value) is str:
        return part.one_of(*names)
    name, *own = part.items() or [part]
    count, _ = OPERATORS[name.one_of(*OPERATORS)]
    if len(own) != count:
        raise part.bad("has another number of operands than its operator takes")
    return (name.as_str(), *(read_expr(each, names) for each in own))


def shown(expr: Expr) -> str:
    """An expression for people."""
    if not isinstance(expr, tuple):
        return str(expr)
    name, *own = expr
    if name.isidentifier():
        return f"{name}({', '.join(map(shown, own))})"
    return f"({shown(own[0])} {name} {shown(own[1])})"


@record
class Symbol:
    """A free size: dimension `dim` of an input; low, high: what it may be, both included."""

    name: str
    input: int
    dim: int
    low: int
    high: int | None


@record
class Profile:
    """Sizes, in the order of the symbols, for which the file has native code: by target, the entry of the plan.

    Of a plan for many sizes they are bounds: the plan itself says for which of the sizes within these it is.
    """

    sizes: tuple[Bounds, ...]
    native: Mapping[str, str]

    @property
    def exact(self) -> Sizes | None:
        """The sizes of a plan for these alone."""
        return None if any(isinstance(size, tuple) for size in self.sizes) else tuple(map(least_of, self.sizes))

    def takes(self, sizes: Sizes) -> bool:
        """Whether sizes are within the bounds."""
        return all(least_of(b) <= n <= most_of(b) for n, b in zip(sizes, self.sizes, strict=True))


def least_of(bounds: Bounds) -> int:
    """The least that a size may be."""
    return bounds[0] if isinstance(bounds, tuple) else bounds


def most_of(bounds: Bounds) -> int:
    """The most."""
    return bounds[1] if isinstance(bounds, tuple) else bounds


@record
class FreeSizes:
    """What is free in an entry point. checks: expressions, and whether each is to be true."""

    symbols: tuple[Symbol, ...]
    checks: tuple[tuple[Expr, bool], ...]
    profiles: tuple[Profile, ...]

    @property
    def names(self) -> frozenset[str]:
        """The names of the symbols."""
        return frozenset(symbol.name for symbol in self.symbols)

    def refused(self, values: Mapping[str, int]) -> str:
        """The condition that these sizes do not fulfil; nothing where they fulfil all."""
        for symbol in self.symbols:
            if values[symbol.name] < symbol.low:
                return f"{symbol.name} >= {symbol.low}"
            if symbol.high is not None and values[symbol.name] > symbol.high:
                return f"{symbol.name} <= {symbol.high}"
        broken = (each for each in self.checks if bool(value_of(each[0], values)) is not each[1])
        return next((shown(expr) if outcome else f"not {shown(expr)}" for expr, outcome in broken), "")

    def written(self) -> Any:
        return {
            "symbols": [[s.name, s.input, s.dim, s.low, s.high] for s in self.symbols],
            "checks": [[write_expr(expr), outcome] for expr, outcome in self.checks],
            "profiles": [[list(each.sizes), dict(each.native)] for each in self.profiles],
        }

    @staticmethod
    def read(part: Part, ninputs: int) -> FreeSizes:
        """Raises: PackageError (S0701)."""
        symbols, checks, profiles = part.keys("symbols", "checks", "profiles")
        found = tuple(_symbol(each, ninputs) for each in symbols.items())
        names = frozenset(symbol.name for symbol in found)
        if not found or len(names) < len(found):
            raise symbols.bad("are no symbols, or two of one name")
        return FreeSizes(
            found,
            tuple((read_expr(each.items(2)[0], names), each.items(2)[1].as_bool()) for each in checks.items()),
            tuple(_profile(each, len(found)) for each in profiles.items()),
        )


def _symbol(part: Part, ninputs: int) -> Symbol:
    name, number, dim, low, high = part.items(5)
    if not name.as_str().isidentifier():
        raise name.bad("is no name of a size")
    most = None if high.is_null() else high.as_int(-_LIMIT)
    return Symbol(name.as_str(), number.as_int(0, ninputs - 1), dim.as_int(0, 63), low.as_int(-_LIMIT), most)


def _profile(part: Part, count: int) -> Profile:
    sizes, native = part.items(2)
    if len(sizes.items()) != count:
        raise sizes.bad("are not as many as there are symbols")
    bounds = tuple(map(_bounds, sizes.items()))
    return Profile(bounds, {target: entry.as_str() for target, entry in native.pairs()})


def _bounds(part: Part) -> Bounds:
    if type(part.value) is int:
        return part.as_int()
    low, high = (each.as_int() for each in part.items(2))
    if low >= high:
        raise part.bad("are no bounds")
    return low, high
