"""Statements: branches and loops become functions over `nonlocal` variables, which the runtime calls.

    if c: x = f()          def __smelt_then(): nonlocal x; x = rt.call(2, f, (), {})
    else: x = 0     ==>    def __smelt_else(): nonlocal x; x = 0
                           rt.if_(1, c, __smelt_then, __smelt_else, *h.state(lambda: (x,)))

`break`, `continue` and `return` set flags there, and functions end with the value that was to be returned. Where a
statement stands in the function itself, `return` stays Python's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from smelt.capture.convert.builder import HELPERS, MARKER, NO_ARGUMENTS, RUNTIME, Body, Within
from smelt.capture.convert.expressions import Expressions, binary
from smelt.capture.convert.names import Scope
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.structure import RETURN, Level, Loop, Native, Rest, always_leaves, exits

_ITEM = f"{HIDDEN}item"
_ITEMS = f"{HIDDEN}items"
_TARGETS = (ast.Name, ast.Tuple, ast.List, ast.Starred)


class Statements(Expressions):
    """Lowers statements into `out`."""

    def block(self, statements: list[Any]) -> None:
        """Statements in the form that `Structure` gives."""
        for node in statements:
            self.stand_at(node)
            method: Callable[[Any], None] = getattr(self, f"_do_{type(node).__name__}")
            method(node)

    def statements_thunk(self, name: str, statements: list[Any], args: ast.arguments = NO_ARGUMENTS) -> ast.expr:
        """Statements as a function; what it binds is bound for the enclosing statement."""
        if not statements:
            return self.attribute(self.name(HELPERS), "nothing")
        place = self.place
        with self.framed(arm=True) as frame:
            self.block(statements)
            out, self.place = self.out, place
            declared = self.declarations(frame.writes - frame.own)
        fresh = self.fresh(name)
        self.emit(self.definition(fresh, args, [*declared, *out]))
        return self.name(fresh)

    # Branches

    def _do_If(self, node: ast.If) -> None:
        place = self.place
        test = self.test(node.test)
        before = self.body.sure
        ends = []
        with self.gathered() as writes:
            arms = []
            for name, statements in (("then", node.body), ("else", node.orelse)):
                self.body.sure = set(before)
                arms.append(self.statements_thunk(name, statements))
                if not always_leaves(statements):
                    ends.append(self.body.sure)
                self.place = place
        self.body.sure = set.intersection(*ends) if ends else before
        self.emit_expr(self.ask("if_", test, *arms, self.held_parts(writes)))

    def _do_Rest(self, node: Rest) -> None:
        body = self.body
        within = body.loops[-1] if body.loops else None
        flag = body.returned if within is None else within.left
        assert flag
        self._unless(flag, "rest", node.body)

    def _unless(self, flag: str, name: str, statements: list[Any]) -> None:
        place = self.place
        with self.gathered() as writes:
            arm = self.statements_thunk(name, statements)
        self.place = place
        nothing = self.attribute(self.name(HELPERS), "nothing")
        self.emit_expr(self.ask("if_", self.name(flag), nothing, arm, self.held_parts(writes)))

    # Loops

    def _do_Loop(self, loop: Loop) -> None:
        place, body, node = self.place, self.body, loop.node
        is_for = isinstance(node, ast.For)
        first = self.expr(node.iter) if is_for else None
        within = Within(loop, self.fresh("broken") if loop.leaves else None, None)
        if within.broken is not None:
            self.emit_assign(within.broken, self.constant(False))
            body.frame.own.add(within.broken)
        before = body.sure
        body.sure = set(before)
        with self.gathered() as writes:
            test = None if is_for else self._loop_test(node.test, within.broken)
            body.loops.append(within)
            run = self._loop_body(loop, within)
            body.loops.pop()
        body.sure = before
        self.place = place
        held = self.held_parts(writes)
        if first is not None:
            more = self.constant(None)
            if within.broken is not None:
                more = self.lambda_(self.ask("not_", self.name(within.broken)))
            self.emit_expr(self.ask("for_", first, run, held, more))
        else:
            assert test is not None
            self.emit_expr(self.ask("while_", test, run, held))
        if within.broken is not None and loop.orelse:
            self._unless(within.broken, "else", loop.orelse)
        else:
            self.block(loop.orelse)

    def _loop_test(self, node: ast.expr, broken: str | None) -> ast.expr:
        if broken is None:
            return self.thunk(lambda: self.test(node))
        unbroken = self.lambda_(self.ask("not_", self.name(broken)))
        if isinstance(node, ast.Constant) and node.value:
            return unbroken

        def whole() -> ast.expr:
            with self.gathered() as writes:
                test = self.thunk(lambda: self.test(node))
            if self._rebinds(writes):
                return self.helper("both", self.runtime(), self.at(), self.held(writes), unbroken, test)
            return self.ask("and_", unbroken, test)

        return self.thunk(whole)

    def _loop_body(self, loop: Loop, within: Within) -> ast.expr:
        place, body, node = self.place, self.body, loop.node
        with self.framed(arm=True) as frame:
            if loop.level.guarded:
                within.left = self.fresh("left")
                frame.own.add(within.left)
                self.emit_assign(within.left, self.constant(False))
            if isinstance(node, ast.For):
                self._assign(node.target, self.name(_ITEM))
            self.block(loop.body)
            out, self.place = self.out, place
            declared = self.declarations(frame.writes - frame.own)
        fresh = self.fresh("body")
        args = self.one_argument(_ITEM) if isinstance(node, ast.For) else NO_ARGUMENTS
        self.emit(self.definition(fresh, args, [*declared, *out]))
        return self.name(fresh)

    def _set_flag(self, flag: str | None) -> None:
        if flag:
            self.emit_assign(flag, self.constant(True))
            self.body.frame.writes.add(flag)

    def _do_Break(self, node: ast.Break) -> None:
        within = self.body.loops[-1]
        self._set_flag(within.broken)
        self._set_flag(within.left)

    def _do_Continue(self, node: ast.Continue) -> None:
        self._set_flag(self.body.loops[-1].left)

    def _do_Return(self, node: ast.Return) -> None:
        body = self.body
        value = self.constant(None) if node.value is None else self.expr(node.value)
        if not body.depth:
            self.emit(ast.Return(value, **self.place))
            return
        body.lowered_return = True
        self.emit_assign(body.value, value)
        body.frame.writes.add(body.value)
        self._set_flag(body.returned if body.level.guarded else None)
        for within in body.loops:
            self._set_flag(within.broken)
            self._set_flag(within.left)

    # Functions

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

    def _function_body(self, scope: Scope, statements: list[Any]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        first = statements[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            out.append(first)
            statements = statements[1:]
        if any(RETURN in exits(s) for s in statements if not isinstance(s, ast.Return)) and not always_leaves(
            statements
        ):
            statements = [*statements, ast.copy_location(ast.Return(None), statements[-1])]
        level = Level()
        structured = self.structure.block(statements, level)
        self.body = Body(scope, level, is_generator=False, sure=set(scope.params) - scope.deleted)
        self.body.returned, self.body.value = self.fresh("returned"), self.fresh("value")
        self.out = out
        self.place = dict.fromkeys(("lineno", "end_lineno"), scope.node.lineno) | {  # type: ignore[attr-defined]
            "col_offset": 0,
            "end_col_offset": 0,
        }
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
        args = ast.arguments(a.posonlyargs, a.args, a.vararg, a.kwonlyargs, named, a.kwarg, defaults)  # type: ignore[arg-type]
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
        statements: list[Any] = [] if is_generator else [_as_loop(node, kind)]
        if kind in ("any", "all"):
            statements.append(ast.copy_location(ast.Return(self.constant(kind == "all")), node))
        statements = self.structure.block(statements, level)
        self.body = Body(scope, level, is_generator or saved_body.is_generator)
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
        words = {"generator": "genexpr", "any": "genexpr", "all": "genexpr"}
        fresh = self.fresh(words.get(kind, f"{kind}comp"))
        self.emit(self.definition(fresh, self.one_argument(f"{HIDDEN}source"), out))
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
            items = self.name(f"{HIDDEN}source")
        saved, self.out = self.out, []
        item = self.fresh("item")
        self._assign(part.target, self.name(item))
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

    # Assignments

    def _do_Assign(self, node: ast.Assign) -> None:
        value = node.value
        if len(node.targets) == 1:
            self._assign(node.targets[0], self.expr(value))
            return
        temporary = self.fresh("assigned")
        self.emit_assign(temporary, self.expr(value))
        for target in node.targets:
            self._assign(target, self.name(temporary))
        self._forget(temporary)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self.expr(node.value))
        elif isinstance(node.target, ast.Attribute):
            self.emit_expr(self.expr(node.target.value))
        elif isinstance(node.target, ast.Subscript):
            self.emit_expr(self.tuple([self.expr(node.target.value), self.expr(node.target.slice)]))

    def _forget(self, *names: str) -> None:
        """Values live no longer than in the user's code."""
        self.emit(ast.Delete([ast.Name(n, ast.Del(), **self.place) for n in names], **self.place))

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        """Binds a target to a value that is evaluated first."""
        saved = self.place
        self.stand_at(target)
        match target:
            case ast.Name(name):
                self.emit_assign(name, value)
                if not name.startswith(HIDDEN):
                    self.bind(name)
            case ast.Attribute():
                o = self.expr(target.value)
                self.emit_expr(
                    self.helper("store_attribute", self.runtime(), self.at(), value, o, self.constant(target.attr))
                )
            case ast.Subscript():
                o, key = self.expr(target.value), self.expr(target.slice)
                self.emit_expr(self.helper("store_item", self.runtime(), self.at(), value, o, key))
            case ast.Tuple() | ast.List():
                self._unpack(target, self.ask("iterate", value))
            case _:
                raise AssertionError(type(target).__name__)
        self.place = saved

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr) -> None:
        if all(isinstance(n, (*_TARGETS, ast.expr_context)) for n in ast.walk(target)):
            self.emit(ast.Assign([target], value, None, **self.place))
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self.bind(node.id)
            return
        # Python unpacks one level, then binds its targets from left to right.
        parts: list[ast.expr] = []
        later: list[tuple[ast.expr, str]] = []
        for part in target.elts:
            name = self.fresh("part")
            starred = isinstance(part, ast.Starred)
            later.append((part.value if isinstance(part, ast.Starred) else part, name))
            parts.append(ast.Starred(self.target(name), ast.Store(), **self.place) if starred else self.target(name))
        self.emit(ast.Assign([ast.Tuple(parts, ast.Store(), **self.place)], value, None, **self.place))
        for part, name in later:
            self._assign(part, self.name(name))
            self._forget(name)

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        op = self.constant(binary(node.op))
        target = node.target
        match target:
            case ast.Name(name):
                self.emit_assign(name, self.ask("inplace", op, self.variable(name), self.expr(node.value)))
                self.bind(name)
            case ast.Attribute():
                o = self.fresh("object")
                self.emit_assign(o, self.expr(target.value))
                attribute = self.constant(target.attr)
                old = self.ask("getattr_", self.name(o), attribute)
                new = self.ask("inplace", op, old, self.expr(node.value))
                self.emit_expr(self.ask("setattr_", self.name(o), attribute, new))
                self._forget(o)
            case ast.Subscript():
                o, key = self.fresh("object"), self.fresh("key")
                self.emit_assign(o, self.expr(target.value))
                self.emit_assign(key, self.expr(target.slice))
                old = self.ask("getitem", self.name(o), self.name(key))
                new = self.ask("inplace", op, old, self.expr(node.value))
                self.emit_expr(self.ask("setitem", self.name(o), self.name(key), new))
                self._forget(o, key)

    def _do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._delete(target)

    def _delete(self, target: ast.expr) -> None:
        match target:
            case ast.Name(name):
                if self.body.depth and name in self.body.scope.locals:
                    self.emit_expr(self.variable(name))
                self.emit(ast.Delete([target], **self.place))
                self.bind(name)
            case ast.Attribute():
                new = ast.Attribute(self.expr(target.value), target.attr, ast.Del(), **self.place)
                self.emit(ast.Delete([new], **self.place))
            case ast.Subscript():
                self.emit_expr(self.ask("delitem", self.expr(target.value), self.expr(target.slice)))
            case ast.Tuple() | ast.List():
                for part in target.elts:
                    self._delete(part)

    # The others

    def _do_Expr(self, node: ast.Expr) -> None:
        self.emit_expr(self.expr(node.value))

    def _do_Pass(self, node: ast.Pass) -> None:
        self.emit(node)

    def _do_Global(self, node: ast.stmt) -> None:
        """Declared at the function's head."""

    _do_Nonlocal = _do_Global

    def _do_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        self.emit(node)
        for alias in node.names:
            name = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            self.bind(name)

    _do_ImportFrom = _do_Import

    def _do_Native(self, node: Native) -> None:
        self.emit(node.statement)
        self.body.frame.writes |= node.targets

    def _do_Assert(self, node: ast.Assert) -> None:
        if not __debug__:
            return
        test = self.test(node.test)
        message = self.constant(None) if node.msg is None else self.arm(node.msg)
        self.emit_expr(self.ask("assert_", test, message))

    def _do_Raise(self, node: ast.Raise) -> None:
        parts = [self.constant(None) if p is None else self.arm(p) for p in (node.exc, node.cause)]
        self.emit_expr(self.ask("raise_", *parts))

    def _nested(self, statements: list[Any]) -> list[ast.stmt]:
        """Statements that stay in the function they are in."""
        saved, self.out = self.out, []
        self.block(statements)
        out, self.out = self.out, saved
        return out or [ast.Pass(**self.place)]

    def _do_With(self, node: ast.With) -> None:
        place, before = self.place, set(self.body.sure)
        self._with(node.items, node.body)
        self.place = place
        # An exit may swallow what was raised before a variable had a value.
        self.body.sure = before

    def _with(self, items: list[ast.withitem], statements: list[Any]) -> None:
        place = self.place
        item, *others = items
        context = self.expr(item.context_expr)
        target: ast.expr | None = None
        saved, self.out = self.out, []
        if item.optional_vars is not None:
            entered = self.fresh("entered")
            target = self.target(entered)
            self._assign(item.optional_vars, self.name(entered))
            self._forget(entered)
        if others:
            self._with(others, statements)
        else:
            self.block(statements)
        inner, self.out, self.place = self.out, saved, place
        self.emit(ast.With([ast.withitem(context, target)], inner or [ast.Pass(**self.place)], None, **self.place))

    def _do_Try(self, node: ast.Try | ast.TryStar) -> None:
        place, body = self.place, self.body
        before = body.sure
        body.sure = set(before)
        handlers: list[ast.ExceptHandler] = []
        types = [None if h.type is None else self.expr(h.type) for h in node.handlers]
        inner = self._nested(node.body)
        orelse = self._nested(node.orelse) if node.orelse else []
        ends = [] if always_leaves([*node.body, *node.orelse]) else [body.sure]
        for handler, kind in zip(node.handlers, types, strict=True):
            self.stand_at(handler)
            body.sure = set(before)
            if handler.name is not None:
                self.bind(handler.name)
            statements = self._nested(handler.body)
            handlers.append(ast.copy_location(ast.ExceptHandler(kind, handler.name, statements), handler))
            if not always_leaves(handler.body):
                ends.append(body.sure)
        body.sure = set(before)
        final = self._nested(node.finalbody) if node.finalbody else []
        body.sure = set.intersection(*ends) | body.sure if ends else before
        self.place = place
        self.emit(type(node)(inner, handlers, orelse, final, **self.place))

    _do_TryStar = _do_Try


class Item(ast.stmt):
    """One more item of a comprehension; stands in trees that this package makes."""

    _fields = ("comprehension",)


def _as_loop(node: Any, kind: str) -> ast.stmt:
    """A comprehension as the loops it stands for; an `any` or `all` over it returns."""
    inner: ast.stmt
    if kind in ("any", "all"):
        test = node.elt if kind == "any" else ast.copy_location(ast.UnaryOp(ast.Not(), node.elt), node.elt)
        answer = ast.copy_location(ast.Constant(kind == "any"), node.elt)
        inner = ast.copy_location(ast.If(test, [ast.copy_location(ast.Return(answer), node.elt)], []), node.elt)
    else:
        inner = ast.copy_location(Item(node), node)
    for i, part in reversed(list(enumerate(node.generators))):
        for condition in reversed(part.ifs):
            inner = ast.copy_location(ast.If(condition, [inner], []), condition)
        source = ast.copy_location(ast.Name(f"{HIDDEN}source", ast.Load()), part.iter) if not i else part.iter
        inner = ast.copy_location(ast.For(part.target, source, [inner], []), part.target)
    return inner
