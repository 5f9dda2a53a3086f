"""Make a failing program small: leave out statements, outputs and inputs as long as it still fails in a like way."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.differential.programs import Program


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smallest program, by leaving things out one by one, for which `fails` still holds."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(program):
            if fails(smaller):
                program, changed = smaller, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    for i in reversed(range(len(program.lines))):
        yield replace(program, lines=program.lines[:i] + program.lines[i + 1 :])
    tree = ast.parse(program.result, mode="eval").body
    for part in ast.walk(tree):
        if part is not tree and isinstance(part, (ast.Tuple, ast.List, ast.Name, ast.Attribute, ast.Subscript)):
            yield replace(program, result=ast.unparse(part))
    if isinstance(tree, (ast.Tuple, ast.List)) and len(tree.elts) > 1:
        for i in range(len(tree.elts)):
            kept = tree.elts[:i] + tree.elts[i + 1 :]
            yield replace(program, result=ast.unparse(type(tree)(kept, ast.Load())))
    for i, text in enumerate(program.inputs):
        plain = re.sub(r"'(transposed|sliced|offset|expanded|overlapping)', '", "'plain', '", text)
        for simpler in (plain, text.replace("'wild'", "'tame'")):
            if simpler != text:
                yield replace(program, inputs=(*program.inputs[:i], simpler, *program.inputs[i + 1 :]))
    if program.inputs[1:] and not re.search(rf"\bx{len(program.inputs) - 1}\b", program.source().partition(":")[2]):
        yield replace(program, inputs=program.inputs[:-1])
    if program.state and f"s{len(program.state) - 1}" not in " ".join((*program.lines, program.result)):
        yield replace(program, state=program.state[:-1])
