"""The code of a function around its pieces, and of each piece, under the user's own file, name and lines.

Invariant: neither the user's globals nor a function's closure change: the pieces are reached through a constant.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import CellType, CodeType, FunctionType
from typing import Final

from smelt.capture.convert import CannotConvert
from smelt.capture.convert.errors import cannot
from smelt.capture.convert.runtime import HIDDEN
from smelt.capture.convert.source import NO_TYPE_PARAMETERS, bare_arguments, bare_definition, find, give
from smelt.capture.splitting.plan import FELL, MARKER, RETURNED, Piece, Plan, Planner, copied

__all__ = ["CannotConvert", "Source"]

_OUTER: Final = f"{HIDDEN}outer"
_SPLIT: Final = f"{HIDDEN}split"
_FUTURES: Final = 0xFF0000 | 0x1000000  # PyCF_MASK: `from __future__ import …` of the file
_ASYNCHRONOUS: Final = 0x0080 | 0x0200  # coroutines and asynchronous generators


class Source:
    """A function's definition, and code made of it. Raises: CannotConvert where there is none."""

    def __init__(self, function: FunctionType) -> None:
        code = function.__code__
        if code.co_flags & _ASYNCHRONOUS:
            raise cannot("it is asynchronous", code)
        node = find(code, function.__globals__)
        body: list[ast.stmt]
        if isinstance(node, ast.Lambda):
            body = [ast.copy_location(ast.Return(node.body), node.body)]
        else:
            body = node.body
        self.code, self.node = code, node
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
        self.planner = Planner(body, code.co_varnames[:count], code.co_freevars)

    def around(self, function: FunctionType, plan: Plan, pieces: object) -> FunctionType:
        """The function with its pieces called, which `pieces` holds."""
        body = list(plan.body)
        # What is free in the original stays free, read or not.
        reads: list[ast.stmt] = [ast.Expr(ast.Name(n, ast.Load())) for n in self.code.co_freevars]
        if reads:
            at = _after_head(body)
            body.insert(at, ast.copy_location(ast.If(ast.Constant(False), reads, []), body[0]))
        definition = bare_definition(self.node, bare_arguments(self.node), _SPLIT, body)
        made = self._compiled(definition, self.code.co_freevars, pieces)
        assert made.co_freevars == self.code.co_freevars
        new = FunctionType(
            made.replace(co_flags=self.code.co_flags), function.__globals__, function.__name__, function.__defaults__,
            function.__closure__,
        )  # fmt: skip
        new.__kwdefaults__ = function.__kwdefaults__
        return new

    def piece(self, function: FunctionType, piece: Piece, held: Mapping[str, object]) -> FunctionType:
        """A piece as a function of what it needs apart from `held`, which it has as closure variables."""
        args = [ast.arg(n) for n in piece.needs if n not in held]
        body = list(piece.body)
        if len(piece.ways) > 1:
            body = [_Tagged().visit(copied(node)) for node in body]
        if FELL in piece.ways:
            body.append(_ended(piece))
        given = ast.arguments([], args, None, [], [], None, [])
        definition = ast.FunctionDef(
            _SPLIT, given, body, [], lineno=piece.place[0], col_offset=piece.place[1],
            end_lineno=piece.place[2], end_col_offset=piece.place[3], **NO_TYPE_PARAMETERS,
        )  # fmt: skip
        cells = dict(zip(self.code.co_freevars, function.__closure__ or (), strict=True))
        cells.update({name: CellType(value) for name, value in held.items()})
        code = self._compiled(definition, tuple(cells), None)
        give(code, definition)
        closure = tuple(cells[name] for name in code.co_freevars)
        new = FunctionType(code, function.__globals__, function.__name__, None, closure)
        new.__qualname__ = function.__qualname__
        new.__module__ = function.__module__
        return new

    def _compiled(self, definition: ast.FunctionDef, free: Sequence[str], pieces: object) -> CodeType:
        outer = ast.FunctionDef(
            _OUTER, ast.arguments([], [ast.arg(n) for n in free], None, [], [], None, []), [definition], [],
            **NO_TYPE_PARAMETERS,
        )  # fmt: skip
        ast.copy_location(outer, definition)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = compile(
                ast.fix_missing_locations(ast.Module([outer], [])),
                self.code.co_filename,
                "exec",
                flags=self.code.co_flags & _FUTURES,
                dont_inherit=True,
            )
        found = _named(_named(module, _OUTER), _SPLIT)
        prefix = f"{_OUTER}.<locals>.{_SPLIT}"
        return _renamed(found, lambda name: name.replace(prefix, self.code.co_qualname), pieces).replace(
            co_name=self.code.co_name
        )


def _after_head(body: Sequence[ast.stmt]) -> int:
    """Where statements may be put: behind the docstring, and what declares names."""
    at = 0
    for node in body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not (is_text or isinstance(node, ast.Global | ast.Nonlocal)):
            break
        at += 1
    return at


def _named(code: CodeType, name: str) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)


def _renamed(code: CodeType, rename: Callable[[str], str], pieces: object) -> CodeType:
    """Code under the user's names, with the object in the place of its marker."""
    consts = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            value = _renamed(value, rename, pieces)
        elif isinstance(value, str):
            value = pieces if value == MARKER else rename(value)
        consts.append(value)
    return code.replace(co_qualname=rename(code.co_qualname), co_consts=tuple(consts))


def _ended(piece: Piece) -> ast.Return:
    """`return` of what a piece gives, at its end."""
    values: list[ast.expr] = [ast.Name(n, ast.Load()) for n in piece.gives]
    if len(piece.ways) > 1:
        value: ast.expr | None = ast.Tuple([ast.Constant(FELL), *values], ast.Load())
    elif len(values) == 1:
        value = values[0]
    else:
        value = ast.Tuple(values, ast.Load()) if values else None
    last = piece.body[-1]
    end = (last.end_lineno or last.lineno, last.end_col_offset or 0)
    return ast.fix_missing_locations(
        ast.Return(value, lineno=end[0], col_offset=end[1], end_lineno=end[0], end_col_offset=end[1])
    )


class _Tagged(ast.NodeTransformer):
    """Puts the way before what is returned."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        value = node.value or ast.copy_location(ast.Constant(None), node)
        tagged = ast.Tuple([ast.Constant(RETURNED), value], ast.Load())
        return ast.fix_missing_locations(ast.copy_location(ast.Return(tagged), node))
