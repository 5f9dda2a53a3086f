"""Which statements of a function become pieces of their own, and the function's body around them.

    def forward(self, x):                      def forward(self, x):
        y = self.a(x) * 2                          y = PIECES.run_0(self, x)
        z = self.b(y)                  ==>         log.append(PIECES.pick(z_mean)(y))
        log.append(z_mean(y))                      return PIECES.run_1(self, y)
        return self.c(y)

`PIECES` is a constant of the new code. A run of statements becomes a piece where it stands between statements that must
run in Python and says by itself what it needs and gives; what remains asks for each callee before it calls it.

Invariant: what remains is the user's own statements, in their order and on their lines.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from smelt.capture.convert.expressions import CONSUMERS
from smelt.capture.splitting.flow import Flow, Names, called_name, leaves, loads, shows_frame, stores
from smelt.diag.records import record

MARKER: Final = "\0smelt: partitions"
"""The constant that becomes the object which holds the pieces, once the code is compiled."""

Place = tuple[int, int, int, int]
"""Where a run of statements begins and ends: lines and columns."""

_LOAD: Final = ast.Load()
_CONSUMERS = CONSUMERS | {"join"}
_BUILTINS = frozenset(vars(builtins))
_WORK = (ast.Call, ast.BinOp, ast.UnaryOp, ast.Compare, ast.AugAssign, ast.Subscript)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NEVER = (
    *_FUNCTIONS, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Global, ast.Nonlocal,
    ast.Import, ast.ImportFrom, ast.Delete,
)  # fmt: skip
_OWN_FRAME = frozenset({"super", "globals", "_getframe", "currentframe", "stack"})

FELL, RETURNED = range(2)
"""How a piece ended that may end in more than one way: what it gives begins with this."""


@record
class Piece:
    """A run of statements as a function of `needs`, which gives `gives` at its end, or the result where it returns.

    ways: how it may end; one: what it gives comes as it is, two: behind a number that tells which.
    """

    place: Place
    body: tuple[ast.stmt, ...]
    needs: tuple[str, ...]
    gives: tuple[str, ...]
    ways: tuple[int, ...]


@dataclass(slots=True)
class Marks:
    """What is known of a function so far, and grows: the lines that must run in Python, and where runs were cut.

    opened: runs of statements that are not to be pieces, by place: blocks in them may be. cuts: statements that begin a
    new run.
    """

    lines: set[int] = field(default_factory=set)
    opened: set[Place] = field(default_factory=set)
    cuts: set[Place] = field(default_factory=set)


@record
class Plan:
    """The statements of a function with its pieces called, and those by number."""

    body: list[ast.stmt]
    pieces: tuple[Piece, ...]
    calls: int


def place_of(body: Sequence[ast.stmt]) -> Place:
    """Where statements begin and end."""
    last = body[-1]
    return (body[0].lineno, body[0].col_offset, last.end_lineno or last.lineno, last.end_col_offset or 0)


class Planner:
    """Plans for one function, anew as marks grow. params: its own; free: variables of functions around it."""

    def __init__(self, body: list[ast.stmt], params: Sequence[str], free: Sequence[str]) -> None:
        self.source = body
        inner = [n for node in body for n in ast.walk(node)]
        self.locals: Names = (stores(*body) | frozenset(params)) - frozenset(free)
        declared = {name for n in inner if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names}
        self.locals -= declared
        self.untouchable = frozenset(declared)  # and those that functions inside rebind are among them
        used = frozenset[int]().union(*map(_used_up, body))
        nested = [n for n in inner if isinstance(n, (*_FUNCTIONS, ast.GeneratorExp)) and id(n) not in used]
        self.captured = loads(*nested)
        self.flow = Flow(body, params, self.locals)

    def plan(self, marks: Marks) -> Plan:
        """The body with pieces called, for what is marked now."""
        return _Planning(self, marks).made()


class _Planning:
    def __init__(self, planner: Planner, marks: Marks) -> None:
        self.planner, self.marks, self.flow = planner, marks, planner.flow
        self.pieces: list[Piece] = []
        self.routing = _Routing()

    def made(self) -> Plan:
        body = self._block(self.planner.source)
        return Plan(body, tuple(self.pieces), self.routing.calls)

    # ---------------------------------------------------------------- statements

    def _block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        run: list[ast.stmt] = []
        for node in body:
            if run and place_of([node]) in self.marks.cuts:
                out += self._run(run)
                run = []
            if self._may_join(node):
                run.append(node)
                continue
            out += self._run(run)
            run = []
            out.append(self._python(node))
        return out + self._run(run)

    def _may_join(self, node: ast.stmt) -> bool:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if any(line in self.marks.lines for line in lines) or place_of([node]) in self.marks.opened:
            return False
        return self._is_closed(node)

    def _is_closed(self, node: ast.stmt) -> bool:
        """Whether a statement means the same in a function of its own."""
        if isinstance(node, ast.Raise | ast.Break | ast.Continue) or _leaves_loop([node]):
            return False
        for inner in ast.walk(node):
            if isinstance(inner, _NEVER) or (isinstance(inner, ast.Name) and inner.id in _OWN_FRAME):
                return False
            if isinstance(inner, ast.Attribute) and inner.attr in _OWN_FRAME:
                return False
        if shows_frame(node) or _has_loose_generator(node):
            return False
        changed = stores(node)
        return (
            changed.isdisjoint(self.planner.captured)
            and (changed | loads(node)).isdisjoint(self.planner.untouchable)
            and changed <= self.planner.locals
        )

    def _run(self, run: list[ast.stmt]) -> list[ast.stmt]:
        """A run of statements as a piece, with what of it is no work before and after."""
        first, last = 0, len(run)
        while first < last and not _is_work(run[first]):
            first += 1
        while last > first and not _is_work(run[last - 1]) and not isinstance(run[last - 1], ast.Return):
            last -= 1
        head = [self._python(node) for node in run[:first]]
        tail = [self._python(node) for node in run[last:]]
        body = run[first:last]
        if not body:
            return head + tail
        if place_of(body) in self.marks.opened:
            return [*head, *(self._python(node) for node in body), *tail]
        return head + self._piece(body) + tail

    def _piece(self, body: list[ast.stmt]) -> list[ast.stmt]:
        last = body[-1]
        stored = stores(*body) & self.planner.locals
        # A handler would see what the statements before the one that raises have assigned.
        if len(body) > 1 and stores(*body[:-1]) & self.flow.caught[last]:
            return [new for node in body for new in self._run([node])]
        if not isinstance(last, _SIMPLE) and stored & self.flow.caught[last]:
            return [*self._run(body[:-1]), self._python(last)]
        bound = self.flow.bound[body[0]]
        flow = Flow(body, (), frozenset())
        needs, ways = flow.entry & self.planner.locals, _ways(body)
        gives = stored & self.flow.live[last] if FELL in ways else frozenset[str]()
        if not needs <= bound or not gives <= bound | flow.end:
            # A variable may be without a value there, which only its own frame can tell.
            if len(body) == 1:
                return [self._python(last)]
            half = len(body) // 2
            return self._run(body[:half]) + self._run(body[half:])
        needs |= gives - flow.end
        piece = Piece(place_of(body), tuple(body), tuple(sorted(needs)), tuple(sorted(gives)), ways)
        self.pieces.append(piece)
        return _called(piece, len(self.pieces) - 1)

    def _python(self, node: ast.stmt) -> ast.stmt:
        """A statement that stays, the blocks in it planned, its calls asked for."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return node
            case ast.If():
                new: ast.stmt = ast.If(self.routing.visit(node.test), self._block(node.body), self._block(node.orelse))
            case ast.While():
                new = ast.While(self.routing.visit(node.test), self._block(node.body), self._block(node.orelse))
            case ast.For() | ast.AsyncFor():
                new = type(node)(
                    node.target, self.routing.visit(node.iter), self._block(node.body),
                    self._block(node.orelse), None,
                )  # fmt: skip
            case ast.With() | ast.AsyncWith():
                items = [ast.withitem(self.routing.visit(i.context_expr), i.optional_vars) for i in node.items]
                new = type(node)(items, self._block(node.body), None)
            case ast.Try() | ast.TryStar():
                handlers = [
                    ast.copy_location(ast.ExceptHandler(h.type, h.name, self._block(h.body)), h) for h in node.handlers
                ]
                new = type(node)(
                    self._block(node.body), handlers, self._block(node.orelse),
                    self._block(node.finalbody),
                )  # fmt: skip
            case ast.Match():
                cases = [ast.match_case(c.pattern, c.guard, self._block(c.body)) for c in node.cases]
                new = ast.Match(self.routing.visit(node.subject), cases)
            case _:
                return self.routing.visit(node)
        return ast.copy_location(new, node)


_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Assert, ast.Raise)


def _is_work(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return False
    return any(isinstance(n, _WORK) for n in ast.walk(node))


def _used_up(node: ast.AST) -> frozenset[int]:
    """The generators in a statement that are used up where they stand, by identity."""
    found: list[ast.expr] = []
    for inner in ast.walk(node):
        match inner:
            case ast.Call(args=[argument]) if called_name(inner) in _CONSUMERS:
                found.append(argument)
            case ast.Starred(value=value, ctx=ast.Load()):
                found.append(value)
            case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
                found.append(value)
    return frozenset(id(n) for n in found if isinstance(n, ast.GeneratorExp))


def _has_loose_generator(node: ast.AST) -> bool:
    used = _used_up(node)
    return any(isinstance(n, ast.GeneratorExp) and id(n) not in used for n in ast.walk(node))


def _leaves_loop(body: Sequence[ast.AST]) -> bool:
    """Whether a `break` or `continue` in a block belongs to a loop around it."""
    for node in body:
        match node:
            case ast.Break() | ast.Continue():
                return True
            case ast.For() | ast.While():
                if _leaves_loop(node.orelse):
                    return True
            case ast.expr():
                pass
            case _:
                if _leaves_loop(list(ast.iter_child_nodes(node))):
                    return True
    return False


def _ways(body: Sequence[ast.stmt]) -> tuple[int, ...]:
    returns = any(isinstance(n, ast.Return) for node in body for n in ast.walk(node))
    falls = not leaves(body)
    return tuple(way for way, is_one in ((FELL, falls), (RETURNED, returns)) if is_one)


# -------------------------------------------------------------------- nodes


class _Routing(ast.NodeTransformer):
    """Asks for each callee before it is called: `f(x)` ==> `PIECES.pick(f)(x)`, at the place of `f`."""

    def __init__(self) -> None:
        self.calls = 0

    def visit(self, node: object) -> Any:
        """A copy of a node with its calls asked for."""
        return super().visit(copied(node))

    def generic_visit(self, node: Any) -> Any:
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(node, name, super().visit(value))
            elif isinstance(value, list):
                setattr(node, name, [super(_Routing, self).visit(v) if isinstance(v, ast.AST) else v for v in value])
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> object:
        return node

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Call(self, node: ast.Call) -> object:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
            return node
        self.calls += 1
        node.func = ast.copy_location(_member_call("pick", [node.func], node.func), node.func)
        return node


def copied(node: object) -> Any:
    """A copy of a tree."""
    if isinstance(node, ast.AST):
        copy = type(node)(**{name: copied(value) for name, value in ast.iter_fields(node)})
        return ast.copy_location(copy, node)
    return [copied(item) for item in node] if isinstance(node, list) else node


def _member_call(name: str, args: list[ast.expr], at: Any) -> ast.Call:
    def put(node: Any) -> Any:
        return ast.copy_location(node, at)

    pieces = put(ast.Constant(MARKER))
    return put(ast.Call(put(ast.Attribute(pieces, name, _LOAD)), args, []))


def _called(piece: Piece, number: int) -> list[ast.stmt]:
    """The statements that run a piece and take what it gives."""
    at = piece.body[0]

    def put(node: Any) -> Any:
        for inner in ast.walk(node):
            if "lineno" in inner._attributes and not hasattr(inner, "lineno"):
                ast.copy_location(inner, at)
        return node

    call = _member_call(f"run_{number}", [put(ast.Name(n, _LOAD)) for n in piece.needs], at)
    if piece.ways == (RETURNED,):
        return [put(ast.Return(call))]
    if piece.ways == (FELL,):
        return [put(ast.Assign([put(_targets(piece.gives))], call) if piece.gives else ast.Expr(call))]
    result = f"__smelt_ended_{number}"
    out = [put(ast.Assign([ast.Name(result, ast.Store())], call))]

    def part(index: int) -> ast.expr:
        return ast.Subscript(ast.Name(result, _LOAD), ast.Constant(index), _LOAD)

    test = ast.Compare(part(0), [ast.Eq()], [ast.Constant(RETURNED)])
    out.append(put(ast.If(test, [ast.Return(part(1))], [])))
    out += [put(ast.Assign([ast.Name(n, ast.Store())], part(i))) for i, n in enumerate(piece.gives, 1)]
    return out


def _targets(names: Sequence[str]) -> ast.expr:
    targets: list[ast.expr] = [ast.Name(n, ast.Store()) for n in names]
    return targets[0] if len(targets) == 1 else ast.Tuple(targets, ast.Store())
