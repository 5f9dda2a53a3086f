"""Guards on sizes as a person writes them: `-n <= 0` is `n >= 0`, `S - 512 <= 0` is `S <= 512`.

Invariant: the text says the same; what is not understood stays as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from types import CodeType

from smelt.capture.dynamic.spec import SizeFacts, SizeGuard
from smelt.diag import InternalError, PackageError
from smelt.diag.records import record
from smelt.ir.python_operators import COMPARISON_NAMES, COMPARISONS
from smelt.runtime.guarding.guard_sizes import FUNCTIONS, SizeCheck, names_in, parsed

_SIGNS = {ast.LtE: "<=", ast.Lt: "<", ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.Gt: ">"}
_MIRRORED = {o.symbol: COMPARISON_NAMES[o.swapped].symbol for o in COMPARISONS}


def readable(text: str, floats: Collection[str] = ()) -> str:
    """A comparison with its symbols on the left, their terms where they are positive; not of `floats`: they round."""
    try:
        tree = parsed(text)
    except InternalError:
        return text
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return text
    if isinstance(tree.left, ast.Constant):
        return f"{ast.unparse(tree.comparators[0])} {_MIRRORED[_SIGNS[type(tree.ops[0])]]} {ast.unparse(tree.left)}"
    if ast.unparse(tree.comparators[0]) != "0":
        return text
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    if any(type(value) is not int for value in constants) or not set(names_in(tree)).isdisjoint(floats):
        return text
    sign = _SIGNS[type(tree.ops[0])]
    terms = list(_terms(tree.left, 1))
    left = [ast.unparse(term) for term, amount in terms if amount > 0 and not isinstance(term, ast.Constant)]
    right = [ast.unparse(term) for term, amount in terms if amount < 0 and not isinstance(term, ast.Constant)]
    number = sum(amount * int(ast.unparse(term)) for term, amount in terms if isinstance(term, ast.Constant))
    if not left:
        left, right, number, sign = right, left, -number, _MIRRORED[sign]
    if not left:
        return text
    if number > 0 and right:
        left.append(str(number))
    elif number or not right:
        right.append(str(-number))
    return f"{' + '.join(left)} {sign} {' + '.join(right)}"


def _terms(tree: ast.expr, sign: int) -> list[tuple[ast.expr, int]]:
    """The terms of a sum, each with its sign."""
    match tree:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return [*_terms(left, sign), *_terms(right, sign)]
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return [*_terms(left, sign), *_terms(right, -sign)]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _terms(operand, -sign)
        case ast.BinOp(left=ast.UnaryOp(op=ast.USub(), operand=factor), op=ast.Mult() as op, right=right):
            return [(ast.BinOp(factor, op, right), -sign)]
        case ast.BinOp(left=ast.Constant(value=int(amount)), op=ast.Mult() as op, right=right) if amount < 0:
            return [(ast.BinOp(ast.Constant(-amount), op, right), -sign)]
    return [(tree, sign)]


def guard_that_fixes(facts: SizeFacts, name: str) -> SizeGuard | None:
    """The guard after which a symbol is one number, or another symbol."""
    for guard in facts.guards:
        try:
            tree = parsed(guard.text)
        except InternalError:
            continue
        is_equality = isinstance(tree, ast.Compare) and isinstance(tree.ops[0], ast.Eq) and guard.outcome
        if is_equality and name in names_in(tree):
            return guard
    return None


def names_of(guard: SizeGuard) -> set[str]:
    """The symbols of a guard; of one that is not understood, a name that no symbol has."""
    try:
        return set(names_in(parsed(guard.text)))
    except InternalError:
        return {""}


def holds(check: SizeCheck, values: Mapping[str, int | float]) -> bool:
    """Whether a check is fulfilled by these values of the symbols."""
    try:
        return bool(eval(_compiled(check.text), {**FUNCTIONS, "__builtins__": {}}, dict(values))) is check.outcome
    except (ArithmeticError, TypeError):
        return False


@lru_cache(maxsize=1024)
def _compiled(text: str) -> CodeType:
    return compile(ast.Expression(parsed(text)), "<smelt sizes>", "eval")


@record
class TextCheck:
    """The condition of a guard, of its text alone: what is left where a program was saved."""

    check: SizeCheck

    def __call__(self, values: Mapping[str, int | float]) -> bool:
        return holds(self.check, values)


def as_data(facts: SizeFacts) -> SizeFacts:
    """The same, to be pickled. Raises: PackageError for a guard that its text does not say."""
    guards = []
    for guard in facts.guards:
        if "" in names_of(guard):
            raise PackageError(
                f"the program cannot be saved: it holds where {guard}",
                guard.span,
                why="there is no text of this condition that can be read back",
                fix="trace it where it is loaded",
                code="S0304",
            )
        guards.append(replace(guard, check=TextCheck(SizeCheck(guard.text, guard.outcome, guard.span))))
    return replace(facts, guards=tuple(guards))
