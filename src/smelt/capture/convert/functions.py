"""Functions in functions: nested ones and lambdas, which are converted with what is around them, and comprehensions.

    [f(x) for x in xs if x]    ==>    def __smelt_listcomp(source): …     # a loop of the runtime that appends to a list
                                      __smelt_listcomp(xs)

Each begins by asking for the runtime of its thread, since it may be called at any time.
"""

from __future__ import annotations

import ast
from typing import Any

from smelt.capture.convert.assignments import Assignments
from smelt.capture.convert.builder import HELPERS, MARKER, RUNTIME, Body
from smelt.capture.convert.names import SOURCE, Scope
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.structure import RETURN, Level, always_leaves, exits

_ITEMS = f"{HIDDEN}items"


class Functions(Assignments):
    """Lowers functions and comprehensions."""

    def block(self, statements: list[ast.stmt]) -> None:
        """Statements in the form that `Structure` gives."""
        raise NotImplementedError

    def function(self, node: Any, name: str, args: ast.arguments) -> ast.FunctionDef:
        place, saved_body, saved_out = self.place, self.body, self.out
        scope = self.names.scopes[node]
        self.out = []
        statements = (
            [ast.copy_location(ast.Return(node.body), node.body)] if isinstance(node, ast.Lambda) else node.body
        )
        out = self._function_body(scope, statements)
        self.place, self.body, self.out = place, saved_body, saved_out
        new = self.definition(name, args, out)
        if not isinstance(node, ast.Lambda):
            new.returns = node.returns
        return new

    def _function_body(self, scope: Scope, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        first = statements[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            out.append(first)
            statements = statements[1:]
        if any(RETURN in exits(s) for s in statements if not isinstance(s, ast.Return)) and not always_leaves(
            statements
        ):
            statements = [*statements, ast.copy_location(ast.Return(None), statements[-1])]
        level, around = Level(), self.body.sure_inside
        structured = self.structure.block(statements, level)
        sure = set(scope.params) - scope.deleted
        self.body = Body(scope, level, is_generator=False, sure=sure, sure_around=around)
        self.body.returned, self.body.value = self.fresh("returned"), self.fresh("value")
        self.out = out
        line = scope.node.lineno  # type: ignore[attr-defined]
        self.place = {"lineno": line, "col_offset": 0, "end_lineno": line, "end_col_offset": 0}
        for kind, names in ((ast.Global, scope.globals), (ast.Nonlocal, scope.nonlocals)):
            if names:
                self.emit(kind(sorted(names), **self.place))
        # A variable is the function's own even if only arms bind it.
        for name in sorted(scope.locals - set(scope.params)):
            self._declare(name)
        self._declare(self.body.value)
        self.emit_assign(HELPERS, self.constant(MARKER))
        self.emit_assign(RUNTIME, self.helper("current"))
        if level.guarded:
            self.emit_assign(self.body.returned, self.constant(False))
        self.block(structured)
        if self.body.lowered_return:
            self.emit(ast.Return(self.name(self.body.value), **self.place))
        return self.out

    def _declare(self, name: str) -> None:
        self.emit(ast.AnnAssign(self.target(name), self.constant(None), None, 1, **self.place))

    def _do_FunctionDef(self, node: ast.FunctionDef) -> None:
        place = self.place
        scope = self.names.scopes[node]
        if scope.refusal is not None:
            self._as_it_is(node)
            return
        decorators = self.exprs(node.decorator_list)
        a = node.args
        defaults = self.exprs(a.defaults)
        named = [None if d is None else self.expr(d) for d in a.kw_defaults]
        args = ast.arguments(a.posonlyargs, a.args, a.vararg, a.kwonlyargs, named, a.kwarg, defaults)
        new = self.function(node, node.name, args)
        new.decorator_list = decorators
        self.place = place
        self.emit(new)
        self.bind(node.name)

    def _as_it_is(self, node: Any) -> None:
        """A definition that stays Python's; only the names in it are told."""
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self.verbatim.add((node.name, first))
        self.emit(node)
        self.bind(node.name)

    _do_AsyncFunctionDef = _as_it_is
    _do_ClassDef = _as_it_is

    def comprehension(self, node: Any, kind: str) -> ast.expr:
        place, saved_body = self.place, self.body
        scope = self.names.scopes[node]
        level = Level()
        is_generator = kind == "generator"
        statements: list[ast.stmt] = [] if is_generator else [_as_loop(node, kind)]
        if kind in ("any", "all"):
            statements.append(ast.copy_location(ast.Return(self.constant(kind == "all")), node))
        statements = self.structure.block(statements, level)
        around = saved_body.sure_inside
        self.body = Body(scope, level, is_generator or saved_body.is_generator, sure_around=around)
        self.body.returned, self.body.value = self.fresh("returned"), self.fresh("value")
        self.body.frame = saved_body.frame
        with self.framed(arm=False) as frame:
            for name in sorted(scope.locals):
                self._declare(name)
            self._declare(self.body.value)
            if is_generator:
                self.emit_assign(HELPERS, self.constant(MARKER))
                self._generate(node, 0)
            else:
                if level.guarded:
                    self.emit_assign(self.body.returned, self.constant(False))
                if kind in ("list", "set", "dict"):
                    empty = {"list": ast.List([], ast.Load()), "dict": ast.Dict([], [])}.get(kind)
                    made = self.helper("new_set") if empty is None else ast.copy_location(empty, node)
                    self.emit_assign(_ITEMS, made)
                self.block(statements)
                self.place = place
                answer = self.body.value if kind in ("any", "all") else _ITEMS
                self.emit(ast.Return(self.name(answer), **self.place))
            frame.own |= scope.locals | {self.body.returned, self.body.value}
            out = self.out
        self.place, self.body = place, saved_body
        fresh = self.fresh("genexpr" if isinstance(node, ast.GeneratorExp) else f"{kind}comp")
        self.emit(self.definition(fresh, self.one_argument(SOURCE), out))
        return self.name(fresh)

    def _generate(self, node: Any, index: int) -> None:
        """A generator expression as Python runs it: loops of its own around a `yield`."""
        if index == len(node.generators):
            self.stand_at(node.elt)
            self.emit_expr(ast.Yield(self.expr(node.elt), **self.place))
            return
        part = node.generators[index]
        self.stand_at(part.target)
        place = self.place
        if index:
            items = self.ask("iterate", self.expr(part.iter))
        else:
            items = self.name(SOURCE)
        saved, self.out = self.out, []
        item = self.fresh("item")
        self.assign(part.target, self.name(item))
        inner = self.out
        for condition in part.ifs:
            self.stand_at(condition)
            test = self.test(condition)
            branch = ast.If(test, [], [], **self.place)
            self.emit(branch)
            self.out = branch.body
        self._generate(node, index + 1)
        self.out, self.place = saved, place
        self.emit(ast.For(self.target(item), items, inner, [], None, **self.place))

    def _do_Item(self, node: Any) -> None:
        comprehension = node.comprehension
        items = self.name(_ITEMS)
        if isinstance(comprehension, ast.DictComp):
            key, value = self.expr(comprehension.key), self.expr(comprehension.value)
            self.emit_expr(self.ask("setitem", items, key, value))
        else:
            method = self.constant("add" if isinstance(comprehension, ast.SetComp) else "append")
            self.emit_expr(
                self.helper("add_item", self.runtime(), self.at(), items, method, self.expr(comprehension.elt))
            )


class Item(ast.stmt):
    """One more item of a comprehension; stands in trees that this package makes."""

    comprehension: object


def _as_loop(node: Any, kind: str) -> ast.stmt:
    """A comprehension as the loops it stands for; an `any` or `all` over it returns."""
    inner: ast.stmt
    if kind in ("any", "all"):
        test = node.elt if kind == "any" else ast.copy_location(ast.UnaryOp(ast.Not(), node.elt), node.elt)
        answer = ast.copy_location(ast.Constant(kind == "any"), node.elt)
        inner = ast.copy_location(ast.If(test, [ast.copy_location(ast.Return(answer), node.elt)], []), node.elt)
    else:
        inner = ast.copy_location(Item(), node)
        inner.comprehension = node
    for i, part in reversed(list(enumerate(node.generators))):
        for condition in reversed(part.ifs):
            inner = ast.copy_location(ast.If(condition, [inner], []), condition)
        source = ast.copy_location(ast.Name(SOURCE, ast.Load()), part.iter) if not i else part.iter
        inner = ast.copy_location(ast.For(part.target, source, [inner], []), part.target)
    return inner
