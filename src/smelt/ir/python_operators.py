"""Python's operators, each written once: its symbol, its name in module `operator` and in the graph, its methods."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

from smelt.diag.records import record

Function = Callable[..., Any]


@record
class PythonOperator:
    """One operator: `py.<name>` in the graph, `operator.<name>` in Python.

    swapped, negated: the name of the comparison that holds where the operands change sides, and where this one does not
    hold ("" for operators that are no comparisons).
    """

    symbol: str
    name: str
    swapped: str = ""
    negated: str = ""

    @property
    def function(self) -> Function:
        """What it computes."""
        found: Function = getattr(operator, self.name)
        return found

    @property
    def in_place(self) -> Function:
        """What its augmented assignment computes (`+=`)."""
        found: Function = getattr(operator, "i" + self.name.removesuffix("_"))
        return found

    @property
    def method(self) -> str:
        """The method that its left operand is asked for."""
        return f"__{self.name.removesuffix('_')}__"

    @property
    def reflected(self) -> str:
        """The method that its right operand is asked for."""
        return f"__{self.swapped or 'r' + self.name.removesuffix('_')}__"

    @property
    def in_place_method(self) -> str:
        """The method that an augmented assignment asks its target for."""
        return f"__i{self.name.removesuffix('_')}__"


OPERATORS: Final = (
    PythonOperator("+", "add"),
    PythonOperator("-", "sub"),
    PythonOperator("*", "mul"),
    PythonOperator("/", "truediv"),
    PythonOperator("//", "floordiv"),
    PythonOperator("%", "mod"),
    PythonOperator("**", "pow"),
    PythonOperator("@", "matmul"),
    PythonOperator("<<", "lshift"),
    PythonOperator(">>", "rshift"),
    PythonOperator("&", "and_"),
    PythonOperator("|", "or_"),
    PythonOperator("^", "xor"),
    PythonOperator("==", "eq", "eq", "ne"),
    PythonOperator("!=", "ne", "ne", "eq"),
    PythonOperator("<", "lt", "gt", "ge"),
    PythonOperator("<=", "le", "ge", "gt"),
    PythonOperator(">", "gt", "lt", "le"),
    PythonOperator(">=", "ge", "le", "lt"),
)
BINARY: Final = tuple(o for o in OPERATORS if not o.swapped)
COMPARISONS: Final = tuple(o for o in OPERATORS if o.swapped)
UNARY: Final = (PythonOperator("-", "neg"), PythonOperator("+", "pos"), PythonOperator("~", "invert"))

BY_SYMBOL: Final = {o.symbol: o for o in OPERATORS}
"""Operators of two operands."""
UNARY_BY_SYMBOL: Final = {o.symbol: o for o in UNARY}
COMPARISON_NAMES: Final = {o.name: o for o in COMPARISONS}
FUNCTIONS: Final = {o.symbol: o.function for o in OPERATORS}
"""What each operator of two operands computes."""
