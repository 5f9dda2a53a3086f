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

from smelt.capture.convert.builder import HELPERS, NO_ARGUMENTS, Within
from smelt.capture.convert.functions import Functions
from smelt.capture.convert.rebound import rebound
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.structure import RETURN, Drop, Loop, Native, Rest, always_leaves

_ITEM = f"{HIDDEN}item"


class Statements(Functions):
    """Lowers statements into `out`."""

    def block(self, statements: list[ast.stmt]) -> None:
        """Statements in the form that `Structure` gives."""
        for node in statements:
            self.stand_at(node)
            method: Callable[[object], None] = getattr(self, f"_do_{type(node).__name__}")
            method(node)

    def statements_thunk(self, name: str, statements: list[ast.stmt], args: ast.arguments = NO_ARGUMENTS) -> ast.expr:
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

    def _unless(self, flag: str, name: str, statements: list[ast.stmt]) -> None:
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
            # Of a variable that surely has a value, nothing would ask whether there is one.
            anew = [] if within.broken is None else rebound(node, body.scope.node)
            anew = [name for name in anew if name in body.scope.locals and name not in before]
            self.emit_expr(self.ask("for_", first, run, held, more, self.tuple([self.constant(n) for n in anew])))
        else:
            assert test is not None
            self.emit_expr(self.ask("while_", test, run, held))
        if within.broken is not None and loop.orelse:
            body.sure = set(before)
            self._unless(within.broken, "else", loop.orelse)
            body.sure = before
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
        place, node = self.place, loop.node
        with self.framed(arm=True) as frame:
            if loop.level.guarded:
                within.left = self.fresh("left")
                frame.own.add(within.left)
                self.emit_assign(within.left, self.constant(False))
            if isinstance(node, ast.For):
                self.assign(node.target, self.name(_ITEM))
            self.block(loop.body)
            out, self.place = self.out, place
            declared = self.declarations(frame.writes - frame.own)
        fresh = self.fresh("body")
        args = self.one_argument(_ITEM) if isinstance(node, ast.For) else NO_ARGUMENTS
        self.emit(self.definition(fresh, args, [*declared, *out]))
        return self.name(fresh)

    def _set_flag(self, flag: str | None, *, value: bool = True) -> None:
        if flag:
            self.emit_assign(flag, self.constant(value))
            self.body.frame.writes.add(flag)

    def _do_Drop(self, node: Drop) -> None:
        body = self.body
        if RETURN in node.kinds:
            self._set_flag(body.returned if body.level.guarded else None, value=False)
        for within in body.loops if RETURN in node.kinds else body.loops[-1:]:
            self._set_flag(within.broken, value=False)
            self._set_flag(within.left, value=False)

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
        if isinstance(node.statement, ast.Match) and isinstance(node.statement.subject, ast.Name):
            longest = self.constant(_longest(node.statement.cases[0].pattern))
            node.statement.subject = self.ask("matched", node.statement.subject, longest)
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

    def _nested(self, statements: list[ast.stmt]) -> list[ast.stmt]:
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

    def _with(self, items: list[ast.withitem], statements: list[ast.stmt]) -> None:
        place = self.place
        item, *others = items
        context = self.expr(item.context_expr)
        target: ast.expr | None = None
        saved, self.out = self.out, []
        if item.optional_vars is not None:
            entered = self.fresh("entered")
            target = self.target(entered)
            self.assign(item.optional_vars, self.name(entered))
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


def _longest(pattern: ast.pattern) -> int | None:
    """The items of the longest sequence that a pattern takes apart; None where it takes any number."""
    nodes = list(ast.walk(pattern))
    if any(isinstance(node, ast.MatchStar) for node in nodes):
        return None
    return max((len(node.patterns) for node in nodes if isinstance(node, ast.MatchSequence)), default=0)
