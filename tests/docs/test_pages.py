"""Every block of Python in docs/ runs, those of one page in order and in one namespace."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import smelt

DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if _BLOCK.search(page.read_text(encoding="utf-8"))]


def test_pages_have_code() -> None:
    assert {"kernels", "profiling"} <= {page.stem for page in PAGES}


@pytest.fixture
def threads() -> Iterator[None]:
    """A page may set how many threads there are. It begins with one: its tensors are small, and where another process
    has the other processor, threads wait for one another.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# As long as all others together (its steps have tests of their own), and what imports TorchDynamo.
_LONG = {"schedules", "dynamo"}
_RUN = [
    pytest.param(page, marks=pytest.mark.nightly if page.stem in _LONG else (), id=page.stem)
    for page in PAGES
    if page.stem != "tutorial"
]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("page", _RUN)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": f"docs_{page.stem}"}
    text = page.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        # As many empty lines before the code as the page has, so that tracebacks name the page's lines; from a file
        # of the test's own, because what is compiled is read for its source.
        path = tmp_path / f"{page.stem}_{block.start()}.py"
        path.write_text("\n" * text[: block.start(1)].count("\n") + block.group(1), encoding="utf-8")
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)


def test_the_tutorial_is_the_example() -> None:
    """Which runs as one (`tests/demo/test_examples.py`), so that the page need not."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    example = (DOCS.parent / "examples" / "tutorial_attention.py").read_text(encoding="utf-8")
    code = "\n".join(block.group(1) for block in _BLOCK.finditer(page))
    assert ast.dump(ast.parse(example.split('"""', 2)[2])) == ast.dump(ast.parse(code))


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), *DOCS.parent.glob("*.md")], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)\)", prose):
        assert (page.parent / target).exists(), target


def site() -> Any:
    """The hook that makes the site, which mkdocs loads; it is not needed for what is tested here."""
    for name in ("mkdocs", "mkdocs.exceptions", "mkdocs.structure", "mkdocs.structure.files"):
        if name not in sys.modules:
            sys.modules[name] = types.SimpleNamespace(PluginError=RuntimeError, File=None)  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("docs_site", DOCS.parent / "web" / "docs_site.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = dict(sys.modules)
    yield site()
    for name in [name for name in sys.modules if name.startswith("mkdocs") and name not in before]:
        del sys.modules[name]


def test_the_site_runs_the_code_of_a_page_and_shows_what_it_prints(hook: Any) -> None:
    page = "# A page\n\n```python\nx = 2\n```\n\nand\n\n```python\nfor i in range(70):\n    print('line', i * x)\n```\n"
    text = hook.executed(page, "gallery/one.md")
    assert text.startswith(page[: page.index("and")]) and "line 118" in text and "and 10 more lines" in text
    with pytest.raises(Exception, match=r"gallery/one.md: ZeroDivisionError"):
        hook.executed("```python\n1 / 0\n```\n", "gallery/one.md")


def test_the_reference_has_every_public_name(hook: Any) -> None:
    text = hook.reference()
    assert all(f"\n## `{name}`\n" in text for name in smelt.__all__)
    assert "What `smelt.explain` returns" in text or "A report on a compiled object" in text
    assert "### `Report.to_html`" in text


def test_the_menu_of_the_site_has_every_page(hook: Any) -> None:
    named = re.findall(r"- (\S+\.md)$", (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    config = types.SimpleNamespace(nav=["index.md", {"Some": ["sizes.md", {"Deep": ["glossary.md"]}]}])
    found = list(hook._named(hook.on_config(config).nav))
    assert set(found) == pages | {"index.md"} and len(found) == len(set(found))
    assert set(named) - pages == {"index.md", "ARCHITECTURE.md", "CHANGELOG.md", "reference.md"}
