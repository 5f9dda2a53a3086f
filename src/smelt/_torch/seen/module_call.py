"""`nn.Module.__call__` around another forward: hooks, their order and their errors are torch's own.

Invariant: the module itself is not touched, so no other thread and no hook can see that something else ran.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import warnings
from collections.abc import Callable
from functools import lru_cache
from types import FunctionType
from typing import Any

import torch

_NAME = "_call_impl"
_FORWARD = "__smelt_forward"

CALL_OF_MODULES: Any = getattr(torch.nn.Module, _NAME, torch.nn.Module.__call__)
"""What runs a module's hooks and its forward."""


@lru_cache(maxsize=1)
def call_with_forward() -> Callable[..., Any] | None:
    """A function of (forward, module, *args, **kwargs); None where torch's own text is not as expected."""
    original = getattr(torch.nn.Module, _NAME, None)
    if type(original) is not FunctionType:
        return None
    try:
        lines, first = inspect.getsourcelines(original)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError, TypeError):
        return None
    definition = tree.body[0]
    replaced = _Replacer()
    tree = ast.fix_missing_locations(replaced.visit(tree))
    if not isinstance(definition, ast.FunctionDef) or replaced.count != 1:
        return None
    definition.args.args.insert(0, ast.arg(_FORWARD, lineno=1, col_offset=0, end_lineno=1, end_col_offset=0))
    ast.increment_lineno(tree, first - 1)
    space: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(tree, original.__code__.co_filename, "exec", dont_inherit=True), space)
    made = space[_NAME]
    return FunctionType(made.__code__, original.__globals__, _NAME, original.__defaults__)


class _Replacer(ast.NodeTransformer):
    """`self.forward` ==> the forward that is given."""

    count = 0

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        if node.attr == "forward" and isinstance(node.value, ast.Name) and node.value.id == "self":
            self.count += 1
            return ast.copy_location(ast.Name(_FORWARD, ast.Load()), node)
        return self.generic_visit(node)
