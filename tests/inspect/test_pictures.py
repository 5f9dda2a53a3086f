"""The pictures of the README and of docs/inside.md are of the page as it is: `pytest --bless` makes them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import smelt
from smelt.inspect.atlas import models
from tests.inspect.browser import CHROMIUM, MISSING, Browser, Tab

pytestmark = [pytest.mark.nightly, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_COARSE = (64, 40)  # dots: times and fonts differ, panes and colours do not
_DIFFERENT = 24.0  # of 255, on average


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    # As a user's own file: lines of Smelt itself are not shown.
    (folder / "model.py").write_text(Path(models.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None and spec.loader is not None
    mine = sys.modules["model"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mine)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.chdir(folder)  # so that the page names the file alone
    model, args = next(one for one in mine.ARCHITECTURES if one.name == "bert").build()
    with torch.no_grad():
        path = smelt.explain(model, *args).to_html(folder / "bert.html")
    monkeypatch.undo()
    del sys.modules["model"]
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def looks_like(found: Path, expected: Path) -> float:
    """How far two pictures are from each other, on average, when both are seen from afar."""
    from PIL import Image

    small = [Image.open(path).convert("L").resize(_COARSE).tobytes() for path in (found, expected)]
    return sum(abs(a - b) for a, b in zip(*small, strict=True)) / len(small[0])


def selected(tab: Tab) -> None:
    """A layer open, one of its nodes selected, what a pass did below."""
    tab.js("smelt.app.tab('passes')")
    tab.js("smelt.app.graph.toggle(smelt.app.graph.made.boxes.find(b => b.label.includes('layers')))")
    tab.js("smelt.app.select(new Set([smelt.app.find('gelu')[0].uid]), 'search')")
    tab.js("smelt.app.setStage(smelt.app.plan.code.stages.length - 1)")
    tab.js("new Promise(requestAnimationFrame).then(() => new Promise(requestAnimationFrame)).then(() => 1)")


@pytest.mark.parametrize("dark", [False, True])
def test_the_picture_is_of_the_page(
    browser: Browser, page: Path, tmp_path: Path, dark: bool, request: pytest.FixtureRequest
) -> None:
    tab = browser.tab(1600, 1000, dark=dark)
    tab.open(page)
    selected(tab)
    name = f"page-{'dark' if dark else 'light'}.png"
    made = tmp_path / name
    tab.picture(made)
    assert not tab.errors and not tab.requests
    if request.config.getoption("--bless"):
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / name).write_bytes(made.read_bytes())
    assert looks_like(made, PICTURES / name) < _DIFFERENT
