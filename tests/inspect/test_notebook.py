"""What a notebook shows: reports, graphs, programs, code, compiled objects and schedules have HTML of their own, and
their text stays text."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
from torch import nn

import smelt


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


@pytest.fixture
def in_notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a Jupyter kernel, where a console of rich's shows its text by itself."""
    monkeypatch.setattr(rich.console, "_is_jupyter", lambda: True)
    yield


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    module, x = Layer().eval(), torch.randn(2, 4)
    program, compiled, function = smelt.trace(module, (x,)), smelt.compile(module), smelt.compile(torch.sin)
    with torch.no_grad():
        compiled(x), function(x)
    return {
        "report": smelt.explain(compiled), "report of a program": smelt.explain(program), "graph": program.graph,
        "program": program, "code": program.code, "compiled": compiled, "compiled function": function,
        "schedule": smelt.schedule(module, x),
    }  # fmt: skip


KINDS = (
    "report", "report of a program", "graph", "program", "code", "compiled", "compiled function", "schedule",
)  # fmt: skip


class _Balanced(HTMLParser):
    """Fails where a tag is closed that is not the last one open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_html(objects: dict[str, Any], kind: str) -> None:
    page = objects[kind]._repr_html_()
    parsed = _Balanced()
    parsed.feed(page)
    assert not parsed.open and "".join(parsed.text).strip()
    assert "<body" not in page and "<html" not in page  # a part of a notebook, not a page


@pytest.mark.parametrize("kind", ["report", "graph", "program", "code"])
def test_html_has_the_whole_graph(objects: dict[str, Any], kind: str) -> None:
    parsed = _Balanced()
    parsed.feed(objects[kind]._repr_html_())
    assert "aten.relu.default" in "".join(parsed.text)


def test_a_text_is_a_text_in_a_notebook(objects: dict[str, Any], in_notebook: None) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        report = objects["report"]
        assert "Graphs" in str(report) and str(report) == report.to_text()
        assert "Guards" in report.to_text(everything=True)
        assert "return" in str(objects["graph"]) and str(objects["schedule"])
    assert not out.getvalue()


@pytest.mark.parametrize("kind", ["report", "graph", "compiled function", "schedule"])
def test_the_short_form_is_one_line_without_addresses(objects: dict[str, Any], kind: str) -> None:
    text = repr(objects[kind])
    assert "\n" not in text and " at 0x" not in text and len(text) < 120


def test_a_page_comes_back_where_no_path_is_given(objects: dict[str, Any], tmp_path: Path) -> None:
    page = objects["report"].to_html()
    assert page.startswith("<!doctype html>") and page.endswith("</html>")
    path = objects["report"].to_html(tmp_path / "r.html")
    assert path == tmp_path / "r.html" and path.read_text(encoding="utf-8") == page


class Named(nn.Module):
    def _repr_html_(self) -> str:
        return "the user's own"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def test_a_modules_own_html_stays() -> None:
    assert smelt.compile(Named())._repr_html_() == "the user's own"
