"""Private names (`__x` in a class) as the compiler spells them, so that a function compiles outside its class."""

from __future__ import annotations

import ast
from typing import TypeVar

Node = TypeVar("Node", bound=ast.AST)


def class_of(qualname: str) -> str | None:
    """The innermost class around a function of this qualified name, None where there is none."""
    parts = qualname.split(".")[:-1]
    while parts:
        if parts[-1] != "<locals>":
            return parts[-1]
        parts = parts[:-2]
    return None


def mangle(node: Node, class_name: str | None) -> Node:
    """Writes the mangled names into a tree; a class inside it has its own."""
    owner = class_name.lstrip("_") if class_name else ""
    if owner:
        _Mangler(f"_{owner}").visit(node)
    return node


class _Mangler(ast.NodeVisitor):
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def name(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__") and "." not in name
        return self.prefix + name if private else name

    def visit_Name(self, node: ast.Name) -> None:
        node.id = self.name(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        node.attr = self.name(node.attr)
        self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        node.arg = self.name(node.arg)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global | ast.Nonlocal) -> None:
        node.names = [self.name(n) for n in node.names]

    visit_Nonlocal = visit_Global

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name is not None:
            node.name = self.name(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar) -> None:
        if node.name is not None:
            node.name = self.name(node.name)
        self.generic_visit(node)

    visit_MatchStar = visit_MatchAs

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest is not None:
            node.rest = self.name(node.rest)
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        if node.asname is not None:
            node.asname = self.name(node.asname)
        elif self.name(node.name) != node.name:
            node.asname = self.name(node.name)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        # The variable is mangled, the code object's own name is not: `unmangled` finds that again.
        node.name = self.name(node.name)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        node.name = self.name(node.name)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)


def unmangled(name: str, class_name: str | None) -> str:
    """The name that a definition in the class had before `mangle`."""
    owner = class_name.lstrip("_") if class_name else ""
    prefix = f"_{owner}"
    return name[len(prefix) :] if owner and name.startswith(f"{prefix}__") and not name.endswith("__") else name
