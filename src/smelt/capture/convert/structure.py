"""Statements in a form whose every part has one way out.

    if c: return a          if c: return a              for x in xs:                 for x in xs:
    f()              ==>    else: f(); return b             if c: break      ==>         if c: break
    return b                                                f(x)                         else: f(x)

What follows a statement that may leave, but that no arm can take in, becomes a `Rest`: it runs unless the flag of its
level is set. `match` becomes a chain of `if`: a value is compared, another pattern is matched natively into a flag.
The trees given are not changed; the caller may still use them.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from smelt.capture.convert.runtime import HIDDEN

RETURN, BREAK, CONTINUE = "return", "break", "continue"
_NO_EXITS: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Level:
    """A function's body or a loop's; `guarded`: some `Rest` of it asks whether it was left."""

    guarded: bool = False


@dataclass(eq=False, slots=True)
class Rest:
    """Statements that run unless what stands before them left the level."""

    body: list[Any]
    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int


@dataclass(eq=False, slots=True)
class Drop:
    """What was on its way out of a level is not any more: an exception that came up meanwhile is caught here."""

    kinds: frozenset[str]
    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int


@dataclass(eq=False, slots=True)
class Native:
    """A statement that stays as it is; its names are bound by Python. `targets` are the user's among them."""

    statement: ast.stmt
    targets: frozenset[str]
    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int


@dataclass(eq=False, slots=True)
class Loop:
    """`for` or `while`: `leaves` says whether a `break` or `return` may end it early."""

    node: Any
    body: list[Any]
    orelse: list[Any]
    level: Level = field(default_factory=Level)
    leaves: bool = False
    lineno: int = 0
    col_offset: int = 0
    end_lineno: int = 0
    end_col_offset: int = 0


def exits_of_all(statements: list[ast.stmt]) -> frozenset[str]:
    """How control may leave a list of statements, apart from exceptions."""
    found = _NO_EXITS
    for statement in statements:
        found |= exits(statement)
    return found


def exits(node: object) -> frozenset[str]:
    """How control may leave a statement, apart from exceptions."""
    known: frozenset[str] | None = getattr(node, "_exits", None)
    if known is None:
        known = _exits(node)
        if isinstance(node, ast.AST):
            node._exits = known  # type: ignore[attr-defined]
    return known


def _exits(node: object) -> frozenset[str]:
    match node:
        case ast.Return():
            return frozenset({RETURN})
        case ast.Break():
            return frozenset({BREAK})
        case ast.Continue():
            return frozenset({CONTINUE})
        case ast.If():
            return exits_of_all(node.body) | exits_of_all(node.orelse)
        case ast.For() | ast.While():
            return (exits_of_all(node.body) & {RETURN}) | exits_of_all(node.orelse)
        case ast.With():
            return exits_of_all(node.body)
        case ast.Try() | ast.TryStar():
            inner = exits_of_all(node.body) | exits_of_all(node.orelse) | exits_of_all(node.finalbody)
            for handler in node.handlers:
                inner |= exits_of_all(handler.body)
            return inner
        case ast.Match():
            return frozenset().union(*(exits_of_all(case.body) for case in node.cases))
    return _NO_EXITS


def _may_be_dropped(statements: list[ast.stmt]) -> frozenset[str]:
    """The ways out of statements on which a `finally` or an exit still runs within them, and may raise."""
    found = _NO_EXITS
    for node in statements:
        if isinstance(node, ast.With) or (isinstance(node, ast.Try | ast.TryStar) and node.finalbody):
            found |= exits(node)
            continue
        parts = [getattr(node, name, []) for name in ("body", "orelse")]
        parts += [part.body for name in ("handlers", "cases") for part in getattr(node, name, [])]
        for part in parts if exits(node) else []:
            found |= _may_be_dropped(part)
    return found


def always_leaves(statements: list[ast.stmt]) -> bool:
    """Whether control never comes to the end of a list of statements."""
    return any(_always(s) for s in statements)


def _always(node: object) -> bool:
    match node:
        case ast.Return() | ast.Break() | ast.Continue() | ast.Raise():
            return True
        case ast.If():
            return always_leaves(node.body) and always_leaves(node.orelse)
        case ast.Try() | ast.TryStar():
            inner = always_leaves(node.body) or always_leaves(node.orelse)
            return inner and all(always_leaves(h.body) for h in node.handlers)
    return False


class Structure:
    """Gives new lists of statements; hidden names are numbered by `fresh`."""

    def __init__(self) -> None:
        self._count = 0

    def fresh(self, what: str) -> str:
        """A name that no program has."""
        self._count += 1
        return f"{HIDDEN}{what}_{self._count}"

    def block(self, statements: list[ast.stmt], level: Level) -> list[Any]:
        """Statements of a level."""
        out: list[Any] = []
        left = list(statements)
        while left:
            node = left.pop(0)
            if isinstance(node, ast.Match):
                left[:0] = self._match(node)
                continue
            kinds = exits(node)
            if kinds and left and not _is_exit(node):
                if isinstance(node, ast.If):
                    node, left = _take_in(node, left)
                if left:
                    out.append(self._statement(node, level))
                    level.guarded = True
                    out.append(_placed(Rest(self.block(left, level), 0, 0, 0, 0), left[0]))
                    return out
            out.append(self._statement(node, level))
            if isinstance(node, ast.Return | ast.Break | ast.Continue | ast.Raise):
                return out
        return out

    def _statement(self, node: object, level: Level) -> object:
        match node:
            case ast.If():
                new: ast.stmt = ast.If(node.test, self.block(node.body, level), self.block(node.orelse, level))
            case ast.For() | ast.While():
                inner = Level()
                kinds = exits_of_all(node.body)
                loop = Loop(node, self.block(node.body, inner), self.block(node.orelse, level), inner)
                loop.leaves = bool(kinds & {BREAK, RETURN})
                return _placed(loop, node)
            case ast.With(items=[first, *others]):
                inside: list[ast.stmt] = node.body
                if others:
                    inside = [ast.copy_location(ast.With(others, node.body), node)]
                body = self.block(inside, level)
                if dropped := _may_be_dropped(inside):
                    # An exit that swallows what came up in another one.
                    caught = [Drop(dropped, 0, 0, 0, 0), ast.Raise(None, None)]
                    handler = ast.ExceptHandler(None, None, [_placed(part, node) for part in caught])
                    body = [_placed(ast.Try(body, [_placed(handler, node)], [], []), node)]
                new = ast.With([first], body)
            case ast.Try() | ast.TryStar():
                body = self.block(node.body, level)
                orelse = self.block(node.orelse, level)
                if orelse and exits_of_all(node.body):
                    level.guarded = True
                    orelse = [_placed(Rest(orelse, 0, 0, 0, 0), node.orelse[0])]
                dropped = _may_be_dropped(node.body)
                handlers = []
                for h in node.handlers:
                    caught = [_placed(Drop(dropped, 0, 0, 0, 0), h)] if dropped else []
                    handler = ast.ExceptHandler(h.type, h.name, [*caught, *self.block(h.body, level)])
                    handlers.append(ast.copy_location(handler, h))
                new = type(node)(body, handlers, orelse, self.block(node.finalbody, level))
            case _:
                return node
        return ast.copy_location(new, node)

    def _match(self, node: ast.Match) -> list[ast.stmt]:
        subject = self.fresh("subject")
        assign = ast.Assign([ast.Name(subject, ast.Store())], node.subject, lineno=node.lineno)
        return [_at(assign, node.subject), *self._cases(node.cases, subject)]

    def _structural(
        self, pattern: ast.pattern, subject: str, is_guarded: bool
    ) -> tuple[list[object], ast.expr, list[ast.stmt]]:
        """A pattern that takes its subject apart: what stands before its test, the test, and what stands behind it
        where it held."""
        flag = self.fresh("matched")
        if not _holds_truths(pattern):
            return [_native_match(pattern, subject, flag)], _name(flag, pattern), []
        compared = _Compared(self.fresh)
        native = _native_match(compared.visit(copy.deepcopy(pattern)), subject, flag)
        test = _at(ast.BoolOp(ast.And(), [_name(flag, pattern), *compared.tests]), pattern)
        binds = [_assign(name, _name(hidden, pattern), pattern) for name, hidden in compared.names.items()]
        if not (is_guarded and binds):
            return [native], test, binds
        held = self.fresh("matched")  # a guard sees what is bound
        bound = _at(ast.If(_name(held, pattern), binds, []), pattern)
        return [native, _assign(held, test, pattern), bound], _name(held, pattern), []

    def _cases(self, cases: list[ast.match_case], subject: str) -> list[Any]:
        if not cases:
            return []
        case, rest = cases[0], cases[1:]
        pattern, out = case.pattern, list[Any]()
        test: ast.expr | None
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            test = None
            if pattern.name is not None:
                value = ast.Name(subject, ast.Load())
                target = _at(ast.Name(pattern.name, ast.Store()), pattern)
                out.append(_at(ast.Assign([target], value, lineno=pattern.lineno), pattern))
        else:
            test = _value_test(pattern, subject)
            if test is None:
                before, test, behind = self._structural(pattern, subject, case.guard is not None)
                out += before
                case = ast.match_case(pattern, case.guard, [*behind, *case.body])
        if case.guard is not None:
            test = case.guard if test is None else _at(ast.BoolOp(ast.And(), [test, case.guard]), case.guard)
        if test is None:
            return [*out, *case.body]
        return [*out, ast.copy_location(ast.If(test, case.body, self._cases(rest, subject)), pattern)]


def is_mixed(pattern: ast.MatchOr) -> bool:
    """Whether alternatives that compare with True or False bind something, or take something apart."""
    return _holds_truths(pattern) and _value_test(pattern, "") is None


class _Compared(ast.NodeTransformer):
    """A pattern whose True and False, which Python compares by identity, are captured, to be compared after it.

    What the pattern binds is captured under hidden names, too: names are bound where all of it has matched.
    """

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self.tests: list[ast.expr] = []
        self.names: dict[str, str] = {}

    def visit(self, node: Any) -> Any:
        """The pattern in the place of this one."""
        if isinstance(node, ast.MatchSingleton | ast.MatchOr) and _holds_truths(node):
            name = self._fresh("part")
            test = _value_test(node, name)
            assert test is not None  # others are refused (`names`)
            self.tests.append(test)
            return _at(ast.MatchAs(None, name), node)
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            node.name = self.names.setdefault(node.name, self._fresh("bound"))
        if isinstance(node, ast.MatchMapping) and node.rest is not None:
            node.rest = self.names.setdefault(node.rest, self._fresh("bound"))
        return self.generic_visit(node)


def _holds_truths(pattern: ast.pattern) -> bool:
    """Whether a pattern compares with True or False."""
    return any(isinstance(n, ast.MatchSingleton) and n.value is not None for n in ast.walk(pattern))


def _value_test(pattern: ast.pattern, subject: str) -> ast.expr | None:
    """A pattern that only compares, as an expression."""
    match pattern:
        case ast.MatchValue():
            op: ast.cmpop = ast.Eq()
            right: ast.expr = pattern.value
        case ast.MatchSingleton():
            op, right = ast.Is(), _at(ast.Constant(pattern.value), pattern)
        case ast.MatchOr():
            tests = [_value_test(p, subject) for p in pattern.patterns]
            known = [t for t in tests if t is not None]
            return _at(ast.BoolOp(ast.Or(), known), pattern) if len(known) == len(tests) else None
        case _:
            return None
    return _at(ast.Compare(_at(ast.Name(subject, ast.Load()), pattern), [op], [right]), pattern)


def _native_match(pattern: ast.pattern, subject: str, flag: str) -> Native:
    def case(p: ast.pattern, value: bool) -> ast.match_case:
        assign = ast.Assign([ast.Name(flag, ast.Store())], ast.Constant(value), lineno=pattern.lineno)
        return ast.match_case(p, None, [_at(assign, pattern)])

    other = _at(ast.MatchAs(None, None), pattern)
    both = [case(pattern, True)] if _is_irrefutable(pattern) else [case(pattern, True), case(other, False)]
    match = _at(ast.Match(_at(ast.Name(subject, ast.Load()), pattern), both), pattern)
    names = set()
    for node in ast.walk(pattern):
        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name is not None:
            names.add(node.name)
        if isinstance(node, ast.MatchMapping) and node.rest is not None:
            names.add(node.rest)
    # Hidden ones are asked right behind it, and by nobody else.
    targets = frozenset(name for name in names if not name.startswith(HIDDEN))
    native: Native = _placed(Native(match, targets, 0, 0, 0, 0), pattern)
    return native


def _is_irrefutable(pattern: ast.pattern) -> bool:
    match pattern:
        case ast.MatchAs():
            return pattern.pattern is None or _is_irrefutable(pattern.pattern)
        case ast.MatchOr():
            return any(_is_irrefutable(p) for p in pattern.patterns)
    return False


def _name(name: str, where: object) -> Any:
    return _at(ast.Name(name, ast.Load()), where)


def _assign(name: str, value: ast.expr, where: Any) -> Any:
    return _at(ast.Assign([ast.Name(name, ast.Store())], value, lineno=where.lineno), where)


def _take_in(node: ast.If, rest: list[Any]) -> tuple[ast.If, list[Any]]:
    """An `if` with what follows it in the arm that comes to its end, and what still follows."""
    first, second = always_leaves(node.body), always_leaves(node.orelse)
    if first and second:
        return node, []
    if not first and not second:
        return node, rest
    body, orelse = (node.body, [*node.orelse, *rest]) if first else ([*node.body, *rest], node.orelse)
    return ast.copy_location(ast.If(node.test, body, orelse), node), []


def _is_exit(node: object) -> bool:
    return isinstance(node, ast.Return | ast.Break | ast.Continue)


def _at(node: Any, where: Any) -> Any:
    """A made node where another stands, parts of it that have no place yet included."""
    for inner in ast.walk(node):
        if "lineno" in inner._attributes and getattr(inner, "end_lineno", None) is None:
            ast.copy_location(inner, where)
    return node


def _placed(node: object, where: object) -> Any:
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        setattr(node, name, getattr(where, name))
    return node
