"""Expressions of sizes as C source.

    ["+", "tokens", ["//", "batch", 2]]  ==>  (n[1] + smelt_floor_div(n[0], 2))

Invariant: for sizes within their bounds no number on the way leaves 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping

from smelt.runtime.ingot.free_sizes import Expr

_INFIX = frozenset(("+", "-", "*", "==", "!=", "<", "<=", ">", ">="))
_FUNCTIONS: Mapping[str, str] = {
    "//": "smelt_floor_div", "%": "smelt_modulo", "ceil_div": "smelt_ceil_div", "max": "smelt_larger",
    "min": "smelt_smaller", "abs": "smelt_absolute",
}  # fmt: skip
"""Of smelt.h."""
_PREFIX: Mapping[str, str] = {"neg": "-", "not": "!"}


def c_text(expr: Expr, names: Mapping[str, str]) -> str:
    """The expression; names: what stands for each symbol."""
    if isinstance(expr, int):
        text = str(expr) if abs(expr) < 1 << 31 else f"INT64_C({expr})"
        return text if expr >= 0 else f"({text})"
    if isinstance(expr, str):
        return names[expr]
    operator, *operands = expr
    texts = [c_text(each, names) for each in operands]
    if operator in _INFIX:
        return f"({texts[0]} {operator} {texts[1]})"
    if operator in _PREFIX:
        return f"({_PREFIX[operator]}{texts[0]})"
    return f"{_FUNCTIONS[operator]}({', '.join(texts)})"


def magnitude(expr: Expr, most: Mapping[str, int]) -> int:
    """What no number on the way to its value is beyond; most: of each symbol, which is not negative."""
    if isinstance(expr, int):
        return abs(expr)
    if isinstance(expr, str):
        return most[expr]
    operator, *operands = expr
    found = [magnitude(each, most) for each in operands]
    if operator in ("+", "-"):
        return sum(found)
    return found[0] * found[1] if operator == "*" else max(1, *found)
