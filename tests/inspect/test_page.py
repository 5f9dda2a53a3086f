"""The data of a page: whatever refers to something finds it, and what is not there is said."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections import OrderedDict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.cli import main
from smelt.inspect.page.html import model_of, scripts
from smelt.inspect.page.model import Page

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "src/smelt/inspect/page/assets"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.out = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        h = nn.functional.gelu(self.fc(h))
        return x + self.out(h)  # the residual


class Decides(nn.Module):
    """Modules within modules, a branch and a loop on data, and what a library does."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        if x.sum() > 0:
            x = x * 2
        else:
            x = x - 1
        while x.abs().max() > 1:
            x = x / 2
        return torch.softmax(self.head(x * 1.0), -1).sort()[0]


def decides() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Decides().eval(), (torch.randn(3, 16),)


def compiled() -> Any:
    model, (x,) = decides()
    made = smelt.compile(model)
    with torch.no_grad():
        made(x), made(torch.randn(5, 16))
    return made


@pytest.fixture(scope="module")
def page() -> Page:
    return smelt.explain(compiled()).page()


def check(page: Page) -> None:
    """Whether all of a page's references resolve, and its JSON is what it is."""
    data = page.to_dict()
    assert json.loads(json.dumps(data)) == json.loads(json.dumps(model_of(_html(page))))
    shown = [{number for number, _ in source.lines} for source in page.sources]
    for code in page.codes:
        uids = {record.uid for record in code.nodes}
        for record in code.nodes:
            assert all(line in shown[source] for source, line in record.at)
            assert record.parent == -1 or record.parent in uids
        for stage in code.stages:
            records = [code.nodes[index] for index in stage.records]
            names = [name for record in records for name in record.names]
            assert len(set(names)) == len(names) and len({r.uid for r in records}) == len(records)
            known = {
                *names,
                *(name for name, _ in code.inputs),
                *(p for r in records for a in r.arms for p in a.params),
            }
            assert {name for record in records for name in record.inputs} <= known and set(stage.outputs) <= known
            assert all(to in uids for found in stage.led.values() for to in found)
        last = {name for index in code.stages[-1].records for name in code.nodes[index].names}
        assert {name for step in code.steps for name in step.nodes} <= last
        assert all(-1 <= step.kernel < len(code.kernels) for step in code.steps)
        assert set(code.ran) <= last and all(set(d.nodes) <= last for d in code.decisions)
        assert all(0 <= b.first <= b.last <= len(code.steps) for b in code.buffers)
        assert all(b.offset + b.nbytes <= code.arena for b in code.buffers if b.offset >= 0)


def _html(page: Page) -> str:
    from smelt.inspect.page.html import page_html

    return page_html(page)


def test_all_references_resolve(page: Page) -> None:
    check(page)
    (code, *_) = page.codes
    assert {step.kind for step in code.steps} >= {"kernel", "dispatcher"} and all(
        k.loops and k.llvm for k in code.kernels
    )
    lines = {page.sources[s].lines[n - 1][1].strip() for r in code.nodes for s, n in r.at if page.sources[s].own}
    assert "return x + self.out(h)  # the residual" in lines
    (loop,) = [r for r in code.nodes if r.op == "while"]
    assert [arm.what for arm in loop.arms] == ["test", "body"]
    assert any(r.parent == loop.uid and r.arm == 1 for r in code.nodes)


def test_values_that_made_a_call_compile_anew_stand_apart(page: Page) -> None:
    (one,) = page.recompiles
    assert (one.what, one.old, one.new, one.times) == ("shape of args[0]", "(3, 16)", "(5, 16)", 1)
    assert any(not guard.usual for guard in page.guards) and any(guard.usual for guard in page.guards)


def test_a_pass_tells_what_became_of_nodes() -> None:
    class Folds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.norm(self.conv(x)))

    made = smelt.compile(Folds().eval())
    with torch.no_grad():
        made(torch.randn(1, 3, 8, 8))
    (code,) = smelt.explain(made).page().codes
    stages = {stage.name: stage for stage in code.stages}
    folded = stages["fold-batch-norm"]
    (norm,) = {r.uid for i in code.stages[0].records if "batch_norm" in (r := code.nodes[i]).op}
    assert norm in folded.led and norm not in {code.nodes[i].uid for i in folded.records}
    later = {code.nodes[i].uid: code.nodes[i].op for i in folded.records}
    assert "aten.conv2d.default" in {later[uid] for uid in folded.led[norm] if uid in later}
    assert folded.picture and folded.edits["erase"]


def test_the_first_stage_is_what_the_program_called_mutation_and_all() -> None:
    def writes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        y = y.clone()
        y[1:] = 3
        return torch.relu_(y) + x

    made = smelt.compile(writes)
    with torch.no_grad():
        made(torch.randn(3, 4), torch.randn(3, 4)), made(torch.randn(3, 4), torch.randn(3, 4))
    page = smelt.explain(made).page()
    check(page)
    (code,) = page.codes
    assert [stage.name for stage in code.stages[:2]] == ["captured", "functionalize"]
    called, functional = ({code.nodes[i].op: code.nodes[i].uid for i in s.records} for s in code.stages[:2])
    assert "aten.add_.Tensor" in called and "write" not in called
    assert "aten.add_.Tensor" not in functional and "write" in functional
    # What was in place is followed to what stands for it.
    assert functional["aten.relu.default"] in code.stages[1].led[called["aten.relu_.default"]]
    # A program that writes nothing begins with the graph that it had.
    pure = smelt.compile(lambda x: x.sin() + 1)
    with torch.no_grad():
        pure(torch.ones(2)), pure(torch.ones(2))
    assert "functionalize" not in [stage.name for stage in smelt.explain(pure).page().codes[0].stages]


def whole_step() -> Any:
    """A compiled step: loss, backward and update."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    made = smelt.compile(step)
    for _ in range(2):
        made(torch.randn(5, 4), torch.randn(5, 1))
    return made


def test_of_a_whole_step_forward_backward_and_update_are_told_apart() -> None:
    page = smelt.explain(whole_step()).page()
    check(page)
    code = page.codes[0]
    last = {code.nodes[i].uid: code.nodes[i] for i in code.stages[-1].records}
    phases = {phase: {last[uid].op for uid in last if code.phases.get(uid) == phase} for phase in code.phases.values()}
    assert {"aten.linear.default", "aten.tanh.default", "aten.mean.default"} <= phases["forward"]
    assert "aten.mm.default" in phases["backward"] and "aten.linear.default" not in phases["backward"]
    assert phases["update"] == {"aten.add.Tensor", "write"}
    assert all(uid in code.phases for uid, record in last.items() if record.op not in ("param", "buffer", "captured"))
    made = smelt.compile(Block().eval())
    with torch.no_grad():
        made(torch.randn(2, 16))
    assert smelt.explain(made).page().codes[0].phases == {}


def test_huge_constants_do_not_make_a_huge_page() -> None:
    large, numbers = torch.randn(1000, 1000), list(range(20_000))

    def reads(x: torch.Tensor) -> torch.Tensor:
        return x + large.sum() + torch.tensor(numbers)[:3].sum()

    made = smelt.compile(reads)
    with torch.no_grad():
        made(torch.ones(3)), made(torch.ones(3))
    report = smelt.explain(made)
    check(report.page())
    assert len(report.to_html()) < 400_000
    assert max(len(record.text) for record in report.page().codes[0].nodes) <= 400


def test_without_scripts_the_page_has_the_reports_text() -> None:
    _, _, text = smelt.explain(marked()).to_html().partition("<noscript>")
    text, _, _ = text.partition("</noscript>")
    assert "Smelt report: Sequential" in text and "compiled: 1 graph" in text
    assert "<img" not in text


def test_a_call_is_measured_where_it_leaves_nothing() -> None:
    model, args = decides()
    before = args[0].clone()
    with torch.no_grad():
        timed = smelt.explain(model, *args).page()
    assert any(step.us for step in timed.codes[0].steps) and torch.equal(args[0], before)

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    counts = Counts()
    page = smelt.explain(counts, torch.ones(2)).page()
    assert float(counts.count) == 1 and not any(step.us for step in page.codes[0].steps)
    assert any(text.startswith("times") for text in page.missing)


def test_of_a_program_that_is_trained_both_halves_are_there() -> None:
    block = Block()
    made = smelt.compile(block, options={"train": True})
    made(torch.randn(3, 16)).sum().backward()
    page = smelt.explain(made).page()
    check(page)
    forward, backward = page.codes
    assert (forward.half, backward.half) == ("forward", "backward") and backward.stages[-1].records
    by_line = {page.sources[s].lines[n - 1][1].strip() for r in backward.nodes for s, n in r.at if page.sources[s].own}
    assert "return x + self.out(h)  # the residual" in by_line
    report = smelt.explain(made)
    assert {row["half"] for row in report.kernels if "kernel" in row} == {"forward", "backward"}
    assert {row.get("half") for row in report.passes} >= {"forward", "backward"}
    assert {row.get("half") for row in report.memory} == {"forward", "backward"}
    told = {row["value"]: row for row in report.saved}
    assert told["fc.weight"]["bytes"] == 0 and any(
        row["bytes"] and "test_page.py" in row["why"] for row in report.saved
    )
    assert "Saved for the backward half" in str(report) and "backward: natively" in report.graphs[0]["runs"]
    assert "aten" in report.graphs[0]["backward half"]
    kept = [saved for saved in forward.saved if saved.nbytes]
    assert kept and all(saved.why for saved in forward.saved) and not backward.saved


def test_a_program_without_graph_has_a_page_that_says_why() -> None:
    def reads(x: torch.Tensor) -> Any:
        return x.numpy()

    made = smelt.compile(reads)
    with pytest.warns(smelt.SmeltWarning):
        made(torch.ones(2))
    for thing in (made, smelt.compile(lambda x: x + 1)):
        page = smelt.explain(thing).page()
        check(page)
        assert page.missing and not page.codes


def test_pieces_programs_and_graphs_of_dynamo_have_pages() -> None:
    def pieces(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x)
        open("/dev/null").close()
        return torch.cos(y)

    split = smelt.compile(pieces)
    with pytest.warns(smelt.SmeltWarning):
        split(torch.ones(3)), split(torch.ones(3))
    model, args = decides()
    program = smelt.trace(model, args)
    torch._dynamo.reset()
    given = torch.compile(Block().eval(), backend="smelt")
    with torch.no_grad():
        program(*args), given(torch.randn(2, 16))
    for thing in (split, program, given):
        page = smelt.explain(thing).page()
        check(page)
        assert page.codes or page.remarks
    torch._dynamo.reset()


class _Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.urls += [value for key, value in attrs if key in ("src", "href")]


MARKUP = "</script><img src=x onerror=hit=1>"


def marked() -> Any:
    """A compiled module whose parts are named with markup."""
    made = smelt.compile(nn.Sequential(OrderedDict([(MARKUP, nn.Linear(4, 4)), ("then", nn.ReLU())])))
    with torch.no_grad():
        made(torch.randn(2, 4))
    return made


def test_markup_in_names_stays_text() -> None:
    report = smelt.explain(marked())
    text = report.to_html()
    parsed, plain = _Elements(), _Elements()
    parsed.feed(text)
    plain.feed(smelt.explain(smelt.compile(torch.sin)).to_html())
    assert parsed.tags.count("script") == plain.tags.count("script") and "img" not in parsed.tags
    assert parsed.urls == [] and "Content-Security-Policy" in text
    assert MARKUP in json.dumps(model_of(text))
    assert "<img" not in report._repr_html_()


def test_large_data_are_packed(page: Page) -> None:
    assert len(json.dumps(page.to_dict())) > 256 << 10
    text = _html(page)
    assert "application/zlib" in text and len(text) < 600_000
    with pytest.raises(ValueError, match="not a page"):
        model_of("<html></html>")


def test_the_command_writes_a_measured_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["smelt", "explain", f"{__file__}:decides", "--html", str(tmp_path / "m.html")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    model = model_of((tmp_path / "m.html").read_text(encoding="utf-8"))
    assert model["roof"]["gflops"] > 0 and any(step["us"] for step in model["codes"][0]["steps"])
    assert any("times as fast" in line or "as fast as eager" in line for line in model["verdict"])


def test_vendored_libraries_are_the_pinned_ones() -> None:
    """`npm run build` in web/ makes vendor.js; its head has each package, its version and its licence."""
    text = (ASSETS / "vendor.js").read_text(encoding="utf-8")
    lock = json.loads((ROOT / "web/package-lock.json").read_text())["packages"]
    pinned = json.loads((ROOT / "web/package.json").read_text())["devDependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
    for name in ("@dagrejs/dagre", "d3-selection", "d3-zoom"):
        assert f"\n{name} {pinned[name]}\n" in text and lock[f"node_modules/{name}"]["version"] == pinned[name]
    assert text.count("Permission is hereby granted") + text.count("Permission to use, copy") >= 10
    _, _, code = text.partition("*/\n")
    assert hashlib.sha256(code.encode()).hexdigest() == (ROOT / "web/vendor.sha256").read_text().strip()


def test_no_script_of_the_page_makes_markup_of_text() -> None:
    for name in scripts()[1:]:
        text = (ASSETS / name).read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(", text
        )


def test_an_installed_package_has_the_pages_files() -> None:
    made = (ROOT / "pyproject.toml").read_text()
    assert '"inspect/page/assets/*"' in made
    found = subprocess.run(
        [sys.executable, "-c", "import smelt; print(len(smelt.explain(smelt.compile(abs)).to_html()) > 150_000)"],
        capture_output=True, text=True, cwd="/", check=True,
    )  # fmt: skip
    assert found.stdout.strip() == "True"
