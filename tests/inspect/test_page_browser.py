"""The page in Chromium: it opens without an error and asks for nothing; what is selected in one pane is lit in all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect.page.html import page_html
from smelt.inspect.page.model import Code, Page
from smelt.inspect.page.places import Places
from smelt.inspect.page.stages import Stages
from tests.inspect.browser import CHROMIUM, MISSING, Browser, Tab
from tests.inspect.test_page import ROOT, Block, decides, marked, whole_step

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
AXE = ROOT / "web/node_modules/axe-core/axe.min.js"
WIDTHS = (360, 1280, 2560)


class Folds(nn.Module):
    """A convolution that takes its batch norm in: passes have something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norm(self.conv(x)))
        h = self.block(h.mean((2, 3)))
        if h.sum() > 0:
            h = h * 2
        return h


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page with times and passes, one of two plans and a recompile, one that is trained, one without any graph."""
    folder = tmp_path_factory.mktemp("pages")
    torch.manual_seed(0)
    with torch.no_grad():
        folds = smelt.explain(Folds().eval(), torch.randn(2, 3, 8, 8))
    model, (x,) = decides()
    sized = smelt.compile(model)
    with torch.no_grad():
        sized(x), sized(torch.randn(5, 16))
    trained = smelt.compile(Block(), options={"train": True})
    trained(torch.randn(3, 16)).sum().backward()
    reports = {
        "folds": folds, "sized": smelt.explain(sized), "trained": smelt.explain(trained),
        "nothing": smelt.explain(smelt.compile(lambda x: x)), "marked": smelt.explain(marked()),
        "step": smelt.explain(whole_step()),
    }  # fmt: skip
    return {name: report.to_html(folder / f"{name}.html") for name, report in reports.items()}


def opened(browser: Browser, page: Path, width: int = 1280, fragment: str = "", **kwargs: Any) -> Tab:
    tab = browser.tab(width, 900, **kwargs)
    tab.open(page, fragment)
    return tab


def lit(tab: Tab) -> dict[str, list[str]]:
    """The texts that are lit in the source, in the steps and in the tab below."""
    found: dict[str, list[str]] = tab.js(
        "Object.fromEntries(['source', 'steps', 'panel'].map(id => [id, "
        "[...document.querySelectorAll(`#${id} .lit`)].map(e => e.textContent)]))"
    )
    return found


@pytest.mark.spread(3)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["folds", "sized", "trained", "nothing", "marked"])  # "step" has a test of its own
def test_every_page_opens_at_every_width(browser: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    tab = opened(browser, pages[name], width, dark=width == 2560)
    for tab_name in tab.js("smelt.TABS.map(([name]) => name)"):
        tab.js(f"smelt.app.tab('{tab_name}')")
        wide = tab.js("document.documentElement.scrollWidth")
        assert wide <= width, (tab_name, wide)
        assert tab.js("document.getElementById('panel').textContent.trim().length") > 0, tab_name
    assert not tab.errors and not tab.requests, (tab.errors, tab.requests)


def test_a_node_a_line_a_kernel_and_a_buffer_light_each_other(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["folds"])
    line = "h = nn.functional.gelu(self.fc(h))"
    select_line = "[...document.querySelectorAll('#source .line.has')].find(e => e.textContent.includes({}))"
    tab.js(f"{select_line.format(json.dumps(line))}.click()")
    state = tab.state()
    assert len(state["uids"]) >= 2 and state["steps"]
    steps = lit(tab)["steps"]
    assert len(steps) == 1 and "product" in steps[0]
    # The other way round: from the kernel to the line.
    tab.js("smelt.app.select(new Set(), 'keys')")
    assert not any(lit(tab).values())
    tab.js("[...document.querySelectorAll('#steps .step')].find(e => e.textContent.includes('product')).click()")
    assert any(line in text for text in lit(tab)["source"]) and tab.state()["uids"] == state["uids"]
    # From the picture, by a real click in the middle of the node.
    tab.js("smelt.app.select(new Set(), 'keys')")
    tab.js("smelt.app.graph.foldAll(true)")
    tab.js("smelt.app.graph.reveal([smelt.app.plan.last.records.find(r => r.op.includes('gelu')).uid])")
    place = tab.js(
        "(() => { const g = smelt.app.graph, b = g.made.boxes.find(b => b.label.includes('gelu')),"
        "f = g.canvas.getBoundingClientRect(), t = g.transform;"
        "return [f.x + t.applyX(b.X + b.w / 2), f.y + t.applyY(b.Y + b.h / 2)]; })()"
    )
    tab.click(*place)
    assert any(line in text for text in lit(tab)["source"]) and len(lit(tab)["steps"]) == 1
    # A buffer, by its box in the tab of memory.
    tab.js("smelt.app.tab('memory')")
    slot = tab.js("smelt.app.plan.code.steps[smelt.app.state.steps[0]].writes[0]")
    assert tab.js(f"document.querySelector('rect[data-slot=\"{slot}\"]').classList.contains('lit')")
    tab.js("smelt.app.select(new Set(), 'keys')")
    tab.click_on(f'rect[data-slot="{slot}"]')
    assert any(line in text for text in lit(tab)["source"])
    text = tab.js("document.getElementById('node').textContent")
    assert "LLVM" in text and "assembly" in text and "gelu" in text
    tab.click_on(".forms [data-form=LLVM]")
    assert "define" in tab.js("document.querySelector('#node pre.code').textContent")
    assert not tab.errors


def test_the_slider_shows_what_a_pass_did(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["folds"], fragment="#tab=passes")
    names = tab.js("smelt.app.plan.code.stages.map(s => s.name)")
    number = names.index("fold-batch-norm")
    tab.js("document.getElementById('slider').focus()")
    for _ in range(len(names) - 1 - number):
        tab.key("ArrowLeft")
    assert tab.state()["stage"] == number and "fold-batch-norm" in tab.js(
        "document.querySelector('.stage').textContent"
    )
    removed = tab.js("[...document.querySelectorAll('#diff .removed')].map(e => e.textContent)")
    assert any("batch_norm" in text and "now %" in text for text in removed), removed
    # What was removed is lit in the source, and so is what stands for it.
    tab.js(
        "[...document.querySelectorAll('#diff .removed button')]"
        ".find(e => e.textContent.includes('batch_norm')).click()"
    )
    assert any("self.norm(self.conv(x))" in text for text in lit(tab)["source"]) and lit(tab)["steps"]
    tab.js("document.getElementById('canvas').focus()")
    tab.key("[")
    assert tab.state()["stage"] == number - 1
    assert f"stage={number - 1}" in tab.js("location.hash") and not tab.errors


def test_search_finds_and_keys_go_along_edges(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["folds"])
    tab.js("document.body.focus()")
    tab.key("/")
    tab.type("gelu")
    hits = tab.js("[...document.querySelectorAll('#found li')].map(e => e.textContent)")
    assert len(hits) == 1 and "gelu" in hits[0]
    tab.key("Enter")
    (uid,) = tab.js("smelt.app.find('gelu').map(r => r.uid)")
    assert uid in tab.state()["uids"] and any("gelu" in text for text in lit(tab)["source"])
    for query, wanted in (("test_page.py", 5), ("block.fc", 1), ("time>0", 3), ("fellback", 0), ("aten. block", 4)):
        assert len(tab.js(f"smelt.app.find({json.dumps(query)})")) >= wanted, query
    assert tab.js("smelt.app.find('nowhere').length") == 0
    tab.js("document.getElementById('canvas').focus()")
    tab.js(f"(smelt.app.graph.at = smelt.app.graph.made.boxes.find(b => b.uid === {uid})).uid")
    tab.key("ArrowDown")
    after = tab.js("smelt.app.graph.at.label")
    assert "linear" in after
    tab.key("ArrowUp")
    assert tab.js("smelt.app.graph.at.uid") == uid and "gelu" in tab.js("document.getElementById('said').textContent")
    tab.key("Escape")
    assert tab.state()["uids"] == [] and not tab.errors


def test_modules_and_blocks_fold_and_unfold(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["sized"])
    tab.click_on("#fold")
    folded = tab.state()["boxes"]
    labels = tab.js("smelt.app.graph.made.boxes.map(b => b.label)")
    assert {"blocks", "if", "while"} <= set(labels)
    tab.js("smelt.app.graph.toggle(smelt.app.graph.made.boxes.find(b => b.label === 'while'))")
    assert {"test", "body"} <= set(tab.js("smelt.app.graph.made.boxes.map(b => b.label)"))
    place = tab.js(
        "(() => { const g = smelt.app.graph, b = g.made.boxes.find(b => b.label === 'blocks'),"
        "f = g.canvas.getBoundingClientRect(), t = g.transform;"
        "return [f.x + t.applyX(b.X + b.w / 2), f.y + t.applyY(b.Y + b.h / 2)]; })()"
    )
    tab.click(*place, times=2)
    assert {"0", "1"} <= set(tab.js("smelt.app.graph.made.boxes.map(b => b.label)"))
    tab.click_on("#unfold")
    assert tab.state()["boxes"] > folded + 10
    # No box stands over another one beside it, and each lies in the one around it.
    wrong = tab.js(
        "smelt.app.graph.made.boxes.filter(b => b.parent.kind !== 'root' && (b.X < b.parent.X || b.Y < b.parent.Y ||"
        "b.X + b.w > b.parent.X + b.parent.w + .5 || b.Y + b.h > b.parent.Y + b.parent.h + .5)).map(b => b.key)"
    )
    assert wrong == [] and not tab.errors


def test_plans_and_halves_are_chosen(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["sized"])
    assert tab.js("[...document.getElementById('code').options].map(o => o.text)") == ["entry 0", "entry 1, B=5"]
    tab.js("smelt.app.tab('recompiles')")
    assert "(3, 16) → (5, 16)" in tab.js("document.getElementById('panel').textContent")
    tab = opened(browser, pages["trained"])
    assert tab.js("smelt.app.plan.code.half") == "forward"
    tab.js("smelt.app.tab('saved')")
    assert "are kept from the forward to the backward half" in tab.js("document.getElementById('panel').textContent")
    tab.js("smelt.app.setCode(1)")
    tab.js(
        "[...document.querySelectorAll('#source .line.has')].find(e => e.textContent.includes('self.out(h)')).click()"
    )
    assert tab.state()["steps"] and not tab.errors


def test_an_address_leads_to_what_was_selected(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["folds"])
    tab.js("smelt.app.tab('fusion')")
    tab.js("smelt.app.select(new Set([smelt.app.find('gelu')[0].uid]), 'search')")
    state, fragment = tab.state(), tab.js("location.hash")
    again = opened(browser, pages["folds"], fragment=fragment)
    assert {k: again.state()[k] for k in ("tab", "stage", "steps")} == {k: state[k] for k in ("tab", "stage", "steps")}
    assert set(again.state()["uids"]) == set(state["uids"])


def test_markup_in_names_does_nothing(browser: Browser, pages: dict[str, Path]) -> None:
    tab = opened(browser, pages["marked"])
    tab.js("smelt.app.select(new Set(smelt.app.plan.last.records.map(r => r.uid)), 'search')")
    for name in tab.js("smelt.TABS.map(([name]) => name)"):
        tab.js(f"smelt.app.tab('{name}')")
    assert tab.js("window.hit === undefined && document.images.length === 0") and not tab.errors and not tab.requests


def test_a_whole_step_has_a_colour_for_each_of_its_phases(browser: Browser, pages: dict[str, Path]) -> None:
    hidden = "document.querySelector('#colour [value=phase]').hidden"
    assert opened(browser, pages["folds"]).js(hidden)
    tab = opened(browser, pages["step"])
    assert not tab.js(hidden)
    tab.js("{ const c = document.getElementById('colour'); c.value = 'phase'; c.dispatchEvent(new Event('change')); }")
    tab.js("smelt.app.graph.foldAll(true)")
    found = tab.js(
        "(() => { const g = smelt.app.graph, s = smelt.app.colours(), nodes = g.made.boxes.filter(b => b.record);"
        "return Object.fromEntries(Object.entries(s.phase)"
        ".map(([phase, colour]) => [phase, nodes.filter(b => g.fill(b, s) === colour).length])); })()"
    )
    assert all(found[phase] > 0 for phase in ("forward", "backward", "update")), found
    assert "backward" in tab.js("document.getElementById('legend').textContent")
    assert len(tab.js("smelt.app.find('backward mm')")) >= 1 and not tab.errors


def test_a_browser_that_cannot_unpack_the_data_shows_the_report(browser: Browser, pages: dict[str, Path]) -> None:
    tab = browser.tab(1280, 900)
    script = "delete window.DecompressionStream; JSON.parse = () => { throw new Error('no data') };"
    tab.send("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    tab.open(pages["folds"])
    text = tab.js("document.getElementById('missing').textContent")
    assert "cannot be shown here" in text and "own kernels do" in text and "Recompiles" in text
    assert not tab.errors and not tab.requests


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed: npm ci --ignore-scripts in web/")
@pytest.mark.parametrize(
    ("name", "dark", "tabs"),
    [
        ("folds", False, False),
        pytest.param("folds", True, True, marks=pytest.mark.nightly),
        pytest.param("nothing", False, True, marks=pytest.mark.nightly),
        pytest.param("trained", False, True, marks=pytest.mark.nightly),
    ],
)
def test_no_serious_fault_of_accessibility(
    browser: Browser, pages: dict[str, Path], name: str, dark: bool, tabs: bool
) -> None:
    tab = opened(browser, pages[name], dark=dark)
    tab.js(AXE.read_text(encoding="utf-8") + "; 1")
    if name != "nothing":
        tab.js("smelt.app.select(new Set([smelt.app.plan.last.records.at(-1).uid]), 'search')")
    assert faults(tab, "document") == []
    for tab_name in tab.js("smelt.TABS.map(([name]) => name)") if tabs else ():
        tab.js(f"smelt.app.tab('{tab_name}')")
        assert faults(tab, "'#panel'") == [], tab_name


def faults(tab: Tab, where: str) -> Any:
    """What axe-core says of a part of the page that is serious."""
    return tab.js(
        f"axe.run({where}).then(r => r.violations.filter(v => ['serious', 'critical'].includes(v.impact))"
        ".map(v => [v.id, v.nodes.slice(0, 3).map(n => n.html.slice(0, 200) + n.failureSummary)]))"
    )


def page_of(count: int, modules: int) -> Page:
    """A page of a graph with so many nodes, in modules of modules, without a plan."""
    lines = [
        f"  %{i + 1}: f32[4, 4] = aten.add.Tensor(%{i}, %{max(i - 6, 0)}) of layers.{i * modules // count}.part.{i % 3}"
        for i in range(count)
    ]
    text = "\n".join(["graph big(%0: f32[4, 4]) -> f32[4, 4] {", *lines, f"  return %{count}", "}"])
    stages = Stages(Places())
    stages.begin(smelt.parse(text))
    inputs = [("0", "f32[4, 4]")]
    code = Code(
        "big", 0, "", "", inputs, stages.nodes, stages.stages, [], [], [], 0, {}, [], [], [], {}, ["no plan"]
    )  # fmt: skip
    return Page("big", [], "", [], [code], [], "", [], [], [], None, [], "0")


@pytest.mark.parametrize("modules", [1, 60])
def test_five_thousand_nodes_stay_usable(browser: Browser, tmp_path: Path, modules: int) -> None:
    path = tmp_path / "big.html"
    path.write_text(page_html(page_of(5000, modules)), encoding="utf-8")
    assert path.stat().st_size < 1 << 20
    tab = opened(browser, path)
    assert 5 < tab.state()["boxes"] <= 130  # it opens with few boxes, whatever there is
    tab.js("smelt.app.graph.foldAll(true)")
    assert tab.state()["boxes"] >= 5000
    # Moving the graph moves what was painted: it looks as if painted anew, which is done only behind its margin.
    found = tab.js(
        """(async () => {
          const g = smelt.app.graph, frame = () => new Promise(requestAnimationFrame);
          let paints = 0;
          const repaint = g.repaint;
          g.repaint = function () { paints += 1; repaint.call(this); };
          await frame(); await frame();
          const before = paints;
          for (let i = 0; i < 20; i += 1) {
            g.selection.call(g.zoom.translateBy, 3 / g.transform.k, -2 / g.transform.k);
            await frame();
          }
          const moved = paints - before;
          await frame();
          const { width, height } = g.canvas;
          const pixels = () => {
            const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
            copy.drawImage(g.canvas, 0, 0);
            return copy.getImageData(0, 0, width, height).data;
          };
          g.draw();
          const one = pixels();
          g.redraw(); await frame(); await frame();
          const two = pixels();
          let other = 0, ink = 0;
          for (let i = 3; i < one.length; i += 4) { ink += one[i] > 0; other += Math.abs(one[i] - two[i]) > 40; }
          g.selection.call(g.zoom.scaleBy, 2.5); await frame(); g.draw();
          return { moved, other, ink, sharp: g.picture.t.k === g.transform.k };
        })()"""
    )
    assert found["moved"] == 0 and found["sharp"]
    assert found["ink"] > 1000 and found["other"] < 0.02 * found["ink"], found
    uid = tab.js("smelt.app.plan.last.records[4000].uid")
    tab.js("smelt.app.graph.foldAll(false)")
    tab.js(f"smelt.app.select(new Set([{uid}]), 'search')")
    assert tab.js(f"smelt.app.graph.made.boxes.some(b => b.uid === {uid})") and not tab.errors
