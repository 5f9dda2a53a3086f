"""What is free in a captured program, as an ingot has it: ranges, conditions and dimensions as trees of numbers."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, TypeAlias

from smelt.capture.dynamic.spec import SizeFacts
from smelt.diag import InternalError, SmeltError
from smelt.diag.records import record
from smelt.ir.dims import Dim
from smelt.runtime.guarding.guard_sizes import parsed
from smelt.runtime.ingot.errors import unsaved
from smelt.runtime.ingot.free_sizes import OPERATORS, Expr, FreeSizes, Profile, Sizes, Symbol

_BINARY: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%"}
_COMPARED: Mapping[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


def check_free(facts: SizeFacts) -> None:
    """Raises: PackageError (S0702) where something is free that cannot be in a file."""
    for name, origin in facts.symbols.items():
        if origin.dim is None or origin.range is None:
            raise unsaved(
                f"the program cannot be saved: the number {name} is free",
                "an ingot holds graphs of numbers that are known, and of tensors whose sizes may be free",
                "pass the number as a tensor, or capture the program for this number",
            )


def free_sizes(facts: SizeFacts, profiles: Sequence[Profile]) -> FreeSizes:
    """What is free. Raises: PackageError (S0702) for a condition that has no form in a file."""
    symbols = []
    for name, origin in facts.symbols.items():
        assert origin.dim is not None and origin.range is not None, "it was checked"
        symbols.append(Symbol(name, origin.input, origin.dim, origin.range.low, origin.range.high))
    checks = tuple((expression(guard.text), guard.outcome) for guard in facts.guards)
    return FreeSizes(tuple(symbols), checks, tuple(profiles))


def dimension(dim: Dim) -> Expr:
    """A size or stride of a type. Raises: PackageError (S0702)."""
    return dim if isinstance(dim, int) else expression(str(dim))


def expression(text: str) -> Expr:
    """An expression of sizes. Raises: PackageError (S0702) where it has other operators than those of files."""
    try:
        return _tree(parsed(text))
    except (InternalError, TypeError):
        raise unsaved(
            f"the program cannot be saved: it holds where {text}",
            f"a condition on sizes in a file has whole numbers, and of operators {' '.join(OPERATORS)}",
            "capture it without dynamic_shapes, once for each size, and save these under names of their own",
        ) from None


def _tree(node: ast.expr) -> Expr:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return (_BINARY[type(op)], _tree(left), _tree(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return ("neg", _tree(operand))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ("not", _tree(operand))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return (_COMPARED[type(op)], _tree(left), _tree(right))
        case ast.Call(func=ast.Name(id=name), args=[first, *rest]) if name in OPERATORS:
            return _called(name, list(map(_tree, (first, *rest))))
    raise TypeError(ast.unparse(node))


def _called(name: str, args: list[Expr]) -> Expr:
    """max and min of any number of operands, by two."""
    count, _ = OPERATORS[name]
    if count == 2 and name in ("max", "min"):
        found = args[0]
        for each in args[1:]:
            found = (name, found, each)
        return found
    if len(args) != count:
        raise TypeError(name)
    return (name, *args)


Wanted: TypeAlias = "Mapping[str, int | range]"
"""Sizes to make native code for, by name."""

TUPLE_LIMIT = 4096
"""Tuples of sizes that one entry of ranges may have: each is tried."""

_DEFAULT_LIMIT = 1024


@record
class Box:
    """Sizes from the least to the most of each. sizes: those among them that the program is for."""

    bounds: tuple[tuple[int, int], ...]
    sizes: tuple[Sizes, ...]

    @property
    def is_one(self) -> bool:
        """Whether it is a single tuple."""
        return all(low == high for low, high in self.bounds)


def boxes_of(facts: SizeFacts, wanted: Sequence[Wanted] | None) -> list[Box]:
    """The sizes to make native code for: those named, or those that the program was captured with, and all in its
    ranges where these are not many.

    Raises: SmeltError (S0301) for sizes that the program is not for.
    """
    names = tuple(facts.symbols)
    if wanted is None:
        wanted = _by_default(facts)
    return list(dict.fromkeys(_box(facts, names, each) for each in wanted))


def _by_default(facts: SizeFacts) -> list[Wanted]:
    hints = {name: int(origin.hint) for name, origin in facts.symbols.items()}
    found: list[Wanted] = [hints] if facts.holds(hints) else []
    known = {name: origin.range for name, origin in facts.symbols.items() if origin.range is not None}
    spans = {name: range(each.low, each.high + 1) for name, each in known.items() if each.high is not None}
    if len(spans) == len(facts.symbols) and 1 < prod(map(len, spans.values())) <= _DEFAULT_LIMIT:
        found.append(spans)
    return found


def _box(facts: SizeFacts, names: tuple[str, ...], wanted: Wanted) -> Box:
    fits = wanted.keys() == set(names) and all(type(size) is not range or size for size in wanted.values())
    if fits:
        spans = [size if isinstance(size, range) else range(size, size + 1) for size in map(wanted.__getitem__, names)]
        count = prod(map(len, spans))
        if any(span.step != 1 for span in spans) or count > TUPLE_LIMIT:
            raise SmeltError(
                f"native code cannot be made for the sizes {_shown(wanted)}",
                why=f"these are {count:,} tuples of sizes, or not all in a row: at most {TUPLE_LIMIT:,} are tried",
                fix="name smaller ranges, and several of them",
                code="S0301",
            )
        found = tuple(sizes for sizes in product(*spans) if facts.holds(dict(zip(names, sizes, strict=True))))
        if found:
            return Box(tuple((span[0], span[-1]) for span in spans), found)
    raise SmeltError(
        f"native code cannot be made for the sizes {_shown(wanted)}",
        why=f"the program has the sizes {', '.join(names)}, within the ranges and conditions of its capture",
        fix="name each of these, with a value, or a range of values, that the program may be called with",
        code="S0301",
    )


def _shown(sizes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items())
