"""The top of a report: was it compiled, how much do own kernels do, did it pay, and was it measured at all?"""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.inspect import verdict
from smelt.inspect.kernels import compiled_units
from smelt.inspect.report import KEYS
from smelt.inspect.shares import time_share
from smelt.inspect.verdict import Race, Times, lines_of, race


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32)).eval()


def explained(f: Any, *args: Any, **options: Any) -> smelt.Report:
    compiled = smelt.compile(f, options={"measure": False, **options})
    with torch.no_grad():
        for _ in range(2):
            compiled(*args)
    return smelt.explain(compiled)


def unbroken(report: smelt.Report) -> str:
    return " ".join(str(report).split())


def test_the_verdict_stands_on_top_with_the_share_of_own_kernels() -> None:
    report = explained(layers(), torch.randn(4, 16))
    lines = str(report).splitlines()
    assert lines[2:4] == ["compiled: 1 graph, native code", "own kernels do 100% of the operations"]
    assert "of the time" in str(explained(layers(), torch.randn(4, 16), profile=True))
    kept = explained(layers(), torch.randn(4, 16), own_kernels=False, numerics="eager-library")
    assert kept.verdict["own kernels"]["operations"] < 1


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_what_is_not_compiled_is_said_first() -> None:
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * time.time()

    def many(x: torch.Tensor) -> Any:
        return x.to_sparse()

    for f in (reads, many):
        report = explained(f, torch.ones(3))
        assert report.verdict["what"].startswith(("not compiled, runs in eager mode: ", "compiled: "))
        assert f"{report.name} {report.verdict['what']}" in unbroken(report)
    assert smelt.explain(smelt.compile(reads)).verdict["what"].startswith("not compiled yet")


def test_new_builds_are_part_of_it() -> None:
    compiled = smelt.compile(lambda x, n: x * n, dynamic=False)
    for n in (1, 2, 3):
        compiled(torch.ones(2), n)
    assert smelt.explain(compiled).verdict["what"] == "compiled: 3 graphs, native code, compiled anew 2 times"


def test_times_are_told_with_quartiles_threads_and_load() -> None:
    quiet = Race(Times((4e-3, 2e-3, 3e-3, 6e-3)), Times((1e-3, 1e-3, 2e-3, 1e-3)), 2, 0.25, 0.01)
    assert quiet.lines() == [
        "eager  3.5 ms (quartiles 2.8 ms to 4.5 ms)",
        "smelt  1.0 ms (quartiles 1.0 ms to 1.2 ms): 3.50 times as fast",
        "2 threads, load 0.2, 4 rounds of both, interleaved",
    ]
    busy = Race(quiet.eager, quiet.compiled, 1, 7.0, 0.4)
    assert busy.is_busy and busy.lines()[-1].startswith("busy machine: not a measurement (for 40% of the time")
    even = Race(Times((1.0,)), Times((1.01,)), 1, 0.0, 0.0)
    assert even.worth == "as fast as eager" and even.compiled.quartiles == (1.01, 1.01)
    assert Race(Times((1.0,)), Times((2.0,)), 1, 0.0, 0.0).worth == "0.50 times as fast, slower than eager"


def test_a_machine_is_busy_where_the_threads_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    asleep = race(lambda: (calls.append("eager"), time.sleep(2e-3)), lambda: calls.append("smelt"), 4)
    assert asleep.is_busy and len(asleep.eager.samples) == 4
    # One untimed call of each, then in turns, the first one alternating.
    assert calls[:6] == ["eager", "smelt", "eager", "smelt", "smelt", "eager"]
    counts = iter([0, 10**12])
    monkeypatch.setattr(verdict, "waited_ns", lambda: next(counts))
    assert race(lambda: None, lambda: None, 3).waited == 1.0


def test_a_budget_ends_the_rounds() -> None:
    assert len(race(lambda: None, lambda: None, 1000, budget_s=0.0).eager.samples) == 3


def test_a_sample_is_of_several_calls_behind_as_many_that_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(verdict, "_calls_in", lambda call, seconds: 3)
    found = race(lambda: calls.append("eager"), lambda: calls.append("smelt"), 2, sample_s=1e-3, cpu=True)
    assert calls[2:] == ["eager"] * 6 + ["smelt"] * 12 + ["eager"] * 6
    assert len(found.eager.samples) == 2 and not found.is_busy
    monkeypatch.undo()
    assert verdict._calls_in(lambda: time.sleep(2e-3), 1e-3) == 1
    assert verdict._calls_in(lambda: None, 10.0) == verdict._MOST_CALLS


def test_a_report_takes_times() -> None:
    report = explained(layers(), torch.randn(4, 16))
    timed = report.timed(Race(Times((2e-3,)), Times((1e-3,)), 1, 0.0, 0.0), share=0.5)
    assert "own kernels do 100% of the operations and 50% of the time" in str(timed)
    assert timed.to_dict()["verdict"]["race"]["speed_up"] == 2.0
    assert all(line in timed.to_html() for line in ("eager  2.0 ms", "2.00 times as fast"))
    assert lines_of({}) == []


def test_the_share_of_time_is_measured_and_arguments_stay() -> None:
    def writes(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x.sin().sort().values

    compiled, x = smelt.compile(writes), torch.zeros(16, 16)
    with torch.no_grad():
        compiled(x)
        (unit,) = compiled_units(compiled)
        share = time_share(unit, (x,), {})
    assert share is not None and 0 < share < 1
    assert torch.equal(x, torch.ones(16, 16))


def test_kernels_stand_before_guards_and_words_are_explained() -> None:
    report = explained(layers(), torch.randn(4, 16))
    assert str(report).index("\nKernels") < str(report).index("\nGuards")
    text = unbroken(report)
    assert "Words: kernel: native code of Smelt's own" in text and "state: a weight or a buffer" in text
    assert "dispatcher:" not in text


def test_no_addresses_and_no_internal_names() -> None:
    def asks(x: torch.Tensor, by: Any) -> torch.Tensor:
        for i in range(int(x.sum() > 0) + 1):
            x = by(x) + i
        return x

    reports = [explained(asks, torch.ones(3), f) for f in (torch.sin, lambda x: x * 2, nn.Linear(3, 3))]
    torch._dynamo.reset()
    given = torch.compile(layers(), backend="smelt")
    with torch.no_grad():
        given(torch.randn(2, 16))
    reports.append(smelt.explain(given))
    anew = smelt.compile(asks)
    with torch.no_grad():
        for f in (lambda x: x * 2, lambda x: x * 3):
            anew(torch.ones(3), f)
    reports.append(smelt.explain(anew))
    for report in reports:
        codes = [replace(code, kernels=()) for code in report.page().codes]  # LLVM has floats as 0x...
        page = replace(report.page(), codes=codes, sources=())
        for text in (str(report), report.to_text(everything=True), str(report.to_dict()), str(page)):
            assert not re.search(r"0x[0-9a-f]{6,}|__smelt|_Bound", text)
    torch._dynamo.reset()


def test_every_section_is_in_the_text_at_each_width() -> None:
    report = explained(layers(), torch.randn(4, 16))
    for width in (80, 100, 160):
        for text in (report.to_text(width=width), report.to_text(width=width, everything=True)):
            assert max(map(len, text.splitlines())) <= width
            assert text.count("…") == 0
            # Nothing is said of what is saved where no entry is trained, and of times that nobody asked for.
            others = ("symbols", "timings", "saved", "split")
            assert sum(f"\n{key.title()}" in text or key in others for key in KEYS) == len(KEYS)


def test_the_terminals_width_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    report = explained(layers(), torch.randn(4, 16))
    widths = {}
    for columns in ("80", "160"):
        monkeypatch.setenv("COLUMNS", columns)
        widths[columns] = max(map(len, str(report).splitlines()))
    assert widths["80"] <= 80 < widths["160"] <= 160
