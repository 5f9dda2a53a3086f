"""What both halves of the lowering stand on: where code is emitted, which variables an arm binds, nodes with places.

Converted code has two names of its own in each function: `__smelt_h`, this package's helpers, and `__smelt_rt`, the
runtime of the thread when the function was entered. A generator may be resumed at any time and asks each time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from smelt.capture.convert.names import GLOBAL, Names, Scope
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.source import NO_TYPE_PARAMETERS
from smelt.capture.convert.structure import Level, Loop, Structure

HELPERS: Final = f"{HIDDEN}h"
RUNTIME: Final = f"{HIDDEN}rt"
MARKER: Final = "\0smelt: helpers"
"""The constant that becomes the module of helpers once the code is compiled."""

NO_ARGUMENTS: Final = ast.arguments([], [], None, [], [], None, [])
_LOAD, _STORE = ast.Load(), ast.Store()


@dataclass(eq=False, slots=True)
class Frame:
    """A function of the converted code: the variables that its statements bind, and those that are its own."""

    writes: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Within:
    """The loop that statements are in, with its flags."""

    loop: Loop
    broken: str | None
    left: str | None


@dataclass(eq=False, slots=True)
class Body:
    """The function (or comprehension) whose statements are being lowered.

    depth: how many functions of the converted code lie between its own frame and here. sure: variables that surely have
    a value here; sure_around: those of the functions around it that have one from its definition on. returned, value:
    the names of the flag and of the result where a `return` is not Python's own.
    """

    scope: Scope
    level: Level
    is_generator: bool
    depth: int = 0
    sure: set[str] = field(default_factory=set)
    sure_around: frozenset[str] = frozenset()
    loops: list[Within] = field(default_factory=list)
    frame: Frame = field(default_factory=Frame)
    returned: str = ""
    value: str = ""
    lowered_return: bool = False

    @property
    def sure_inside(self) -> frozenset[str]:
        """What is sure around a function that is defined here."""
        return (self.sure_around - self.scope.locals) | self.sure


class Builder:
    """State of one conversion."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.structure = Structure()
        self.fresh = self.structure.fresh
        self.verbatim: set[tuple[str, int]] = set()
        self.out: list[ast.stmt] = []
        self.body = Body(names.root, Level(), False)
        self.place: dict[str, Any] = {"lineno": 1, "col_offset": 0, "end_lineno": 1, "end_col_offset": 0}

    # Nodes

    def stand_at(self, node: Any) -> None:
        """Nodes made from now on stand where `node` does."""
        self.place = {
            "lineno": node.lineno,
            "col_offset": node.col_offset,
            "end_lineno": node.end_lineno,
            "end_col_offset": node.end_col_offset,
        }

    def name(self, name: str) -> ast.expr:
        return ast.Name(name, _LOAD, **self.place)

    def target(self, name: str) -> ast.Name:
        return ast.Name(name, _STORE, **self.place)

    def constant(self, value: Any) -> ast.expr:
        return ast.Constant(value, None, **self.place)

    def tuple(self, items: list[ast.expr]) -> ast.expr:
        return ast.Tuple(items, _LOAD, **self.place)

    def attribute(self, value: ast.expr, name: str) -> ast.expr:
        # The line of a method's call is the one that its attribute ends on.
        place = self.place | {"end_lineno": self.place["lineno"], "end_col_offset": self.place["col_offset"]}
        return ast.Attribute(value, name, _LOAD, **place)

    def plain_call(self, fn: ast.expr, *args: ast.expr) -> ast.expr:
        return ast.Call(fn, list(args), [], **self.place)

    def helper(self, name: str, *args: ast.expr) -> ast.expr:
        return self.plain_call(self.attribute(self.name(HELPERS), name), *args)

    def runtime(self) -> ast.expr:
        return self.helper("current") if self.body.is_generator else self.name(RUNTIME)

    def at(self) -> ast.expr:
        return self.constant(self.place["lineno"])

    def ask(self, method: str, *args: ast.expr) -> ast.expr:
        """A call of the runtime, here."""
        return self.plain_call(self.attribute(self.runtime(), method), self.at(), *args)

    def emit(self, statement: ast.stmt) -> None:
        self.out.append(statement)

    def emit_expr(self, value: ast.expr) -> None:
        self.emit(ast.Expr(value, **self.place))

    def emit_assign(self, name: str, value: ast.expr) -> None:
        self.emit(ast.Assign([self.target(name)], value, None, **self.place))

    def definition(self, name: str, args: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
        return ast.FunctionDef(
            name, args, body or [ast.Pass(**self.place)], [], None, None, **NO_TYPE_PARAMETERS, **self.place
        )

    def one_argument(self, name: str) -> ast.arguments:
        return ast.arguments([], [ast.arg(name, **self.place)], None, [], [], None, [])

    def lambda_(self, value: ast.expr) -> ast.expr:
        return ast.Lambda(NO_ARGUMENTS, value, **self.place)

    def thunk(self, lower: Callable[[], ast.expr]) -> ast.expr:
        """A function of no argument whose value `lower` makes."""
        saved, self.out = self.out, []
        self.body.depth += 1
        try:
            value = lower()
            statements = self.out
        finally:
            self.body.depth -= 1
            self.out = saved
        if not statements:
            return self.lambda_(value)
        name = self.fresh("thunk")
        self.emit(self.definition(name, NO_ARGUMENTS, [*statements, ast.Return(value, **self.place)]))
        return self.name(name)

    # Variables

    def bind(self, name: str) -> None:
        """A statement here binds (or deletes) a variable of the function."""
        self.body.frame.writes.add(name)
        if name not in self.body.scope.deleted:
            self.body.sure.add(name)

    def is_open(self, name: str) -> bool:
        """Whether a name is a variable of this function, or of one around it, that may hold nothing."""
        owner = self.names.resolve(name, self.body.scope)
        return not isinstance(owner, str) and name not in (
            self.body.sure if owner is self.body.scope else self.body.sure | self.body.sure_around
        )

    def variable(self, name: str) -> ast.expr:
        """The value of a name."""
        body = self.body
        is_own = name in body.scope.locals
        is_sure = name in (body.sure if is_own else body.sure_around)
        if not is_sure and (body.depth or not is_own) and body.scope.may_miss(name):
            return self.helper("load", self.lambda_(self.name(name)))
        return self.name(name)

    @contextmanager
    def framed(self, *, arm: bool) -> Iterator[Frame]:
        """Statements of another function of the converted code; what they bind, the enclosing ones bind, too."""
        body = self.body
        outer, body.frame = body.frame, Frame()
        saved, self.out = self.out, []
        body.depth += arm
        try:
            yield body.frame
        finally:
            outer.writes |= body.frame.writes - body.frame.own
            body.frame, self.out = outer, saved
            body.depth -= arm

    @contextmanager
    def gathered(self) -> Iterator[set[str]]:
        """Gathers what is bound in the block; it counts for the enclosing statement, too."""
        frame = self.body.frame
        outer, frame.writes = frame.writes, set()
        try:
            yield frame.writes
        finally:
            gathered = frame.writes
            frame.writes = outer
            outer |= gathered

    def declarations(self, writes: set[str]) -> list[ast.stmt]:
        """`nonlocal` and `global` for the variables that an arm binds."""
        scope = self.body.scope.function
        module = sorted(n for n in writes if n in scope.globals)
        outer = sorted(n for n in writes if n not in scope.globals)
        out: list[ast.stmt] = []
        if module:
            out.append(ast.Global(module, **self.place))
        if outer:
            out.append(ast.Nonlocal(outer, **self.place))
        return out

    def held(self, writes: set[str]) -> ast.expr:
        """Names, get and set of variables, and of those that a call may rebind."""
        scope = self.body.scope
        names = sorted(writes | scope.indirect)
        module = [n for n in names if not n.startswith(HIDDEN) and self.names.resolve(n, scope) is GLOBAL]
        read = self.lambda_(self.tuple([self.name(n) for n in names if n not in module]))
        globals_ = [self.tuple([self.constant(n) for n in module])] if module else []
        return self.helper("state", read, *globals_)

    def held_parts(self, writes: set[str]) -> ast.expr:
        """The same, as three arguments."""
        return ast.Starred(self.held(writes), _LOAD, **self.place)
