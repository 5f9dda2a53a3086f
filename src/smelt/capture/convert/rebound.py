"""Which variables a loop binds anew in each turn, before it reads them: what they held in the turn before is no matter.

for layer, head in zip(layers, heads):  x = layer(x); p = head(x); if p.max() > t: break      layer, head, p
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.GeneratorExp)


def rebound(loop: ast.For, around: ast.AST) -> tuple[str, ...]:
    """Their names; but for those that a function inside `around`, the one that the loop stands in, may read."""
    seen, found = set[str](), dict[str, None]()
    for part in (loop.target, *loop.body):
        parts = list(ast.walk(part))
        seen.update(n.id for n in parts if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
        seen.update(n.target.id for n in parts if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name))
        for target in _targets(part):
            found.update((n.id, None) for n in ast.walk(target) if isinstance(n, ast.Name) and n.id not in seen)
    inner = [n for n in ast.walk(around) if isinstance(n, _APART) and n is not around]
    kept = {n.id for function in inner for n in ast.walk(function) if isinstance(n, ast.Name)}
    return tuple(name for name in found if name not in kept)


def _targets(part: ast.AST) -> Iterator[ast.expr]:
    """What a part of a loop binds whatever happens."""
    match part:
        case ast.expr():
            yield part
        case ast.Assign(targets):
            yield from (target for target in targets if isinstance(target, (ast.Name, ast.Tuple, ast.List)))
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr()):
            yield target


__all__ = ["rebound"]
