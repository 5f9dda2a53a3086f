"""The smallest program that still differs: `python -m tests.programs.shrink [KIND:]SEED|FILE [WAYS] [KEY]`."""

from __future__ import annotations

import ast
import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.programs.run import KINDS, kind_of


def shrink(text: str, fails: Callable[[str], bool], seconds: float = 120) -> str:
    """Delete and simplify as long as `fails` holds."""
    end = time.perf_counter() + seconds
    tree = ast.parse(text)
    progress = True
    while progress and time.perf_counter() < end:
        progress = False
        for smaller in _smaller(tree):
            if time.perf_counter() > end:
                break
            try:
                candidate = ast.unparse(ast.fix_missing_locations(smaller)) + "\n"
                compile(candidate, "<smaller>", "exec")
            except (SyntaxError, ValueError):
                continue
            if fails(candidate):
                tree = ast.parse(candidate)
                progress = True
                break
    return ast.unparse(tree) + "\n"


def _bodies(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody", "elts", "cases"):
            if isinstance(getattr(node, name, None), list):
                yield node, name


def _smaller(tree: ast.Module) -> Iterator[ast.Module]:
    """Trees with one thing less, the greatest cuts first."""
    program = _program(tree)
    size = sum(1 for _ in _bodies(program))
    for number in range(size):
        node, name = list(_bodies(program))[number]
        items = getattr(node, name)
        for width in (8, 4, 2, 1):
            for at in range(0, len(items), width):
                if width > 1 and len(items) < width:
                    continue
                made = copy.deepcopy(tree)
                other, _ = list(_bodies(_program(made)))[number]
                left = getattr(other, name)
                del left[at : at + width]
                if not left and name in ("body",):
                    left.append(ast.Pass())
                yield made
        for at, item in enumerate(items):
            if isinstance(item, ast.If | ast.For | ast.While | ast.With | ast.Try | ast.Match):
                for part in ("body", "orelse"):
                    inner = getattr(item, part, [])
                    if not inner:
                        continue
                    made = copy.deepcopy(tree)
                    other, _ = list(_bodies(_program(made)))[number]
                    getattr(other, name)[at : at + 1] = copy.deepcopy(inner)
                    yield made
    expressions = [n for n in ast.walk(program) if isinstance(n, ast.expr)]
    for number, node in enumerate(expressions):
        replacements: list[ast.expr] = [
            child for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr) and isinstance(getattr(child, "ctx", ast.Load()), ast.Load)
            and not isinstance(child, ast.Starred)
        ]  # fmt: skip
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute):
                replacements.insert(0, node.func.value)
            replacements = [r for r in replacements if r is not node.func]
        if isinstance(node, ast.Constant | ast.Name | ast.Attribute) or not isinstance(
            getattr(node, "ctx", ast.Load()), ast.Load
        ):
            continue
        for small in (*replacements, ast.Constant(0), ast.Constant(True)):
            made = copy.deepcopy(tree)
            target = [n for n in ast.walk(_program(made)) if isinstance(n, ast.expr)][number]
            _replace(made, target, copy.deepcopy(small))
            yield made
    arguments = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "calls")
    del arguments


def _replace(tree: ast.AST, old: ast.expr, new: ast.expr) -> None:
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
                return
            if isinstance(value, list):
                for at, item in enumerate(value):
                    if item is old:
                        value[at] = new
                        return


def _program(tree: ast.Module) -> ast.FunctionDef:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in ("program", "forward"):
            return node
    raise ValueError("no program")


def main() -> None:
    """The command: the minimal program of a seed, or of a file."""
    import torch

    from tests.programs.judge import judge

    torch.set_num_threads(1)
    which, ways = sys.argv[1], tuple(sys.argv[2].split(",")) if len(sys.argv) > 2 else ("compile", "trace", "staged")
    key = sys.argv[3] if len(sys.argv) > 3 else "difference"
    kind, _, number = which.rpartition(":")
    text = KINDS[kind or "generate"](int(number), 0).text if number.isdigit() else Path(which).read_text()
    with tempfile.TemporaryDirectory() as folder:
        count = 0

        def found(candidate: str) -> str:
            nonlocal count
            count += 1
            path = Path(folder) / f"program_{count}.py"
            path.write_text(candidate)
            try:
                return kind_of(str(getattr(judge(path, ways), key)))
            except Exception as error:
                return f"judge: {type(error).__name__}"
            finally:
                path.unlink()

        wanted = found(text)
        if not wanted or wanted.startswith("judge"):
            print("nothing found", wanted)
            return
        kept = wanted[:40]
        small = shrink(text, lambda candidate: found(candidate)[:40] == kept)
        print(f"{wanted}\n{small}")


if __name__ == "__main__":
    main()
