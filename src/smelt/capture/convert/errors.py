"""Why a function cannot be converted."""

from __future__ import annotations

import ast
from types import CodeType

from smelt.diag import Span


class CannotConvert(Exception):
    """Nothing is wrong with the program; this function stays as it is. `span` is the place that stands in the way."""

    def __init__(self, reason: str, span: Span) -> None:
        super().__init__(f"{span}: {reason}")
        self.reason = reason
        self.span = span


def cannot(reason: str, code: CodeType, node: ast.AST | None = None) -> CannotConvert:
    """The error for a code object, at a node of its source or at its first line."""
    line = getattr(node, "lineno", code.co_firstlineno)
    return CannotConvert(reason, Span(code.co_filename, line, code.co_qualname))
