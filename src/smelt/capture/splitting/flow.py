"""Which variables of a function still matter after a statement, and which surely have a value before it.

Invariant: both answers are on the safe side, whatever runs: `live` may name too many, `bound` too few. An exception may
leave a `try`, or a `with` whose manager may swallow it, after any statement, so what is needed behind it is live there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from smelt.diag.records import record

Names = frozenset[str]
_NONE: Names = frozenset()
# Context managers of torch that let every exception pass.
_TRANSPARENT = frozenset({
    "no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "autocast", "record_function", "sdpa_kernel",
    "nullcontext",
})  # fmt: skip


def loads(*nodes: ast.AST | None) -> Names:
    """Names that are read somewhere in nodes, in nested functions too."""
    return frozenset(
        n.id
        for node in nodes
        if node is not None
        for n in ast.walk(node)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load | ast.Del)
    )


def stores(*nodes: ast.AST) -> Names:
    """Variables of the function itself that nodes may bind or unbind."""
    return frozenset(name for node in nodes for name in _stores(node))


def _stores(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Lambda():
            return
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            # Its own variables are not the function's; what it assigns with := is.
            for inner in ast.walk(node):
                if isinstance(inner, ast.NamedExpr):
                    yield inner.target.id
            return
        case ast.alias():
            yield (node.asname or node.name).partition(".")[0]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
    for child in ast.iter_child_nodes(node):
        yield from _stores(child)


@record
class _Exits:
    """What is live where control goes from inside: at the end of a loop or turn, or to a handler."""

    after_loop: Names = _NONE
    turn: Names = _NONE
    handler: Names = _NONE


def is_transparent(node: ast.With | ast.AsyncWith) -> bool:
    """Whether no manager of a `with` can swallow an exception."""
    for item in node.items:
        made = item.context_expr
        called = made.func if isinstance(made, ast.Call) else None
        name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
        if name not in _TRANSPARENT:
            return False
    return True


class Flow:
    """The answers for one function: by statement, `live` after it, `bound` before it, `caught`: live in a handler.

    entry: what is live before all of it, end: what is bound after it.
    """

    def __init__(self, body: Sequence[ast.stmt], params: Iterable[str], watched: Names) -> None:
        self.live: dict[ast.stmt, Names] = {}
        self.bound: dict[ast.stmt, Names] = {}
        self.caught: dict[ast.stmt, Names] = {}
        self._watched = watched  # what a statement that shows the frame to someone (`breakpoint()`) reads
        self.entry = self._before(body, _NONE, _Exits())
        self.end = self._follow(body, frozenset(params))

    # ---------------------------------------------------------------- backwards

    def _before(self, body: Sequence[ast.stmt], after: Names, exits: _Exits) -> Names:
        for node in reversed(body):
            after = after | exits.handler
            self.live[node] = self.live.get(node, _NONE) | after
            self.caught[node] = self.caught.get(node, _NONE) | exits.handler
            after = self._through(node, after, exits) | exits.handler
        return after

    def _through(self, node: ast.stmt, after: Names, exits: _Exits) -> Names:
        match node:
            case ast.Return():
                return loads(node.value)
            case ast.Raise():
                return loads(node.exc, node.cause)
            case ast.Break():
                return exits.after_loop
            case ast.Continue():
                return exits.turn
            case ast.If():
                return (
                    loads(node.test) | self._before(node.body, after, exits) | self._before(node.orelse, after, exits)
                )
            case ast.While() | ast.For() | ast.AsyncFor():
                return self._loop(node, after, exits)
            case ast.With() | ast.AsyncWith():
                inner = exits if is_transparent(node) else replace(exits, handler=exits.handler | after)
                return loads(*node.items) | (self._before(node.body, after, inner) - stores(*node.items))
            case ast.Try() | ast.TryStar():
                return self._try(node, after, exits)
            case ast.Match():
                cases = [loads(c.pattern, c.guard) | self._before(c.body, after, exits) for c in node.cases]
                return loads(node.subject) | after | _NONE.union(*cases)
        if shows_frame(node):
            after = after | self._watched
        return (after - _surely_stored(node)) | loads(node) | _augmented(node)

    def _loop(self, node: ast.While | ast.For | ast.AsyncFor, after: Names, exits: _Exits) -> Names:
        head = loads(node.test) if isinstance(node, ast.While) else _NONE
        orelse = self._before(node.orelse, after, exits)
        top = head | orelse
        for _ in range(len(stores(node)) + 2):
            found = head | orelse | self._before(node.body, top, replace(exits, after_loop=after, turn=top)) | top
            if found == top:
                break
            top = found
        return top if isinstance(node, ast.While) else top | loads(node.iter, node.target)

    def _try(self, node: ast.Try | ast.TryStar, after: Names, exits: _Exits) -> Names:
        final = self._before(node.finalbody, after, exits) if node.finalbody else after
        # Whatever leaves the `try`, by an exception or a jump, goes through `finally` first.
        left = final if node.finalbody else _NONE
        around = _Exits(exits.after_loop | left, exits.turn | left, exits.handler | left)
        caught = _NONE.union(*(loads(h.type) | self._before(h.body, final, around) for h in node.handlers))
        orelse = self._before(node.orelse, final, around)
        return self._before(node.body, orelse, replace(around, handler=around.handler | caught)) | caught

    # ---------------------------------------------------------------- forwards

    def _follow(self, body: Sequence[ast.stmt], bound: Names) -> Names:
        for node in body:
            self.bound[node] = bound
            bound = self._after(node, bound)
        return bound

    def _after(self, node: ast.stmt, bound: Names) -> Names:
        match node:
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                return bound
            case ast.If():
                body, orelse = self._follow(node.body, bound), self._follow(node.orelse, bound)
                return orelse if leaves(node.body) else body if leaves(node.orelse) else body & orelse
            case ast.For() | ast.AsyncFor():
                kept = bound - deletes(node)
                self._follow(node.body, kept | stores(node.target))
                self._follow(node.orelse, kept)
                return kept
            case ast.While():
                kept = bound - deletes(node)
                self._follow(node.body, kept)
                self._follow(node.orelse, kept)
                return kept
            case ast.With() | ast.AsyncWith():
                after = self._follow(node.body, bound | stores(*node.items))
                return after if is_transparent(node) else bound - deletes(node)
            case ast.Try() | ast.TryStar():
                kept = bound - deletes(node)
                body = self._follow(node.orelse, self._follow(node.body, kept))
                ends = [body, *(self._follow(h.body, kept | stores_of_handler(h)) for h in node.handlers)]
                after = frozenset.intersection(*ends) - _NONE.union(*(stores_of_handler(h) for h in node.handlers))
                self._follow(node.finalbody, kept)
                return (after | stores_surely(node.finalbody)) - deletes(*node.finalbody)
            case ast.Match():
                for case in node.cases:
                    self._follow(case.body, bound)
                return bound - deletes(node)
        return (bound | _surely_stored(node)) - deletes(node)


def stores_of_handler(handler: ast.ExceptHandler) -> Names:
    """The name of a handler's exception, which is unbound again at its end."""
    return frozenset({handler.name}) if handler.name else _NONE


def stores_surely(body: Sequence[ast.stmt]) -> Names:
    """What the simple statements of a block bind, if it comes to its end."""
    return _NONE.union(*(_surely_stored(node) for node in body))


def _surely_stored(node: ast.stmt) -> Names:
    """Variables that a simple statement binds before the next one runs."""
    match node:
        case ast.Assign():
            return stores(*node.targets)
        case ast.AnnAssign():
            return stores(node.target) if node.value is not None else _NONE
        case ast.AugAssign():
            return stores(node.target)
        case ast.Import() | ast.ImportFrom() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return stores(node)
    return _NONE


def _augmented(node: ast.stmt) -> Names:
    return stores(node.target) if isinstance(node, ast.AugAssign) else _NONE


def deletes(*nodes: ast.AST) -> Names:
    """Variables that nodes may leave unbound."""
    found = set[str]()
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Del):
                found.add(inner.id)
            elif isinstance(inner, ast.ExceptHandler) and inner.name:
                found.add(inner.name)
    return frozenset(found)


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether control never comes to the end of a block."""
    for node in body:
        if isinstance(node, ast.Return | ast.Raise | ast.Break | ast.Continue):
            return True
        if isinstance(node, ast.If) and leaves(node.body) and leaves(node.orelse):
            return True
    return False


_SHOWS = frozenset({"breakpoint", "set_trace", "locals", "vars", "dir", "eval", "exec"})


def shows_frame(node: ast.AST) -> bool:
    """Whether something in a node looks at the variables of the frame it runs in."""
    return any(called_name(inner) in _SHOWS for inner in ast.walk(node))


def called_name(node: object) -> str:
    """The last name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
