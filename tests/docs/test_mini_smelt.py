"""The compiler in one file stays short, and is right."""

from __future__ import annotations

import ast
import importlib.util
import io
import sys
import tokenize
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "mini_smelt.py"


@pytest.fixture(scope="module")
def mini() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mini_smelt", FILE)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_has_at_most_300_lines_of_code() -> None:
    text = FILE.read_text(encoding="utf-8")
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    assert 200 < len(lines) <= 300


def test_the_page_shows_its_program() -> None:
    page = (ROOT / "docs" / "mini_smelt.md").read_text(encoding="utf-8")
    shown = ast.parse(page.split("```python\n")[1].split("```")[0]).body[0]
    (program,) = (
        n
        for n in ast.parse(FILE.read_text(encoding="utf-8")).body
        if isinstance(n, ast.FunctionDef) and n.name == "program"
    )
    assert isinstance(shown, ast.FunctionDef)
    assert [ast.unparse(s) for s in shown.body] == [ast.unparse(s) for s in program.body[1:]]


def nested(x: Tensor, y: Tensor) -> Tensor:
    if x.mean() > 0:
        z = x + y
        if y.mean() > 0:
            z = z * 3
        else:
            z = z - y
    else:
        z = x.t() @ y
    steps = x.sum() * 0
    while steps < 5:
        z = z / 2 + x
        steps = steps + 1
    return z


def straight(x: Tensor, y: Tensor) -> Tensor:
    for k in range(3):
        x = torch.relu(x * y - k) if k else x + y
    return x.softmax(-1) + y.exp()


@pytest.mark.spread(4)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("f", [nested, straight])
def test_equal_to_eager(mini: ModuleType, f: object, dtype: torch.dtype) -> None:
    assert callable(f)
    compiled = mini.mini_compile(f)
    draw = torch.Generator().manual_seed(1)
    for k in range(12):
        x, y = (torch.randn(5, 5, generator=draw, dtype=dtype) + (k % 3 - 1) for _ in range(2))
        torch.testing.assert_close(compiled(x, y.t()), f(x, y.t()), rtol=1e-6, atol=1e-6, equal_nan=True)


def test_both_arms_and_the_loop_are_in_the_graph(mini: ModuleType) -> None:
    graph = mini.capture(mini.program, [torch.randn(4, 4)])
    assert [n.op for n in graph.nodes if n.regions] == ["if", "while"]
    assert [len(n.regions) for n in graph.nodes if n.regions] == [2, 2]
