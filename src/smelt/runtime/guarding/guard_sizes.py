"""Arguments that a program takes at more than one size or value: what is asked of their form, and of what is free.

    free = {"args[0]": TensorForm(("B", 16)), "args[1]": NumberForm("n")}
    checks = [SizeCheck("n >= 0"), SizeCheck("B % 8 == 0", span=where), SizeCheck("B == n", outcome=False)]
    guards = GuardSet(reads, (x, 3), {}, free=free, checks=checks)
    guards.free_values((x, 5), {})           -> {"B": 8, "n": 5}

A form's place is that of the argument as a `Signature` has it (`args[0]['mask']`). A bare name among a form's sizes
stands for that size, whatever it is; where it stands again, or in an expression, the size must be what that gives. A
check is a comparison, or a value that is true unless it is 0, in Python's own text.

Invariant: what is free is bound by exactly one place; all else of an argument is compared as without a form: type,
dtype, device, rank, the sizes that are integers, strides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from smelt.diag import InternalError, Span
from smelt.diag.records import record

LIMIT = 1 << 63
"""Native code keeps integers from -LIMIT on, below LIMIT."""


@record
class TensorForm:
    """sizes: an integer is compared; text is a name that is bound here, or an expression over names that are bound.

    strides: likewise, nothing is bound; a stride that is None may be any; None for all: row-major.
    """

    sizes: tuple[int | str, ...]
    strides: tuple[int | str | None, ...] | None = None


@record
class NumberForm:
    """An int of 64 bits, a float or a bool; of the type that it had, of any value. name: what checks call it."""

    name: str = ""


Form: TypeAlias = TensorForm | NumberForm


@record
class SizeCheck:
    """text: over the names of forms, with `+ - * // % max min abs ceil_div` and comparisons; outcome: what it gives.

    span: the line of the user's program that asked.
    """

    text: str
    outcome: bool = True
    span: Span | None = None

    def __str__(self) -> str:
        return self.text if self.outcome else f"not ({self.text})"


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a tensor that lies row by row; a size of 0 counts as 1, as in torch."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size or 1
    return tuple(reversed(strides))


FUNCTIONS = {"max": max, "min": min, "abs": abs, "round": round, "ceil_div": ceil_div}
"""What texts may call."""


def parsed(text: str) -> ast.expr:
    """A text's syntax tree. Raises: InternalError where it is no expression of sizes."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise InternalError(f"{text!r} is no expression of sizes: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) not in _NUMBERS):
            raise InternalError(f"{text!r} is no expression of sizes: it has a {type(node).__name__}")
    return tree


_NUMBERS = (int, float, bool)
_ALLOWED = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.Load, ast.operator,
    ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip


def names_in(tree: ast.expr) -> Iterator[str]:
    """The free names of an expression."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in FUNCTIONS:
            yield node.id


def rewritten(tree: ast.expr, places: Mapping[str, str]) -> str:
    """An expression's text, each name replaced by where it is bound. Raises: InternalError for a name that is not."""

    class Replace(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> Any:
            if node.id in FUNCTIONS:
                return node
            if node.id not in places:
                raise InternalError(f"the name {node.id!r} in {ast.unparse(tree)!r} is bound by no argument")
            return ast.parse(places[node.id], mode="eval").body

    return ast.unparse(Replace().visit(ast.parse(ast.unparse(tree), mode="eval")))


def is_name(size: int | str) -> bool:
    """Whether a size of a form is a bare name."""
    return isinstance(size, str) and size.isidentifier() and size not in FUNCTIONS


def binding_places(free: Mapping[str, Form]) -> dict[str, tuple[str, int | None]]:
    """For each name the place that binds it, and the dimension there (None: a number); the first one does."""
    found: dict[str, tuple[str, int | None]] = {}
    for place, form in free.items():
        match form:
            case NumberForm(name=name) if name:
                found.setdefault(name, (place, None))
            case TensorForm(sizes=sizes):
                for dim, size in enumerate(sizes):
                    if is_name(size):
                        found.setdefault(str(size), (place, dim))
            case _:
                pass
    return found
