"""Which names each function of a tree binds, reads from around it, or must not use where it is converted."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final, Literal

from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.structure import exits_of_all, is_mixed

GLOBAL: Final = "global"
FREE: Final = "free"
Kind = Literal["function", "lambda", "comprehension", "generator", "class"]

COMPREHENSIONS_ARE_INLINE = sys.version_info >= (3, 12)
"""Whether the function around a list's, a set's or a dict's comprehension runs it itself, by its own variables."""

SOURCE: Final = f"{HIDDEN}source"
"""What the function of a converted comprehension calls its argument."""

_SPECIAL = frozenset({"locals", "vars", "dir", "eval", "exec", "super", "currentframe", "_getframe"})


def is_inline(code: CodeType) -> bool:
    """Whether converted code is a comprehension that the function around it runs itself in the user's program."""
    return COMPREHENSIONS_ARE_INLINE and code.co_varnames[:1] == (SOURCE,) and code.co_name != "<genexpr>"


@dataclass(eq=False, slots=True)
class Scope:
    """One function, lambda, comprehension or class body.

    `locals` are its own variables, `deleted` those that some statement unbinds. `indirect`: variables of this scope or
    of one around it that a nested function rebinds, so that any call may. `refusal`: why it must stay as it is.
    """

    kind: Kind
    node: ast.AST
    parent: Scope | None
    params: tuple[str, ...] = ()
    bound: set[str] = field(default_factory=set)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    indirect: set[str] = field(default_factory=set)
    locals: frozenset[str] = frozenset()
    refusal: tuple[str, ast.AST] | None = None

    @property
    def function(self) -> Scope:
        """The innermost function (or class body) that this belongs to: itself unless it is a comprehension."""
        scope = self
        while scope.kind in ("comprehension", "generator") and scope.parent is not None:
            scope = scope.parent
        return scope

    def may_miss(self, name: str) -> bool:
        """Whether Python calls a name without a value here a local variable, that of a function which runs this."""
        scope: Scope | None = self
        while scope is not None and name not in scope.locals:
            is_inline = scope.kind == "comprehension" and COMPREHENSIONS_ARE_INLINE
            scope = scope.parent if is_inline else None
        return scope is not None and scope.kind != "class"


class Names:
    """The scopes of a definition and all in it; `free` are the free variables of its code."""

    def __init__(self, root: ast.FunctionDef | ast.Lambda, free: Iterable[str]) -> None:
        self.free = frozenset(free)
        self.scopes: dict[ast.AST, Scope] = {}
        self._special: list[tuple[Scope, str, ast.AST, ast.Call | None]] = []
        self.root = self._function(root, None)
        for scope in self.scopes.values():
            scope.locals = frozenset(scope.bound - scope.globals - scope.nonlocals)
        for scope in list(self.scopes.values()):
            self._find_indirect(scope)
        for special in self._special:
            self._judge(*special)
        for scope in reversed(self.scopes.values()):
            if scope.kind == "lambda" and scope.refusal is not None and scope.parent is not None:
                self._refuse(scope.parent, *scope.refusal)

    def resolve(self, name: str, scope: Scope) -> Scope | str:
        """Whose variable a name is in a scope: a scope's, `FREE` (around the root) or `GLOBAL`."""
        at: Scope | None = scope
        while at is not None:
            if at.kind != "class" or at is scope:
                if name in at.globals:
                    return GLOBAL
                if name in at.locals:
                    return at
            at = at.parent
        return FREE if name in self.free else GLOBAL

    # Walking

    def _new(self, kind: Kind, node: ast.AST, parent: Scope | None, params: tuple[str, ...] = ()) -> Scope:
        scope = self.scopes[node] = Scope(kind, node, parent, params, set(params))
        return scope

    def _function(self, node: Any, parent: Scope | None) -> Scope:
        a = node.args
        named = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else ()), *a.kwonlyargs]
        params = tuple(x.arg for x in (*named, *([a.kwarg] if a.kwarg else ())))
        is_lambda = isinstance(node, ast.Lambda)
        if parent is not None:
            for part in (*getattr(node, "decorator_list", ()), *a.defaults, *(d for d in a.kw_defaults if d)):
                self._visit(part, parent)
            if not is_lambda:
                for annotation in (*(x.annotation for x in ast.walk(a) if isinstance(x, ast.arg)), node.returns):
                    if annotation is not None:
                        self._visit(annotation, parent)
        scope = self._new("lambda" if is_lambda else "function", node, parent, params)
        if isinstance(node, ast.AsyncFunctionDef):
            scope.refusal = ("it is a coroutine", node)
        if getattr(node, "type_params", None):
            scope.refusal = ("it has type parameters", node)
        for name in params:
            self._check_name(name, scope, node)
        for part in [node.body] if is_lambda else node.body:
            self._visit(part, scope)
        return scope

    def _comprehension(self, node: Any, parent: Scope) -> None:
        first = node.generators[0]
        self._visit(first.iter, parent)
        scope = self._new("generator" if isinstance(node, ast.GeneratorExp) else "comprehension", node, parent)
        for i, generator in enumerate(node.generators):
            self._visit(generator.target, scope)
            if i:
                self._visit(generator.iter, scope)
            for condition in generator.ifs:
                self._visit(condition, scope)
            if generator.is_async:
                self._refuse(scope, "it has an asynchronous comprehension", node)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._visit(part, scope)

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        kind = type(node)
        if kind is ast.Name:
            assert isinstance(node, ast.Name)
            if type(node.ctx) is not ast.Load:
                self._bind(node.id, scope, node)
                if type(node.ctx) is ast.Del:
                    scope.deleted.add(node.id)
            elif node.id in _SPECIAL:
                self._special.append((scope, node.id, node, None))
            return
        if kind is ast.Constant:
            return
        method = getattr(self, f"_visit_{kind.__name__}", None)
        if method is not None:
            method(node, scope)
            return
        self._fields(node, scope)

    def _fields(self, node: ast.AST, scope: Scope) -> None:
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                self._visit(value, scope)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self._visit(item, scope)

    def _bind(self, name: str, scope: Scope, node: ast.AST) -> None:
        self._check_name(name, scope, node)
        scope.bound.add(name)

    def _check_name(self, name: str, scope: Scope, node: ast.AST) -> None:
        if name.startswith(HIDDEN):
            self._refuse(scope, f"{name} is a name of Smelt's own", node)

    def _refuse(self, scope: Scope, reason: str, node: ast.AST) -> None:
        if scope.function.refusal is None:
            scope.function.refusal = (reason, node)

    def _visit_Call(self, node: ast.Call, scope: Scope) -> None:
        if isinstance(node.func, ast.Name) and node.func.id in _SPECIAL:
            self._special.append((scope, node.func.id, node, node))
        else:
            self._visit(node.func, scope)
        for part in (*node.args, *node.keywords):
            self._visit(part, scope)

    def _visit_Attribute(self, node: ast.Attribute, scope: Scope) -> None:
        if node.attr in ("_getframe", "currentframe"):
            self._refuse(scope, "it looks at its own frame", node)
        self._visit(node.value, scope)

    def _visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        self._bind(node.name, scope, node)
        self._function(node, scope)

    _visit_AsyncFunctionDef = _visit_FunctionDef

    def _visit_Lambda(self, node: ast.Lambda, scope: Scope) -> None:
        self._function(node, scope)

    def _visit_ListComp(self, node: ast.AST, scope: Scope) -> None:
        self._comprehension(node, scope)

    _visit_SetComp = _visit_DictComp = _visit_GeneratorExp = _visit_ListComp

    def _visit_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        self._bind(node.name, scope, node)
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self._visit(part, scope)
        inner = self._new("class", node, scope)
        for statement in node.body:
            self._visit(statement, inner)

    def _visit_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> None:
        self._visit(node.value, scope)
        self._bind(node.target.id, scope.function, node)

    def _visit_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        self._visit(node.target, scope)
        if node.value is not None:
            self._visit(node.value, scope)
        if scope.kind == "class":
            self._visit(node.annotation, scope)

    def _visit_Global(self, node: ast.Global, scope: Scope) -> None:
        scope.globals.update(node.names)

    def _visit_Nonlocal(self, node: ast.Nonlocal, scope: Scope) -> None:
        scope.nonlocals.update(node.names)

    def _visit_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            self._bind(name, scope, node)

    _visit_ImportFrom = _visit_Import

    def _visit_ExceptHandler(self, node: ast.ExceptHandler, scope: Scope) -> None:
        if node.name is not None:
            self._bind(node.name, scope, node)
            scope.deleted.add(node.name)
        self._fields(node, scope)

    def _visit_Try(self, node: ast.Try, scope: Scope) -> None:
        if exits_of_all(node.finalbody):
            self._refuse(scope, "return, break or continue in a finally clause", node.finalbody[0])
        self._fields(node, scope)

    def _visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar, scope: Scope) -> None:
        if node.name is not None:
            self._bind(node.name, scope, node)
        self._fields(node, scope)

    _visit_MatchStar = _visit_MatchAs

    def _visit_MatchOr(self, node: ast.MatchOr, scope: Scope) -> None:
        if is_mixed(node):
            self._refuse(scope, "alternatives of a pattern hold True or False, and more", node)
        self._fields(node, scope)

    def _visit_MatchMapping(self, node: ast.MatchMapping, scope: Scope) -> None:
        if node.rest is not None:
            self._bind(node.rest, scope, node)
        self._fields(node, scope)

    def _visit_Yield(self, node: ast.AST, scope: Scope) -> None:
        self._refuse(scope, "it is a generator", node)
        self._fields(node, scope)

    _visit_YieldFrom = _visit_Yield

    def _visit_TypeAlias(self, node: ast.AST, scope: Scope) -> None:
        self._refuse(scope, "it has a type alias", node)

    # What follows from all of it

    def _find_indirect(self, scope: Scope) -> None:
        """A nested scope that rebinds a variable of a scope around it."""
        if scope.parent is None:
            return
        for name in scope.nonlocals & scope.bound:
            owner = self.resolve(name, scope)
            for other in self.scopes.values():
                if other.kind != "class" and self.resolve(name, other) is owner:
                    other.indirect.add(name)

    def _judge(self, scope: Scope, name: str, node: ast.AST, call: ast.Call | None) -> None:
        """What reads the frame that it is called in would find another frame in converted code."""
        if self.resolve(name, scope) is not GLOBAL:
            return
        plain = call is not None and not any(isinstance(a, ast.Starred) for a in call.args)
        count = len(call.args) if call is not None and plain else 0
        if name == "super":
            if plain and count:
                return
            self._judge_super(scope, node, call)
        elif name in ("vars", "dir"):
            if not count:
                self._refuse(scope, f"{name}() without an object reads the function's variables", node)
        elif name in ("eval", "exec"):
            if count < 2:
                self._refuse(scope, f"{name}() may read and write the function's variables", node)
        elif name == "locals":
            self._refuse(scope, "locals() reads the function's variables", node)
        else:
            self._refuse(scope, "it looks at its own frame", node)

    def _judge_super(self, scope: Scope, node: ast.AST, call: ast.Call | None) -> None:
        if call is None or call.args or call.keywords:
            self._refuse(scope, "super is used other than as super() or super(cls, object)", node)
        elif scope.kind not in ("function", "lambda"):
            self._refuse(scope, "super() in a comprehension", node)
        elif "__class__" not in self.free:
            if self._class_around(scope) is None:
                self._refuse(scope, "super() outside a class", node)
        elif not _first_param(scope.node):
            self._refuse(scope, "super() in a function without a first parameter", node)

    def _class_around(self, scope: Scope) -> Scope | None:
        at = scope.parent
        while at is not None and at.kind != "class":
            at = at.parent
        return at


def _first_param(node: Any) -> str | None:
    positional = [*node.args.posonlyargs, *node.args.args]
    return positional[0].arg if positional else None


def first_param(scope: Scope) -> str:
    """The parameter that `super()` takes for the object."""
    name = _first_param(scope.node)
    assert name is not None
    return name
