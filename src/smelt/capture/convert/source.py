"""A code object's syntax tree, with the lines and columns that it has in its file.

Invariant: the tree, compiled again, gives the same bytecode. What was edited since it was imported, was rewritten by an
import hook, or was made by `exec` is told apart by that, and is not converted. (Assertions that pytest rewrote are the
exception: they mean the same.)
"""

from __future__ import annotations

import ast
import linecache
import sys
import warnings
import weakref
from collections.abc import Iterable, Iterator
from itertools import chain
from opcode import opmap
from types import CodeType
from typing import Any

from smelt.capture.convert.errors import cannot
from smelt.capture.convert.mangle import class_of, mangle, unmangled
from smelt.capture.convert.runtime import HIDDEN

OUTER = f"{HIDDEN}outer"
SELF = f"{HIDDEN}self"
_PYTEST = "@pytest_ar"
_PLACE = 0x10 | 0x8000000  # CO_NESTED, and CO_METHOD (3.14): where it was written, no meaning at run time
_FUTURES = 0xFF0000 | 0x1000000  # PyCF_MASK: `from __future__ import …` of the file

NO_TYPE_PARAMETERS: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
"""A field of definitions that Python 3.12 wants."""

Root = ast.FunctionDef | ast.Lambda


_given: dict[int, tuple[weakref.ref[CodeType], Root]] = {}
"""Definitions of code that was made of parts of the user's own, by identity."""


def give(code: CodeType, node: Root) -> None:
    """Tell the definition of code that no file has as a whole."""
    key, forget = id(code), _given.pop
    _given[key] = (weakref.ref(code, lambda _: forget(key, None)), node)


def find(code: CodeType, module: dict[str, object] | None = None) -> Root:
    """The definition of `code`; private names in it are mangled. Raises: CannotConvert."""
    given = _given.get(id(code))
    if given is not None and given[0]() is code:
        return given[1]
    for attempt in range(2):
        lines = linecache.getlines(code.co_filename, module)
        if not lines:
            raise cannot("its source is not available", code)
        # The name is only where to begin: torch's decorators rename the code of what they return (2.15).
        searches = (_lambdas, _definition) if code.co_name == "<lambda>" else (_definition, _lambdas)
        for node in chain.from_iterable(search(lines, code) for search in searches):
            if is_source_of(mangle(node, class_of(code.co_qualname)), code):
                return node
        if attempt == 0:
            linecache.checkcache(code.co_filename)
    raise cannot("its source is not what it was compiled from", code)


def _definition(lines: list[str], code: CodeType) -> Iterator[Root]:
    first = code.co_firstlineno
    if first > len(lines):
        return
    head = lines[first - 1]
    indent = len(head) - len(head.lstrip())
    # The rest of the file stays out: most of the time goes to the parser.
    prefix = "\n" * (first - 2) + "if 1:\n" if indent else "\n" * (first - 1)
    end = _last_line(code)
    while end <= len(lines):
        if end == len(lines) or _may_follow(lines[end], indent):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(prefix + "".join(lines[first - 1 : end]), code.co_filename)
            except (SyntaxError, ValueError):
                pass
            else:
                body = tree.body[0].body if isinstance(tree.body[0], ast.If) and indent else tree.body
                if isinstance(body[0], ast.FunctionDef):
                    yield body[0]
                return
        end += 1


def _may_follow(line: str, indent: int) -> bool:
    text = line.lstrip()
    return bool(text) and not text.startswith("#") and len(line) - len(text) <= indent


def _last_line(code: CodeType) -> int:
    last = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([last, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])


_trees: dict[str, tuple[list[str], ast.Module]] = {}
"""The last files whose lambdas were looked for."""


def _lambdas(lines: list[str], code: CodeType) -> Iterator[Root]:
    known = _trees.get(code.co_filename)
    if known is None or known[0] is not lines:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse("".join(lines), code.co_filename)
        except (SyntaxError, ValueError):
            return
        if len(_trees) > 8:
            _trees.clear()
        known = _trees[code.co_filename] = (lines, tree)
    for node in ast.walk(known[1]):
        if isinstance(node, ast.Lambda) and node.lineno == code.co_firstlineno:
            # A copy: mangling writes to it, and the next lambda may be of the same tree.
            yield _copied(node)


def _copied(node: object) -> Any:
    if isinstance(node, ast.AST):
        copy = type(node)(**{name: _copied(value) for name, value in ast.iter_fields(node)})
        return ast.copy_location(copy, node)
    return [_copied(item) for item in node] if isinstance(node, list) else node


def is_source_of(node: Root, code: CodeType) -> bool:
    """Whether a definition compiles to `code`."""
    if any(n in (*code.co_names, *code.co_varnames) for n in (_PYTEST, "@py_builtins")) or _has_rewritten(code):
        args = node.args
        names = [a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
        return names == list(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    if isinstance(node, ast.FunctionDef):
        # A default or an annotation is no part of the code, but of what encloses it; its lines do belong to it.
        # Called otherwise: in its own body the function's name is a global.
        bare = _bare(node)
        bare.name = SELF
        compiled = compiled_in_outer([bare], SELF, code, _imported(code))
    else:
        holder = ast.copy_location(ast.Return(_bare(node)), node)
        compiled = compiled_in_outer([holder], "<lambda>", code, _imported(code))
    return compiled is not None and _same(compiled, code)


_LOAD_GLOBAL, _LOAD_ATTR, _CACHE, _EXTENDED = (opmap[n] for n in ("LOAD_GLOBAL", "LOAD_ATTR", "CACHE", "EXTENDED_ARG"))
_PUSH_NULL = opmap["PUSH_NULL"]
# An instruction of its own in 3.11; later a bit of LOAD_ATTR's, and the name is one of the compiler's, for no code.
_LOAD_METHOD = opmap["LOAD_METHOD"] if opmap.get("LOAD_METHOD", 256) < 256 else None
_NULL_IS_LAST = sys.version_info >= (3, 13)
"""Whether what is called comes before the empty place that is no `self`, and not after it."""


def _operations(*names: str) -> frozenset[int]:
    return frozenset(opmap[name] for name in names if name in opmap)


_LOAD_LOCAL = _operations("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
_LOAD_SECOND = _operations("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
"""Of two locals in one argument, the second is on top of the stack after it."""


def _imported(code: CodeType) -> set[str]:
    """The names that the module of `code` imports, as far as its bytecode depends on that.

    `name.method()` is compiled to another instruction where the module imports the name, be it another one's there.
    """
    plain, methods = set[str](), set[str]()
    _note_called(code, plain, methods)
    return plain - methods


def _note_called(code: CodeType, plain: set[str], methods: set[str]) -> None:
    """Note the names of which attributes are called, by the instruction that loads the attribute."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    local_names = code.co_varnames + cells + code.co_freevars
    loaded, asked, is_called, before = "", "", False, -1
    for op, argument in _instructions(code):
        if op == _PUSH_NULL and asked and _NULL_IS_LAST:
            plain.add(asked)
        asked = ""
        if loaded and op in (_LOAD_ATTR, _LOAD_METHOD):
            if op == _LOAD_METHOD if _LOAD_METHOD is not None else argument & 1:
                methods.add(loaded)
            elif is_called:
                plain.add(loaded)
            else:
                asked = loaded
        loaded = ""
        if op == _LOAD_GLOBAL:
            loaded, is_called = code.co_names[argument >> 1], bool(argument & 1) and not _NULL_IS_LAST
        elif op in _LOAD_LOCAL or op in _LOAD_SECOND:
            loaded = local_names[argument & 15 if op in _LOAD_SECOND else argument]
            is_called = before == _PUSH_NULL and not _NULL_IS_LAST
        before = op
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _note_called(inner, plain, methods)


def _instructions(code: CodeType) -> Iterator[tuple[int, int]]:
    """Operations and their whole arguments."""
    bytecode, extended = code.co_code, 0
    for i in range(0, len(bytecode), 2):
        op, argument = bytecode[i], bytecode[i + 1] | extended
        extended = argument << 8 if op == _EXTENDED else 0 if op != _CACHE else extended
        if op not in (_CACHE, _EXTENDED):
            yield op, argument


def _has_rewritten(code: CodeType) -> bool:
    return any(isinstance(c, CodeType) and (_PYTEST in c.co_names or _has_rewritten(c)) for c in code.co_consts)


def _bare(node: Any) -> Any:
    """A definition without defaults and annotations, its decorators nothing but the first line that they give it."""
    args = node.args
    plain = ast.arguments(
        posonlyargs=[_bare_arg(a) for a in args.posonlyargs],
        args=[_bare_arg(a) for a in args.args],
        vararg=args.vararg and _bare_arg(args.vararg),
        kwonlyargs=[_bare_arg(a) for a in args.kwonlyargs],
        kw_defaults=[None for _ in args.kwonlyargs],
        kwarg=args.kwarg and _bare_arg(args.kwarg),
        defaults=[],
    )
    if isinstance(node, ast.Lambda):
        return ast.copy_location(ast.Lambda(plain, node.body), node)
    return bare_definition(node, plain, node.name, node.body)


def _bare_arg(node: ast.arg) -> ast.arg:
    return ast.copy_location(ast.arg(node.arg), node)


def bare_definition(node: Any, args: ast.arguments, name: str, body: list[ast.stmt]) -> ast.FunctionDef:
    """A `def` where `node` stands."""
    marks: list[ast.expr] = [ast.copy_location(ast.Constant(None), d) for d in getattr(node, "decorator_list", ())]
    return ast.copy_location(ast.FunctionDef(name, args, body, marks, **NO_TYPE_PARAMETERS), node)


def bare_arguments(node: Root) -> ast.arguments:
    """A definition's arguments without defaults and annotations."""
    bare = _bare(node)
    assert isinstance(bare, ast.FunctionDef | ast.Lambda)
    return bare.args


def compiled_in_outer(body: list[ast.stmt], name: str, code: CodeType, imported: Iterable[str] = ()) -> CodeType | None:
    """The code called `name` in a function around it, whose parameters are the free variables of `code`."""
    head: list[ast.stmt] = [ast.Import([ast.alias(n) for n in sorted(imported)])] if imported else []
    free = [ast.arg(n, lineno=1, col_offset=0) for n in code.co_freevars]
    outer = ast.FunctionDef(
        OUTER, ast.arguments([], free, None, [], [], None, []), body, [], lineno=1, col_offset=0, **NO_TYPE_PARAMETERS
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = compile(
            ast.fix_missing_locations(ast.Module([*head, outer], [])),
            code.co_filename,
            "exec",
            flags=code.co_flags & _FUTURES,
            dont_inherit=True,
        )
    for around in module.co_consts:
        if isinstance(around, CodeType) and around.co_name == OUTER:
            for inner in around.co_consts:
                if isinstance(inner, CodeType) and inner.co_name == name:
                    return inner
    return None


def _same(a: CodeType, b: CodeType) -> bool:
    return (
        a.co_code == b.co_code
        and a.co_names == b.co_names
        and a.co_varnames == b.co_varnames
        and a.co_freevars == b.co_freevars
        and a.co_cellvars == b.co_cellvars
        and a.co_firstlineno == b.co_firstlineno
        and a.co_exceptiontable == b.co_exceptiontable
        and a.co_linetable == b.co_linetable
        and (a.co_argcount, a.co_posonlyargcount, a.co_kwonlyargcount)
        == (b.co_argcount, b.co_posonlyargcount, b.co_kwonlyargcount)
        and a.co_flags & ~_PLACE == b.co_flags & ~_PLACE
        and len(a.co_consts) == len(b.co_consts)
        and all(_same_constant(x, y, a, b) for x, y in zip(a.co_consts, b.co_consts, strict=True))
    )


def _same_constant(x: object, y: object, a: CodeType, b: CodeType) -> bool:
    if isinstance(x, CodeType) and isinstance(y, CodeType):
        return unmangled(x.co_name, class_of(y.co_qualname)) == y.co_name and _same(x, y)
    if type(x) is not type(y):
        return False
    if isinstance(x, str):
        return x == y or (x == a.co_qualname and y == b.co_qualname)
    return repr(x) == repr(y) if not isinstance(x, frozenset) else x == y
