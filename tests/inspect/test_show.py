"""A graph for a terminal: short places once for each scope, colours, a width, the user's own line; it parses back."""

from __future__ import annotations

import io
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import smelt
from smelt.diag.console import console
from smelt.inspect.places import is_installed, plain, short_file
from smelt.inspect.show import coloured, compact


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.a(x).relu()
        return y + self.b(y)


def branched(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        print("positive")
        return x * 2
    for _ in range(3):
        x = x.sin()
    return x


def bare(graph: smelt.Graph) -> smelt.Graph:
    copy = graph.clone()
    for node in copy.walk():
        node.span, node.scope = None, ""
    return copy


@pytest.mark.spread(2)
@pytest.mark.parametrize("width", [None, 60, 80, 100, 160])
@pytest.mark.parametrize("where", [True, False])
def test_it_parses_back_to_the_graph_without_places(width: int | None, where: bool) -> None:
    for f, x in ((Inner(), torch.randn(2, 8)), (branched, torch.ones(3)), (torch.unbind, torch.ones(2, 3))):
        with torch.no_grad():
            graph = smelt.trace(f, (x,)).graph
        text = compact(graph, where=where, width=width)
        assert smelt.parse(text) == bare(graph)
        assert smelt.parse(str(graph)) == graph  # which is as ever
        assert where or "#" not in text
        if width is not None and width >= 80:
            assert max(map(len, text.splitlines())) <= width


def test_a_path_is_said_once_for_each_scope() -> None:
    with torch.no_grad():
        graph = smelt.trace(Inner(), (torch.randn(2, 8),)).graph
    text, whole = compact(graph), str(graph)
    assert len(text) < 0.7 * len(whole)
    assert text.count("test_show.py") == 4  # a, the module's own, b, the module's own again
    assert str(Path(__file__).parent) not in text.replace(short_file(__file__), "")
    assert "# a, " in text and "in Inner.forward" in text


def test_colours_change_no_letter() -> None:
    with torch.no_grad():
        text = compact(smelt.trace(branched, (torch.ones(3),)).graph)
    shown = coloured(text)
    assert shown.plain == text and len(shown.spans) > 10
    out = io.StringIO()
    console(out, width=200).print(shown, soft_wrap=True)
    assert out.getvalue() == text + "\n"


LIBRARY = "def call(f, x):\n    y = f(x)\n    return y * 2 + 1\n"


@pytest.fixture
def library(tmp_path: Path) -> Iterator[types.ModuleType]:
    """A module of an installed package."""
    folder = tmp_path / "site-packages" / "somelibrary"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(LIBRARY)
    sys.path.insert(0, str(folder.parent))
    import somelibrary

    yield somelibrary
    sys.path.remove(str(folder.parent))
    del sys.modules["somelibrary"]


def test_the_users_own_line_stands_beside_the_librarys(library: types.ModuleType) -> None:
    def mine(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    def program(x: torch.Tensor) -> torch.Tensor:
        first = library.call(mine, x)
        return library.call(torch.cos, first)

    line = program.__code__.co_firstlineno + 1
    graph = smelt.trace(program, (torch.ones(3),)).graph
    nodes = {node.op: node for node in graph.walk()}
    (own, theirs) = nodes["aten.sin.default"].span, nodes["aten.cos.default"].span
    assert own.caller is None and own.file == __file__
    assert is_installed(theirs.file) and theirs.caller.line == line + 1 and theirs.caller.file == __file__
    callers = {node.span.caller.line for node in graph.walk() if node.op == "aten.mul.Tensor"}
    assert callers == {line, line + 1}
    text = compact(graph)
    assert f"# somelibrary/__init__.py in call, called at {short_file(__file__)}:{line} in " in text
    assert "caller" not in str(graph) and smelt.parse(str(graph)) == graph


def test_short_files_tell_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert short_file(f"{tmp_path}/a/model.py") == "a/model.py"
    assert short_file("/elsewhere/model.py") == "/elsewhere/model.py"
    assert short_file(f"{tmp_path}/.venv/lib/python3.11/site-packages/torch/nn/x.py") == "torch/nn/x.py"
    assert short_file("/usr/lib/python3.12/json/decoder.py") == "json/decoder.py"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<function f at 0x7f00aa>", "<function f>"),
        ('(<code object g at 0x55aa, file "/a/b.py", line 3>, 1)', "(code of g, 1)"),
        ("f was <function f at 0x7f00aa>, now <function f at 0x7f00bb>", "f was <function f>, now another one"),
        ("f was <function f at 0x7f00aa>, now <function g at 0x7f00bb>", "f was <function f>, now <function g>"),
        ("no address", "no address"),
    ],
)
def test_addresses_are_left_out(text: str, shown: str) -> None:
    assert plain(text) == shown
