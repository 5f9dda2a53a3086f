"""The atlas: each architecture is compiled as one graph and agrees with eager, and what is said of it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import smelt
from smelt.cli import app
from smelt.inspect.atlas.models import ARCHITECTURES
from smelt.inspect.atlas.report import page_of, table_of, text_of
from smelt.inspect.atlas.survey import survey
from tests.inspect.browser import CHROMIUM, MISSING, Browser

KNOWN = {one.name: one for one in ARCHITECTURES}


def test_there_are_the_architectures_that_people_name() -> None:
    assert len(KNOWN) == len(ARCHITECTURES) >= 16
    (first, args), (again, same) = KNOWN["bert"].build(), KNOWN["bert"].build()
    assert isinstance(first, nn.Module) and isinstance(again, nn.Module) and not first.training
    assert all(
        torch.equal(a, b) for a, b in zip([*first.parameters(), *args], [*again.parameters(), *same], strict=True)
    )


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.spread(5)) for n in KNOWN])
@pytest.mark.filterwarnings("ignore:.*falls back to eager. gradients are needed")
def test_an_architecture_is_one_graph_and_agrees(name: str) -> None:
    one = KNOWN[name]
    card = survey(one.name, one.summary, *one.build(), seconds=0.02, ablate=False)
    assert not card.failed and card.error < 1e-4 and card.kernels and card.captured
    assert card.sizes in ("one build serves all sizes", "the second build serves all sizes"), card.sizes
    assert card.advice and sum(card.operators.values()) >= 3
    assert bool(card.regions) == (name in ("early-exit", "greedy-search"))
    if card.training is not None and not card.training.note:
        assert card.training.error < 1e-3 and card.training.backward > card.training.forward / 2


def test_what_is_omitted_is_what_fired() -> None:
    one = KNOWN["resnet"]
    card = survey(one.name, one.summary, *one.build(), seconds=0.02)
    found = {effect.what: effect for effect in card.effects}
    assert {"fold-batch-norm", "own kernels"} <= set(found)
    assert all(effect.time and effect.time > 0 for effect in card.effects)
    without = smelt.compile(one.build()[0], options={"skip": ["fold-batch-norm"], "adaptive": False})
    with torch.no_grad():
        without(*one.build()[1])
    assert "fold-batch-norm" not in {row["pass"] for row in smelt.explain(without).passes}


def test_a_program_that_raises_or_has_effects_is_a_row_that_says_so() -> None:
    def raises(x: Tensor) -> Tensor:
        raise ValueError("<b>no</b>")

    cards = [survey("<i>bad</i>", "raises", raises, (torch.ones(2),))]
    assert "ValueError" in cards[0].failed and "ValueError" in text_of(cards[0])
    page = page_of(cards, "here")
    assert "<i>bad" not in page and "<b>no" not in page and table_of(cards).row_count == 1


PROGRAM = """
import torch

def mine():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    return model.eval(), (torch.randn(4, 8),)
"""


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("atlas")
    (folder / "mine.py").write_text(PROGRAM)
    page, pages = folder / "atlas.html", folder / "pages"
    told = ["--only", "ffnn", "--html", str(page), "--pages", str(pages), "--seconds", "0.02", "--json"]
    result = CliRunner().invoke(app, ["explore", f"{folder}/mine.py:mine", *told])
    assert result.exit_code == 0, result.output
    return page, json.loads(result.stdout)


def test_the_command_surveys_a_users_program(atlas: tuple[Path, dict[str, Any]]) -> None:
    page, data = atlas
    mine, ffnn = data["programs"]
    assert mine["name"].endswith("mine.py:mine") and ffnn["name"] == "ffnn" and "GFLOP/s" in data["conditions"]
    assert mine["operators"] == {"product": 1, "pointwise": 1} and mine["error"] < 1e-5
    text = page.read_text(encoding="utf-8")
    assert 'href="pages/ffnn.html"' in text and (page.parent / "pages/ffnn.html").exists()


def test_wrong_names_are_told() -> None:
    assert CliRunner().invoke(app, ["explore", "--only", "nobody"]).exit_code == 2
    assert CliRunner().invoke(app, ["explore", "--alone"]).exit_code == 2


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_the_page_opens(atlas: tuple[Path, dict[str, Any]]) -> None:
    with Browser() as browser:
        for width in (360, 1280):
            tab = browser.tab(width, 900)
            tab.send("Page.navigate", {"url": atlas[0].resolve().as_uri()})
            tab.wait("document.querySelectorAll('section').length > 5")
            assert tab.js("document.documentElement.scrollWidth") <= width
            assert not tab.errors
