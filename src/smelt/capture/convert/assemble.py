"""From a lowered definition to a code object that passes for the user's own.

Functions that the conversion made carry the name of the user's function around them; lambdas, nested functions, and
comprehensions where these have a frame of their own, keep theirs. The free variables are those of the original, in its
order.
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType
from typing import Final

from smelt.capture.convert import helpers
from smelt.capture.convert.builder import MARKER
from smelt.capture.convert.mangle import class_of, unmangled
from smelt.capture.convert.names import COMPREHENSIONS_ARE_INLINE, Names
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.source import Root, bare_arguments, bare_definition, compiled_in_outer
from smelt.capture.convert.statements import Statements

_ROOT: Final = f"{HIDDEN}root"
_FRAMES: Final = ("lambda", "genexpr", *(() if COMPREHENSIONS_ARE_INLINE else ("listcomp", "setcomp", "dictcomp")))
_USERS: Final = {name: f"<{name}>" for name in _FRAMES}


def assemble(node: Root, names: Names, code: CodeType) -> CodeType:
    """The converted code object of `node`, whose plain one is `code`."""
    lowering = Statements(names)
    lowering.stand_at(node)
    lowered = lowering.function(node, _ROOT, bare_arguments(node))
    # What is free in the original stays free, read or not.
    reads: list[ast.stmt] = [ast.Expr(ast.Name(n, ast.Load())) for n in code.co_freevars]
    if reads:
        never = ast.If(ast.Constant(False), reads, [])
        has_doc = isinstance(node, ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None
        at = has_doc + sum(isinstance(s, ast.Global | ast.Nonlocal) for s in lowered.body)
        lowered.body.insert(at, ast.fix_missing_locations(ast.copy_location(never, node)))
    new = compiled_in_outer([bare_definition(node, lowered.args, _ROOT, lowered.body)], _ROOT, code)
    assert new is not None and new.co_freevars == code.co_freevars, (new, code.co_freevars)
    made = _Renamer(lowering.verbatim, class_of(code.co_qualname)).renamed(new, code.co_name, code.co_qualname, False)
    return made.replace(co_flags=code.co_flags)


class _Renamer:
    def __init__(self, verbatim: set[tuple[str, int]], class_name: str | None) -> None:
        self.verbatim = verbatim
        self.class_name = class_name

    def renamed(self, code: CodeType, name: str, qualname: str, is_users: bool) -> CodeType:
        """`code` called so, and what it contains called as in the user's program."""
        consts = tuple(self._constant(c, code, name, qualname, is_users) for c in code.co_consts)
        return code.replace(co_name=name, co_qualname=qualname, co_consts=consts)

    def _constant(self, value: object, code: CodeType, name: str, qualname: str, is_users: bool) -> object:
        if isinstance(value, CodeType):
            return self._inner(value, code, name, qualname, is_users)
        if isinstance(value, str):
            if value == MARKER:
                return helpers
            if is_users and value == code.co_qualname:
                return qualname
        return value

    def _inner(self, inner: CodeType, around: CodeType, name: str, qualname: str, is_users: bool) -> CodeType:
        own = inner.co_name
        if not is_users:
            if own.startswith(HIDDEN):
                own = _USERS.get(own[len(HIDDEN) :].rpartition("_")[0], "")
            elif own == "<lambda>":
                own = ""
            if not own:
                return self.renamed(inner, name, qualname, False)
        is_class = not inner.co_flags & inspect.CO_NEWLOCALS
        stays = is_users or is_class or (own, inner.co_firstlineno) in self.verbatim
        plain = unmangled(own, self.class_name)
        if inner.co_qualname == inner.co_name and not inner.co_name.startswith(HIDDEN):
            full = plain  # declared global
        elif is_users and not around.co_flags & inspect.CO_NEWLOCALS:
            full = f"{qualname}.{plain}"
        else:
            full = f"{qualname}.<locals>.{plain}"
        return self.renamed(inner, plain, full, stays)
